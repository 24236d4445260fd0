"""One process's output on this machine's disk: segments of records (`core.wire.spool`), the oldest of which can be dropped.

    <sandbox's directory>/<process>.<number of the segment>

A position counts the bytes of all segments from the first one on; readers keep one and never hold up anybody. What was produced a moment
ago is in memory as well, for readers that keep up: they cost no look at the disk.

`output`, `input` and `finish` put records into memory, and cannot fail. `flush` writes them, in one write, into the page cache (no fsync: a
power cut ends the machines, too). It raises OSError when the disk takes nothing (full), and then nothing is lost: call it again. No
descriptor stays open: opening costs a few microseconds, and there may be hundreds of processes in each of hundreds of sandboxes.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from space.core.wire import spool as codec
from space.core.wire.spool import End, Head, Input

SEGMENTS = 8  # of a quota: dropping the oldest loses an eighth of it
MIN_SEGMENT = 64 << 10
_RECENT = 256 << 10  # bytes of output that are kept in memory for readers that keep up
_RECENT_RECORDS = 512
_CHUNK = 256 << 10  # read of the disk at once
_MOST_RECORD = codec.MAX_PAYLOAD + codec.OVERHEAD


@dataclass(slots=True)
class Account:
    """Bytes of all spools of a sandbox."""

    bytes: int = 0


class Piece(NamedTuple):
    """Some output. offset: bytes of that lane before it."""

    lane: int
    offset: int
    payload: bytes


class Batch(NamedTuple):
    """What a read found. jumped: where it had to begin (offsets), when the position asked for is no more. next: read on there."""

    jumped: tuple[int, int] | None
    pieces: list[Piece]
    next: int


class _Recent(NamedTuple):
    start: int
    end: int
    piece: Piece


@dataclass(slots=True)
class _Segment:
    """number: of its file. start: its position. first: offsets of both lanes at its begin. bare: its size when it held a head only."""

    number: int
    start: int
    first: tuple[int, int]
    size: int
    bare: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Spool:
    """Make it with `begin` or `load`. lanes: bytes of each output so far."""

    __slots__ = (
        "_account", "_directory", "_most", "_prefix", "_recent", "_recent_bytes", "_segments", "_unwritten", "_written", "end", "head",
        "lanes", "stdin", "watched",
    )  # fmt: skip

    def __init__(self, directory: Path, head: Head, account: Account) -> None:
        self.head = head
        self.lanes = [head.stdout, head.stderr]
        self.stdin = Input(head.stdin_bytes, head.stdin_closed)
        self.end: End | None = None
        self.watched = False  # somebody reads along
        self._directory = directory
        self._prefix = f"{directory}/{head.process}."
        self._account = account
        self._segments: list[_Segment] = []
        self._recent: list[_Recent] = []
        self._recent_bytes = 0
        self._unwritten: list[bytes] = []
        self._written = 0  # the position up to which the disk has it
        self._most = max(head.quota // SEGMENTS, MIN_SEGMENT)

    @classmethod
    def begin(cls, directory: Path, head: Head, account: Account) -> Spool:
        """A new one; nothing is on the disk before the first `flush`."""
        spool = cls(directory, head, account)
        spool._rotate(0)
        return spool

    @property
    def size(self) -> int:
        """Bytes on the disk, with those that still have to go there."""
        return self._segments[-1].end - self._segments[0].start if self._segments else 0

    @property
    def first(self) -> tuple[int, int]:
        """Offsets of the oldest bytes that are kept."""
        return self._segments[0].first

    @property
    def tail(self) -> int:
        """The position behind everything."""
        return self._segments[-1].end

    @property
    def oldest_end(self) -> int:
        """Readers before this position lose something when the oldest segment is dropped."""
        return self._segments[0].end

    @property
    def unwritten(self) -> int:
        """Bytes that are in memory alone."""
        return self.tail - self._written

    # -- writing -------------------------------------------------------------------------------------------------

    def output(self, lane: int, payload: bytes) -> None:
        """The process wrote this."""
        size = len(payload) + codec.OVERHEAD
        last = self._segments[-1]
        if last.size + size > self._most and last.size > last.bare:
            self._rotate(last.number + 1)
        piece = Piece(lane, self.lanes[lane], payload)
        self._append(codec.encode(codec.OUTPUT, payload, lane, piece.offset), piece)
        self.lanes[lane] += len(payload)

    def input(self, taken: int, *, closed: bool) -> None:
        """Its machine has taken so much of standard input."""
        self.stdin = Input(taken, closed)
        self._append(codec.encode_struct(codec.INPUT, self.stdin), None)

    def finish(self, end: End) -> None:
        """It has ended."""
        self.end = end
        self._append(codec.encode_struct(codec.END, end), None)

    def flush(self) -> None:
        """Write what is in memory alone; OSError when the disk does not take it."""
        while self._written < self.tail:
            segment = next(each for each in self._segments if each.end > self._written)
            room = segment.end - self._written
            data, taken = _first_bytes(self._unwritten, room)
            self._write(segment, self._written - segment.start, data)
            del self._unwritten[:taken]
            self._written += room
        self._trim()

    def drop_oldest(self) -> bool:
        """Drop the oldest segment; False when there is no other whose head is on the disk. The last one is ended for it if it is large."""
        last = self._segments[-1]
        if len(self._segments) == 1 and last.size - last.bare >= MIN_SEGMENT:
            self._rotate(last.number + 1)
        if len(self._segments) > 1 and self._written <= self._segments[1].start:
            with suppress(OSError):
                self.flush()
        if len(self._segments) == 1 or self._written <= self._segments[1].start:
            return False
        gone = self._segments.pop(0)
        self._account.bytes -= gone.size
        self._unlink(gone)
        self._trim()
        return True

    def remove(self) -> None:
        """Drop everything; nothing may be written any more."""
        for segment in self._segments:
            self._unlink(segment)
        self._account.bytes -= self.size
        self._segments.clear()
        self._recent.clear()
        self._unwritten.clear()

    def light(self) -> None:
        """It has ended and is written: of long arguments only the disk's copy is kept (see `argv`)."""
        if sum(map(len, self.head.argv)) > 1024:
            self.head = msgspec.structs.replace(self.head, argv=[])

    def head_at(self, stdout: int, stderr: int) -> Head:
        """The head of a spool of the same process that begins at these offsets."""
        return msgspec.structs.replace(
            self.head, argv=self.argv(), stdout=stdout, stderr=stderr, stdin_bytes=self.stdin.bytes, stdin_closed=self.stdin.closed
        )

    def argv(self) -> list[bytes]:
        """The arguments, from the disk if they are not in memory."""
        if self.head.argv:
            return self.head.argv
        head = _head_of(self._path(self._segments[-1]))
        return head.argv if head is not None else []

    def _append(self, record: bytes, piece: Piece | None) -> None:
        segment = self._segments[-1]
        start = segment.end
        segment.size += len(record)
        self._account.bytes += len(record)
        self._unwritten.append(record)
        if piece is not None:
            self._recent.append(_Recent(start, segment.end, piece))
            self._recent_bytes += len(piece.payload)

    def _rotate(self, number: int) -> None:
        before = self._segments[-1].end if self._segments else 0
        self.head = msgspec.structs.replace(
            self.head, stdout=self.lanes[0], stderr=self.lanes[1], stdin_bytes=self.stdin.bytes, stdin_closed=self.stdin.closed
        )
        self._segments.append(_Segment(number, before, (self.lanes[0], self.lanes[1]), 0, 0))
        self._append(codec.encode_struct(codec.HEAD, self.head), None)
        self._segments[-1].bare = self._segments[-1].size

    def _trim(self) -> None:
        """Forget of what is in memory that which nobody needs there: it is on the disk, or was dropped."""
        most, records = (_RECENT, _RECENT_RECORDS) if self.watched else (0, 0)
        drop = 0
        kept = self._recent_bytes
        oldest = self._segments[0].start
        for each in self._recent:
            wanted = kept <= most and len(self._recent) - drop <= records
            if each.start >= oldest and (wanted or each.end > self._written):
                break
            kept -= len(each.piece.payload)
            drop += 1
        if drop:
            del self._recent[:drop]
            self._recent_bytes = kept

    def _write(self, segment: _Segment, at: int, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        path = self._path(segment)
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o600)
        try:
            view = memoryview(data)
            while view:  # what a full disk cut off is written over by the next try
                done = os.pwrite(descriptor, view, at)
                view, at = view[done:], at + done
        finally:
            os.close(descriptor)

    def _path(self, segment: _Segment) -> str:
        return f"{self._prefix}{segment.number:08d}"

    def _unlink(self, segment: _Segment) -> None:
        if segment.start < self._written:
            with suppress(FileNotFoundError):
                os.unlink(self._path(segment))  # noqa: PTH108 (a Path costs ten times the call)

    # -- reading -------------------------------------------------------------------------------------------------

    def seek(self, stdout: int, stderr: int) -> int:
        """The position from which nothing is missing behind these offsets; reading from there may repeat what was before them."""
        ends = [*(each.first for each in self._segments), (self.lanes[0], self.lanes[1])][1:]
        for segment, (out, err) in zip(self._segments, ends, strict=True):
            if out > stdout or err > stderr:
                return segment.start
        return self.tail

    def read(self, position: int) -> Batch:
        """Output from a position on, some 256 KiB of it. What has rotted on the disk is jumped over, to the next segment."""
        oldest = self._segments[0]
        jumped = None
        if position < oldest.start:
            position, jumped = oldest.start, oldest.first
        if position >= self._written or (self._recent and position >= self._recent[0].start):
            pieces, position = self._from_memory(position)
            return Batch(jumped, pieces, position)
        segment = next(each for each in self._segments if each.end > position)
        found = self._from_disk(segment, position)
        if found is None:
            following = next((each for each in self._segments if each.start >= segment.end), None)
            if following is None:
                return Batch((self.lanes[0], self.lanes[1]), [], self.tail)
            return Batch(following.first, [], following.start)
        pieces, position = found
        return Batch(jumped, pieces, position)

    def _from_memory(self, position: int) -> tuple[list[Piece], int]:
        at = bisect_left(self._recent, position, key=lambda each: each.start)
        pieces: list[Piece] = []
        size = 0
        for each in self._recent[at:]:
            if size >= _CHUNK:
                return pieces, position
            pieces.append(each.piece)
            size += len(each.piece.payload)
            position = each.end
        return pieces, self.tail

    def _from_disk(self, segment: _Segment, position: int) -> tuple[list[Piece], int] | None:
        """Pieces and where they end; None when the bytes there are no record of ours any more."""
        most = min(segment.end, self._written) - position
        size = min(_CHUNK, most)
        while True:
            try:
                data = _bytes_of(self._path(segment), position - segment.start, size)
            except OSError:
                return None
            pieces: list[Piece] = []
            end = 0
            for record in codec.records(data):
                if record.kind == codec.OUTPUT:
                    pieces.append(Piece(record.lane, record.offset, record.payload))
                end = record.end
                if record.kind == codec.END:
                    end += codec.FOOTER
            if end:
                return pieces, position + end
            if size >= min(most, _MOST_RECORD):
                return None
            size = min(_MOST_RECORD, most)

    # -- after a restart -----------------------------------------------------------------------------------------

    @classmethod
    def load(cls, directory: Path, process: str, numbers: Iterable[int], account: Account) -> Spool | None:
        """The spool that an earlier node wrote, without a tail that is torn; None when nothing of it can be used (its files are gone then).

        Only the tail of the last segment is read, and of one that runs all of its last segment: the others were whole before it began.
        """
        files = [_Segment(number, 0, (0, 0), 0, 0) for number in sorted(numbers)]
        usable: list[tuple[_Segment, Head]] = []
        for segment in files:
            path = directory / f"{process}.{segment.number:08d}"
            head = _head_of(path)
            if head is None or head.process != process:
                path.unlink(missing_ok=True)
                continue
            if usable and segment.number != usable[-1][0].number + 1:
                for gone, _ in usable:
                    (directory / f"{process}.{gone.number:08d}").unlink(missing_ok=True)
                usable.clear()
            usable.append((replace(segment, first=(head.stdout, head.stderr), size=path.stat().st_size), head))
        if not usable:
            return None
        spool = cls(directory, usable[-1][1], account)
        position = 0
        for segment, head in usable:
            bare = len(codec.encode_struct(codec.HEAD, head))
            spool._segments.append(replace(segment, start=position, bare=bare))
            position += segment.size
        spool._read_tail()
        account.bytes += spool.size
        return spool

    def _read_tail(self) -> None:
        last = self._segments[-1]
        path = self._path(last)
        end = codec.read_end(_bytes_of(path, max(last.size - 4096, 0), 4096))
        if end is not None:
            self.end = end
            self.lanes = [end.stdout, end.stderr]
            self.stdin = Input(end.stdin_bytes, closed=True)
        else:
            found = codec.scan(Path(path).read_bytes())
            assert found is not None, "its head was read"
            self.lanes = [found.stdout, found.stderr]
            self.stdin = found.input
            if last.size > found.size:
                os.truncate(path, found.size)
                last.size = found.size
        self._written = last.end


def spools_in(directory: Path) -> dict[str, list[int]]:
    """The segments' numbers of every process that has a spool there."""
    found: dict[str, list[int]] = {}
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            process, dot, number = entry.name.partition(".")
            if dot and number.isdecimal() and process.startswith("pr-"):
                found.setdefault(process, []).append(int(number))
    return found


def _first_bytes(parts: list[bytes], size: int) -> tuple[bytes, int]:
    """So many bytes of the parts, which are whole records, and how many parts they are."""
    taken, have = 0, 0
    while have < size:
        have += len(parts[taken])
        taken += 1
    return b"".join(parts[:taken]), taken


def _bytes_of(path: str | Path, at: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.pread(descriptor, size, at)
    finally:
        os.close(descriptor)


def _head_of(path: str | Path) -> Head | None:
    try:
        size = codec.head_size(_bytes_of(path, 0, 16))
        return codec.read_head(_bytes_of(path, 0, size)) if size else None
    except OSError:
        return None
