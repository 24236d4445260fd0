"""The requests of one guest connection, one after another: judged, sent on, answered. One upstream connection is kept, of the same name.

    no request  ->  judged  ->  (asked, dialled)  ->  sent on  ->  answered  ->  no request
                       |               |                 |            |
                    refused         refused      an early answer    101: frames both ways

Where nothing has to be dialled there is no task and no wait: a request goes on in the call that brought its last byte, and so does the
reply. What cannot be told to the guest any more, because its answer has begun, ends with a reset of both sides.
"""

from __future__ import annotations

from collections.abc import Callable

from space.core.credentials.sigv4 import MOST_BODY, Unsignable
from space.core.credentials.slots import Unfit
from space.core.policy.agreement import Flow
from space.core.policy.verdict import Allow, Deny, Stack
from space.core.wire.bodies import BadBody, Body
from space.core.wire.http1 import BadHead, HeadReader, RequestHead
from space.gateway.exchange import CONTINUE, MOST_INTERIM, NOTHING, Exchange, framed, reply_bytes, reply_framing, switched_bytes
from space.gateway.judgement import Refused, judge, refusal, request_bytes
from space.gateway.peer import Peer
from space.gateway.preparing import granted, likewise, noticed, prepared, ready, recorded, unfit, watched
from space.gateway.shared import Shared, UpstreamFailed, log
from space.gateway.stage import Stage
from space.gateway.websocket import BadFrame, Frames

_HANDSHAKE = 22  # the first byte of TLS, and of no head
_MISPLACED = Refused(403, "placeholder_misplaced", close=True)


class HttpSession(Stage):
    """Plain text of one guest connection that is for `flow`."""

    def __init__(self, shared: Shared, guest: Peer, flow: Flow, ident: str, gone: Callable[[], None]) -> None:
        super().__init__(shared, guest, flow, ident, gone)
        self._reader = HeadReader(RequestHead.parse)
        self._exchange: Exchange | None = None
        self._held = b""  # what follows the request that is under way
        self._head_since: float | None = None
        self._ended = False
        self._generation = shared.around.ruling().generation
        guest.owner = self

    # -- from the guest ------------------------------------------------------------------------------------------------

    def received(self, peer: Peer, data: bytes) -> None:
        if peer is self.guest:
            self._from_guest(data)
        elif peer is self.upstream:
            self._from_upstream(data)

    def pressed(self, peer: Peer, full: bool) -> None:
        super().pressed(peer, full)
        if peer is self.guest and not full:
            self._pump()

    def _from_guest(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self._held += data
            self._pump()
        elif exchange.tunnel is not None:
            self._frames(exchange, exchange.tunnel[0], data, sent=True)
        elif exchange.forwarded and not exchange.body.ended:
            self._body(exchange, data)
        elif exchange.collects and not exchange.body.ended:
            self._collect(exchange, data)
        else:
            self._held += data
            self.guest.hold(Peer.QUEUE)

    def _pump(self) -> None:
        """Begin requests that are there, one at a time."""
        while self._held and self._exchange is None and not self.guest.finishing:
            if self.guest.full:  # a guest that sends and does not read gets no more answers
                self.guest.hold(Peer.QUEUE)
                return
            data, self._held = self._held, b""
            self._next(data)
        if self._exchange is None and not self._held:
            self.guest.release(Peer.QUEUE)
            if self._ended:
                self.finish()

    def _next(self, data: bytes) -> None:
        try:
            head = self._reader.receive(data)
        except BadHead as bad:
            self._unreadable(bad)
            return
        if head is None:
            if data[0] == _HANDSHAKE and not self.flow.secure:
                self.cut("tls_on_plain_port")
            self._head_since = self._head_since or self.shared.clock()
            return
        self._head_since = None
        self._begin(head, self._reader.rest)

    def _begin(self, head: RequestHead, rest: bytes) -> None:
        ruling = self.shared.around.ruling()
        if ruling.generation != self._generation:  # another rule may want another upstream certificate
            self._generation = ruling.generation
            self.drop_upstream()
        self.requests += 1
        exchange = self._exchange = Exchange(head, f"{self.ident}-{self.requests}", self.shared.clock(), ruling.generation)
        judged = judge(self.flow, ruling.stack, head, self.shared.around.grants())
        if isinstance(judged, Refused):
            self._held = rest
            self._refuse(exchange, judged)
            return
        exchange.admit(judged)
        if exchange.body is NOTHING:
            self._held = rest
        else:
            try:  # before anybody is dialled: a body that breaks its framing at once is part of a bad head
                exchange.pieces = exchange.body.receive(rest)
            except BadBody as bad:
                self._refuse(exchange, Refused(bad.status, bad.reason, close=True, error="bad_request"))
                return
            self._held = exchange.body.rest
            watched(self.shared, exchange)
            if exchange.marked(exchange.pieces):
                self._refuse(exchange, _MISPLACED)
                return
        if self._held:
            self.guest.hold(Peer.QUEUE)
        if exchange.collects and not exchange.body.ended:
            return
        self._go(exchange)

    def _go(self, exchange: Exchange) -> None:
        if exchange.collects:
            exchange.collected()
        if self.upstream is None or not ready(self.shared, exchange):
            self.start(self._prepare(exchange))
        else:
            exchange.reused = True
            self._forward(exchange, self.upstream)

    def _collect(self, exchange: Exchange, data: bytes) -> None:
        """More of a body that has to be there whole."""
        try:
            exchange.pieces += (pieces := exchange.body.receive(data))
        except BadBody as bad:
            self._answer(exchange, Refused(bad.status, bad.reason, close=True, error="bad_request"))
            return
        if exchange.marked(pieces):
            self._answer(exchange, _MISPLACED)
        elif sum(map(len, exchange.pieces)) > MOST_BODY:
            self._answer(exchange, Refused(413, "sigv4_body", close=True, error="bad_request"))
        elif exchange.body.ended:
            self._held = exchange.body.rest
            self._go(exchange)

    def _body(self, exchange: Exchange, data: bytes) -> None:
        try:
            pieces = exchange.body.receive(data)
        except BadBody as bad:
            self._answer(exchange, Refused(bad.status, bad.reason, close=True, error="bad_request"))
            return
        if exchange.marked(pieces):
            self._answer(exchange, _MISPLACED)
            return
        try:
            out = framed(exchange.upward(pieces), exchange.head.framing, ended=exchange.body.ended)
        except Unsignable as refused:
            self._answer(exchange, Refused(400, refused.reason, close=True, error="bad_request"))
            return
        if exchange.body.rest:
            self._held = exchange.body.rest
            self.guest.hold(Peer.QUEUE)
        if out and self.upstream is not None:
            self._to_upstream(exchange, self.upstream, out)

    # -- toward the upstream -------------------------------------------------------------------------------------------

    async def _prepare(self, exchange: Exchange) -> None:
        verdict = exchange.verdict
        assert verdict is not None
        try:
            await prepared(self.shared, self.flow, exchange)
            upstream = self.upstream
            if upstream is None:
                upstream = await self.shared.connect(
                    self, self.flow.name, self.flow.port, secure=self.flow.secure, ca=_ca(verdict)
                )  # fmt: skip
                if not upstream.gone:
                    self.adopt(upstream)
            if self.upstream is None:
                raise UpstreamFailed("upstream_closed", 502)
        except UpstreamFailed as failed:
            error = "egress_denied" if failed.denied else "upstream_failed"
            self._answer(exchange, Refused(failed.status, failed.reason, error=error))  # type: ignore[arg-type]  # a literal, by if
            return
        ruling = self.shared.around.ruling()
        if ruling.generation != exchange.generation:
            self.rejudge(ruling.stack)
        if self._exchange is exchange and not self.reason:
            self._forward(exchange, upstream)

    def _forward(self, exchange: Exchange, upstream: Peer) -> None:
        head, asked = exchange.head, exchange.asked
        assert asked is not None
        try:
            if exchange.asks or exchange.lacks:  # judged again meanwhile, it is another's
                raise Unfit("nothing was lent for it")
            out = request_bytes(self.flow, head, asked.path, head.framing, websocket=exchange.accept is not None, loan=exchange.loan)
            exchange.pieces = exchange.upward(exchange.pieces)
        except Unfit:
            self._answer(exchange, Refused(503, "credential_unavailable"))
            return
        except Unsignable as refused:
            self._answer(exchange, Refused(400, refused.reason, close=True, error="bad_request"))
            return
        exchange.forwarded = True
        exchange.wire = None if exchange.loan is None else exchange.loan.wire()
        if head.framing.kind != "none":
            out += framed(exchange.pieces, head.framing, ended=exchange.body.ended)
            exchange.pieces = []
            exchange.since = self.shared.clock()
        self._to_upstream(exchange, upstream, out)
        if not exchange.body.ended and self._held and self._exchange is exchange:
            data, self._held = self._held, b""
            self.guest.release(Peer.QUEUE)
            self._body(exchange, data)

    def _to_upstream(self, exchange: Exchange, upstream: Peer, data: bytes) -> None:
        if exchange.budgets and (over := self.shared.around.spending.charge(exchange.budgets, len(data), 0)) is not None:
            self._answer(exchange, Refused(403, over, close=True))
            return
        exchange.sent += len(data)
        upstream.send(data)

    # -- from the upstream ---------------------------------------------------------------------------------------------

    def _from_upstream(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or not exchange.forwarded:
            self.drop_upstream()  # nobody asked
            return
        exchange.received += len(data)
        if exchange.budgets and (over := self.shared.around.spending.charge(exchange.budgets, 0, len(data))) is not None:
            self._answer(exchange, Refused(403, over, close=True))
        elif exchange.tunnel is not None:
            self._frames(exchange, exchange.tunnel[1], data, sent=False)
        else:
            try:
                if exchange.reply is None:
                    self._reply_head(exchange, data)
                else:
                    self._reply_body(exchange, data)
            except BadHead as bad:
                self._answer(exchange, unfit(self.shared, self.flow, exchange, bad))

    def _reply_head(self, exchange: Exchange, data: bytes) -> None:
        while True:
            reply = exchange.reader.receive(data)
            if reply is None:
                return
            data = exchange.reader.rest
            if not reply.interim:
                break
            if reply.status == 101:
                self._switch(exchange, switched_bytes(reply, exchange.accept, exchange.stripped), data)
                return
            exchange.interims += 1
            if exchange.interims > MOST_INTERIM:
                raise BadHead("interim", "interim replies without end", 502)
            if reply.status == 100 and exchange.head.expects_continue and not exchange.continued:
                exchange.continued = True
                self.guest.send(CONTINUE)
        if exchange.head.method != b"HEAD" and reply.framing.kind != "none":
            exchange.replied(reply.fields)
        exchange.reply = reply
        exchange.status = reply.status
        exchange.keep = exchange.head.keep_alive and exchange.body.ended
        body = exchange.reply_body = Body(reply.framing, extensions=True)
        out = reply_bytes(reply, bare=exchange.head.method == b"HEAD", close=not exchange.keep, stripped=exchange.stripped)
        self._reply_piece(exchange, body, body.receive(data), exchange.told(out))

    def _reply_body(self, exchange: Exchange, data: bytes) -> None:
        body = exchange.reply_body
        assert body is not None
        self._reply_piece(exchange, body, body.receive(data), b"")

    def _reply_piece(self, exchange: Exchange, body: Body, pieces: list[bytes], before: bytes) -> None:
        assert exchange.reply is not None
        if exchange.wire is not None:
            data = exchange.wire.receive(pieces[0] if len(pieces) == 1 else b"".join(pieces), ended=body.ended)
            pieces = [data] if data else []
            noticed(self.shared, self.flow, exchange)
        out = before + framed(pieces, reply_framing(exchange.reply), ended=body.ended) if pieces or body.ended else before
        if out:
            self.guest.send(out)
        if body.ended:
            self._answered(exchange, body)

    def _answered(self, exchange: Exchange, body: Body) -> None:
        assert exchange.reply is not None
        if not (exchange.reply.keep_alive and exchange.body.ended and not body.rest):
            self.drop_upstream()
        self._close(exchange)
        if exchange.keep:
            self._pump()
        else:
            self.finish()

    def _switch(self, exchange: Exchange, out: bytes | None, rest: bytes) -> None:
        if out is None:
            self._answer(exchange, Refused(502, "upstream_upgrade", close=True, error="upstream_failed"))
            return
        most = self.shared.limits.frame
        exchange.status = 101
        out = exchange.told(out)
        exchange.tunnel = Frames(masked=True, most=most), Frames(masked=False, most=most)
        self.guest.send(out)
        early, self._held = self._held, b""
        self.guest.release(Peer.QUEUE)
        for frames, data, sent in ((exchange.tunnel[0], early, True), (exchange.tunnel[1], rest, False)):
            if data and self._exchange is exchange:
                self._frames(exchange, frames, data, sent=sent)

    def _frames(self, exchange: Exchange, frames: Frames, data: bytes, *, sent: bool) -> None:
        try:
            out = frames.receive(data)
        except BadFrame as bad:
            self.cut(f"websocket_{bad.fault}")
            return
        if not sent:
            # A message is whole for whoever waits for it, whatever its last byte may be the beginning of.
            self.guest.send(exchange.searched(out, ended=frames.between))
            noticed(self.shared, self.flow, exchange)
        elif self.upstream is not None:
            self._to_upstream(exchange, self.upstream, out)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def ended(self, peer: Peer) -> None:
        exchange = self._exchange
        if peer is self.guest:
            self._ended = True
            if exchange is None and not self._held:
                self.finish()
            elif exchange is not None and exchange.tunnel is not None:
                self.cut("")
            elif exchange is not None and (self.flow.secure or not exchange.body.ended):
                self.cut("guest_gone")  # in the clear some say their last and still listen; in TLS nobody does
        elif peer is self.upstream:
            clean = peer.tls is None or peer.tls.ended
            self.upstream_ended(exchange, clean=clean)

    def upstream_ended(self, exchange: Exchange | None, *, clean: bool) -> None:
        """The upstream says no more. clean: it said so, rather than being cut off."""
        self.drop_upstream()
        if exchange is None or not exchange.forwarded:
            return
        if exchange.tunnel is not None:
            self._close(exchange)
            self.finish()
        elif exchange.reply is None:
            if exchange.repeatable:
                exchange.again()
                self.start(self._prepare(exchange))
            else:
                self._answer(exchange, Refused(502, "upstream_closed", error="upstream_failed"))
        else:
            body = exchange.reply_body
            assert body is not None
            if exchange.reply.framing.kind != "close" or not clean:
                self.cut("upstream_cut")
                return
            body.eof()
            self._reply_piece(exchange, body, [], b"")

    def upstream_lost(self) -> None:
        self.upstream_ended(self._exchange, clean=False)

    def rejudge(self, stack: Stack) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.asked is not None:
            if not granted(self.shared, exchange):
                self.cut("grant_revoked")
            elif not self._goes_on(exchange, stack):
                self.cut("policy_changed")
            return
        verdict = stack.flow(self.flow.name, self.flow.port)
        if isinstance(verdict, Deny) or verdict.scheme != ("https" if self.flow.secure else "http"):
            self.cut("policy_changed")

    def _goes_on(self, exchange: Exchange, stack: Stack) -> bool:
        """Whether another policy allows it as well, and as it is: what has not been sent on must be what that one would send."""
        assert exchange.asked is not None
        verdict = stack.request(exchange.asked)
        unasked = isinstance(verdict, Allow) and verdict.ask and not exchange.agreed
        if exchange.forwarded:
            if isinstance(verdict, Deny) or (unasked and exchange.tunnel is not None):
                return False
            exchange.narrow(stack, verdict)
            return True
        before, judged = exchange.verdict, judge(self.flow, stack, exchange.head, self.shared.around.grants())
        if isinstance(judged, Refused) or before is None or (unasked and not before.ask) or _ca(before) != _ca(judged.verdict):
            return False
        if not likewise(exchange, judged):
            return False
        exchange.admit(judged)
        return True

    def sweep(self, now: float) -> None:
        super().sweep(now)
        limits, exchange = self.shared.limits, self._exchange
        if self.guest.finishing:
            return
        if exchange is None:
            if self._head_since is not None and now - self._head_since > limits.head:
                self._unreadable(BadHead("head_slow", "the head took too long", 408))
        elif exchange.forwarded and not exchange.body.ended:
            if self.guest.held:  # it is we who are slow
                exchange.since = min(now, exchange.since + limits.sweep)
            elif exchange.body.taken < (now - exchange.since - limits.body_grace) * limits.body_rate:
                self._answer(exchange, Refused(408, "body_slow", close=True, error="bad_request"))

    def cut(self, reason: str) -> None:
        exchange, self._exchange = self._exchange, None
        self.reason = self.reason or reason
        super().cut(reason)
        if exchange is not None:
            exchange.reason = exchange.reason or reason
            try:
                self._record(exchange)
            except Exception:  # noqa: BLE001 - it is logged, and what it was about is over
                log.exception("a request of %s could not be recorded", self.shared.around.sandbox)

    def _unreadable(self, bad: BadHead) -> None:
        """A head without one meaning: nothing that follows can be believed."""
        self.requests += 1
        ident = f"{self.ident}-{self.requests}"
        refused = Refused(bad.status, bad.reason, close=True, error="bad_request")
        self.guest.send(refusal(refused, self.flow.name, ident, close=True, head=False))
        self.reason = self.reason or bad.reason
        self.finish()

    def _answer(self, exchange: Exchange, refused: Refused) -> None:
        """Tell the guest that its request ends here, if it can still be told; then go on or close."""
        if exchange.reply is not None or exchange.tunnel is not None:
            self.cut(refused.reason)
            return
        self._refuse(exchange, refused)
        self._pump()

    def _refuse(self, exchange: Exchange, refused: Refused) -> None:
        close = refused.close or not exchange.body.ended or not exchange.head.keep_alive
        exchange.refuse(refused)
        bare = exchange.head.method == b"HEAD"
        self.guest.send(refusal(refused, self.flow.name, exchange.id, close=close, head=bare))
        self._close(exchange)
        if exchange.forwarded:
            self.drop_upstream()
        if close:
            self.reason = self.reason or (refused.reason if refused.close else "")
            self.finish()

    def _close(self, exchange: Exchange) -> None:
        self._exchange = None
        self._record(exchange)

    def _record(self, exchange: Exchange) -> None:
        recorded(self.shared, self.flow, exchange, self.address)


def _ca(verdict: Allow) -> str | None:
    """The authorities that its rule names for the upstream."""
    return None if verdict.rule is None else verdict.rule.ca
