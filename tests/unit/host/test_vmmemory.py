"""The memory of another process: found, and its own pages copied, on processes of this machine."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from space.host import vmmemory
from space.host.vmmemory import PAGE

SIZE = 96 * PAGE


# A program of its own: a child of the tests' process would have its threads' stacks, which look like a guest's memory too.
_PROGRAM = """
import ctypes, mmap, os, pickle, sys
body, size, page, written = pickle.load(sys.stdin.buffer)
if body is None:
    area = mmap.mmap(-1, size + page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + size), page, 0)
else:
    area = mmap.mmap(os.open(body, os.O_RDWR), size, mmap.MAP_PRIVATE)
    area[5 * page]  # read, and so there, but the file's
for at, data in written.items():
    area[at * page : at * page + len(data)] = data
os.write(1, b"x")
os.read(0, 1)
os._exit(0)
"""


@contextmanager
def another(body: Path | None, written: dict[int, bytes]) -> Iterator[int]:
    """A process with a mapping of SIZE, private over a file or of its own with an inaccessible page behind it, in which it wrote pages."""
    with subprocess.Popen([sys.executable, "-I", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pickle.dump((None if body is None else str(body), SIZE, PAGE, written), process.stdin)
        process.stdin.flush()
        assert process.stdout.read(1) == b"x"
        try:
            yield process.pid
        finally:
            process.stdin.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_private_mapping_copied_over_a_copy_of_its_file_is_what_the_process_sees(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    base, target = tmp_path / "base", tmp_path / "target"
    base.write_bytes(chance.randbytes(SIZE))
    target.write_bytes(base.read_bytes())
    written = {page: chance.randbytes(chance.choice((1, 100, PAGE))) for page in chance.sample(range(96), chance.randrange(1, 96))}
    wanted = bytearray(base.read_bytes())
    for page, data in written.items():
        wanted[page * PAGE : page * PAGE + len(data)] = data
    with another(base, written) as pid:
        start = vmmemory.find(pid, SIZE, backed=True)
        runs = vmmemory.own_runs(pid, start, SIZE)
        assert {page for offset, size in runs for page in range(offset // PAGE, (offset + size) // PAGE)} == set(written)
        descriptor = os.open(target, os.O_RDWR)
        room = vmmemory.Room(len(written) * PAGE)
        assert room.take(pid, start, runs)
        assert room.write(runs, descriptor, skip_zeros=False) == len(written) * PAGE
        room.close()
        small = vmmemory.Room(0)
        assert not small.take(pid, start, runs), "there was no room for it"
        small.close()
        os.close(descriptor)
    assert target.read_bytes() == bytes(wanted)
    assert base.read_bytes() != target.read_bytes()


def test_memory_of_its_own_is_found_before_the_inaccessible_page_and_zeros_stay_holes(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with another(None, {0: b"a", 40: bytes(PAGE), 41: b"b" * PAGE, 95: b"c"}) as pid, target.open("w+b") as file:
        file.truncate(SIZE)
        start = vmmemory.find(pid, SIZE, backed=False)
        runs = vmmemory.own_runs(pid, start, SIZE)
        assert vmmemory.copy(pid, start, runs, file.fileno(), skip_zeros=True) == 3 * PAGE
        data = target.read_bytes()
    assert data.replace(b"\0", b"") == b"a" + b"b" * PAGE + b"c"
    assert (data[0], data[41 * PAGE], data[95 * PAGE]) == (ord("a"), ord("b"), ord("c"))


def test_a_process_without_such_a_mapping_is_not_guessed_at() -> None:
    with another(None, {}) as pid, pytest.raises(vmmemory.Unrecognized, match="0 mappings"):
        vmmemory.find(pid, 1 << 44, backed=True)
    with pytest.raises(FileNotFoundError):
        vmmemory.find(2**22 + 1, SIZE, backed=True)
