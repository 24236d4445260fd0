"""The dialer's own word on every dial, to the keeper of the records over a socket of its own.

A record is handed over before the socket of its connection is: what cannot be recorded does not happen. Denials of one sandbox above a rate
are counted and told together, so that one that floods neither fills the socket that all share nor hides that it did.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from space.audit.records import Dialled, Kept, Note, Repeated, encode
from space.core.rates import Bucket
from space.dialer.dial import DialRecord
from space.model.errors import SpaceError, Unavailable
from space.rpc.audit_client import RecordSocket

log = logging.getLogger("space.dialer")

_RATE, _BURST = 10.0, 50
_EVERY = 1.0
_MOST_REASONS = 32


@dataclass(slots=True)
class _Denials:
    bucket: Bucket = field(default_factory=lambda: Bucket(_RATE, _BURST))
    counts: dict[str, int] = field(default_factory=dict)
    ended: bool = False


class Records:
    """Within the event loop. seconds: for one record, while the keeper is behind."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._socket: RecordSocket | None = None
        self._denials: dict[str, _Denials] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    @property
    def bound(self) -> bool:
        """Whether there is a keeper who still listens."""
        return self._socket is not None and self._socket.open

    def bind(self, sock: socket.socket) -> None:
        """Records go there from now on."""
        before, self._socket = self._socket, RecordSocket(sock)
        if before is not None:
            before.close()

    def of(self, sandbox: str, generation: int) -> Callable[[DialRecord], Awaitable[None]]:
        """What a dial of that sandbox is recorded by. It raises when the record is not taken."""
        denials = self._denials.setdefault(sandbox, _Denials())
        denials.ended = False

        async def record(one: DialRecord) -> None:
            if one.reason and not denials.bucket.take(self._clock()):
                self._count(denials, one.reason)
                return
            told = Dialled(
                sandbox=one.sandbox,
                name=one.target,
                port=one.port,
                address=one.address,
                reason=one.reason,
                seconds=max(one.seconds, 0.0),
                generation=generation,
            )
            await self._tell(told)

        return record

    def forget(self, sandbox: str) -> None:
        """It has ended; what was counted of it is still told."""
        denials = self._denials.get(sandbox)
        if denials is not None:
            denials.ended = True
            if not denials.counts:
                del self._denials[sandbox]

    async def aclose(self) -> None:
        """Tell what was counted, and hang up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)
        await self._flush()
        if self._socket is not None:
            self._socket.close()

    async def _tell(self, record: Kept) -> None:
        if self._socket is None:
            raise Unavailable("there is no keeper of records yet")
        async with asyncio.timeout(self._seconds):
            await self._socket.told(encode(Note(record)))

    def _count(self, denials: _Denials, reason: str) -> None:
        if not self.bound:
            raise Unavailable("there is no keeper of records")
        if reason not in denials.counts and len(denials.counts) >= _MOST_REASONS:
            reason = "several"
        denials.counts[reason] = denials.counts.get(reason, 0) + 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._flushing = asyncio.get_running_loop().create_task(self._flush(), name="counted denials")

    async def _flush(self) -> None:
        for sandbox, denials in tuple(self._denials.items()):
            counts, denials.counts = denials.counts, {}
            if denials.ended and self._denials.get(sandbox) is denials:
                del self._denials[sandbox]
            for reason, count in counts.items():
                try:
                    await self._tell(Repeated(sandbox=sandbox, of="dial", reason=reason, count=count))
                except (OSError, SpaceError) as error:
                    log.error("%d denials of %s (%s) are not recorded: %s", count, sandbox, reason, error)  # noqa: TRY400
