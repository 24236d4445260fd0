"""The frame codec of docs/protocol.md, section 1: bytes in, frames out; one `Decoder` for each pipe and direction.

    opener's    searching --HELLO_ACK with our nonce--> frames --anything malformed--> dead
    acceptor's  hunting --HELLO's header and magic--> frames --anything malformed--> hunting

It owns header, trailer, sequence and sizes; what a frame means to its stream is `mux`'s. The opener's side reads hostile bytes: it
keeps at most one frame and one chunk, and never looks at a payload before the whole frame, trailer included, is there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

HELLO, HELLO_ACK, OPEN, DATA, CLOSE, RESET, CREDIT, PING, PONG, MSG = range(1, 11)
NAMES = {
    HELLO: "HELLO", HELLO_ACK: "HELLO_ACK", OPEN: "OPEN", DATA: "DATA", CLOSE: "CLOSE",
    RESET: "RESET", CREDIT: "CREDIT", PING: "PING", PONG: "PONG", MSG: "MSG",
}  # fmt: skip

HEADER = struct.Struct("<IBBHII")
TRAILER = struct.Struct("<I")
OVERHEAD = HEADER.size + TRAILER.size
MAGIC = b"\x00SPACE-HELLO\x01\r\n\x00"
ACK_MAGIC = b"\x00SPACE-READY\x01\r\n\x00"
VERSION = 1
HELLO_SIZE = 48
_HELLO = struct.Struct("<16s16sQHB5s")
_TOP_SEQ = 0xFFFFFFFF
_TOP_LANE = 1


@dataclass(frozen=True, slots=True)
class Pipe:
    """One byte pipe of a link. number: as HELLO says it. limit: largest payload. window: credit of a new stream. types: what may come."""

    number: int
    limit: int
    window: int
    types: frozenset[int]


CONTROL = Pipe(0, 65_536, 262_144, frozenset(NAMES))
BULK = Pipe(1, 262_144, 2_097_152, frozenset({HELLO, HELLO_ACK, OPEN, DATA, CLOSE, MSG}))
JOINT = Pipe(0, BULK.limit, BULK.window, frozenset(NAMES))

# What each side may receive, and each type's payload: (size, or None for 1 to the pipe's limit; of a stream or not; highest flags).
_OPENER_RECEIVES = frozenset({HELLO_ACK, DATA, CLOSE, RESET, CREDIT, PING, PONG, MSG})
_ACCEPTOR_RECEIVES = frozenset({HELLO, OPEN, DATA, CLOSE, RESET, CREDIT, PING, PONG, MSG})
_SHAPES: dict[int, tuple[int | None, bool, int]] = {
    HELLO: (HELLO_SIZE, False, 0),
    HELLO_ACK: (HELLO_SIZE, False, 0),
    OPEN: (None, True, 0),
    DATA: (None, True, _TOP_LANE),
    CLOSE: (0, True, 0),
    RESET: (None, True, 0),
    CREDIT: (4, True, 0),
    PING: (8, False, 0),
    PONG: (8, False, 0),
    MSG: (None, True, 0),
}


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One whole frame. (A msgspec struct: a frozen dataclass takes five times as long to make.)"""

    type: int
    stream: int
    payload: bytes
    lane: int
    seq: int


class Garbled(msgspec.Struct, frozen=True, gc=False):
    """Here the bytes are no frame: the acceptor hunts, the opener ends. field: the first wrong one. reason: what is wrong with it."""

    field: str
    reason: str


class Greeting(msgspec.Struct, frozen=True, gc=False):
    """What HELLO and HELLO_ACK say."""

    nonce: bytes
    generation: int
    version: int
    pipe: int


def next_seq(seq: int) -> int:
    """The number after `seq`: 1 follows 2^32-1."""
    return seq + 1 if seq < _TOP_SEQ else 1


def encode(kind: int, stream: int, seq: int, payload: bytes | bytearray | memoryview = b"", lane: int = 0) -> bytes:
    """One frame's bytes; the caller keeps to the limits."""
    return b"".join((HEADER.pack(len(payload), kind, lane, 0, stream, seq), payload, TRAILER.pack(seq)))


def encode_hello(greeting: Greeting) -> bytes:
    """A HELLO frame; always seq 1."""
    return encode(HELLO, 0, 1, _greet(MAGIC, greeting))


def encode_hello_ack(greeting: Greeting) -> bytes:
    """A HELLO_ACK frame; always seq 1."""
    return encode(HELLO_ACK, 0, 1, _greet(ACK_MAGIC, greeting))


def decode_greeting(payload: bytes) -> Greeting:
    """What a HELLO or HELLO_ACK that a decoder let through says."""
    _, nonce, generation, version, pipe, _ = _HELLO.unpack(payload)
    return Greeting(nonce, generation, version, pipe)


def flush(pipe: Pipe) -> bytes:
    """The zeros that an opener writes before HELLO to a peer that may sit in the middle of a frame."""
    return bytes(pipe.limit + OVERHEAD)


def _greet(magic: bytes, greeting: Greeting) -> bytes:
    return _HELLO.pack(magic, greeting.nonce, greeting.generation, greeting.version, greeting.pipe, bytes(5))


class Encoder:
    """Numbers one direction of one pipe. A frame's bytes must be written in the order in which they were made."""

    def __init__(self) -> None:
        self._seq = 1  # HELLO's, or its acknowledgement's

    def frame(self, kind: int, stream: int, payload: bytes | bytearray | memoryview = b"", lane: int = 0) -> bytes:
        """The next frame."""
        self._seq = seq = next_seq(self._seq)
        return encode(kind, stream, seq, payload, lane)

    def restart(self) -> None:
        """A new session began."""
        self._seq = 1


class Decoder:
    """What both roles share: cutting frames out of bytes. Use `OpenerDecoder` or `AcceptorDecoder`."""

    def __init__(self, pipe: Pipe, receives: frozenset[int], greets: int) -> None:
        self._pipe = pipe
        self._receives = receives
        self._greets = greets
        self._shapes = {
            kind: (1, pipe.limit, numbered, top) if size is None else (size, size, numbered, top)
            for kind, (size, numbered, top) in _SHAPES.items()
        }
        # greetings stand apart: they come at any boundary, outside the sequence
        self._ordinary = {kind: self._shapes[kind] for kind in receives & pipe.types - {greets}}
        self._expected = 2
        self._chunks: list[bytes] = []
        self._held = 0
        self._need = 1

    @property
    def held(self) -> int:
        """Bytes kept because their frame is not whole: less than one frame of the pipe's limit."""
        return self._held

    def receive(self, data: bytes) -> list[Frame | Garbled]:
        """The frames that are whole with `data`. Raises nothing: see `Garbled`."""
        if self._held:
            self._chunks.append(data)
            self._held += len(data)
            if self._held < self._need:
                return []
            data = b"".join(self._chunks)
            self._chunks.clear()
        out: list[Frame | Garbled] = []
        at = self._cut(data, out)
        self._held = len(data) - at
        if self._held:
            self._chunks.append(data[at:] if at else data)
        return out

    def _cut(self, data: bytes, out: list[Frame | Garbled]) -> int:
        """Append what is whole to `out`; where the rest begins. Sets `_need`: how long the rest must become before it is worth a look."""
        raise NotImplementedError

    def _greeted(self, said: Greeting) -> str | None:
        """A greeting came; why it cannot be one, or None."""
        raise NotImplementedError

    def _frames(self, data: bytes, at: int, out: list[Frame | Garbled]) -> tuple[int, Garbled | None]:
        """Frames from `at` on, until the bytes end or are no frame: where a hunt would begin, and what is wrong."""
        size, expected, ordinary = len(data), self._expected, self._ordinary
        unpack, trailer = HEADER.unpack_from, TRAILER.unpack_from
        garbled: Garbled | None = None
        need = HEADER.size
        while size - at >= 16:
            length, kind, flags, zero, stream, seq = unpack(data, at)
            shape = ordinary.get(kind)
            if (
                shape is None
                or seq != expected
                or zero
                or flags > shape[3]
                or not shape[0] <= length <= shape[1]
                or (stream != 0) is not shape[2]
            ):
                garbled = self._judge(length, kind, flags, zero, stream, seq, expected)
                if garbled:
                    at += 1
                    break
            end = at + 20 + length
            if end > size:
                need = 20 + length
                break
            found = trailer(data, end - 4)[0]
            if found != seq:
                garbled = Garbled("trailer", f"{NAMES[kind]} with seq {seq} ends with {found}")
                at = end
                break
            payload = data[at + 16 : end - 4]
            at = end
            if shape is not None:
                out.append(Frame(kind, stream, payload, flags, seq))
                expected = seq + 1 if seq < _TOP_SEQ else 1
                continue
            self._expected = expected
            garbled = self._judge_greeting(payload)
            if garbled:
                break
            out.append(Frame(kind, 0, payload, 0, 1))
            expected = self._expected
        self._expected = expected
        self._need = need
        return at, garbled

    def _judge(self, length: int, kind: int, flags: int, zero: int, stream: int, seq: int, expected: int) -> Garbled | None:
        """The first thing that is wrong with a header, or None."""
        if kind not in NAMES:
            return Garbled("type", f"frame type {kind} does not exist")
        name = NAMES[kind]
        if kind not in self._receives:
            return Garbled("type", f"{name} may not come from this side")
        if kind not in self._pipe.types:
            return Garbled("pipe", f"{name} may not come on pipe {self._pipe.number}")
        low, high, numbered, top = self._shapes[kind]
        if flags > top:
            return Garbled("flags", f"{name} has the flags {flags:#04x}")
        if zero:
            return Garbled("reserved", f"{name} has {zero:#06x} where zero must be")
        if not low <= length <= high:
            return Garbled("length", f"{name} has {length} payload bytes, allowed are {low} to {high}")
        if (stream != 0) is not numbered:
            return Garbled("stream", f"{name} names stream {stream}")
        if kind == self._greets:
            expected = 1
        return None if seq == expected else Garbled("seq", f"{name} has seq {seq}, expected {expected}")

    def _judge_greeting(self, payload: bytes) -> Garbled | None:
        name = NAMES[self._greets]
        magic, _, _, _, pipe, zeros = _HELLO.unpack(payload)
        if magic != (MAGIC if self._greets == HELLO else ACK_MAGIC):
            return Garbled("magic", f"{name} has the magic {magic!r}")
        if pipe != self._pipe.number:
            return Garbled("pipe", f"{name} is for pipe {pipe}, this is pipe {self._pipe.number}")
        if any(zeros):
            return Garbled("reserved", f"{name} has {zeros.hex()} where zero must be")
        reason = self._greeted(decode_greeting(payload))
        return Garbled("nonce", reason) if reason else None


class OpenerDecoder(Decoder):
    """The opener's: finds the HELLO_ACK with `nonce`, then reads frames until the first malformed byte."""

    def __init__(self, pipe: Pipe, nonce: bytes) -> None:
        super().__init__(pipe, _OPENER_RECEIVES, HELLO_ACK)
        self._nonce = nonce
        self._mark = HEADER.pack(HELLO_SIZE, HELLO_ACK, 0, 0, 0, 1) + ACK_MAGIC + nonce
        self._searching = True
        self._dead = False

    def _cut(self, data: bytes, out: list[Frame | Garbled]) -> int:
        if self._dead:
            return len(data)
        at = 0
        if self._searching:
            at = data.find(self._mark)
            if at < 0:
                self._need = 1
                return max(0, len(data) - len(self._mark) + 1)
            self._searching = False
        at, garbled = self._frames(data, at, out)
        if garbled:
            self._dead = True
            out.append(garbled)
            return len(data)
        return at

    def _greeted(self, said: Greeting) -> str | None:
        return None if said.nonce == self._nonce else "HELLO_ACK is for another session"


class AcceptorDecoder(Decoder):
    """The acceptor's: hunts for a HELLO at first and after anything malformed, and takes one at any boundary."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(pipe, _ACCEPTOR_RECEIVES, HELLO)
        self._mark = HEADER.pack(HELLO_SIZE, HELLO, 0, 0, 0, 1) + MAGIC
        self._nonce: bytes | None = None
        self._hunting = True

    def _cut(self, data: bytes, out: list[Frame | Garbled]) -> int:
        at = 0
        while True:
            if self._hunting:
                found = data.find(self._mark, at)
                if found < 0:
                    self._need = 1
                    return max(at, len(data) - len(self._mark) + 1)
                at, self._hunting = found, False
            at, garbled = self._frames(data, at, out)
            if garbled is None:
                return at
            out.append(garbled)
            self._hunting = True

    def _greeted(self, said: Greeting) -> str | None:
        if said.version == VERSION and said.nonce != self._nonce:
            self._nonce, self._expected = said.nonce, 2
        return None
