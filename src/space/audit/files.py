"""Records on a disk: a chain over several files, what vouches for it beside them; verified and exported by whoever can read them.

<writer>.<number of its first record, 20 digits>.jsonl     lines of the chain, oldest file first
<writer>.head        how far the broker vouches for it, replaced every second in which something is new
<writer>.base        if the oldest files were removed: up to where, vouched for as well
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from space.audit.chain import MOST_LINE, START, Holds, Problem, ending, verify

_LONGEST = MOST_LINE + 128
_NAME = re.compile(r"([a-z][a-z0-9-]{0,31})\.([0-9]{20})\.jsonl\Z")


@dataclass(frozen=True, slots=True)
class Segment:
    """One file. first: the number of its first record."""

    path: Path
    first: int


@dataclass(frozen=True, slots=True)
class FileFinding:
    """Something that is wrong. file: its name, empty for what concerns the whole; line: counted from 1 in that file, 0 for none."""

    problem: Problem
    file: str
    line: int
    message: str


@dataclass(frozen=True, slots=True)
class FilesVerified:
    """records: how many the broker vouches for, those that were removed on purpose included. unvouched: chained, written after the head."""

    records: int
    unvouched: int
    findings: tuple[FileFinding, ...]

    @property
    def intact(self) -> bool:
        """Whether nothing was removed, changed or put in another order. A torn last line alone is a crash."""
        return all(finding.problem == "torn" for finding in self.findings)


def segment_name(writer: str, first: int) -> str:
    """A file's name."""
    return f"{writer}.{first:020d}.jsonl"


def segments(directory: Path, writer: str) -> list[Segment]:
    """A writer's files, oldest first."""
    found = []
    for path in directory.iterdir():
        match = _NAME.match(path.name)
        if match and match[1] == writer:
            found.append(Segment(path, int(match[2])))
    return sorted(found, key=lambda segment: segment.first)


def verify_files(directory: Path, writer: str, public: Holds, *, floor: tuple[int, bytes] | None = None) -> FilesVerified:
    """What a writer's files are worth. public: the broker's key; floor: how far the broker itself remembers to have vouched."""
    base = _small(directory / f"{writer}.base")
    present = segments(directory, writer)
    begin = _said(base)[0]
    # A crash between the word that files are removed and their end leaves them behind.
    while len(present) > 1 and present[1].first <= begin + 1:
        del present[0]
    begun: list[tuple[int, str]] = []
    found = verify(_lines(present, begun), _small(directory / f"{writer}.head"), writer, public, base=base, floor=floor)
    findings = []
    for finding in found.findings:
        name, before = "", 0
        for lines, file in begun:
            if lines < finding.line:
                name, before = file, lines
        findings.append(FileFinding(finding.problem, name, finding.line - before, finding.message))
    return FilesVerified(found.records, found.unvouched, tuple(findings))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the records; None: whatever it is. since, until: RFC 3339 in UTC, as in the records; until is not included."""

    sandbox: str | None = None
    kinds: frozenset[str] | None = None
    name: str | None = None
    since: str | None = None
    until: str | None = None
    denied: bool = False


def export(directory: Path, writer: str, wanted: Wanted = Wanted()) -> Iterator[bytes]:
    """The lines that are wanted, oldest first, as they are in the files. What is no record is passed over: `verify_files` tells of it."""
    for line in _lines(segments(directory, writer), []):
        try:
            fields = msgspec.json.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            continue
        if isinstance(fields, dict) and _is_wanted(fields, wanted):
            yield line


def last_record(path: Path) -> tuple[int, bytes]:
    """(count, hash) of a file's last whole record. ValueError when there is none."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 2 * _LONGEST))
        whole = [line for line in file.read().split(b"\n")[:-1] if line]
    if not whole:
        raise ValueError(f"{path.name} holds no record")
    return ending(whole[-1] + b"\n")


def read_said(path: Path) -> tuple[int, bytes]:
    """(count, hash) of a head or base as it is written there, whether or not it is true; (0, zeros) without one."""
    return _said(_small(path))


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of one file, none longer than a record can be."""
    with path.open("rb") as file:
        while line := file.readline(_LONGEST):
            yield line


def _lines(present: list[Segment], begun: list[tuple[int, str]]) -> Iterator[bytes]:
    number = 0
    for segment in present:
        begun.append((number, segment.path.name))
        for line in lines_of(segment.path):
            number += 1
            # Only the newest file can end in the middle of a record because of a crash.
            torn = segment is present[-1] and len(line) < _LONGEST
            yield line if torn or line.endswith(b"\n") else line + b"\n"


def _is_wanted(fields: dict[str, Any], wanted: Wanted) -> bool:
    at = str(fields.get("at", ""))
    return (
        (wanted.sandbox is None or fields.get("sandbox") == wanted.sandbox)
        and (wanted.kinds is None or fields.get("type") in wanted.kinds)
        and (wanted.name is None or fields.get("name") == wanted.name)
        and (wanted.since is None or at >= wanted.since)
        and (wanted.until is None or at < wanted.until)
        and (not wanted.denied or bool(fields.get("reason")))
    )


def _small(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(4096)
    except FileNotFoundError:
        return None


def _said(text: bytes | None) -> tuple[int, bytes]:
    try:
        fields = msgspec.json.decode(text or b"")
        count, last = fields["n"], bytes.fromhex(fields["h"])
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, ValueError):
        return 0, START
    return (count, last) if isinstance(count, int) and len(last) == 32 else (0, START)
