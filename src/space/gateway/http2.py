"""HTTP/2 of one guest connection: each stream judged like a request of HTTP/1.1, and sent on as a stream of one upstream connection.

    no stream  ->  judged  ->  (asked, dialled, room upstream)  ->  sent on  ->  answered  ->  no stream
                      |                    |                           |             |
                   answered             answered               answered, or reset both ways

Nothing is translated: who speaks HTTP/2 here reaches an upstream that speaks it. Streams end alone: a refusal is that stream's answer, a
reset or another policy its end, and the rest go on. What holds for all of them (a flood, frames that cannot follow one another, an
upstream that is gone) ends the connection with GOAWAY. When the upstream says that, or the policy is another one, the guest is told the
same: its streams go on, its next ones need another connection. Trailers of a guest are checked and dropped, as they are in HTTP/1.1 (gRPC
has none); those of an upstream go on. 1xx replies are dropped. Pushes, CONNECT and priorities are not spoken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable

from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)

from space.core.credentials.sigv4 import Unsignable
from space.core.credentials.slots import Unfit
from space.core.policy.agreement import Flow
from space.core.policy.verdict import Deny, Stack
from space.core.wire import http2frames as wire
from space.core.wire.http1 import NO_BODY, BadHead, Field, RequestHead
from space.core.wire.http2 import Flood, check_trailers, request_head
from space.core.wire.http2frames import BadFrames
from space.gateway.end import WINDOW, End, Goaway
from space.gateway.exchange import Exchange
from space.gateway.judgement import Refused, judge, request_fields, stream_request
from space.gateway.peer import Peer
from space.gateway.preparing import granted, likewise, prepared, ready, unfit, watched
from space.gateway.replies import Replies
from space.gateway.shared import Shared, UpstreamFailed
from space.gateway.streams import Stream, size_of

_MOST_COLLECTED = WINDOW - 2 * wire.MOST_FRAME  # of a body that is needed whole: its window stays shut until then
_UNREADABLE = RequestHead(b"", b"", b"", (), NO_BODY, frozenset(), False, None)


class Http2Session(Replies):
    """Plain text of one guest connection that is for `flow`, where HTTP/2 was agreed on."""

    def __init__(self, shared: Shared, guest: Peer, flow: Flow, ident: str, gone: Callable[[], None]) -> None:
        super().__init__(shared, guest, flow, ident, gone)
        self._connecting = False
        self._leaving = self._forwarding = False
        self._ca: str | None = None
        self._last = 0  # the guest's last stream that anything was done about
        self._frames = 0
        self._head_since = shared.clock()
        self._generation = shared.around.ruling().generation
        guest.owner = self
        self._near.flush()

    # -- what happens to peers -----------------------------------------------------------------------------------------

    def received(self, peer: Peer, data: bytes) -> None:
        if peer is self.guest:
            self._read(self._near, data, self._from_guest)
        elif peer is self.upstream and self._far is not None:
            self._read(self._far, data, self._from_upstream)
        self._flush()

    def _read(self, end: End, data: bytes, take: Callable[[Event], None]) -> None:
        try:
            for event in end.receive(data, self.shared.clock()):
                take(event)
                if end.peer.finishing:
                    return
        except BadFrames as bad:
            self._broken(end, f"http2_{bad.reason}", bad.code)
        except Flood:
            self._broken(end, "http2_flood", wire.ENHANCE_YOUR_CALM)

    def pressed(self, peer: Peer, full: bool) -> None:
        """What bodies an end may have sent is bounded by its windows, which stay shut. Answers without a body are bounded by nothing: a
        guest that asks and takes none is not read.
        """
        if peer is self.guest:
            (peer.hold if full else peer.release)(Peer.PRESSURE)
        if not full:
            self._push_all(down=peer is self.guest)
            self._flush()

    def ended(self, peer: Peer) -> None:
        if peer is not self.guest:
            if peer is self.upstream:
                self.upstream_lost()
        elif self._streams:
            self.cut("guest_gone")
        else:
            self.finish()

    def upstream_lost(self) -> None:
        """What has come whole is still told; what has not, is answered or reset. A later stream dials again."""
        self.drop_upstream()
        self._return_queued()
        for stream in tuple(self._forwarded.values()):
            if stream.down.ended:
                self._let_go(stream)
                self._deafen(stream)
            else:
                self._answer(stream, Refused(502, "upstream_cut" if stream.answered else "upstream_closed", error="upstream_failed"))
        self._flush()

    # -- from the guest ------------------------------------------------------------------------------------------------

    def _from_guest(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._begin(event.stream_id, event.headers, ended=event.stream_ended is not None)
            case DataReceived():
                self._body(event)
            case TrailersReceived():
                self._trailers(event)
            case StreamEnded():
                self._late.pop(event.stream_id, None)
                self._heard(self._streams.get(event.stream_id))
            case StreamReset():
                self._late.pop(event.stream_id, None)
                if not event.remote_reset:  # for what it sent, which costs as much as a reset of its own
                    self._near.count("reset", self.shared.clock())
                stream = self._streams.get(event.stream_id)
                if stream is not None:
                    self._over(stream, "guest_reset", code=wire.CANCEL)
            case WindowUpdated():
                self._opened(self._streams.get(event.stream_id), down=True, whole=not event.stream_id)
            case RemoteSettingsChanged():
                self._push_all(down=True)
            case Goaway():
                self._leaving = True
                self._leave()

    def _begin(self, near: int, headers: Iterable[Field], *, ended: bool) -> None:
        ruling, now = self.shared.around.ruling(), self.shared.clock()
        if ruling.generation != self._generation:
            self.rejudge(ruling.stack)
        if self._leaving or self.guest.finishing:
            self._near.reset(near, wire.REFUSED_STREAM)  # which says that nothing was done about it
            self._near.count("refused", now)
            return
        self.requests += 1
        self._last = near
        bad, head = None, _UNREADABLE
        try:
            head = stream_request(request_head(headers), ended=ended)
        except BadHead as error:
            bad = error
        stream = Stream(near, Exchange(head, f"{self.ident}-{self.requests}", now, ruling.generation))
        self._streams[near] = stream
        self._near.live.add(near)
        if ended:
            stream.heard = stream.up.ended = True
        if bad is not None:
            self._refuse(stream, Refused(bad.status, bad.reason, error="bad_request"))
            self._near.count("refused", now)
            return
        judged = judge(self.flow, ruling.stack, head, self.shared.around.grants())
        if isinstance(judged, Refused):
            self._refuse(stream, judged)
            return
        stream.exchange.admit(judged)
        if not ended:
            watched(self.shared, stream.exchange)
        if not stream.exchange.collects:
            self._go(stream)

    def _go(self, stream: Stream) -> None:
        if not ready(self.shared, stream.exchange):
            self._spawn(stream, self._ask(stream))
        else:
            self._admitted(stream)

    def _body(self, event: DataReceived) -> None:
        near, data = event.stream_id, event.data
        stream = self._streams.get(near)
        if stream is None or stream.deaf:
            self._near.acknowledge(near, event.flow_controlled_length)
            return
        self._near.acknowledge(near, event.flow_controlled_length - len(data))
        stream.taken += len(data)
        if stream.exchange.marked([data]):
            self._near.acknowledge(near, len(data))
            self._answer(stream, Refused(403, "placeholder_misplaced"))
            return
        if not self._charged(stream, sent=len(data)):
            self._near.acknowledge(near, len(data))
            return
        try:
            stream.up.put(b"".join(stream.exchange.upward([data])) if stream.exchange.forwarded else data)
        except Unsignable as refused:
            self._answer(stream, Refused(400, refused.reason, error="bad_request"))
            return
        if stream.exchange.collects and stream.up.size > _MOST_COLLECTED:
            self._answer(stream, Refused(413, "sigv4_body", error="bad_request"))
            return
        if event.stream_ended is not None:
            stream.heard = stream.up.ended = True
        self._push_up(stream)

    def _trailers(self, event: TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None or stream.deaf:
            return
        try:
            check_trailers(event.headers, 400)
        except BadHead as bad:
            self._near.count("refused", self.shared.clock())
            self._answer(stream, Refused(400, bad.reason, error="bad_request"))

    def _heard(self, stream: Stream | None) -> None:
        if stream is None:
            return
        stream.heard = stream.up.ended = True
        if stream.exchange.collects and not stream.deaf:
            stream.exchange.pieces = [*stream.up.pieces]
            stream.exchange.collected()
            self._go(stream)
        elif stream.down.done:
            self._over(stream, "")
        else:
            self._push_up(stream)

    # -- toward the upstream -------------------------------------------------------------------------------------------

    async def _ask(self, stream: Stream) -> None:
        try:
            await prepared(self.shared, self.flow, stream.exchange)
        except UpstreamFailed as failed:
            self._answer(stream, Refused(failed.status, failed.reason))
        else:
            if self._streams.get(stream.near) is stream and self._allowed(stream, self.shared.around.ruling().stack):
                self._admitted(stream)
        self._flush()

    def _admitted(self, stream: Stream) -> None:
        ca = _ca(stream.exchange)
        fits = ca == self._ca and not (self._far is not None and self._far.closing)
        if not fits and not self._forwarded and not self._queued and not self._connecting:
            self.drop_upstream()
            self._ca = ca
        elif not fits:  # its rule, or its policy, wants another upstream than the streams under way: one connection has one
            self._retire()
            self._over(stream, "", code=wire.REFUSED_STREAM)
            return
        self._queued.append(stream)
        self._next()

    async def _connect(self) -> None:
        generation = self.shared.around.ruling().generation
        try:
            peer = await self.shared.connect(self, self.flow.name, self.flow.port, secure=True, ca=self._ca, h2=True)
            if peer.protocol != "h2":
                peer.abort()
                self.shared.protocols.learn(self.flow.name, self.flow.port, self._ca, "http/1.1", self.shared.clock())
                raise UpstreamFailed("upstream_protocol", 502)
        except UpstreamFailed as failed:
            self._connecting = False
            queued, self._queued = self._queued, []
            for stream in queued:
                self._answer(stream, Refused(failed.status, failed.reason, error="egress_denied" if failed.denied else "upstream_failed"))
            if failed.reason == "upstream_protocol":
                self._retire()
            self._flush()
            return
        ruling = self.shared.around.ruling()
        if ruling.generation != generation:
            self.rejudge(ruling.stack)
        self._connecting = False
        if self.guest.finishing:
            peer.abort()
            return
        self.upstream, self.address = peer, peer.address
        self._far = far = End(peer, self.shared.clock(), server=False)
        spoken, peer.spoken = peer.spoken, b""
        if spoken:
            self.received(peer, spoken)
        self._next()
        far.closing = far.closing or ruling.generation != generation  # later ones dial by the policy of then
        far.flush()
        peer.release(Peer.WAIT)

    def _next(self) -> None:
        """Send on what waits for room."""
        if self._forwarding:
            return
        if self._far is not None and self._far.closing and not self._forwarded:
            self.drop_upstream()
        if self._far is None:
            if self._queued and not self._connecting and not self.guest.finishing:
                self._connecting = True
                self.start(self._connect())
            return
        self._forwarding = True
        try:
            while self._queued and self._far is not None and self._far.room:
                self._forward(self._queued.pop(0), self._far)
        finally:
            self._forwarding = False

    def _forward(self, stream: Stream, far: End) -> None:
        exchange = stream.exchange
        assert exchange.asked is not None
        try:
            if exchange.asks or exchange.lacks:  # judged again meanwhile, it is another's
                raise Unfit("nothing was lent for it")
            fields = request_fields(self.flow, exchange.head, exchange.asked.path, exchange.loan)
            if exchange.loan is not None and exchange.loan.chunks is not None:
                stream.up.replace(exchange.upward([*stream.up.pieces]))
        except Unfit:
            self._answer(stream, Refused(503, "credential_unavailable"))
            return
        except Unsignable as refused:
            self._answer(stream, Refused(400, refused.reason, error="bad_request"))
            return
        exchange.forwarded = True
        exchange.wire = None if exchange.loan is None else exchange.loan.wire()
        exchange.since = self.shared.clock()
        if not self._charged(stream, sent=size_of(fields)):
            return
        stream.far = far.begin()
        self._forwarded[stream.far] = stream
        stream.up.done = stream.up.ended and not stream.up.pieces
        far.head(stream.far, fields, ended=stream.up.done)
        self._push_up(stream)

    # -- from the upstream ---------------------------------------------------------------------------------------------

    def _from_upstream(self, event: Event) -> None:
        match event:
            case WindowUpdated():
                self._opened(self._forwarded.get(event.stream_id), down=False, whole=not event.stream_id)
                return
            case RemoteSettingsChanged():
                self._next()
                self._push_all(down=False)
                return
            case Goaway():
                self._upstream_leaves(event.last)
                return
            case ResponseReceived() | InformationalResponseReceived() | DataReceived() | TrailersReceived() | StreamEnded() | StreamReset():
                stream = self._forwarded.get(event.stream_id)
            case _:
                return
        if stream is None:
            if isinstance(event, DataReceived) and self._far is not None:
                self._far.acknowledge(event.stream_id, event.flow_controlled_length)
            return
        try:
            self._reply(stream, event)
        except BadHead as bad:
            self._answer(stream, unfit(self.shared, self.flow, stream.exchange, bad))

    def _upstream_leaves(self, last: int) -> None:
        if self._far is None:
            return
        self._far.closing = True
        self._return_queued()
        for far, stream in tuple(self._forwarded.items()):
            if far > last:
                self._over(stream, "upstream_goaway", code=wire.REFUSED_STREAM)
        self._next()

    def _return_queued(self) -> None:
        """Nobody has seen them: they can be sent again, and are not sent to an upstream that may do the same once more."""
        queued, self._queued = self._queued, []
        for stream in queued:
            self._over(stream, "upstream_closed", code=wire.REFUSED_STREAM)

    # -- ends of the connection ----------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """No more streams; those that wait have not been seen by anybody and can be sent again."""
        if self.guest.finishing:
            return
        self._near.goaway(wire.NO_ERROR, self._last)
        self._leaving = True
        self._leave()

    def _leave(self) -> None:
        if self._leaving and not self._streams and not self.guest.finishing:
            self._flush()
            self.finish()

    def _broken(self, end: End, reason: str, code: int) -> None:
        end.goaway(code, self._last if end is self._near else 0)
        if end is self._near:
            self.reason = self.reason or reason
            self._all_over(reason)
            self.finish()
        else:
            for stream in tuple(self._forwarded.values()):
                if not stream.down.ended:
                    self._answer(stream, Refused(502, f"upstream_{reason}", error="upstream_failed"))
            self.upstream_lost()

    # -- what time and policy do ---------------------------------------------------------------------------------------

    def _allowed(self, stream: Stream, stack: Stack) -> bool:
        """Whether another policy allows it as well; what has not been sent on goes by that one's rule. Else it is over."""
        exchange = stream.exchange
        if stream.deaf or exchange.asked is None:
            return True
        if not granted(self.shared, exchange):
            self._over(stream, "grant_revoked", code=wire.CANCEL)
            return False
        if exchange.forwarded:
            verdict = stack.request(exchange.asked)
            allowed = not isinstance(verdict, Deny)
            if not isinstance(verdict, Deny):
                exchange.narrow(stack, verdict)
        else:
            judged = judge(self.flow, stack, exchange.head, self.shared.around.grants())
            allowed = not isinstance(judged, Refused) and likewise(exchange, judged)
            if allowed and not isinstance(judged, Refused):
                exchange.admit(judged)
        if not allowed:
            self._over(stream, "policy_changed", code=wire.CANCEL)
        elif stream in self._queued and (_ca(exchange) != self._ca or exchange.asks):
            self._over(stream, "", code=wire.REFUSED_STREAM)  # it waits for the wrong thing, and can be sent again
            return False
        return allowed

    def rejudge(self, stack: Stack) -> None:
        verdict = stack.flow(self.flow.name, self.flow.port)
        if isinstance(verdict, Deny) or verdict.scheme != "https":
            self.cut("policy_changed")
            return
        for stream in tuple(self._streams.values()):
            self._allowed(stream, stack)
        generation = self.shared.around.ruling().generation
        if generation != self._generation:
            self._generation = generation
            if self._far is not None:  # for the streams that it has: another rule may want another upstream certificate
                self._far.closing = True
        self._flush()

    def sweep(self, now: float) -> None:
        super().sweep(now)
        if self.guest.finishing:
            return
        if not self._near.waiting or self._frames != self._near.frames:
            self._frames, self._head_since = self._near.frames, now
        elif now - self._head_since > self.shared.limits.head:
            self._broken(self._near, "head_slow", wire.ENHANCE_YOUR_CALM)
            return
        for stream in tuple(self._streams.values()):
            self._body_rate(stream, now)
        self._stop_late(now)
        self._flush()

    def _body_rate(self, stream: Stream, now: float) -> None:
        """A body of a length that was said comes at a rate; one without is a stream (gRPC's), which may be silent."""
        limits, exchange = self.shared.limits, stream.exchange
        if stream.heard or stream.deaf or not exchange.forwarded or exchange.head.framing.kind != "length":
            return
        if stream.up.pieces:  # it is we who are slow
            exchange.since = min(now, exchange.since + limits.sweep)
        elif stream.taken < (now - exchange.since - limits.body_grace) * limits.body_rate:
            self._answer(stream, Refused(408, "body_slow", error="bad_request"))

    def _spawn(self, stream: Stream, work: Coroutine[None, None, None]) -> None:
        """A task of that stream alone. What it raises closes both sides."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - both sides must go, whatever it is
                self.failed(self.guest, error)

        stream.task = asyncio.get_running_loop().create_task(guarded(), name=f"stream {stream.exchange.id}")


def _ca(exchange: Exchange) -> str | None:
    """The authorities that its rule names for the upstream."""
    rule = None if exchange.verdict is None else exchange.verdict.rule
    return None if rule is None else rule.ca
