"""The memory of another process: which of its mappings is a guest's memory, which pages of that are its own, and a copy of these.

Linux says of each page of a mapping (`/proc/PID/pagemap`) whether it is there and whether it belongs to a file. A page that is there and
belongs to none was written since the mapping was made: it is what a private mapping differs by from its file.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

from space.host import syscalls

PAGE = 4096
_ENTRY = 8
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)")
# The highest byte of an entry: 0x80 present, 0x40 swapped, 0x20 of a file (or shared)
_OWN = bytes(1 if entry & 0xC0 and not entry & 0x20 else 0 for entry in range(256))
_RUN = re.compile(rb"\x01+")
_ZEROS = bytes(PAGE)
_BATCH_BYTES, _BATCH_RUNS = 4 << 20, 1000  # of one process_vm_readv, which takes 1,024 pieces


class Unrecognized(Exception):
    """A process's mappings are not as a VMM of ours has them."""


def find(pid: int, size: int, *, backed: bool) -> int:
    """Where the guest's memory of `size` bytes begins. backed: a private mapping of a file; otherwise memory of the process alone.

    QEMU puts an inaccessible page behind a guest's memory, so memory of its own ends where such a mapping begins, also when the
    kernel has joined it with what lies before. Unrecognized unless there is exactly one.
    """
    found, before = [], (0, 0, "")
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        match = _MAPPING.match(line)
        if match is None:
            raise Unrecognized(f"process {pid} has a mapping that is not understood: {line[:100]!r}")
        start, end, kind, inode = int(match[1], 16), int(match[2], 16), match[3], int(match[4])
        if backed and inode and kind == "rw-p" and end - start == size:
            found.append(start)
        if not backed and kind == "---p" and before[1] == start and before[2] == "rw-p" and before[1] - before[0] >= size:
            found.append(start - size)
        before = (start, end, kind if not inode else "")
    if len(found) != 1:
        raise Unrecognized(f"process {pid} has {len(found)} mappings that look like a guest's memory of {size} bytes")
    return found[0]


def own_runs(pid: int, start: int, size: int) -> list[tuple[int, int]]:
    """The process's own pages of a mapping, in runs: (offset, bytes)."""
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:  # noqa: PTH123 (unbuffered)
        raw = os.pread(file.fileno(), size // PAGE * _ENTRY, start // PAGE * _ENTRY)
    if len(raw) != size // PAGE * _ENTRY:
        raise Unrecognized(f"process {pid} tells of {len(raw) // _ENTRY} pages where {size // PAGE} are wanted")
    own = raw[_ENTRY - 1 :: _ENTRY].translate(_OWN)
    return [(run.start() * PAGE, (run.end() - run.start()) * PAGE) for run in _RUN.finditer(own)]


class Room:
    """Memory to read pages into while a VM stands still; they are written when it runs again. Touched here, so that reading only copies."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, max(size, PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        self.size = size

    def take(self, pid: int, start: int, runs: list[tuple[int, int]]) -> bool:
        """Read these runs of a mapping that begins at `start`; False when there is too little room, and nothing was read."""
        if sum(size for _, size in runs) > self.size:
            return False
        at = 0
        for batch in _batches(runs, self.size):
            at += syscalls.read_memory(pid, [(start + offset, size) for offset, size in batch], self._map, at)
        return True

    def write(self, runs: list[tuple[int, int]], target: int, *, skip_zeros: bool) -> int:
        """Write what was taken of these runs to the same places of a file; the bytes that were written.

        skip_zeros: the file is new, and a page of zeros may stay a hole.
        """
        at = written = 0
        with memoryview(self._map) as view:
            for offset, size in runs:
                for place, length in self._pieces(view, at, size) if skip_zeros else ((at, size),):
                    with view[place : place + length] as piece:
                        _write(target, piece, offset + place - at)
                    written += length
                at += size
        return written

    def close(self) -> None:
        """Give it back."""
        self._map.close()

    @staticmethod
    def _pieces(view: memoryview, at: int, size: int) -> Iterator[tuple[int, int]]:
        """What of it is not pages of zeros."""
        begin = -1
        for place in range(at, at + size, PAGE):
            if bytes(view[place : place + PAGE]) == _ZEROS:
                if begin >= 0:
                    yield begin, place - begin
                begin = -1
            elif begin < 0:
                begin = place
        if begin >= 0:
            yield begin, at + size - begin


def copy(pid: int, start: int, runs: list[tuple[int, int]], target: int, *, skip_zeros: bool) -> int:
    """`Room.take` and `Room.write` by turns, with little room; the bytes that were written."""
    room, written = Room(_BATCH_BYTES), 0
    try:
        for batch in _batches(runs, _BATCH_BYTES):
            room.take(pid, start, batch)
            written += room.write(batch, target, skip_zeros=skip_zeros)
    finally:
        room.close()
    return written


def _batches(runs: list[tuple[int, int]], most: int) -> Iterator[list[tuple[int, int]]]:
    """Runs in lists of at most so many bytes, and no more than one system call takes."""
    batch: list[tuple[int, int]] = []
    room = most
    for begin, size in runs:
        offset = begin
        while offset < begin + size:
            piece = min(begin + size - offset, room)
            batch.append((offset, piece))
            offset, room = offset + piece, room - piece
            if not room or len(batch) == _BATCH_RUNS:
                yield batch
                batch, room = [], most
    if batch:
        yield batch


def _write(target: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(target, data[done:], offset + done)
