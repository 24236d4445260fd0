"""Files below a held directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from space.host import files


@pytest.fixture
def held(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_text("inside")
    (tmp_path / "outside").write_text("outside")
    descriptor = files.open_directory(tmp_path / "in")
    yield descriptor
    os.close(descriptor)


def _opened(directory: int, path: str) -> bytes:
    descriptor = files.open_beneath(directory, path, os.O_RDONLY)
    try:
        return os.read(descriptor, 100)
    finally:
        os.close(descriptor)


def test_file_below_is_opened_and_closed_on_exec(held: int) -> None:
    assert _opened(held, "file") == b"inside"
    descriptor = files.open_beneath(held, "file", os.O_RDONLY)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("path", ["../outside", "/etc/hostname", "sub/../../outside", "link", "directory/outside", "magic/fd/0"])
def test_way_out_is_refused(held: int, tmp_path: Path, path: str) -> None:
    (tmp_path / "in" / "sub").mkdir()
    (tmp_path / "in" / "link").symlink_to("file")
    (tmp_path / "in" / "directory").symlink_to("..")
    (tmp_path / "in" / "magic").symlink_to("/proc/self")
    with pytest.raises(OSError, match=r"openat2|Errno") as caught:
        _opened(held, path)
    assert caught.value.errno in (errno.EXDEV, errno.ELOOP)


def test_record_is_replaced_whole(held: int, tmp_path: Path) -> None:
    files.write_json(held, "record", {"a": 1})
    reader = (tmp_path / "in" / "record").open()
    files.write_json(held, "record", {"a": 2})
    assert reader.read() == '{"a": 1}'
    assert files.read_json(held, "record") == {"a": 2}
    assert (tmp_path / "in" / "record").stat().st_mode & 0o777 == 0o600
    with pytest.raises(TypeError):
        files.write_json(held, "record", {"a": object()})
    assert files.read_json(held, "record") == {"a": 2}
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["file", "record"]


def test_record_that_is_too_large_is_refused(held: int, tmp_path: Path) -> None:
    (tmp_path / "in" / "record").write_text('"' + "x" * 100 + '"')
    with pytest.raises(ValueError, match="record is larger than 50 bytes"):
        files.read_json(held, "record", limit=50)


def test_copy_is_equal_and_keeps_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.write(os.urandom(100_000))
        file.seek(40 << 20)
        file.write(os.urandom(70_000))
        file.truncate(80 << 20)
    with source.open("rb") as one, target.open("wb") as two:
        files.clone(one.fileno(), two.fileno())
    assert target.stat().st_size == 80 << 20
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks <= source.stat().st_blocks + 64


def test_tree_is_removed_and_links_are_not_followed(held: int, tmp_path: Path) -> None:
    tree = tmp_path / "in" / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "file").write_text("x")
    (tree / "out").symlink_to(tmp_path)
    (tree / "deep" / "file-link").symlink_to(tmp_path / "outside")
    files.remove_tree(held, "tree")
    files.remove_tree(held, "tree")
    assert not tree.exists()
    assert (tmp_path / "outside").read_text() == "outside"
    assert (tmp_path / "in" / "file").exists()
