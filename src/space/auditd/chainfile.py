"""The writing end of one chain on the disk: append whole records or nothing, go on after a crash, begin a new file in time.

    open (torn tail cut off) -> append ... -> rotate -> append ... -> sync -> (head) -> expired -> (base) -> remove

`append` returns when the records are in the file: they survive this process. `sync` puts them on the disk: they survive a power cut.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from space.audit.chain import START, Writer, head_line, resume
from space.audit.files import Segment, last_record, lines_of, read_said, segment_name, segments
from space.model.errors import Conflict

log = logging.getLogger("space.auditd")


@dataclass(frozen=True, slots=True)
class Keeping:
    """How records are kept. size: bytes of a file, and age: its seconds, before the next is begun. files, seconds: what is kept of them."""

    size: int = 64 << 20
    age: float = 86_400.0
    files: int = 64
    seconds: float = 90 * 86_400.0


class ChainFile:
    """Of one writer. now: seconds since 1970. Conflict: what is there is no chain, and nothing is written behind it."""

    def __init__(self, directory: Path, writer: str, keeping: Keeping, now: Callable[[], float]) -> None:
        self.directory = directory
        self._keeping = keeping
        self._now = now
        self.writer = writer
        self._closed, current = self._found()
        self._path = current.path
        self._chain = self._resumed(current)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        self._first = current.first
        self._began = self._path.stat().st_mtime if self._size else now()
        _sync_directory(directory)

    @property
    def end(self) -> tuple[int, bytes]:
        """(count, hash) of the last record."""
        return self._chain.count, self._chain.last

    @property
    def descriptor(self) -> int:
        """Of the newest file."""
        return self._descriptor

    def append(self, records: Iterable[Mapping[str, Any] | bytes]) -> None:
        """Write them all, or none and OSError (then the file is as it was)."""
        chain = self._chain.copy()
        data = b"".join([chain.line(record) for record in records])
        if self._size and (self._size + len(data) > self._keeping.size or self._now() - self._began > self._keeping.age):
            self._rotate()
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            # Shortening needs no space. Were it refused, the next life would cut the torn record off.
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)
        self._chain = chain

    def sync(self) -> None:
        """Put what was appended on the disk."""
        os.fdatasync(self._descriptor)

    def hash_at(self, count: int) -> bytes | None:
        """The hash of that record, or of what was removed before the first; None when it is not here."""
        if count == self._chain.count:
            return self._chain.last
        base = read_said(self.directory / f"{self.writer}.base")
        if count == base[0]:
            return base[1]
        holding = [segment for segment in segments(self.directory, self.writer) if segment.first <= count]
        if not holding:
            return None
        for number, line in enumerate(lines_of(holding[-1].path), holding[-1].first):
            if number == count:
                with suppress(ValueError):
                    return bytes.fromhex(line[-67:-3].decode("ascii"))
        return None

    def keep_head(self, count: int, last: bytes, mac: bytes) -> None:
        """Replace the head, on the disk when this returns."""
        self._replace(f"{self.writer}.head", head_line(self.writer, count, last, mac))

    def expired(self) -> tuple[int, bytes] | None:
        """Where the chain would begin if what is too much or too old were removed; None when nothing is."""
        oldest = self._now() - self._keeping.seconds
        removable = self._closed[: max(0, len(self._closed) + 1 - self._keeping.files)]
        for segment in self._closed[len(removable) :]:
            if segment.path.stat().st_mtime >= oldest:
                break
            removable.append(segment)
        return last_record(removable[-1].path) if removable else None

    def remove(self, count: int, last: bytes, mac: bytes) -> None:
        """Say durably that the records up to there are removed, then remove their files."""
        self._replace(f"{self.writer}.base", head_line(self.writer, count, last, mac))
        self._drop(count)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _found(self) -> tuple[list[Segment], Segment]:
        base = read_said(self.directory / f"{self.writer}.base")[0]
        self._closed = segments(self.directory, self.writer)
        self._first = 0
        self._drop(base)
        present = self._closed
        if not present:
            return [], Segment(self.directory / segment_name(self.writer, base + 1), base + 1)
        return present[:-1], present[-1]

    def _resumed(self, current: Segment) -> Writer:
        try:
            after = last_record(self._closed[-1].path) if self._closed else read_said(self.directory / f"{self.writer}.base")
            if after[0] != current.first - 1:
                raise ValueError(f"it begins at record {current.first}, and the one before it ends at {after[0]}")
            if not current.path.exists():
                return Writer(self.writer, *(after if after[0] else (0, START)))
            chain = resume(lines_of(current.path), self.writer, after=after)
        except ValueError as error:
            raise Conflict(
                f"{current.path} is not the end of the chain of {self.writer}: {error}",
                hint="verify the records, set the directory aside, and let the broker begin that chain anew",
            ) from error
        _cut_torn(current.path)
        return chain

    def _rotate(self) -> None:
        first = self._chain.count + 1
        path = self.directory / segment_name(self.writer, first)
        try:
            self.sync()
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            _sync_directory(self.directory)
        except OSError as error:
            log.error("%s: no new file can be begun (%s): the old one goes on", self.writer, error.strerror)  # noqa: TRY400
            return
        os.close(self._descriptor)
        self._closed.append(Segment(self._path, self._first))
        self._path, self._descriptor, self._first = path, descriptor, first
        self._size, self._began = 0, self._now()

    def _drop(self, base: int) -> None:
        """Remove files that end at or before that record; the newest stays."""
        after = [*self._closed[1:], *([Segment(self._path, self._first)] if self._first else [])]
        kept = []
        for number, segment in enumerate(self._closed):
            if number < len(after) and after[number].first <= base + 1:
                segment.path.unlink(missing_ok=True)
            else:
                kept.append(segment)
        self._closed = kept

    def _replace(self, name: str, data: bytes) -> None:
        staged = self.directory / f".{name}"
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        staged.rename(self.directory / name)
        _sync_directory(self.directory)


def _cut_torn(path: Path) -> None:
    data_end, size = 0, path.stat().st_size
    for line in lines_of(path):
        if line.endswith(b"\n"):
            data_end += len(line)
    if data_end < size:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, data_end)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        log.warning("%s: a torn record of %d bytes at its end was cut off: its writer died in the middle of it", path.name, size - data_end)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
