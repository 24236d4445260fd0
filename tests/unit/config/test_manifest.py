"""Templates on a shelf: manifests that are read or refused with the way out, and directories that are whole or not there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.config import manifest, shelf
from space.config.artefacts import Store, TemplateManifest
from space.host import files
from space.model.errors import Conflict, NotFound

DIGEST, OTHER = "a" * 32, "b" * 32
PLAIN = TemplateManifest("base", DIGEST, "c" * 32, "d" * 32, "e" * 32, 4096, 1, "6.1", "Debian", env={"A": "1"}, start=("x", "y"))


def test_manifest_is_read_as_it_was_written() -> None:
    assert manifest.load(PLAIN.text().encode(), DIGEST) == PLAIN


def test_what_set_up_wrote_before_there_were_versions_is_whole() -> None:
    first = {
        name: asdict(PLAIN)[name]
        for name in ("name", "digest", "kernel", "initramfs", "qemu", "disk_bytes", "protocol", "kernel_release", "source")
    }
    assert manifest.load(json.dumps(first).encode(), DIGEST) == replace(PLAIN, env={}, start=())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 3}, "version 3"),
        ({"version": 1}, ""),
        ({"complete": False}, "never completed"),
        ({"digest": OTHER}, f"that of {OTHER}"),
        ({"kernel": "../../etc"}, "not a digest"),
        ({"surprise": 1}, "'surprise', which is not known"),
        ({"env": {"A=B": ""}}, "env is not right"),
        ({"start": "sh"}, "start is not right"),
        ({"disk_bytes": -1}, "disk_bytes is not right"),
        ({"kind": "other"}, "kind is not right"),
    ],
)
def test_manifest_that_cannot_be_used_is_refused_with_reason_and_way_out(change: dict[str, object], words: str) -> None:
    raw = json.loads(PLAIN.text()) | change
    if change == {"version": 1}:
        del raw["parent"]
    with pytest.raises(Conflict) as refused:
        manifest.load(json.dumps(raw).encode(), DIGEST)
    assert words in refused.value.message
    assert "space template rebake" in (refused.value.hint or "")


@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(Conflict):
        manifest.load(data, DIGEST)


@given(st.sampled_from(sorted(manifest.AUTHORS)), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()))
def test_authors_half_is_strict(name: str, value: object) -> None:
    raw = json.loads(PLAIN.settings())
    assert manifest.settings(json.dumps(raw))["env"] == {"A": "1"}
    if not manifest.AUTHORS[name](value):
        with pytest.raises(ValueError, match=name):
            manifest.settings(json.dumps(raw | {name: value}))
    with pytest.raises(ValueError, match="lacks"):
        manifest.settings(json.dumps({key: each for key, each in raw.items() if key != name}))
    with pytest.raises(ValueError, match="kernel"):
        manifest.settings(json.dumps(raw | {"kernel": DIGEST}))


@pytest.fixture
def held(tmp_path: Path) -> Iterator[int]:
    descriptor = files.open_directory(tmp_path)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("disk") / "disk.img"
    path.write_bytes(b"disk" * 1024)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_template_is_committed_whole_once(held: int, disk: int, tmp_path: Path) -> None:
    assert shelf.commit(held, disk, PLAIN, gid=os.getgid())
    assert not shelf.commit(held, disk, PLAIN, gid=os.getgid())
    assert [entry.name for entry in tmp_path.iterdir()] == [DIGEST]
    assert (tmp_path / DIGEST / "disk.img").read_bytes() == b"disk" * 1024
    assert oct((tmp_path / DIGEST / "disk.img").stat().st_mode & 0o777) == "0o400"
    store = Store(tmp_path / "artefacts", tmp_path)
    assert store.template_by_digest(DIGEST) == PLAIN
    assert store.own_templates() == [PLAIN]
    with pytest.raises(Conflict, match=f"kernel {PLAIN.kernel}"):
        store.stands(PLAIN)


def test_full_disk_leaves_nothing_half(held: int, disk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for owner, name in ((files, "clone"), (TemplateManifest, "write")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            with pytest.raises(OSError, match="No space"):
                shelf.commit(held, disk, PLAIN, gid=os.getgid())
        assert list(tmp_path.iterdir()) == []
    assert shelf.commit(held, disk, PLAIN, gid=os.getgid())


def test_what_a_crash_left_is_tidied_and_never_seen(held: int, disk: int, tmp_path: Path) -> None:
    shelf.commit(held, disk, PLAIN, gid=os.getgid())
    (tmp_path / ".stage-1").mkdir()
    (tmp_path / ".stage-1/disk.img").write_bytes(b"half")
    (tmp_path / ".gone-1").mkdir()
    assert Store(tmp_path / "artefacts", tmp_path).own_templates() == [PLAIN]
    assert sorted(shelf.tidy(held)) == [".gone-1", ".stage-1"]
    assert [entry.name for entry in tmp_path.iterdir()] == [DIGEST]
    assert shelf.drop(held, DIGEST)
    assert not shelf.drop(held, DIGEST)
    assert list(tmp_path.iterdir()) == []


def test_template_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Store(tmp_path, tmp_path / "own").template_by_digest(DIGEST)
    assert Store(tmp_path, tmp_path / "own").own_templates() == []


def test_what_an_older_version_wrote_is_salvaged_and_nothing_else_is_believed() -> None:
    old = json.loads(PLAIN.text()) | {
        "version": 1,
        "env": {"A=B": ""},
        "kernel": "../../etc",
        "later": 1,
        "root": "f" * 64,
        "tenant": "acme",
    }
    del old["parent"], old["hooks"]
    found = manifest.salvage(json.dumps(old).encode(), DIGEST)
    assert (found.tenant, found.start, found.root, found.env, found.kernel) == ("acme", ("x", "y"), "f" * 64, {}, "")
    assert manifest.settings(found.settings())["start"] == ("x", "y")


@pytest.mark.parametrize("change", [{"complete": False}, {"digest": OTHER}, {"complete": 1}])
def test_what_was_never_a_template_is_not_salvaged(change: dict[str, object]) -> None:
    with pytest.raises(Conflict):
        manifest.salvage(json.dumps(json.loads(PLAIN.text()) | change).encode(), DIGEST)
    with pytest.raises(Conflict):
        manifest.salvage(b"[" * 9000, DIGEST)
