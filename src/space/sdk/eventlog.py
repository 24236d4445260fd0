"""Reading the event log over any number of connections: what to ask for next, so that each event comes once. Decisions only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from space.model.credentials import CredentialAlarm
from space.model.egress import Ask, PolicyStatus
from space.model.errors import ProtocolError, SpaceError, StreamCut
from space.model.events import EVENT_KINDS, Event
from space.sdk.answers import problem_document, record
from space.sdk.follow import wait_before_reattach


@dataclass(frozen=True, slots=True)
class EventGap:
    """Events that were asked for are kept no longer. oldest: the first one that is, None when there is none."""

    oldest: int | None


class EventLog:
    """The place of a reader in the log. after: the last event that it knows."""

    def __init__(self, after: int | None = None) -> None:
        self._after = after
        self._failures = 0
        self._progressed = False
        self._told = 0
        self.done = False

    def params(self, *, follow: bool) -> dict[str, str]:
        """What to ask for."""
        return {"follow": "1" if follow else "0"} | ({} if self._after is None else {"after": str(self._after)})

    def begin(self) -> None:
        """A new connection, made with `params`."""
        self._progressed = False
        self._told = 0

    def receive(self, line: Mapping[str, Any]) -> Event | EventGap | None:
        """What a line tells. A kind that is not known is skipped: a newer server may have more."""
        kind = line.get("kind")
        if kind == "error":
            document = line.get("problem", line)
            raise problem_document(document, str(document.get("code")))
        if kind == "gap":
            oldest = line.get("oldest")
            if isinstance(oldest, int):
                self._after = oldest - 1
            self._progressed = True
            return EventGap(oldest if isinstance(oldest, int) else None)
        number = line.get("id")
        if not isinstance(number, int):
            if kind == "heartbeat":
                return None
            raise ProtocolError(f"an event without a number: {str(dict(line))[:200]}")
        self._progressed = True
        if kind == "heartbeat":
            # everything up to it was told; it never goes back
            self._after = number if self._after is None else max(self._after, number)
            return None
        if self._after is not None and number <= self._after:
            raise ProtocolError(f"event {number} was told after {self._after}")
        self._after = number
        self._told += 1
        return _event(line) if kind in EVENT_KINDS else None

    def finish(self, *, follow: bool) -> None:
        """The answer ended: that is an end only for who does not follow, and only when there was nothing more."""
        if follow:
            raise StreamCut("the stream of events broke off")
        self._failures = 0
        self.done = self._told == 0

    def wait_after(self, fault: SpaceError, chance: float) -> float | None:
        """Seconds to wait before the next connection; None: tell the reader."""
        self._failures = 1 if self._progressed else self._failures + 1
        self._progressed = False
        return wait_before_reattach(self._failures, fault, chance)


def _event(line: Mapping[str, Any]) -> Event:
    try:
        told = {item.name: line[item.name] for item in fields(Event) if item.name in line}
        for name, cls in (("ask", Ask), ("policy", PolicyStatus), ("alarm", CredentialAlarm)):
            if told.get(name) is not None:
                told[name] = record(cls, told[name])
        return Event(**told)
    except TypeError as error:
        raise ProtocolError(f"the server's line is no event: {error}", hint="is the server of another version?") from error
