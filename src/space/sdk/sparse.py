"""Files with holes in a tar stream, in GNU's form 1.0: records of the pax header name the file and its real size, and its content
begins with a map of the segments that hold data (decimal numbers, a line each: how many, then offset and length of each).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from space.model.errors import UnsafeArchive

BLOCK = 512
MOST = 16_384  # segments; what lies behind so many goes as one with its holes
_DIGITS = 19
_PREFIX = b"GNU.sparse."
_NEEDED = {b"major", b"minor", b"name", b"realsize"}
_KNOWS_HOLES = hasattr(os, "SEEK_DATA")


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes of a file that are not a hole."""

    at: int
    length: int


@dataclass(frozen=True, slots=True)
class Hole:
    """So many zeros of a file that take no room."""

    bytes: int


def segments(descriptor: int, status: os.stat_result) -> tuple[Segment, ...] | None:
    """Of an open file; None when it has no holes, or its file system knows of none."""
    size = status.st_size
    if not _KNOWS_HOLES or status.st_blocks * BLOCK >= size:
        return None
    found: list[Segment] = []
    at = 0
    try:
        while at < size and (begin := _seek(descriptor, at, os.SEEK_DATA)) is not None and begin < size:
            last = len(found) + 1 == MOST - 1
            end = size if last else min(_seek(descriptor, begin, os.SEEK_HOLE) or size, size)
            if end <= begin:
                break  # somebody makes it shorter meanwhile
            found.append(Segment(begin, end - begin))
            at = end
    except OSError:
        return None
    if found == [Segment(0, size)]:
        return None
    if at < size:
        found.append(Segment(size, 0))  # as GNU tar marks the end of a file that ends in a hole
    return tuple(found)


def _seek(descriptor: int, at: int, whence: int) -> int | None:
    try:
        return os.lseek(descriptor, at, whence)
    except OSError as error:
        if error.errno == errno.ENXIO:  # no data from there on
            return None
        raise


def map_of(found: Sequence[Segment]) -> bytes:
    """The map as it stands in the content."""
    text = f"{len(found)}\n" + "".join(f"{segment.at}\n{segment.length}\n" for segment in found)
    return text.encode() + bytes(-len(text) % BLOCK)


def records(name: str, size: int) -> dict[str, str]:
    """The pax records of a file with holes."""
    return {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name, "GNU.sparse.realsize": str(size)}


def judge(pax: Mapping[bytes, bytes]) -> tuple[bytes, int] | None:
    """Name and real size of a file with holes; None without such records. UnsafeArchive for those of another form."""
    found = {key[len(_PREFIX) :]: value for key, value in pax.items() if key.startswith(_PREFIX)}
    if not found:
        return None
    if set(found) != _NEEDED or (found[b"major"], found[b"minor"]) != (b"1", b"0"):
        raise UnsafeArchive("the archive holds a sparse file in another form than GNU's 1.0")
    size = found[b"realsize"]
    if not size.isdigit() or len(size) > _DIGITS:
        raise UnsafeArchive("the archive holds a sparse file whose size is no number")
    return found[b"name"], int(size)


class MapReader:
    """A map that comes in blocks. packed: bytes of the entry's content, the map included; size: of the file."""

    def __init__(self, packed: int, size: int) -> None:
        self._left = packed
        self._size = size
        self._count: int | None = None
        self._start: int | None = None
        self._pending = b""
        self._found: list[Segment] = []
        self._end = 0

    def take(self, block: bytes) -> tuple[Segment, ...] | None:
        """The next 512 bytes; the segments when they were the last.

        They ascend, stay within the size, and fill the content exactly, or UnsafeArchive says what is wrong.
        """
        self._left -= BLOCK
        if self._left < 0:
            raise UnsafeArchive("the map of a sparse file does not end")
        *lines, rest = (self._pending + block).split(b"\n")
        for number, line in enumerate(lines):
            self._line(line)
            if self._count == len(self._found):
                return self._finish(b"\n".join([*lines[number + 1 :], rest]))
        if len(rest) > _DIGITS:
            raise UnsafeArchive("the map of a sparse file is no list of numbers")
        self._pending = rest
        return None

    def _line(self, line: bytes) -> None:
        if not line.isdigit() or len(line) > _DIGITS:
            raise UnsafeArchive("the map of a sparse file is no list of numbers")
        number = int(line)
        if self._count is None:
            if number > MOST:
                raise UnsafeArchive(f"the map of a sparse file names {number} segments", hint=f"at most {MOST} are accepted")
            self._count = number
        elif self._start is None:
            self._start = number
        else:
            at, self._start = self._start, None
            if at < self._end:
                raise UnsafeArchive("the segments of a sparse file overlap or do not ascend")
            self._end = at + number
            if self._end > self._size:
                raise UnsafeArchive("a segment of a sparse file lies beyond its size")
            self._found.append(Segment(at, number))

    def _finish(self, rest: bytes) -> tuple[Segment, ...]:
        if rest.strip(b"\0") or sum(segment.length for segment in self._found) != self._left:
            raise UnsafeArchive("the content of a sparse file is not what its map says")
        return tuple(self._found)


def plan(found: Sequence[Segment], size: int) -> list[tuple[int, int]]:
    """What follows the map: bytes of hole, then bytes of data, again and again, to the end of the file."""
    steps = []
    at = 0
    for segment in found:
        steps.append((segment.at - at, segment.length))
        at = segment.at + segment.length
    return [*steps, (size - at, 0)]
