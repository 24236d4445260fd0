"""What every stage of a connection has: a guest, perhaps an upstream, perhaps a task that connects them; deadlines; the end of both.

    opening (connection)  ->  requests (http)  |  a stream (opaque)

A stage owns its peers. Whatever happens to one side, both are gone afterwards, once, and `gone` is called once.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine

from space.core.policy.agreement import Flow
from space.core.policy.verdict import Stack
from space.gateway.peer import Peer
from space.gateway.shared import Shared, log


class Stage(ABC):
    """reason: why it ended, empty while nothing is wrong. address: the upstream's, the last one. ident: of the connection, for records."""

    def __init__(self, shared: Shared, guest: Peer, flow: Flow, ident: str, gone: Callable[[], None]) -> None:
        self.shared = shared
        self.guest = guest
        self.flow = flow
        self.ident = ident
        self.upstream: Peer | None = None
        self.address = ""
        self.reason = ""
        self.requests = 0
        self._gone = gone
        self._began = shared.clock()
        self._task: asyncio.Task[None] | None = None
        self._moved = -1
        self._still = 0.0  # since when nothing has moved

    # -- what happens to peers -----------------------------------------------------------------------------------------

    def secured(self, _peer: Peer) -> None:
        """Only an opening waits for that."""
        return

    @abstractmethod
    def received(self, peer: Peer, data: bytes) -> None: ...

    @abstractmethod
    def ended(self, peer: Peer) -> None: ...

    def pressed(self, peer: Peer, full: bool) -> None:
        """What fills one side is not read from the other."""
        other = self.upstream if peer is self.guest else self.guest if peer is self.upstream else None
        if other is not None:
            (other.hold if full else other.release)(Peer.PRESSURE)

    def lost(self, peer: Peer) -> None:
        if peer is not self.guest:
            self.shared.disconnected()
            if peer is self.upstream:
                self.upstream = None
                self.guest.release(Peer.PRESSURE)
                self.upstream_lost()
            return
        self.cut("guest_gone" if not peer.finishing else "")
        self._gone()

    def failed(self, _peer: Peer, error: Exception) -> None:
        if isinstance(error, ssl.SSLError):
            self.cut("tls")
            return
        log.error("a connection of %s failed", self.shared.around.sandbox, exc_info=error)
        self.cut("internal")

    @abstractmethod
    def upstream_lost(self) -> None:
        """It has closed, or broken."""

    # -- what time and policy do ---------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether it is waited for a person or an upstream, which has a time of its own."""
        return self._task is not None and not self._task.done()

    def sweep(self, now: float) -> None:
        """Called every `limits.sweep` seconds. Activity is told from counters, so that it costs nothing where bytes move."""
        guest, upstream = self.guest, self.upstream
        moved = guest.taken + guest.given - guest.waiting
        if upstream is not None:
            moved += upstream.taken + upstream.given - upstream.waiting
        if guest.finishing and not guest.waiting:
            moved = -2  # what it still sends is no reason to stay
        if now - self._began > self.shared.limits.age:
            self.cut("age")
        elif moved != self._moved or self.waits:
            self._moved, self._still = moved, now
        elif now - self._still > (self.shared.limits.linger if moved == -2 else self.shared.limits.idle):
            self.cut("" if moved == -2 else "idle")

    @abstractmethod
    def rejudge(self, stack: Stack) -> None:
        """The policy is another one: what it does not allow ends."""

    def adopt(self, peer: Peer) -> None:
        """The upstream is there."""
        self.upstream, self.address = peer, peer.address
        if self.guest.full:
            peer.hold(Peer.PRESSURE)
        peer.release(Peer.WAIT)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def cut(self, reason: str) -> None:
        """Close both sides now. Harmless when they are closed."""
        self.reason = self.reason or reason
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self.drop_upstream()
        self.guest.abort(reset=bool(self.reason))

    def finish(self) -> None:
        """Let the guest take what was sent, then close."""
        self.drop_upstream()
        self.guest.finish()

    def drop_upstream(self) -> None:
        """Close the upstream; what it still says is not heard."""
        peer, self.upstream = self.upstream, None
        if peer is not None:
            peer.abort()
            self.guest.release(Peer.PRESSURE)

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run the one task of this stage. What it raises closes both sides."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - both sides must go, whatever it is
                self.failed(self.guest, error)

        self._task = asyncio.get_running_loop().create_task(guarded(), name=f"connection {self.ident}")
