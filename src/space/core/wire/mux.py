"""A session without I/O: `receive(pipe, data) -> list[Event]`, `send_x() -> bytes`. The opener's side and the acceptor's.

The owner writes what `send_x` returns in the order of the calls, each on the stream's own pipe (`pipe_of`; RESET, CREDIT and PING on
pipe 0), and obeys `Answer` events. What the peer may do is in `frames` (types, sizes), `streams` (states, credit) and here (numbers,
greeting, pings). The peer's fault is the event `Broken`; a call that our own state forbids is `Conflict`, a bug of the caller.
"""

from __future__ import annotations

from collections import deque

import msgspec

from space.core.wire.events import (
    MAX_STREAMS,
    MAX_TEXT,
    Answer,
    Broken,
    Closed,
    Credited,
    Data,
    Event,
    Greeted,
    Layout,
    Message,
    Opened,
    Ponged,
    Renewed,
    WasReset,
)  # fmt: skip
from space.core.wire.frames import (
    CLOSE,
    CREDIT,
    DATA,
    HELLO,
    HELLO_ACK,
    MSG,
    NAMES,
    OPEN,
    PING,
    PONG,
    RESET,
    VERSION,
    AcceptorDecoder,
    Encoder,
    Frame,
    Garbled,
    Greeting,
    OpenerDecoder,
    decode_greeting,
    encode_hello,
    encode_hello_ack,
    flush,
)  # fmt: skip
from space.core.wire.streams import CREDIT_PAYLOAD, ENDED, SENDS, STATES, Flow
from space.model.errors import Conflict, ProtocolError

Bytes = bytes | bytearray | memoryview
_MAX_EARLY_RESETS = MAX_STREAMS


class _Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """RESET's payload. hint: between node and control; to a guest none is said, and of a guest none is heard."""

    code: str
    message: str
    hint: str = ""


_FAULT = msgspec.msgpack.Decoder(_Fault)


class Mux:
    """What both sides share. Use `Opener` or `Acceptor`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._encoders = [Encoder() for _ in layout]
        self._flows: dict[int, Flow] = {}
        self._pings: deque[bytes] = deque()

    # What the peer sends

    def receive(self, pipe: int, data: bytes) -> list[Event]:
        """What these bytes mean."""
        raise NotImplementedError

    def _unknown(self, frame: Frame, pipe: int) -> None:
        """A frame for a number that is not live: nothing, or ProtocolError when it was never opened."""
        raise NotImplementedError

    def _frame(self, pipe: int, frame: Frame, out: list[Event]) -> None:
        kind, number = frame.type, frame.stream
        if not number:
            self._heartbeat(frame, out)
            return
        flow = self._flows.get(number)
        if flow is None:
            self._unknown(frame, pipe)
            return
        if kind in (DATA, MSG):
            if pipe != flow.pipe:
                raise ProtocolError(f"{NAMES[kind]} for stream {number} came on pipe {pipe}, it lives on pipe {flow.pipe}")
            flow.received(number, kind, len(frame.payload))
            out.append(Data(number, frame.payload, frame.lane) if kind == DATA else Message(number, frame.payload))
        elif kind == CLOSE:
            if pipe != flow.pipe:
                raise ProtocolError(f"CLOSE for stream {number} came on pipe {pipe}, it lives on pipe {flow.pipe}")
            if flow.received(number, CLOSE, 0) == ENDED:
                del self._flows[number]
            out.append(Closed(number))
        elif kind == CREDIT:
            flow.received(number, CREDIT, 0)
            flow.credited(number, CREDIT_PAYLOAD.unpack(frame.payload)[0])
            out.append(Credited(number))
        else:
            assert kind == RESET, kind
            fault = _fault(frame)
            del self._flows[number]
            out.append(WasReset(number, fault.code, fault.message, fault.hint))

    def _heartbeat(self, frame: Frame, out: list[Event]) -> None:
        if frame.type == PING:
            out.append(Answer(0, self._encoders[0].frame(PONG, 0, frame.payload)))
            return
        if not self._pings or frame.payload != self._pings[0]:
            raise ProtocolError(f"PONG {frame.payload.hex()} answers no PING that waits")
        out.append(Ponged(self._pings.popleft()))

    # What we send

    @property
    def live(self) -> int:
        """How many streams have not ended."""
        return len(self._flows)

    def limit(self, stream: int) -> int:
        """The largest payload of a frame on this stream."""
        return self._layout[self.pipe_of(stream)].limit

    def lives(self, stream: int) -> bool:
        """Whether the stream has not ended."""
        return stream in self._flows

    def pipe_of(self, stream: int) -> int:
        """The pipe that the stream lives on."""
        return self._flow(stream).pipe

    def may_send(self, stream: int) -> int:
        """Bytes of credit left; 0 for a stream that has ended or that we closed."""
        flow = self._flows.get(stream)
        return flow.may_send if flow is not None and (flow.state, DATA) in SENDS else 0

    def send_data(self, stream: int, payload: Bytes, lane: int = 0) -> bytes:
        """A DATA frame: at least one byte, at most the pipe's limit and the credit."""
        return self._spend(stream, DATA, payload, lane)

    def send_message(self, stream: int, payload: Bytes) -> bytes:
        """A MSG frame: at least one byte, at most the pipe's limit and the credit."""
        return self._spend(stream, MSG, payload, 0)

    def _spend(self, stream: int, kind: int, payload: Bytes, lane: int) -> bytes:
        flow = self._sending(stream, kind)
        size = len(payload)
        most = min(flow.may_send, self._layout[flow.pipe].limit)
        if not 0 < size <= most:
            raise Conflict(f"{NAMES[kind]} of {size} bytes on stream {stream}: 1 to {most} may be sent now")
        flow.may_send -= size
        return self._encoders[flow.pipe].frame(kind, stream, payload, lane)

    def send_close(self, stream: int) -> bytes:
        """A CLOSE frame: we send nothing more."""
        flow = self._sending(stream, CLOSE)
        flow.state = SENDS[flow.state, CLOSE]
        if flow.state == ENDED:
            del self._flows[stream]
        return self._encoders[flow.pipe].frame(CLOSE, stream)

    def send_reset(self, stream: int, code: str, message: str, hint: str = "") -> bytes:
        """A RESET frame, for pipe 0: the stream has ended. Empty when it had already."""
        if self._flows.pop(stream, None) is None:
            return b""
        return self._reset(stream, code, message, hint)

    def _reset(self, stream: int, code: str, message: str, hint: str = "") -> bytes:
        return self._encoders[0].frame(RESET, stream, msgspec.msgpack.encode(_Fault(code, message[:MAX_TEXT], hint[:MAX_TEXT])))

    def took(self, stream: int, size: int) -> bytes:
        """The consumer took `size` bytes: a CREDIT frame for pipe 0, or nothing while it is not worth one."""
        flow = self._flows.get(stream)
        more = flow.took(size) if flow is not None else 0
        return self._encoders[0].frame(CREDIT, stream, CREDIT_PAYLOAD.pack(more)) if more else b""

    def send_ping(self, token: bytes) -> bytes:
        """A PING frame, for pipe 0; `Ponged(token)` will answer. token: 8 bytes."""
        self._pings.append(token)
        return self._encoders[0].frame(PING, 0, token)

    def _flow(self, stream: int) -> Flow:
        flow = self._flows.get(stream)
        if flow is None:
            raise Conflict(f"stream {stream} has ended")
        return flow

    def _sending(self, stream: int, kind: int) -> Flow:
        flow = self._flow(stream)
        if (flow.state, kind) not in SENDS:
            raise Conflict(f"{NAMES[kind]} on stream {stream}, which is {STATES[flow.state]}")
        return flow

    def _start(self, stream: int, pipe: int) -> None:
        window = self._layout[pipe].window
        self._flows[stream] = Flow(pipe, window, window, window)


class Opener(Mux):
    """The side that opens streams: a node toward a guest, control toward a node. Its peer is not trusted."""

    def __init__(self, layout: Layout, nonce: bytes, generation: int) -> None:
        super().__init__(layout)
        self._greetings = [Greeting(nonce, generation, VERSION, pipe.number) for pipe in layout]
        self._decoders = [OpenerDecoder(pipe, nonce) for pipe in layout]
        self._greeted: set[int] = set()
        self._last = 0
        self._over = False

    @property
    def ready(self) -> bool:
        """Every pipe's HELLO was acknowledged."""
        return len(self._greeted) == len(self._layout)

    def hello(self, pipe: int, *, reconnect: bool = False) -> bytes:
        """The HELLO of a pipe, to be repeated until `Greeted`. reconnect: zeros first, for a peer that was talked to before (once)."""
        return (flush(self._layout[pipe]) if reconnect else b"") + encode_hello(self._greetings[pipe])

    def send_open(self, verb: str, request: Bytes, *, bulk: bool = False) -> tuple[int, bytes]:
        """A new stream's number and its OPEN frame. Conflict when 1,024 are open or the request does not fit a frame."""
        if not self.ready or self._over:
            raise Conflict("the session is not open")
        if len(self._flows) >= MAX_STREAMS:
            raise Conflict(f"{MAX_STREAMS} streams are open already")
        pipe = len(self._layout) - 1 if bulk else 0
        name = verb.encode("ascii")
        payload = b"".join((bytes((len(name),)), name, request))
        if not 0 < len(name) < 256 or len(payload) > self._layout[pipe].limit:
            raise Conflict(f"the request of {verb[:40]!r} has {len(payload)} bytes, at most {self._layout[pipe].limit} fit")
        self._last = number = self._last + 1
        self._start(number, pipe)
        return number, self._encoders[pipe].frame(OPEN, number, payload)

    def receive(self, pipe: int, data: bytes) -> list[Event]:
        """What these bytes mean. After `Broken`, the last event, nothing more is read."""
        out: list[Event] = []
        if self._over:
            return out
        try:
            for frame in self._decoders[pipe].receive(data):
                if isinstance(frame, Garbled):
                    raise ProtocolError(frame.reason)
                if frame.type == HELLO_ACK:
                    self._hello_ack(pipe, decode_greeting(frame.payload), out)
                else:
                    self._frame(pipe, frame, out)
        except ProtocolError as error:
            self._over = True
            self._flows.clear()
            out.append(Broken(error))
        return out

    def _hello_ack(self, pipe: int, said: Greeting, out: list[Event]) -> None:
        if said.version != VERSION:
            raise ProtocolError(f"the peer speaks protocol version {said.version}, this side version {VERSION}")
        if said.generation != self._greetings[pipe].generation:
            raise ProtocolError(f"HELLO_ACK is for generation {said.generation}, expected {self._greetings[pipe].generation}")
        if pipe not in self._greeted:  # else it answers a repeated HELLO
            self._greeted.add(pipe)
            out.append(Greeted(pipe, self.ready))

    def _unknown(self, frame: Frame, pipe: int) -> None:
        if frame.stream > self._last:
            raise ProtocolError(f"{NAMES[frame.type]} on pipe {pipe} for stream {frame.stream}, which was never opened")


class Acceptor(Mux):
    """The side that serves streams: a guest's daemon, a node toward control."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._decoders = [AcceptorDecoder(pipe) for pipe in layout]
        self._nonces: list[bytes | None] = [None] * len(layout)
        self._session: bytes | None = None
        self._last = [0] * len(layout)
        self._early: dict[int, None] = {}  # numbers RESET before their OPEN came, oldest first

    def receive(self, pipe: int, data: bytes) -> list[Event]:
        """What these bytes mean. After `Broken` everything is dropped up to a HELLO with a new nonce."""
        out: list[Event] = []
        for frame in self._decoders[pipe].receive(data):
            try:
                if isinstance(frame, Garbled):
                    raise ProtocolError(frame.reason)
                if frame.type == HELLO:
                    self._hello(pipe, decode_greeting(frame.payload), out)
                elif self._session is None or self._nonces[pipe] != self._session:
                    continue  # the session is broken, or the other pipe has gone on to a new one
                elif frame.type == OPEN:
                    self._open(pipe, frame, out)
                else:
                    self._frame(pipe, frame, out)
            except ProtocolError as error:
                self._session = None
                self._clear()
                out.append(Broken(error))
        return out

    def _hello(self, pipe: int, said: Greeting, out: list[Event]) -> None:
        if said.version == VERSION:
            if said.nonce != self._session and said.nonce != self._nonces[pipe]:
                self._session = said.nonce
                self._clear()
                out.append(Renewed(said.generation))
            if said.nonce != self._nonces[pipe]:
                self._nonces[pipe] = said.nonce
                self._encoders[pipe].restart()
        ack = Greeting(said.nonce, said.generation, VERSION, said.pipe)
        out.append(Answer(pipe, encode_hello_ack(ack)))

    def _open(self, pipe: int, frame: Frame, out: list[Event]) -> None:
        number, payload = frame.stream, frame.payload
        if number <= self._last[pipe]:
            raise ProtocolError(f"OPEN of stream {number} after stream {self._last[pipe]} on pipe {pipe}")
        if number in self._flows:
            raise ProtocolError(f"OPEN of stream {number}, which is open on pipe {self._flows[number].pipe}")
        end = 1 + payload[0]
        if end == 1 or end > len(payload) or not payload[1:end].isascii():
            raise ProtocolError(f"OPEN of stream {number} has no verb")
        self._last[pipe] = number
        if number in self._early:
            del self._early[number]
        elif len(self._flows) >= MAX_STREAMS:
            out.append(Answer(0, self._reset(number, "no_capacity", f"{MAX_STREAMS} streams are open already")))
        else:
            self._start(number, pipe)
            out.append(Opened(number, payload[1:end].decode("ascii"), payload[end:]))

    def _unknown(self, frame: Frame, pipe: int) -> None:
        number = frame.stream
        if frame.type == RESET and len(self._layout) > 1 and number > min(self._last):
            # It may have overtaken its OPEN on the other pipe. Most are of streams that ended, remembered in vain: so the oldest goes.
            self._early[number] = None
            if len(self._early) > _MAX_EARLY_RESETS:
                del self._early[next(iter(self._early))]
        elif number > max(self._last):
            raise ProtocolError(f"{NAMES[frame.type]} on pipe {pipe} for stream {number}, which was never opened")

    def _clear(self) -> None:
        self._flows.clear()
        self._pings.clear()
        self._early.clear()
        self._last = [0] * len(self._layout)


def _fault(frame: Frame) -> _Fault:
    try:
        fault = _FAULT.decode(frame.payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"RESET of stream {frame.stream} has no code and message: {str(error)[:100]}") from None
    text, hint = ("".join(c if c.isprintable() else "?" for c in each[:MAX_TEXT]) for each in (fault.message, fault.hint))
    return _Fault("".join(c for c in fault.code[:40] if c.isprintable()), text, hint)
