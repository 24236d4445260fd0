"""How a worker passes its records on: denials above a rate are counted and told together (the records themselves: `space.audit.records`).

A guest that floods cannot make the record grow, nor hide that it did.
"""

from __future__ import annotations

from collections.abc import Callable

from space.audit.records import MOST_PATH, Connected, Kind, NameDecided, Record, Repeated, Requested
from space.gateway.budgets import Bucket

__all__ = ["MOST_PATH", "Connected", "Kind", "NameDecided", "Record", "Recorder", "Repeated", "Requested"]

_KINDS: dict[type, Kind] = {NameDecided: "name", Connected: "connection", Requested: "request"}


class Recorder:
    """Passes records on, denials at a rate. counted: called when `flush` has something to write. Whatever `sink`
    raises is the caller's: what cannot be recorded must not happen.
    """

    def __init__(self, sandbox: str, sink: Callable[[Record], None], bucket: Bucket, counted: Callable[[], None]) -> None:
        self.sandbox = sandbox
        self.note = sink
        self._bucket = bucket
        self._counted = counted
        self._counts: dict[tuple[Kind, str], int] = {}

    def denied(self, record: NameDecided | Connected | Requested, now: float) -> None:
        """A denial: written, or counted when there are too many."""
        if self._bucket.take(now):
            self.note(record)
            return
        if not self._counts:
            self._counted()
        key = (_KINDS[type(record)], record.reason)
        self._counts[key] = self._counts.get(key, 0) + 1

    def told(self, record: NameDecided | Connected | Requested, now: float) -> None:
        """One of them, a denial if it has a reason. What concerns a credential is never only counted."""
        if record.reason and not (isinstance(record, Requested) and record.grant):
            self.denied(record, now)
        else:
            self.note(record)

    def flush(self) -> None:
        """Write what was counted."""
        counts, self._counts = self._counts, {}
        for (of, reason), count in counts.items():
            self.note(Repeated(sandbox=self.sandbox, of=of, reason=reason, count=count))
