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
from space.gateway.protocols import Protocols
from space.gateway.records import Recorder
from space.gateway.sessions import Sessions
from space.gateway.surroundings import DialRefused, Surroundings
from space.gateway.tls import Contexts, Protocol, Tls

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
        self.sessions = Sessions(limits.sessions, limits.session_seconds, self.clock)
        self.protocols = Protocols(limits.contexts, limits.protocol_seconds)
        self.counts = Counts()
        self.wake: Callable[[], None] = lambda: None

    def _counted(self) -> None:
        self.wake()

    async def connect(
        self, owner: Owner, target: str | IPv4Address, port: int, *, secure: bool, ca: str | None = None, h2: bool = False
    ) -> Peer:
        """A peer that `owner` is told of, toward the name alone that the flow is for. UpstreamFailed.

        secure: its certificate has been verified for that name; else it holds its reading (WAIT) until it is
        released. h2: HTTP/2 is offered as well, and its reading is held alike. Cancelled or failed, it leaves no socket.
        """
        if self.counts.upstreams >= self.limits.upstreams:
            raise UpstreamFailed("too_many_upstreams", 503)
        self.counts.upstreams += 1
        peer = None
        try:
            async with asyncio.timeout(self.limits.dial):
                peer = await self._connect(owner, target, port, secure=secure, ca=ca, h2=h2)
        except TimeoutError:
            raise UpstreamFailed("upstream_slow", 504) from None
        finally:
            if peer is None:
                self.counts.upstreams -= 1
        return peer

    def disconnected(self) -> None:
        """A peer that `connect` gave is gone."""
        self.counts.upstreams -= 1

    async def _connect(self, owner: Owner, target: str | IPv4Address, port: int, *, secure: bool, ca: str | None, h2: bool) -> Peer:
        dialled = await self.around.dial(target, port)
        if isinstance(dialled, DialRefused):
            raise UpstreamFailed(dialled.reason, 403 if dialled.denied else 502, denied=dialled.denied)
        sock = dialled.sock
        peer: Peer | None = None
        try:
            greeting = _Greeting()
            tls = None
            if secure:
                context = self.contexts.upstream(ca, self.around.bundle(ca), h2=h2)
                tls = self._client(context, str(target), port)
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
                peer.owner, peer.spoken = owner, greeting.spoken
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

    def _client(self, context: ssl.SSLContext, name: str, port: int) -> Tls:
        """The client's end toward that name, which resumes what that name's server has let resume."""
        key, generation = (name, port, context), self.around.ruling().generation
        session = self.sessions.find(key, generation)
        return Tls(context, server_side=False, name=name, session=session, learn=lambda over: self.sessions.learn(key, generation, over))


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


async def spoken_by(shared: Shared, name: str, port: int, ca: str | None) -> Protocol | None:
    """What an upstream speaks, by one handshake that carries nothing; remembered. None: it could not be reached, or verified."""
    try:
        async with asyncio.timeout(shared.limits.handshake / 2):  # the guest waits for its own
            peer = await shared.connect(_Passing(shared), name, port, secure=True, ca=ca, h2=True)
    except (UpstreamFailed, TimeoutError):
        return None
    protocol: Protocol = "h2" if peer.protocol == "h2" else "http/1.1"
    peer.abort()
    shared.protocols.learn(name, port, ca, protocol, shared.clock())
    return protocol


class _Passing:
    """Owns a peer that is of no more use than to be counted until it is gone."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def secured(self, peer: Peer) -> None: ...
    def received(self, peer: Peer, data: bytes) -> None: ...
    def ended(self, peer: Peer) -> None: ...
    def pressed(self, peer: Peer, full: bool) -> None: ...

    def lost(self, _peer: Peer) -> None:
        self._shared.disconnected()

    def failed(self, peer: Peer, _error: Exception) -> None:
        peer.abort()


class _Greeting:
    """Owns a peer until its handshake is over. spoken: what a server of HTTP/2 says with it; others speak when they are asked."""

    def __init__(self) -> None:
        self.spoken = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: Exception | None = None

    def secured(self, peer: Peer) -> None:
        if peer.protocol == "h2":
            peer.hold(Peer.WAIT)
        if not self.done.done():
            self.done.set_result(None)

    def received(self, peer: Peer, data: bytes) -> None:
        if peer.protocol == "h2":
            self.spoken += data
        else:
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
