"""Reading the log of egress over any number of connections: what to ask for next, so that each record comes once. Decisions only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from space.model.egresslog import EgressRecord
from space.model.errors import ProtocolError, SpaceError, StreamCut
from space.sdk.answers import problem_document
from space.sdk.follow import wait_before_reattach

PAGE = 1000
HEARTBEAT_LIMIT_SECONDS = 30.0  # the server sends a heartbeat every 5 s to who follows


@dataclass(frozen=True, slots=True)
class EgressGap:
    """Records that were asked for are kept no longer: those of a chain up to that number."""

    chain: str
    removed: int


class RecordLog:
    """The place of a reader. after: the last id that it knows."""

    def __init__(self, after: str | None = None) -> None:
        self._after = after
        self._failures = 0
        self._progressed = False
        self._told = 0
        self.done = False

    @property
    def after(self) -> str | None:
        """Where another reader goes on."""
        return self._after

    def params(self, *, follow: bool) -> dict[str, str]:
        """What to ask for."""
        return ({"follow": "1"} if follow else {"limit": str(PAGE)}) | ({} if self._after is None else {"after": self._after})

    def begin(self) -> None:
        """A new connection, made with `params`."""
        self._progressed = False
        self._told = 0

    def receive(self, line: Mapping[str, Any]) -> EgressRecord | EgressGap | None:
        """What a line tells."""
        kind, place = line.get("kind"), line.get("id")
        if kind == "error":
            document = line.get("problem", line)
            raise problem_document(document, str(document.get("code")))
        if not isinstance(kind, str) or not isinstance(place, str):
            raise ProtocolError(f"a record without kind and place: {str(dict(line))[:200]}")
        self._after = place
        self._progressed = True
        if kind == "heartbeat":
            return None
        if kind == "gap":
            return EgressGap(str(line.get("chain")), int(line.get("removed", 0)))
        self._told += 1
        return _record(line)

    def finish(self, *, follow: bool) -> None:
        """The answer ended: that is an end only for who does not follow, and only when there was nothing more."""
        if follow:
            raise StreamCut("the stream of records broke off")
        self._failures = 0
        self.done = self._told < PAGE

    def wait_after(self, fault: SpaceError, chance: float) -> float | None:
        """Seconds to wait before the next connection; None: tell the reader."""
        self._failures = 1 if self._progressed else self._failures + 1
        self._progressed = False
        return wait_before_reattach(self._failures, fault, chance)


_KNOWN = {item.name for item in fields(EgressRecord)} - {"more"}


def _record(line: Mapping[str, Any]) -> EgressRecord:
    known = {name: line[name] for name in _KNOWN if name in line}
    if isinstance(query := known.get("query"), list):
        known["query"] = tuple(query)
    try:
        return EgressRecord(**known, more={name: value for name, value in line.items() if name not in _KNOWN})
    except TypeError as error:
        raise ProtocolError(f"the server's line is no record: {error}", hint="is the server of another version?") from error
