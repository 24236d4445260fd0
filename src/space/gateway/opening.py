"""TLS toward the guest: the hello is read from raw bytes, agrees with the flow or is refused, and only then is there a certificate.

hello  ->  (does the upstream speak HTTP/2)  ->  leaf  ->  handshake  ->  (connection.secured)
passthrough: hello  ->  (connection.passed)
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from space.core.policy.agreement import Disagreement, Flow, of_hello
from space.core.policy.verdict import Allow, Deny, Stack
from space.core.wire.clienthello import TLS13, BadHello, ClientHello, HelloReader
from space.gateway import tls
from space.gateway.peer import Peer
from space.gateway.shared import Shared, spoken_by
from space.gateway.stage import Stage

_ALERTS: dict[Disagreement, int] = {"tls_version": tls.PROTOCOL_VERSION}
_HTTP, _HTTP2 = b"http/1.1", b"h2"
_HTTP1: tls.Protocol = "http/1.1"


class Opening(Stage):
    """secured: what follows the handshake. passed: what follows the hello of a flow that is not terminated, with the bytes so far."""

    def __init__(
        self,
        shared: Shared,
        guest: Peer,
        flow: Flow,
        ident: str,
        gone: Callable[[], None],
        *,
        secured: Callable[[], None],
        passed: Callable[[Allow, bytes], None],
    ) -> None:
        super().__init__(shared, guest, flow, ident, gone)
        self._secured = secured
        self._passed = passed
        self._reader: HelloReader | None = HelloReader()
        self._raw = bytearray()
        shared.counts.handshakes += 1
        self._counted = True
        guest.owner = self

    def received(self, _peer: Peer, data: bytes) -> None:
        """Bytes as they are, until the handshake has its own reader."""
        self._raw += data
        if self._reader is None:
            return
        try:
            hello = self._reader.receive(data)
        except BadHello as bad:
            self._refuse(f"hello_{bad.fault}", tls.DECODE_ERROR if bad.fault != "not_tls" else None)
            return
        if hello is not None:
            self._reader = None
            self._greeted(hello)

    def secured(self, _peer: Peer) -> None:
        self._counted_off()
        self._secured()

    def ended(self, _peer: Peer) -> None:
        self.cut("handshake_cut")

    def failed(self, peer: Peer, error: Exception) -> None:
        if isinstance(error, ssl.SSLError) and not self.reason:
            self.reason = "handshake_failed"
            self.guest.finish()  # with the library's alert, which a reset would overtake
            return
        super().failed(peer, error)

    def lost(self, peer: Peer) -> None:
        self._counted_off()
        super().lost(peer)

    def upstream_lost(self) -> None:
        """There is none yet."""

    def rejudge(self, stack: Stack) -> None:
        if isinstance(stack.flow(self.flow.name, self.flow.port), Deny):
            self.cut("policy_changed")

    def sweep(self, now: float) -> None:
        super().sweep(now)
        if not self.guest.finishing and now - self._began > self.shared.limits.handshake:
            self.cut("handshake_slow")

    def _greeted(self, hello: ClientHello) -> None:
        wrong = of_hello(self.flow, hello)
        if wrong is not None:
            self._refuse(wrong, _ALERTS.get(wrong, tls.UNRECOGNIZED_NAME))
            return
        verdict = self.shared.around.ruling().stack.flow(self.flow.name, self.flow.port)
        if isinstance(verdict, Deny):
            self._refuse(verdict.reason, tls.UNRECOGNIZED_NAME)
        elif verdict.scheme == "passthrough":
            if hello.ech:
                self._refuse("ech", tls.UNRECOGNIZED_NAME)
                return
            self._counted_off()
            self._passed(verdict, bytes(self._raw))
        elif verdict.scheme != "https" or not self.flow.secure:  # it became another one since the accept
            self._refuse("scheme_not_allowed", tls.UNRECOGNIZED_NAME)
        elif hello.alpn and not {_HTTP, _HTTP2} & set(hello.alpn):
            self._refuse("alpn", tls.NO_PROTOCOL)
        else:
            self._choose(hello, None if verdict.rule is None else verdict.rule.ca)

    def _choose(self, hello: ClientHello, ca: str | None) -> None:
        """HTTP/2 is offered to who wants it when the upstream speaks it, for nothing is translated."""
        spoken: tls.Protocol | None = _HTTP1
        if _HTTP2 in hello.alpn:
            spoken = self.shared.protocols.known(self.flow.name, self.flow.port, ca, self.shared.clock())
        if spoken is None:
            self.guest.hold(Peer.WAIT)
            self.start(self._find_out(hello, ca))
        else:
            self._offer(hello, spoken)

    async def _find_out(self, hello: ClientHello, ca: str | None) -> None:
        """Ask the upstream itself, with no byte of the guest's: one handshake, verified."""
        spoken = await spoken_by(self.shared, self.flow.name, self.flow.port, ca)
        if self.guest.finishing or self.guest.gone:
            return
        if spoken is None:  # it is not there; why is answered to the first request, in what the guest can read
            spoken = _HTTP1 if _HTTP in hello.alpn else "h2"
        self._offer(hello, spoken)

    def _offer(self, hello: ClientHello, protocol: tls.Protocol) -> None:
        if protocol == _HTTP1 and hello.alpn and _HTTP not in hello.alpn:
            self._refuse("alpn", tls.NO_PROTOCOL)
            return
        tls13 = TLS13 in hello.versions
        context = self.shared.contexts.kept(self.flow.name, self.shared.clock(), protocol) if tls13 else None
        if context is not None:
            self._secure(context)
        else:
            self.guest.hold(Peer.WAIT)
            self.start(self._certify(protocol, tls13=tls13))

    def _secure(self, context: ssl.SSLContext) -> None:
        self.guest.release(Peer.WAIT)
        self.guest.secure(tls.Tls(context, server_side=True), bytes(self._raw))

    async def _certify(self, protocol: tls.Protocol, *, tls13: bool) -> None:
        name, contexts = self.flow.name, self.shared.contexts
        leaf = contexts.leaf(name, self.shared.clock())
        if leaf is None:
            leaf = await self.shared.around.leaf(name)
            if self.guest.finishing or self.guest.gone:
                return
        context = tls.guest_context(leaf, tls13=tls13, protocol=protocol)
        contexts.keep(name, leaf, context if tls13 else None, self.shared.clock(), protocol)
        self._secure(context)

    def _refuse(self, reason: str, description: int | None) -> None:
        """An alert where a TLS client listens; else nothing."""
        self.reason = reason
        self._counted_off()
        if description is None:
            self.cut(reason)
            return
        self.guest.send_raw(tls.alert(description))
        self.guest.finish()

    def _counted_off(self) -> None:
        if self._counted:
            self._counted = False
            self.shared.counts.handshakes -= 1
