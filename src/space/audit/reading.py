"""Records by their place, out of the files while they are being written: bounded pages, found without reading what is before them.

    page(directory, "gateway", place, end=...) -> Page          the next one begins behind its `place`

A reader needs nothing of the writer but how far it is (`end`): what lies behind that may be a write that is taken back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from space.audit.chain import MOST_LINE
from space.audit.files import Segment, segments

_LONGEST = MOST_LINE + 128
MOST_LOOKED_AT = 262_144


@dataclass(frozen=True, slots=True)
class Page:
    """lines: without their ends. place: of the last record that was looked at. more: whether the chain goes on behind it.

    removed: the last record that is kept no longer although it was asked for; 0 when none is missing.
    """

    lines: list[bytes]
    place: int
    more: bool
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records; empty: all. Looked for in the bytes: in JSON text no quote of a value stands unescaped, so only a field can match."""

    sandbox: str = ""
    denied: bool = False
    since: str = ""

    def takes(self, line: bytes) -> bool:
        """Whether it is one of them."""
        return (
            (not self.sandbox or b'"sandbox":"%s"' % self.sandbox.encode() in line)
            and (not self.denied or b'"reason":' in line)
            and (not self.since or _at(line) >= self.since)
        )


class _Numbered(msgspec.Struct):
    n: int = 0
    at: str = ""


_NUMBERED = msgspec.json.Decoder(_Numbered)


def page(
    directory: Path,
    writer: str,
    place: int,
    *,
    end: int,
    wanted: Filter = Filter(),
    most: int = 100,
    most_bytes: int = 65_536,
    most_looked_at: int = MOST_LOOKED_AT,
) -> Page:
    """What follows record `place`, up to record `end`: at most so many lines, or bytes of them, or bytes that are looked at."""
    lines: list[bytes] = []
    size = looked_at = 0
    removed = 0
    present = segments(directory, writer)
    if present and present[0].first > place + 1:
        removed = place = present[0].first - 1
    if wanted.since:
        place = max(place, _before(present, wanted.since))
    for segment in _from(present, place):
        # Retention may remove it now: the next page says so.
        with suppress(FileNotFoundError), segment.path.open("rb") as file:
            file.seek(_behind(file, place))
            while place < end and (line := file.readline(_LONGEST)).endswith(b"\n"):
                place = _number(line) or place + 1
                looked_at += len(line)
                if wanted.takes(line):
                    lines.append(line[:-1])
                    size += len(line)
                if len(lines) >= most or size >= most_bytes or looked_at >= most_looked_at:
                    return Page(lines, place, place < end, removed)
    return Page(lines, max(place, removed), place < end and bool(looked_at), removed)


def _from(present: list[Segment], place: int) -> list[Segment]:
    """The files that may hold something behind that record."""
    first = max((number for number, segment in enumerate(present) if segment.first <= place + 1), default=0)
    return present[first:]


def _behind(file: BinaryIO, place: int) -> int:
    return _offset(file, lambda line: _number(line) > place)


def _before(present: list[Segment], since: str) -> int:
    """A record before every one of that time or later; clocks that were set back make it too early, never too late by a file."""
    found = 0
    for segment in reversed(present):
        with suppress(FileNotFoundError), segment.path.open("rb") as file:
            if segment is not present[0] and _at(file.readline(_LONGEST)) >= since:
                continue
            file.seek(_offset(file, lambda line: _at(line) >= since))
            line = file.readline(_LONGEST)
            found = (_number(line) if line.endswith(b"\n") else _last(file)) - 1
            break
    return max(found, 0)


def _last(file: BinaryIO) -> int:
    """One behind the number of a file's last whole record."""
    return _number_before(file, file.seek(0, os.SEEK_END)) + 1


def _number_before(file: BinaryIO, end: int) -> int:
    begin = max(0, end - 2 * _LONGEST)
    file.seek(begin)
    whole = [line for line in file.read(end - begin).split(b"\n")[(1 if begin else 0) : -1] if line]
    return _number(whole[-1]) if whole else 0


def _offset(file: BinaryIO, behind: Callable[[bytes], bool]) -> int:
    """Where the first line stands for which that holds, of a file in which it holds for all after the first; its end if for none."""
    low, high = 0, file.seek(0, os.SEEK_END)
    while low < high:
        middle = (low + high) // 2
        file.seek(middle)
        if middle:
            file.seek(middle - 1)
            file.readline()  # the rest of the line that the byte before belongs to
        start = file.tell()
        line = file.readline(_LONGEST) if start < high else b""
        if not line.endswith(b"\n") or behind(line):
            high = middle
        else:
            low = start + len(line)
    return low


def _number(line: bytes) -> int:
    return _numbered(line).n


def _at(line: bytes) -> str:
    return _numbered(line).at


def _numbered(line: bytes) -> _Numbered:
    try:
        return _NUMBERED.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _Numbered()
