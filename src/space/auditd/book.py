"""One chain and what is about to be written to it.

    note -> pending -> flush: in the file | the disk takes nothing: stuck, all of it waits for the next flush

While a book is stuck its sources are not to be listened to: then their sockets fill, and what cannot be recorded does not happen. What
comes all the same (a source that ends is heard to its end) waits up to a bound; beyond it records are lost, and how many is told behind
those that waited.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from space.auditd.chainfile import ChainFile

log = logging.getLogger("space.auditd")

Fields = dict[str, Any]

MOST_WAITING = 32 << 20


class Entry(NamedTuple):
    """A record that waits. body: its fields as JSON."""

    sandbox: str
    body: bytes


class Told(Protocol):
    """Those who wait for records. False while nobody does."""

    def __bool__(self) -> bool: ...
    def told(self, before: int, sandboxes: Iterable[str]) -> None:
        """Records of these were written behind record `before`. Short, does not raise."""


class Book:
    """stamp: the time as it stands in records. most: bytes that may wait. broken: why no credential event may be kept, if so."""

    def __init__(self, file: ChainFile, stamp: Callable[[], str], most: int = MOST_WAITING) -> None:
        self.file = file
        self.lost = 0
        self.stuck = False
        self.broken = ""
        self.vouched = (-1, b"")
        self.followers: Told | None = None
        self._stamp = stamp
        self._most = most
        self._since = ""
        self._pending: list[Entry] = []
        self._size = 0

    @property
    def is_new(self) -> bool:
        """Whether something is not vouched for."""
        return self.file.end != self.vouched

    def note(self, entries: Iterable[Entry]) -> bool:
        """For the next `flush`; whether they are the first."""
        first = not self._pending
        for entry in entries:
            if self.stuck and self._size + len(entry.body) > self._most:
                self._since = self._since or self._stamp()
                self.lost += 1
            else:
                self._pending.append(entry)
                self._size += len(entry.body)
        return first

    def flush(self) -> None:
        """Write what is pending; what cannot be written waits, and the book is stuck."""
        if not self._pending:
            return
        try:
            self._write(self._pending)
        except OSError as error:
            if not self.stuck:
                log.error("%s: records cannot be written (%s): they wait, and no more are taken", self.file.writer, error.strerror)  # noqa: TRY400
            self.stuck = True
            return
        if self.stuck:
            log.warning("%s: %d records that waited are written, %d were lost", self.file.writer, len(self._pending), self.lost)
        self._pending, self._size, self.lost, self._since, self.stuck = [], 0, 0, "", False

    def write(self, entry: Entry) -> None:
        """Write what is pending and that record, now. OSError: that record is not written."""
        self.flush()
        if self.stuck:
            raise OSError(errno.ENOSPC, "records that came before it wait for the disk")
        self._write([entry])

    def _write(self, entries: list[Entry]) -> None:
        before = self.file.end[0]
        told: list[Fields] = [{"at": self._stamp(), "type": "lost", "count": self.lost, "since": self._since}] if self.lost else []
        self.file.append([*(entry.body for entry in entries), *told])
        if self.followers:
            self.followers.told(before, [entry.sandbox for entry in entries])
