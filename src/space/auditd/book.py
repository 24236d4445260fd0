"""One chain and what is about to be written to it. A disk that fails loses records, and says how many as soon as it can again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from space.auditd.chainfile import ChainFile

log = logging.getLogger("space.auditd")

Fields = dict[str, Any]


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
    """stamp: the time as it stands in records. broken: why no credential event may be kept here, if so."""

    def __init__(self, file: ChainFile, stamp: Callable[[], str]) -> None:
        self.file = file
        self.lost = 0
        self.broken = ""
        self.vouched = (-1, b"")
        self.followers: Told | None = None
        self._stamp = stamp
        self._since = ""
        self._pending: list[Entry] = []

    @property
    def is_new(self) -> bool:
        """Whether something is not vouched for."""
        return self.file.end != self.vouched or bool(self._pending)

    def note(self, entries: Iterable[Entry]) -> bool:
        """For the next `flush`; whether they are the first."""
        first = not self._pending
        self._pending += entries
        return first

    def flush(self) -> None:
        """Write what is pending; what cannot be written is counted."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        try:
            self._write(pending)
        except OSError as error:
            if not self.lost:
                self._since = self._stamp()
                log.error("%s: records cannot be written (%s) and are counted as lost", self.file.writer, error.strerror)  # noqa: TRY400
            self.lost += len(pending)

    def write(self, entry: Entry) -> None:
        """Write what is pending and that record, now. OSError: that record is not written."""
        self.flush()
        self._write([entry])

    def settle(self) -> None:
        """Write how many were lost, if any were and it can be written."""
        if self.lost:
            try:
                self._write([])
            except OSError:
                return

    def _write(self, entries: list[Entry]) -> None:
        before = self.file.end[0]
        self._append([entry.body for entry in entries])
        if self.followers:
            self.followers.told(before, [entry.sandbox for entry in entries])

    def _append(self, records: list[bytes]) -> None:
        if not self.lost:
            self.file.append(records)
            return
        told: Fields = {"at": self._stamp(), "type": "lost", "count": self.lost, "since": self._since}
        self.file.append([told, *records])
        log.warning("%s: records are written again; %d were lost since %s", self.file.writer, self.lost, self._since)
        self.lost = 0
