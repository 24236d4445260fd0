"""The streams of one guest connection and what becomes of each: sent as far as windows go, refused, reset, over, recorded.

    begun  ->  (queued)  ->  forwarded  ->  answered  ->  told  ->  over
       any of them  ->  refused: the answer is ours, what the guest still sends is dropped  ->  told  ->  over

A stream's bytes are acknowledged to whoever sent them when the other side has taken them, so that each holds a window's worth at most.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable

from space.core.policy.agreement import Flow
from space.core.wire import http2frames as wire
from space.core.wire.http1 import Field
from space.gateway.end import WINDOW, End, Outgoing
from space.gateway.exchange import Exchange
from space.gateway.judgement import REFUSAL_FIELDS, Refused, refusal_body
from space.gateway.peer import Peer
from space.gateway.preparing import recorded
from space.gateway.shared import Shared, log
from space.gateway.stage import Stage

_SLICE = wire.MOST_FRAME  # what one stream sends before it is another's turn


class Stream:
    """near, far: its ids toward guest and upstream, far is 0 while or when it has none. heard: the guest has sent all. deaf: what it still
    sends is dropped. answered: a reply has begun. taken: bytes of its body.
    """

    __slots__ = ("answered", "deaf", "down", "exchange", "far", "heard", "near", "taken", "task", "up")

    def __init__(self, near: int, exchange: Exchange) -> None:
        self.near = near
        self.far = 0
        self.exchange = exchange
        self.up, self.down = Outgoing(), Outgoing()
        self.heard = self.deaf = self.answered = False
        self.taken = 0
        self.task: asyncio.Task[None] | None = None


class Streams(Stage):
    """_near: the guest's end. _far: the upstream's."""

    def __init__(self, shared: Shared, guest: Peer, flow: Flow, ident: str, gone: Callable[[], None]) -> None:
        super().__init__(shared, guest, flow, ident, gone)
        self._near = End(guest, shared.clock(), server=True)
        self._far: End | None = None
        self._streams: dict[int, Stream] = {}
        self._forwarded: dict[int, Stream] = {}  # by the upstream's id
        self._late: dict[int, float] = {}  # ids toward the guest that still sends, though it has its answer, and since when
        self._queued: list[Stream] = []  # admitted, and the upstream is not there or has no room
        self._turn = 0

    @property
    def waits(self) -> bool:
        """Likewise, of any stream."""
        return super().waits or any(stream.task is not None and not stream.task.done() for stream in self._streams.values())

    @abstractmethod
    def _next(self) -> None:
        """A stream is over: another one may go."""

    @abstractmethod
    def _leave(self) -> None:
        """A stream is over: it may have been the last one."""

    def _charged(self, stream: Stream, *, sent: int = 0, received: int = 0) -> bool:
        """Take it from the budgets; where they are short it goes no further."""
        exchange = stream.exchange
        if exchange.budgets and (over := self.shared.around.spending.charge(exchange.budgets, sent, received)) is not None:
            self._answer(stream, Refused(403, over))
            return False
        exchange.sent += sent
        exchange.received += received
        return True

    # -- as far as windows and buffers go ------------------------------------------------------------------------------

    def _push_up(self, stream: Stream, most: int = WINDOW) -> int:
        if self._far is None or not stream.far:
            return 0
        sent = self._far.push(stream.far, stream.up, most)
        self._near.acknowledge(stream.near, sent)
        return sent

    def _push_down(self, stream: Stream, most: int = WINDOW) -> int:
        if stream.down.done:
            return 0
        sent = self._near.push(stream.near, stream.down, most)
        if stream.far and self._far is not None:
            self._far.acknowledge(stream.far, sent)
        if stream.down.done:
            self._told(stream)
        return sent

    def _opened(self, stream: Stream | None, *, down: bool, whole: bool) -> None:
        if whole:
            self._push_all(down=down)
        elif stream is not None:
            (self._push_down if down else self._push_up)(stream)

    def _push_all(self, *, down: bool) -> None:
        """A slice of each stream in turn, for as long as anything goes; who begins is another one each time."""
        end, push = (self._near, self._push_down) if down else (self._far, self._push_up)
        streams = [stream for stream in self._streams.values() if (stream.down if down else stream.up).waiting]
        if end is None or not streams:
            return
        self._turn = (self._turn + 1) % len(streams)
        streams = streams[self._turn :] + streams[: self._turn]
        while streams and not end.full:
            streams = [stream for stream in streams if push(stream, _SLICE) and (stream.down if down else stream.up).waiting]

    def _flush(self) -> None:
        self._near.flush()
        if self._far is not None:
            self._far.flush()

    # -- ends of a stream ----------------------------------------------------------------------------------------------

    def _answer(self, stream: Stream, refused: Refused) -> None:
        """Tell the guest that its request ends here, if it can still be told."""
        if self._streams.get(stream.near) is not stream:
            return
        if stream.answered:
            self._over(stream, refused.reason, code=wire.INTERNAL_ERROR)
        else:
            self._refuse(stream, refused)

    def _refuse(self, stream: Stream, refused: Refused) -> None:
        exchange = stream.exchange
        exchange.refuse(refused)
        self._let_go(stream, code=wire.CANCEL)
        self._deafen(stream)
        body = refusal_body(refused, self.flow.name, exchange.id)
        bare = exchange.head.method == b"HEAD"
        fields = [(b":status", b"%d" % refused.status), *REFUSAL_FIELDS, (b"content-length", b"%d" % len(body))]
        stream.answered = True
        stream.down.ended, stream.down.done = True, bare
        self._near.head(stream.near, fields, ended=bare)
        if bare:
            self._told(stream)
        else:
            stream.down.put(body)
            self._push_down(stream)

    def _told(self, stream: Stream) -> None:
        """The guest has all of its answer. It may still be sending, which the upstream may still want.

        Where nobody wants it, it is not stopped at once: clients (curl 7.88 is one) forget an answer whose stream is reset before they
        have sent what they had at hand.
        """
        if not stream.heard and stream.deaf:
            self._late[stream.near] = self.shared.clock()
        if stream.heard or stream.deaf:
            self._over(stream, "")

    def _stop_late(self, now: float) -> None:
        """Whoever sends for longer than it takes to read an answer is told to stop."""
        for near, since in tuple(self._late.items()):
            if now - since > self.shared.limits.linger:
                del self._late[near]
                self._near.reset(near, wire.NO_ERROR)

    def _deafen(self, stream: Stream) -> None:
        stream.deaf = True
        self._near.acknowledge(stream.near, stream.up.size + stream.exchange.let_go())
        stream.up = Outgoing()
        if stream.down.done and not stream.heard:
            self._told(stream)

    def _let_go(self, stream: Stream, code: int | None = None) -> None:
        """It has no upstream any more. code: what that is told, if there is anything to tell."""
        far, stream.far = stream.far, 0
        if stream in self._queued:
            self._queued.remove(stream)
        if not far:
            return
        del self._forwarded[far]
        if self._far is not None:
            self._far.acknowledge(far, stream.down.size + stream.exchange.held)
            if code is not None:
                self._far.reset(far, code)
            self._far.live.discard(far)

    def _over(self, stream: Stream, reason: str, *, code: int | None = None) -> None:
        """Nothing of it is left. code: of the resets that say so to both sides."""
        if self._streams.pop(stream.near, None) is None:
            return
        if stream.task is not None and stream.task is not asyncio.current_task():
            stream.task.cancel()
        if code is not None:
            self._near.reset(stream.near, code)
        self._near.acknowledge(stream.near, stream.up.size + stream.exchange.let_go())
        self._near.live.discard(stream.near)
        whole = stream.up.done and stream.down.ended
        self._let_go(stream, code=None if whole else wire.CANCEL)
        stream.exchange.reason = stream.exchange.reason or reason
        self._record(stream.exchange)
        self._next()
        self._leave()

    def _record(self, exchange: Exchange) -> None:
        recorded(self.shared, self.flow, exchange, self.address)

    def _all_over(self, reason: str) -> None:
        streams, self._streams, self._queued = tuple(self._streams.values()), {}, []
        self._forwarded.clear()
        for stream in streams:
            if stream.task is not None and stream.task is not asyncio.current_task():
                stream.task.cancel()
            stream.exchange.reason = stream.exchange.reason or reason
            try:
                self._record(stream.exchange)
            except Exception:  # noqa: BLE001 - it is logged, and what it was about is over
                log.exception("a request of %s could not be recorded", self.shared.around.sandbox)

    def cut(self, reason: str) -> None:
        self.reason = self.reason or reason
        super().cut(reason)
        self._all_over(reason)

    def drop_upstream(self) -> None:
        self._far = None
        super().drop_upstream()


def size_of(fields: Iterable[Field]) -> int:
    """As HTTP/2 counts it (RFC 9113, 10.5.1)."""
    return sum([len(name) + len(value) + 32 for name, value in fields])
