"""One side of an HTTP/2 connection: frames counted, then the library's state, then events; data sent as far as the peer's windows go.

    peer -> FrameReader -> FloodGuard -> h2 -> events          queues -> window, back-pressure -> h2 -> peer

What this side has not been able to send is not acknowledged on the other, so a stream holds a window's worth of bytes and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import Event, RemoteSettingsChanged
from h2.exceptions import DenialOfServiceError, H2Error
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from space.core.wire import http2frames as wire
from space.core.wire.http1 import MOST_HEAD, Field
from space.core.wire.http2 import LIMITS, FloodGuard, Kind
from space.core.wire.http2frames import BadFrames, Frame, FrameReader
from space.gateway.peer import Peer

STREAMS = 100
WINDOW = 262_144  # of a stream
# Of a connection: what slow readers of single streams can fill, all of them together.
CONNECTION_WINDOW = 4 * 1024 * 1024
_MOST_TABLE = 4096  # of our encoder, whatever the peer offers
_MOST_EARNED = 10_000
_FLUSH = 65_536
# An upstream refuses streams that we asked for; it does not open any.
_UPSTREAM_LIMITS: dict[Kind, tuple[float, float]] = {**LIMITS, "reset": (1000, 500)}
_COUNTED: dict[int, Kind] = {
    wire.RST_STREAM: "reset",
    wire.SETTINGS: "settings",
    wire.PRIORITY: "priority",
    wire.PING: "ping",
    wire.WINDOW_UPDATE: "window",
}
_KNOWN = frozenset({wire.DATA, wire.HEADERS, wire.RST_STREAM, wire.SETTINGS, wire.PING, wire.WINDOW_UPDATE, wire.CONTINUATION})


class Goaway(Event):
    """The peer begins no more streams, or wants none. last: the last that it has done anything about."""

    def __init__(self, last: int, code: int) -> None:
        self.last = last
        self.code = code


class Outgoing:
    """What waits to be sent on one stream. done: its end has been sent."""

    __slots__ = ("done", "ended", "pieces", "size", "trailers")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.size = 0
        self.ended = self.done = False
        self.trailers: list[Field] | None = None

    def put(self, data: bytes) -> None:
        """More of it."""
        if data:
            self.pieces.append(data)
            self.size += len(data)

    def replace(self, pieces: list[bytes]) -> None:
        """These instead of what waits."""
        self.pieces = deque(pieces)
        self.size = sum(map(len, pieces))

    @property
    def waiting(self) -> bool:
        return not self.done and (bool(self.pieces) or self.ended)


class End:
    """server: it is the guest's. live: its open streams, which the owner keeps. said: a GOAWAY was sent. closing: one came."""

    def __init__(self, peer: Peer, now: float, *, server: bool) -> None:
        self.peer = peer
        self.live: set[int] = set()
        self.said = self.closing = False
        self._reader = FrameReader(preface=server)
        self._guard = FloodGuard(now, LIMITS if server else _UPSTREAM_LIMITS)
        self._earned = 0  # frames that are explained by data that was sent
        self._unsent = 0
        self._broken = False  # the library has written a last GOAWAY
        # Heads are validated by space.core.wire.http2, more strictly and for one stream at a time.
        config = H2Configuration(
            client_side=not server, header_encoding=None, validate_inbound_headers=False, validate_outbound_headers=False
        )
        self._h2 = H2Connection(config)
        values = {
            SettingCodes.HEADER_TABLE_SIZE: 4096,
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
            SettingCodes.MAX_FRAME_SIZE: wire.MOST_FRAME,
            SettingCodes.MAX_HEADER_LIST_SIZE: MOST_HEAD,
            **({SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS} if server else {SettingCodes.ENABLE_PUSH: 0}),
        }
        self._h2.local_settings = Settings(client=not server, initial_values=values)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW - 65_535)
        if server:
            self._h2.receive_data(wire.PREFACE)

    # -- in ------------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether the peer has begun a head or a frame (but of data), or not said its preface."""
        return self._reader.waiting

    @property
    def frames(self) -> int:
        """How many have come."""
        return self._reader.frames

    def receive(self, data: bytes, now: float) -> Iterator[Event]:
        """What happened, one by one. BadFrames and Flood end the connection."""
        for frame in self._reader.receive(data):
            self._count(frame, now)
            if frame.kind == wire.GOAWAY:
                yield self._goaway(frame)
            elif frame.kind in _KNOWN:
                yield from self._take(frame.raw)
            elif frame.kind == wire.PUSH_PROMISE:
                raise BadFrames("push", "a push that was switched off")

    def _count(self, frame: Frame, now: float) -> None:
        kind = _COUNTED.get(frame.kind)
        if frame.kind in (wire.DATA, wire.RST_STREAM) and frame.stream not in self.live:
            kind = "window"  # it was on its way when the stream ended, or says so once more: clients answer late data by resets
        elif frame.kind == wire.DATA:
            content = frame.content
            if content < len(frame.raw) - 9 - content or (not content and not frame.flags & wire.END_STREAM):
                kind = "empty"  # nothing, or more padding than content
        elif frame.kind == wire.CONTINUATION and len(frame.raw) == 9:
            kind = "empty"
        elif kind in ("window", "ping") and self._earned:
            self._earned -= 1
            return
        elif frame.kind not in _KNOWN and kind is None:
            kind = "priority"  # an extension, or what is dropped like one
        if kind is not None:
            self._guard.saw(kind, now)

    def count(self, kind: Kind, now: float) -> None:
        """The same for what only the owner knows. Flood."""
        self._guard.saw(kind, now)

    def _goaway(self, frame: Frame) -> Goaway:
        if len(frame.raw) < 17 or frame.stream:
            raise BadFrames("goaway", "a GOAWAY that is none")
        last, code = int.from_bytes(frame.raw[9:13], "big") & 0x7FFF_FFFF, int.from_bytes(frame.raw[13:17], "big")
        return Goaway(last, code)

    def _take(self, raw: bytes) -> list[Event]:
        try:
            events = self._h2.receive_data(raw)
        except DenialOfServiceError as error:
            self._broken = True
            raise BadFrames("flood_head", str(error), wire.ENHANCE_YOUR_CALM) from error
        except H2Error as error:
            self._broken = True
            raise BadFrames("protocol", str(error), int(getattr(error, "error_code", ErrorCodes.PROTOCOL_ERROR))) from error
        if any(isinstance(event, RemoteSettingsChanged) for event in events) and self._h2.encoder.header_table_size > _MOST_TABLE:
            self._h2.encoder.header_table_size = _MOST_TABLE
        return events

    def acknowledge(self, stream: int, size: int) -> None:
        """So many bytes of a stream are done with: the peer may send as many more."""
        if size:
            self._h2.acknowledge_received_data(size, stream)

    # -- out -----------------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return self.peer.full or self.peer.gone

    @property
    def room(self) -> bool:
        """Whether the peer takes one more stream of ours."""
        return not self.closing and len(self.live) < self._h2.remote_settings.max_concurrent_streams

    def begin(self) -> int:
        """A new stream of ours. Its head must follow."""
        stream = self._h2.get_next_available_stream_id()
        self.live.add(stream)
        return stream

    def head(self, stream: int, fields: list[Field], *, ended: bool) -> None:
        """A head."""
        self._h2.send_headers(stream, fields, end_stream=ended)

    def push(self, stream: int, out: Outgoing, most: int = WINDOW) -> int:
        """Send what waits, as far as it may be. Returns bytes that wait no more."""
        sent = 0
        while out.pieces and sent < most and not self.full:
            piece = out.pieces[0]
            size = min(self._h2.local_flow_control_window(stream), wire.MOST_FRAME, len(piece))
            if size <= 0:
                return sent
            last = size == len(piece) and len(out.pieces) == 1 and out.ended and out.trailers is None
            self._h2.send_data(stream, piece[:size], end_stream=last)
            out.done = last
            if size == len(piece):
                out.pieces.popleft()
            else:
                out.pieces[0] = piece[size:]
            out.size -= size
            sent += size
            self._earned = min(_MOST_EARNED, self._earned + 4)
            self._unsent += size
            if self._unsent >= _FLUSH:
                self.flush()
        if out.ended and not out.pieces and not out.done:
            out.done = True
            if out.trailers:
                self._h2.send_headers(stream, out.trailers, end_stream=True)
            else:
                self._h2.end_stream(stream)
        return sent

    def reset(self, stream: int, code: int) -> None:
        """End a stream at once, if it is not over."""
        try:
            self._h2.reset_stream(stream, code)
        except H2Error:  # it is over already
            return

    def goaway(self, code: int, last: int) -> None:
        """Say that no more streams are begun (those up to the last one go on), or by a code that it is over."""
        self.flush()
        if not self._broken and (code or not self.said):
            self.peer.send(GoAwayFrame(0, last_stream_id=last, error_code=code).serialize())
        self.said = True

    def flush(self) -> None:
        """Hand over what the library has to say."""
        self._unsent = 0
        data = self._h2.data_to_send()
        if data:
            self.peer.send(data)
