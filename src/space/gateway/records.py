"""What is written down of a sandbox's traffic: one record for each decision on a name, each connection, each request.

Query strings are kept as keys only, bodies and fields not at all, so that no record can hold a secret. Denials above a rate are counted
and told together: a guest that floods cannot make the record grow, nor hide that it did. recorded: no rule allows it, and it was let
through because the policy of a template under construction only records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from space.gateway.budgets import Bucket

Kind = Literal["name", "connection", "request"]
MOST_PATH = 1024


class NameDecided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="name"):
    """A DNS query. address: what the guest was told. reason: why it was refused."""

    sandbox: str
    name: str
    qtype: int
    reason: str = ""
    rule: str = ""
    recorded: bool = False
    address: str = ""


class Connected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="connection"):
    """A connection that has ended. reason: why, empty when both sides were done. sent, received: bytes as the guest's side saw them."""

    sandbox: str
    id: str
    name: str
    port: int
    scheme: str = ""
    rule: str = ""
    recorded: bool = False
    reason: str = ""
    requests: int = 0
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    upstream: str = ""


class Requested(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="request"):
    """A request that has ended. query: keys. status: what the guest was answered. sent, received: bytes toward and from the upstream."""

    sandbox: str
    id: str
    name: str
    port: int
    method: str = ""
    path: str = ""
    query: tuple[str, ...] = ()
    status: int = 0
    rule: str = ""
    recorded: bool = False
    reason: str = ""
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    upstream: str = ""


class Repeated(msgspec.Struct, frozen=True, kw_only=True, tag="repeated"):
    """Denials that were counted instead of written. of: the kind of record."""

    sandbox: str
    of: Kind
    reason: str
    count: int


Record = NameDecided | Connected | Requested | Repeated
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
        """One of them, a denial if it has a reason."""
        if record.reason:
            self.denied(record, now)
        else:
            self.note(record)

    def flush(self) -> None:
        """Write what was counted."""
        counts, self._counts = self._counts, {}
        for (of, reason), count in counts.items():
            self.note(Repeated(sandbox=self.sandbox, of=of, reason=reason, count=count))
