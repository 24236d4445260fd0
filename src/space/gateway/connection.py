"""One accepted connection: whose it is, what it may be; then its stages; then one record.

    accepted -> name and port of the socket -> verdict for the flow -> (TLS: Opening)
             -> HttpSession | Http2Session | OpaqueStream -> recorded

The name comes from the address that the guest connected to and from nothing else. What the guest says may only agree.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from ipaddress import AddressValueError, IPv4Address

from space.core.policy.agreement import Flow
from space.core.policy.model import Scheme
from space.core.policy.verdict import Allow, Deny, Stack, Verdict, usual_scheme
from space.gateway.http import HttpSession
from space.gateway.http2 import Http2Session
from space.gateway.opaque import OpaqueStream
from space.gateway.opening import Opening
from space.gateway.peer import NOBODY, Peer, reset_on_close
from space.gateway.records import Connected
from space.gateway.shared import Shared, log
from space.gateway.stage import Stage


class Connection:
    """From accept to record. `gone` is called once, when nothing of it is left."""

    def __init__(self, shared: Shared, sock: socket.socket, gone: Callable[[Connection], None]) -> None:
        self._shared = shared
        self._sock = sock
        self._gone = gone
        self._guest = Peer(NOBODY, sock)
        self._stage: Stage | None = None
        self._flow = Flow("", 0, secure=False)
        self._literal: IPv4Address | None = None
        self._verdict: Verdict = Deny("no_policy", "none")
        self._scheme: Scheme | None = None
        self._ident = secrets.token_hex(6)
        self._began = shared.clock()
        self._named = False
        self._over = False

    async def begin(self) -> None:
        """Take the socket over; it belongs to this connection whatever happens."""
        try:
            refused = self._identify()
            if refused is not None:
                self._reset(refused)
                return
            await asyncio.get_running_loop().connect_accepted_socket(self._made, self._sock)
        except BaseException:
            if self._stage is not None:
                self._stage.cut("internal")
                self._stage.lost(self._guest)  # there may be no transport that would say so
            self._reset("internal")
            raise

    def sweep(self, now: float) -> None:
        """Deadlines."""
        if self._stage is not None:
            self._stage.sweep(now)

    def rejudge(self, stack: Stack) -> None:
        """Another policy."""
        if self._stage is not None:
            self._stage.rejudge(stack)

    def cut(self, reason: str) -> None:
        """Close both sides."""
        if self._stage is not None:
            self._stage.cut(reason)

    def fail(self, error: Exception) -> None:
        """Something raised about it."""
        if self._stage is not None:
            self._stage.failed(self._guest, error)

    # -- what it is ----------------------------------------------------------------------------------------------------

    def _identify(self) -> str | None:
        """Name, port, verdict. A reason where there is nothing to talk about."""
        shared = self._shared
        if shared.counts.connections > shared.limits.connections:
            return "too_many_connections"
        host, port = self._sock.getsockname()[:2]
        try:
            address = IPv4Address(host)
        except AddressValueError:
            return "address_family"
        stack = shared.around.ruling().stack
        name = shared.around.names.name(address)
        if name is None:
            self._flow, self._literal = Flow(host, port, secure=False), address
            self._verdict, self._scheme = stack.literal(address, port), "tcp"
        else:
            self._verdict = stack.flow(name, port)
            self._scheme = usual_scheme(port) if isinstance(self._verdict, Deny) else self._verdict.scheme
            self._flow = Flow(name, port, secure=self._scheme == "https")
            shared.around.names.flow_began(name)
            self._named = True
        # Where a guest can be told why, it is: by a reply on plain HTTP, by an alert on TLS. Else a reset says no, and fast.
        if isinstance(self._verdict, Deny) and self._scheme == "tcp":
            return self._verdict.reason
        if self._scheme in ("https", "passthrough") and shared.counts.handshakes >= shared.limits.handshakes:
            return "too_many_handshakes"
        return None

    def _made(self) -> Peer:
        shared, guest, flow, ident = self._shared, self._guest, self._flow, self._ident
        if self._scheme == "tcp":
            assert isinstance(self._verdict, Allow)
            target = self._literal or flow.name
            self._stage = OpaqueStream(shared, guest, flow, ident, self._lost, target=target, verdict=self._verdict)
        elif self._scheme == "http":
            self._stage = HttpSession(shared, guest, flow, ident, self._lost)
        else:
            self._stage = Opening(shared, guest, flow, ident, self._lost, secured=self._secured, passed=self._passed)
        return guest

    def _secured(self) -> None:
        session = Http2Session if self._guest.protocol == "h2" else HttpSession
        self._stage = session(self._shared, self._guest, self._flow, self._ident, self._lost)

    def _passed(self, verdict: Allow, raw: bytes) -> None:
        self._verdict, self._scheme = verdict, "passthrough"
        self._stage = OpaqueStream(
            self._shared, self._guest, self._flow, self._ident, self._lost, target=self._flow.name, verdict=verdict, first=raw
        )

    # -- its end -------------------------------------------------------------------------------------------------------

    def _lost(self) -> None:
        self._end("" if self._stage is None else self._stage.reason)

    def _reset(self, reason: str) -> None:
        reset_on_close(self._sock)
        self._sock.close()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self._over:
            return
        self._over = True
        self._gone(self)
        shared, stage, now = self._shared, self._stage, self._shared.clock()
        if self._named:
            shared.around.names.flow_ended(self._flow.name, now)
        verdict = self._verdict
        rule = verdict.rule if isinstance(verdict, Deny) else verdict.rule.name if verdict.rule is not None else None
        record = Connected(
            sandbox=shared.around.sandbox,
            id=self._ident,
            name=self._flow.name,
            port=self._flow.port,
            scheme=self._scheme or "",
            rule=rule or "",
            recorded=isinstance(verdict, Allow) and verdict.recorded,
            reason=reason,
            requests=0 if stage is None else stage.requests,
            sent=self._guest.taken,
            received=self._guest.given,
            seconds=now - self._began,
            upstream="" if stage is None else stage.address,
        )
        try:
            shared.recorder.told(record, now)
        except Exception:  # noqa: BLE001 - it is logged, and what it was about is over
            log.exception("a connection of %s could not be recorded", shared.around.sandbox)
