"""TLS sessions with upstreams, to be resumed: a handshake without certificates costs less than half of one with them.

A session is of one name, one port and one set of authorities, under one generation of the policy, and is offered for nothing else. What
was verified was the certificate of the handshake that it began with: so none is used past that certificate's end, nor for longer than
`seconds` since that handshake, however often it was resumed. Toward guests nothing ever resumes (`space.gateway.tls`).
"""

from __future__ import annotations

import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

Key = tuple[str, int, ssl.SSLContext]  # the context is that of the authorities, and of what is spoken


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def seconds_of(text: str) -> float:
    """A certificate's time, as the library writes it, in seconds since 1970. (`ssl`'s own reading loads modules, which a worker cannot.)"""
    month, day, clock, year, zone = text.split()
    if zone != "GMT":
        raise ValueError(f"{text!r} is no certificate's time")
    hour, minute, second = map(int, clock.split(":"))
    return datetime(int(year), _MONTHS.index(month) + 1, int(day), hour, minute, min(second, 59), tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True)
class Kept:
    """until: of the worker's clock."""

    session: ssl.SSLSession
    until: float


class Sessions:
    """Of one worker. most: sessions; seconds: from the handshake that verified. wall: seconds since 1970, by which certificates end."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float], wall: Callable[[], float] = time.time) -> None:
        self._most, self._seconds = most, seconds
        self._clock, self._wall = clock, wall
        self._generation = -1
        self._kept: OrderedDict[Key, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Key, generation: int) -> ssl.SSLSession | None:
        """One that may be offered there, under that generation of the policy."""
        self._under(generation)
        kept = self._kept.get(key)
        if kept is None:
            return None
        if self._clock() >= kept.until:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return kept.session

    def learn(self, key: Key, generation: int, connection: ssl.SSLObject) -> None:
        """What a connection that is over has left, if its handshake verified a certificate and its server lets a session resume."""
        if generation != self._generation or connection.session_reused:
            return
        session = connection.session
        certificate = connection.getpeercert()
        if session is None or not (session.has_ticket or session.id) or not certificate:
            return
        left = seconds_of(str(certificate["notAfter"])) - self._wall()
        until = self._clock() + min(left, self._seconds, float(session.timeout))
        self._kept[key] = Kept(session, until)
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def _under(self, generation: int) -> None:
        if generation != self._generation:
            self._generation = generation
            self._kept.clear()
