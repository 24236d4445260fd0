"""The codec: what the golden vectors leave open. Memory, sequence, words."""

from __future__ import annotations

import pytest

from space.core.wire import frames
from space.core.wire.frames import BULK, CONTROL, JOINT, AcceptorDecoder, Encoder, Frame, Garbled, Greeting, OpenerDecoder, Pipe

NONCE = bytes(range(16))


def opener(pipe: Pipe = CONTROL) -> OpenerDecoder:
    decoder = OpenerDecoder(pipe, NONCE)
    [ack] = decoder.receive(frames.encode_hello_ack(Greeting(NONCE, 1, frames.VERSION, pipe.number)))
    assert isinstance(ack, Frame)
    return decoder


def header(length: int = 1, kind: int = frames.DATA, flags: int = 0, zero: int = 0, stream: int = 1, seq: int = 2) -> bytes:
    return frames.HEADER.pack(length, kind, flags, zero, stream, seq)


REJECTED: list[tuple[str, Pipe, bytes, str]] = [
    ("type", CONTROL, header(kind=0), "frame type 0 does not exist"),
    ("type", CONTROL, header(kind=11), "frame type 11 does not exist"),
    ("type", CONTROL, header(kind=frames.OPEN), "OPEN may not come from this side"),
    ("type", CONTROL, header(kind=frames.HELLO, stream=0, length=48), "HELLO may not come from this side"),
    ("pipe", BULK, header(kind=frames.CREDIT, length=4), "CREDIT may not come on pipe 1"),
    ("pipe", BULK, header(kind=frames.RESET), "RESET may not come on pipe 1"),
    ("pipe", BULK, header(kind=frames.PING, length=8, stream=0), "PING may not come on pipe 1"),
    ("pipe", BULK, header(kind=frames.PONG, length=8, stream=0), "PONG may not come on pipe 1"),
    ("flags", CONTROL, header(flags=2), "DATA has the flags 0x02"),
    ("flags", CONTROL, header(flags=0x80), "DATA has the flags 0x80"),
    ("flags", CONTROL, header(kind=frames.MSG, flags=1), "MSG has the flags 0x01"),
    ("reserved", CONTROL, header(zero=1), "DATA has 0x0001 where zero must be"),
    ("reserved", CONTROL, header(zero=0x8000), "DATA has 0x8000 where zero must be"),
    ("length", CONTROL, header(length=0), "DATA has 0 payload bytes, allowed are 1 to 65536"),
    ("length", CONTROL, header(length=65_537), "DATA has 65537 payload bytes, allowed are 1 to 65536"),
    ("length", BULK, header(length=262_145), "DATA has 262145 payload bytes, allowed are 1 to 262144"),
    ("length", JOINT, header(length=0xFFFFFFFF), "DATA has 4294967295 payload bytes"),
    ("length", CONTROL, header(kind=frames.CLOSE, length=1), "CLOSE has 1 payload bytes"),
    ("length", CONTROL, header(kind=frames.CREDIT, length=5), "CREDIT has 5 payload bytes"),
    ("length", CONTROL, header(kind=frames.PONG, length=7, stream=0), "PONG has 7 payload bytes"),
    ("length", CONTROL, header(kind=frames.MSG, length=0), "MSG has 0 payload bytes"),
    ("length", CONTROL, header(kind=frames.RESET, length=0), "RESET has 0 payload bytes"),
    ("length", CONTROL, header(kind=frames.HELLO_ACK, length=49, stream=0), "HELLO_ACK has 49 payload bytes"),
    ("stream", CONTROL, header(stream=0), "DATA names stream 0"),
    ("stream", CONTROL, header(kind=frames.PING, length=8), "PING names stream 1"),
    ("seq", CONTROL, header(seq=1), "DATA has seq 1, expected 2"),
    ("seq", CONTROL, header(seq=3), "DATA has seq 3, expected 2"),
    ("seq", CONTROL, header(kind=frames.HELLO_ACK, length=48, stream=0), "HELLO_ACK has seq 2, expected 1"),
    ("trailer", CONTROL, header() + b"x" + b"\x03\0\0\0", "DATA with seq 2 ends with 3"),
]


@pytest.mark.parametrize(("field", "pipe", "data", "words"), REJECTED, ids=[words for *_, words in REJECTED])
def test_opener_names_what_is_malformed_as_soon_as_the_header_is_there(field: str, pipe: Pipe, data: bytes, words: str) -> None:
    decoder = opener(pipe)
    [garbled] = decoder.receive(data)
    assert isinstance(garbled, Garbled)
    assert garbled.field == field
    assert words in garbled.reason
    assert decoder.receive(header() + b"x" + b"\x02\0\0\0") == []
    assert decoder.held == 0


def test_frames_before_the_malformed_one_are_given() -> None:
    encoder = Encoder()
    good = encoder.frame(frames.DATA, 1, b"good")
    items = opener().receive(good + header(zero=7))
    assert [type(item) for item in items] == [Frame, Garbled]


def test_bytes_before_the_acknowledgement_leave_nothing_in_memory() -> None:
    decoder = OpenerDecoder(BULK, NONCE)
    near = frames.encode_hello_ack(Greeting(NONCE, 1, frames.VERSION, 1))[:47]
    for _ in range(200):
        assert decoder.receive(near + bytes(4096)) == []
        assert decoder.held < 48


def test_a_frame_that_never_ends_is_kept_once_and_not_read_before_it_is_whole() -> None:
    decoder = opener(BULK)
    whole = Encoder().frame(frames.DATA, 1, bytes(BULK.limit))
    for at in range(0, len(whole) - 4096, 4096):
        assert decoder.receive(whole[at : at + 4096]) == []
        assert decoder.held <= BULK.limit + frames.OVERHEAD
    rest = decoder.held
    [frame] = decoder.receive(whole[rest:])
    assert isinstance(frame, Frame)
    assert frame.payload == bytes(BULK.limit)
    assert decoder.held == 0


def test_sequence_wraps_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder()
    encoder._seq = 0xFFFFFFFE
    decoder = opener()
    decoder._expected = 0xFFFFFFFF
    data = b"".join(encoder.frame(frames.DATA, 1, bytes((n,))) for n in (1, 2, 3))
    items = decoder.receive(data)
    assert [item.seq for item in items if isinstance(item, Frame)] == [0xFFFFFFFF, 1, 2]


def test_the_zero_run_is_as_long_as_the_largest_frame_and_its_overhead() -> None:
    assert frames.flush(CONTROL) == bytes(65_556)
    assert frames.flush(BULK) == bytes(262_164)


@pytest.mark.parametrize("pipe", [CONTROL, BULK])
@pytest.mark.parametrize("kept", [0, 1, 15, 16, 17, 300, 65_552, 65_555])
def test_a_hello_after_the_zero_run_is_found_wherever_the_last_frame_was_cut(pipe: Pipe, kept: int) -> None:
    decoder = AcceptorDecoder(pipe)
    decoder.receive(frames.encode_hello(Greeting(NONCE, 1, frames.VERSION, pipe.number)))
    cut = Encoder().frame(frames.DATA, 1, b"h" * 65_536)[:kept]
    new = Greeting(b"another nonce...", 1, frames.VERSION, pipe.number)
    ping = frames.encode(frames.DATA, 1, 2, b"after")
    items = decoder.receive(cut + frames.flush(pipe) + frames.encode_hello(new) + ping)
    found = [item for item in items if isinstance(item, Frame)]
    assert [item.type for item in found[-2:]] == [frames.HELLO, frames.DATA]
    assert found[-1].payload == b"after"


def test_a_hello_inside_the_payload_of_a_spoilt_frame_is_not_taken() -> None:
    """Or whoever writes a process's input could begin a session of his own."""
    decoder = AcceptorDecoder(CONTROL)
    decoder.receive(frames.encode_hello(Greeting(NONCE, 1, frames.VERSION, 0)))
    forged = frames.encode_hello(Greeting(b"forged by a user", 1, frames.VERSION, 0)) + frames.encode(frames.OPEN, 1, 2, b"\x04exec")
    spoilt = Encoder().frame(frames.DATA, 1, forged)[:-4] + bytes(4)
    real = frames.encode_hello(Greeting(b"the next session", 1, frames.VERSION, 0))
    lost, hello = decoder.receive(spoilt + real)
    assert isinstance(lost, Garbled)
    assert isinstance(hello, Frame)
    assert frames.decode_greeting(hello.payload).nonce == b"the next session"
