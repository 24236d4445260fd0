"""Denials of one source: written up to a rate, counted above it by kind, reason, name and second. Values in, values out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from space.audit.records import Connected, CredentialRead, Dialled, Kept, Kind, NameDecided, Requested
from space.core.rates import Bucket

KINDS: dict[type, Kind] = {
    NameDecided: "name", Connected: "connection", Requested: "request", CredentialRead: "credential", Dialled: "dial",
}  # fmt: skip
_MOST_KEYS = 256


@dataclass(slots=True)
class Denials:
    """bucket: what is written. A flood of different names is counted without its names beyond the first 256 of a flush."""

    bucket: Bucket
    counts: dict[tuple[Kind, str, str, int], int] = field(default_factory=dict)

    def counted(self, record: Kept, now: float, second: int) -> bool:
        """Whether it was counted instead of being to be written. Events of credentials never are."""
        reason = getattr(record, "reason", "")
        if not reason or not isinstance(record, NameDecided | Connected | Requested | Dialled) or self.bucket.take(now):
            return False
        key = (KINDS[type(record)], reason, record.name, second)
        if key not in self.counts and len(self.counts) >= _MOST_KEYS:
            key = (key[0], "", "", second)
        self.counts[key] = self.counts.get(key, 0) + 1
        return True

    def flush(self) -> list[dict[str, Any]]:
        """What was counted, as fields of records. An empty reason and name: of several."""
        counts, self.counts = self.counts, {}
        return [
            {"type": "repeated", "of": of, "reason": reason, "name": name, "second": second, "count": count}
            for (of, reason, name, second), count in counts.items()
        ]
