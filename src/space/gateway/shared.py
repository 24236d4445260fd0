"""What the connections of one sandbox have in common, and the way to an upstream."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address

from space.core.policy.verdict import Asked
from space.gateway.budgets import Bucket
from space.gateway.peer import NOBODY, Owner, Peer
from space.gateway.records import Recorder
from space.gateway.surroundings import DialRefused, Surroundings
from space.gateway.tls import Contexts, Tls

log = logging.getLogger("space.gateway")


class UpstreamFailed(Exception):
    """No connection. reason: a stable word. denied: by rule. status: what to answer."""

    def __init__(self, reason: str, status: int, *, denied: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.denied = denied


@dataclass(slots=True)
class Counts:
    """How many there are now."""

    connections: int = 0
    handshakes: int = 0
    upstreams: int = 0


class Shared:
    """The state of one worker. wake: starts the worker's timer."""

    def __init__(self, surroundings: Surroundings) -> None:
        limits = surroundings.limits
        self.around = surroundings
        self.limits = limits
        self.clock = surroundings.clock
        denials = Bucket(limits.denials_rate, limits.denials_burst)
        self.recorder = Recorder(surroundings.sandbox, surroundings.record, denials, self._counted)
        self.contexts = Contexts(limits.contexts, limits.leaf_seconds)
        self.counts = Counts()
        self.wake: Callable[[], None] = lambda: None

    def _counted(self) -> None:
        self.wake()

    async def connect(self, owner: Owner, target: str | IPv4Address, port: int, *, secure: bool, ca: str | None = None) -> Peer:
        """A peer that `owner` is told of, toward the name alone that the flow is for. UpstreamFailed.

        secure: its certificate has been verified for that name; else it holds its reading (WAIT) until it is
        released. Cancelled or failed, it leaves no socket.
        """
        if self.counts.upstreams >= self.limits.upstreams:
            raise UpstreamFailed("too_many_upstreams", 503)
        self.counts.upstreams += 1
        peer = None
        try:
            async with asyncio.timeout(self.limits.dial):
                peer = await self._connect(owner, target, port, secure=secure, ca=ca)
        except TimeoutError:
            raise UpstreamFailed("upstream_slow", 504) from None
        finally:
            if peer is None:
                self.counts.upstreams -= 1
        return peer

    def disconnected(self) -> None:
        """A peer that `connect` gave is gone."""
        self.counts.upstreams -= 1

    async def _connect(self, owner: Owner, target: str | IPv4Address, port: int, *, secure: bool, ca: str | None) -> Peer:
        dialled = await self.around.dial(target, port)
        if isinstance(dialled, DialRefused):
            raise UpstreamFailed(dialled.reason, 403 if dialled.denied else 502, denied=dialled.denied)
        sock = dialled.sock
        peer: Peer | None = None
        try:
            greeting = _Greeting()
            tls = None
            if secure:
                context = self.contexts.upstream(ca, self.around.bundle(ca))
                tls = Tls(context, server_side=False, name=str(target))
            peer = Peer(greeting if secure else owner, sock, tls)
            peer.address = dialled.address
            if not secure:
                peer.hold(Peer.WAIT)  # who is told has to know the peer first; a server may speak at once
            made = peer
            await asyncio.get_running_loop().create_connection(lambda: made, sock=sock)
            if secure:
                await greeting.done
                if greeting.error is not None:
                    raise greeting.error
                peer.owner = owner
        except BaseException as error:
            if peer is not None:
                peer.owner = NOBODY
                peer.abort()
            sock.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise UpstreamFailed("upstream_certificate", 502) from error
            if isinstance(error, (ssl.SSLError, OSError)) and not isinstance(error, TimeoutError):
                raise UpstreamFailed("upstream_handshake", 502) from error
            raise
        return peer


async def agreed(shared: Shared, asked: Asked | None) -> bool:
    """True when a person agrees. UpstreamFailed when nobody does, or nobody is there."""
    ask = shared.around.ask
    if ask is None or asked is None:
        raise UpstreamFailed("ask_unavailable", 403, denied=True)
    try:
        async with asyncio.timeout(shared.limits.ask):
            answer = await ask(asked)
    except TimeoutError:
        raise UpstreamFailed("ask_unanswered", 403, denied=True) from None
    if not answer:
        raise UpstreamFailed("ask_refused", 403, denied=True)
    return True


class _Greeting:
    """Owns a peer until its handshake is over."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: Exception | None = None

    def secured(self, _peer: Peer) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def received(self, peer: Peer, _data: bytes) -> None:
        self.failed(peer, ConnectionError("it spoke before it was asked"))

    def ended(self, peer: Peer) -> None:
        self.failed(peer, ConnectionError("it closed"))

    def pressed(self, peer: Peer, full: bool) -> None:
        pass

    def lost(self, peer: Peer) -> None:
        self.failed(peer, ConnectionError("it closed"))

    def failed(self, _peer: Peer, error: Exception) -> None:
        self.error = self.error or error
        if not self.done.done():
            self.done.set_result(None)
