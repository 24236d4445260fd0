"""Promises about files, on a real guest: holes stay holes, and what cannot be is told by name."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import space
from space.model.errors import Conflict, NotFound

MIB = 1 << 20
BIG = 2_100_000_000
MARKS = ((0, b"begin"), (1_000_000_000, b"middle"), (BIG - 3, b"end"))


def sparse(path: Path) -> Path:
    """2.1 GB of which a few blocks are data."""
    with path.open("wb") as file:
        file.truncate(BIG)
        for at, piece in MARKS:
            os.pwrite(file.fileno(), piece, at)
    return path


def check(path: Path) -> None:
    """It is that file, as small as it was."""
    assert (path.stat().st_size, path.stat().st_blocks * 512 < 64 << 10) == (BIG, True)
    with path.open("rb") as file:
        for at, piece in MARKS:
            assert os.pread(file.fileno(), len(piece), at) == piece
        assert os.lseek(file.fileno(), 4096, os.SEEK_DATA) >= 1_000_000_000 - 4096


def inside(sandbox: space.Sandbox, path: str) -> None:
    """The same, seen from within."""
    for at, piece in MARKS:
        assert sandbox.files.read(path, offset=at, length=len(piece)) == piece
    found = sandbox.files.stat(path)
    assert found.size == BIG
    assert found.allocated < 64 << 10


def test_a_sparse_file_of_two_gigabytes_is_moved_with_its_holes(shared: space.Sandbox, tmp_path: Path) -> None:
    local = sparse(tmp_path / "big")
    begun = time.monotonic()
    sent = shared.upload(local, "/home/user/big")
    assert sent.bytes < MIB
    inside(shared, "big")
    came = shared.download("/home/user/big", tmp_path / "back")
    assert came.bytes == BIG
    print(f"2.1 GB of holes there and back in {time.monotonic() - begun:.1f} s")
    check(tmp_path / "back")
    shared.files.remove("big")


def test_a_sparse_file_in_a_tree_is_moved_with_its_holes(shared: space.Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tree/deep").mkdir(parents=True)
    sparse(tmp_path / "tree/deep/-big ü\n")
    data = random.Random(3).randbytes(3 * MIB)
    (tmp_path / "tree/deep/dense").write_bytes(data)
    with (tmp_path / "tree/comb").open("wb") as comb:
        for tooth in range(500):
            os.pwrite(comb.fileno(), b"%d" % tooth, tooth * 16384)
    shared.upload(tmp_path / "tree", "/home/user/tree")
    inside(shared, "tree/deep/-big ü\n")
    shared.download("/home/user/tree", tmp_path / "back")
    check(tmp_path / "back/deep/-big ü\n")
    assert (tmp_path / "back/deep/dense").read_bytes() == data
    assert (tmp_path / "back/comb").read_bytes() == (tmp_path / "tree/comb").read_bytes()
    assert (tmp_path / "back/comb").stat().st_blocks <= (tmp_path / "tree/comb").stat().st_blocks
    shared.run(["rm", "-r", "tree"], check=True)


def test_tar_of_the_guest_and_of_people_keep_holes_as_well(shared: space.Sandbox, tmp_path: Path) -> None:
    """GNU tar in the guest reads what we write, and we read what it writes."""
    sparse(tmp_path / "big")
    shared.upload(tmp_path / "big", "big")
    shared.run("mkdir t && tar --format=posix -cSf t/a.tar big && rm big && tar -xf t/a.tar -C t", check=True)
    inside(shared, "t/big")
    pieces = b"".join(shared.get_tar("/home/user/t/big"))
    assert len(pieces) < MIB
    shared.files.write("t/b.tar", pieces)
    shared.run("mkdir t/2 && tar -xf t/b.tar -C t/2", check=True)
    inside(shared, "t/2/big")
    (tmp_path / "a.tar").write_bytes(shared.files.read("t/a.tar"))
    with (tmp_path / "a.tar").open("rb") as archive:
        shared.put_tar(iter(lambda: archive.read(MIB), b""), "/home/user/t/3")
    inside(shared, "t/3/big")
    shared.run(["rm", "-r", "t"], check=True)


@pytest.mark.full
def test_a_sparse_file_of_two_gigabytes_is_written_and_read_as_a_file(shared: space.Sandbox, tmp_path: Path) -> None:
    """Without a tree its zeros travel; they take no room on either end."""
    begun = time.monotonic()
    with sparse(tmp_path / "big").open("rb") as file:
        shared.files.write("big", file)
    written = time.monotonic()
    assert shared.files.stat("big").size == BIG
    assert shared.files.stat("big").allocated < 8 * MIB
    with (tmp_path / "back").open("wb") as back, (tmp_path / "big").open("rb") as file:
        for piece in shared.files.stream("big"):
            assert file.read(len(piece)) == piece
            back.write(piece)
    assert (tmp_path / "back").stat().st_size == BIG
    print(f"2.1 GB written in {written - begun:.1f} s, read in {time.monotonic() - written:.1f} s")
    shared.files.remove("big")


def test_missing_is_not_found_and_a_directory_is_told_from_a_file(shared: space.Sandbox, tmp_path: Path) -> None:
    files = shared.files
    files.mkdir("place")
    for ask in (
        files.read,
        files.stat,
        files.remove,
        lambda path: list(files.list(path)),
        lambda path: shared.download(path, tmp_path / "x"),
    ):
        with pytest.raises(NotFound):
            ask("/home/user/nowhere")
    calls: tuple[Callable[[], object], ...] = (
        lambda: files.read("place"),
        lambda: files.write("place", b"x"),
        lambda: files.mkdir("place"),
    )
    for wrong in calls:
        with pytest.raises(Conflict, match="place"):
            wrong()
    files.write("place/file", b"x")
    with pytest.raises(Conflict, match="place/file"):
        list(files.list("place/file"))
    files.remove("place", recursive=True)


def test_links_are_followed_inside_the_guest_only(shared: space.Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    shared.files.symlink("out", str(secret))
    with pytest.raises(NotFound):
        shared.files.read("out")
    shared.files.write("out2", b"inside")
    shared.files.symlink("in", "out2")
    assert shared.files.read("in") == b"inside"
    with pytest.raises(NotFound):
        shared.files.write("out", b"x")  # to where the guest has no such directory
    assert secret.read_text() == "the host's"
    for name in ("out", "out2", "in"):
        shared.files.remove(name)
