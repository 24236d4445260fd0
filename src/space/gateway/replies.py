"""What an upstream answers on the streams of one guest connection: heads judged and sent on, bodies as far as the guest takes them."""

from __future__ import annotations

from collections.abc import Iterable

from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from space.core.wire.http1 import BadHead, Field
from space.core.wire.http2 import check_trailers, response_head
from space.gateway.exchange import MOST_INTERIM
from space.gateway.preparing import noticed
from space.gateway.streams import Stream, Streams, size_of


class Replies(Streams):
    """The upstream's half of a session."""

    def _reply(self, stream: Stream, event: Event) -> None:
        match event:
            case ResponseReceived():
                self._reply_head(stream, event)
            case InformationalResponseReceived():
                stream.exchange.interims += 1
                if stream.exchange.interims > MOST_INTERIM:
                    raise BadHead("interim", "interim replies without end", 502)
            case DataReceived():
                self._reply_body(stream, event)
            case TrailersReceived():
                check_trailers(event.headers, 502)
                trailers = self._told_on(stream, event.headers)
                if self._charged(stream, received=size_of(trailers)):
                    stream.down.trailers = trailers
            case StreamEnded():
                self._put_down(stream, b"", ended=True)
            case StreamReset():
                self._upstream_reset(stream, int(event.error_code))

    def _reply_head(self, stream: Stream, event: ResponseReceived) -> None:
        status, fields, length = response_head(event.headers)
        if not self._charged(stream, received=size_of(event.headers)):
            return
        if event.stream_ended is None:
            stream.exchange.replied(fields)
        out: list[Field] = [(b":status", b"%d" % status), *self._told_on(stream, fields)]
        if length is not None:
            out.append((b"content-length", b"%d" % length))
        stream.answered = True
        stream.exchange.status = status
        stream.down.ended = stream.down.done = event.stream_ended is not None
        self._near.head(stream.near, out, ended=stream.down.done)
        if stream.down.done:
            self._told(stream)

    def _reply_body(self, stream: Stream, event: DataReceived) -> None:
        far = self._far
        assert far is not None
        far.acknowledge(stream.far, event.flow_controlled_length - len(event.data))
        identifier = stream.far
        if not self._charged(stream, received=len(event.data)):
            far.acknowledge(identifier, len(event.data))
            return
        self._put_down(stream, event.data, ended=event.stream_ended is not None)

    def _put_down(self, stream: Stream, data: bytes, *, ended: bool) -> None:
        """More of the body, without the credential that was lent for it."""
        exchange = stream.exchange
        stream.down.put(exchange.searched(data, ended=ended))
        stream.down.ended = ended
        noticed(self.shared, self.flow, exchange)
        self._push_down(stream)

    def _told_on(self, stream: Stream, fields: Iterable[Field]) -> list[Field]:
        """Fields as the guest gets them, likewise."""
        exchange = stream.exchange
        kept = [field for field in fields if field[0] not in exchange.stripped]
        if exchange.wire is not None:
            kept = [(name, exchange.told(value)) for name, value in kept]
            noticed(self.shared, self.flow, exchange)
        return kept

    def _upstream_reset(self, stream: Stream, code: int) -> None:
        """All of its answer, and it wants no more: the rest is dropped. Else the guest gets the same code, by which it knows what to do."""
        if not stream.down.ended:
            self._over(stream, "upstream_reset", code=code)
            return
        self._let_go(stream)
        self._deafen(stream)
