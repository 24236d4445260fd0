"""Properties of the codec and the session, and random bytes against the side that reads a hostile guest.

Each random test runs a second or two; SPACE_FUZZ_SECONDS lengthens it. A failure prints the seed, SPACE_FUZZ_SEED repeats it.
"""

from __future__ import annotations

import os
import random
import secrets
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from space.core.wire import frames, guest
from space.core.wire.events import (
    GUEST,
    NODE,
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
    WasReset,
)  # fmt: skip
from space.core.wire.frames import BULK, CONTROL, VERSION, AcceptorDecoder, Decoder, Encoder, Frame, Garbled, Greeting, OpenerDecoder, Pipe
from space.core.wire.inbox import Inbox
from space.core.wire.mux import Acceptor, Mux, Opener
from space.model.errors import ProtocolError

NONCE = b"the fuzzer's own"
SECONDS = float(os.environ.get("SPACE_FUZZ_SECONDS", "1.5"))
FROM_OPENER = [frames.OPEN, frames.DATA, frames.CLOSE, frames.RESET, frames.CREDIT, frames.PING, frames.PONG, frames.MSG]
SIZES = {frames.CLOSE: 0, frames.CREDIT: 4, frames.PING: 8, frames.PONG: 8}
ACK = {pipe: frames.encode_hello_ack(Greeting(NONCE, 7, VERSION, pipe.number)) for pipe in (CONTROL, BULK)}


def rounds() -> Iterator[random.Random]:
    """Generators for as long as the fuzzing lasts."""
    seed = os.environ.get("SPACE_FUZZ_SEED")
    if seed is not None:
        yield random.Random(int(seed))
        return
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        seed = str(secrets.randbits(64))
        print(f"SPACE_FUZZ_SEED={seed}")  # pytest shows the last one when the round fails
        yield random.Random(int(seed))


def one_frame(rng: random.Random, encoder: Encoder, types: list[int], streams: int = 4) -> bytes:
    """A frame that the codec lets through, mostly: what it says may be nonsense."""
    kind = rng.choice(types)
    size = SIZES.get(kind)
    if size is None:
        size = rng.choice((1, 1, 2, rng.randrange(1, 200), rng.randrange(1, 70_000)))
    payload = rng.randbytes(size)
    if kind == frames.RESET and rng.random() < 0.7:
        payload = msgspec.msgpack.encode({"code": "not_found", "message": "x" * rng.randrange(100)})
    if kind == frames.OPEN and rng.random() < 0.7:
        payload = b"\x04noop" + payload[:100]
    if kind == frames.CREDIT and rng.random() < 0.7:
        payload = rng.randrange(1, 5000).to_bytes(4, "little")
    stream = 0 if kind in {frames.PING, frames.PONG} else rng.randint(1, streams)
    return encoder.frame(kind, stream, payload, rng.randrange(2) if kind == frames.DATA else 0)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """`data` with a few places changed, cut, doubled or filled."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(5):
            case 0:
                out[at : at + 1] = rng.randbytes(1)
            case 1:
                del out[at : at + rng.randrange(1, 40)]
            case 2:
                out[at:at] = out[at : at + rng.randrange(1, 80)]
            case 3:
                out[at:at] = rng.randbytes(rng.randrange(1, 40))
            case 4:
                out[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x01\0\x01\0"))
    return bytes(out)


def pieces(rng: random.Random, data: bytes) -> Iterator[bytes]:
    """`data` as a socket might give it."""
    at = 0
    while at < len(data):
        size = rng.choice((1, 3, 16, rng.randrange(1, 300), rng.randrange(1, 100_000)))
        yield data[at : at + size]
        at += size


def decoded(decoder: Decoder, chunks: Iterator[bytes] | list[bytes]) -> list[Frame | Garbled]:
    return [item for chunk in chunks for item in decoder.receive(chunk)]


def fresh(role: str, pipe: Pipe) -> Decoder:
    return OpenerDecoder(pipe, NONCE) if role == "opener" else AcceptorDecoder(pipe)


@pytest.mark.parametrize("role", ["opener", "acceptor"])
def test_how_bytes_are_cut_does_not_matter(role: str) -> None:
    for rng in rounds():
        pipe, encoder = rng.choice((CONTROL, BULK)), Encoder()
        greeting = ACK[pipe] if role == "opener" else frames.encode_hello(Greeting(NONCE, 7, VERSION, pipe.number))
        types = [kind for kind in FROM_OPENER if kind in pipe.types and (role == "acceptor" or kind != frames.OPEN)]
        transcript = greeting + b"".join(one_frame(rng, encoder, types) for _ in range(rng.randrange(1, 12)))
        if rng.random() < 0.7:
            transcript = mutated(rng, transcript)
        if rng.random() < 0.5:
            transcript += frames.flush(pipe) + frames.encode_hello(Greeting(b"a second session", 7, VERSION, pipe.number)) + transcript
        whole = decoded(fresh(role, pipe), [transcript])
        assert decoded(fresh(role, pipe), pieces(rng, transcript)) == whole
        short = transcript[:3000]
        assert decoded(fresh(role, pipe), [short[at : at + 1] for at in range(len(short))]) == decoded(fresh(role, pipe), [short])


def test_a_hello_behind_the_zero_run_is_found_after_any_bytes() -> None:
    for rng in rounds():
        pipe, encoder = rng.choice((CONTROL, BULK)), Encoder()
        begun = frames.encode_hello(Greeting(NONCE, 7, VERSION, pipe.number)) if rng.random() < 0.8 else b""
        types = [kind for kind in FROM_OPENER if kind in pipe.types]
        before = begun + b"".join(one_frame(rng, encoder, types) for _ in range(rng.randrange(5)))
        before = mutated(rng, before)[: rng.randrange(len(before) + 1)]
        fresh_hello = frames.encode_hello(Greeting(b"a second session", 9, VERSION, pipe.number))
        after = frames.encode(frames.DATA, 1, 2, b"first of the new session")
        *_, hello, data = decoded(AcceptorDecoder(pipe), pieces(rng, before + frames.flush(pipe) + fresh_hello + after))
        assert isinstance(hello, Frame)
        assert frames.decode_greeting(hello.payload).nonce == b"a second session"
        assert isinstance(data, Frame)
        assert data.payload == b"first of the new session"


def hostile_opener(layout: Layout = GUEST) -> Opener:
    opener = Opener(layout, NONCE, 7)
    for pipe in layout:
        opener.receive(layout.index(pipe), ACK[pipe])
    return opener


@pytest.mark.parametrize("mutate", [False, True], ids=["well formed nonsense", "mutated bytes"])
def test_an_opener_survives_any_bytes_with_bounded_memory(mutate: bool) -> None:
    broken = whole = 0
    for rng in rounds():
        opener, encoders, inboxes = hostile_opener(), [Encoder(), Encoder()], {}
        for number in range(1, 4):
            inboxes[opener.send_open("x", b"\x80", bulk=number == 2)[0]] = Inbox()
        if rng.random() < 0.5:
            opener.send_ping(b"01234567")
        for _ in range(rng.randrange(1, 12)):
            pipe = rng.randrange(2)
            types = [kind for kind in FROM_OPENER if kind in GUEST[pipe].types and kind != frames.OPEN]
            data = b"".join(one_frame(rng, encoders[pipe], types) for _ in range(rng.randrange(1, 6)))
            ended = False
            for chunk in pieces(rng, mutated(rng, data) if mutate and rng.random() < 0.4 else data):
                events = opener.receive(pipe, chunk)
                assert not (ended and events)
                for event in events:
                    assert isinstance(event, Data | Message | Closed | WasReset | Credited | Ponged | Answer | Broken)
                    if isinstance(event, Data | Message):
                        inboxes[event.stream].put(event)
                ended = ended or any(isinstance(event, Broken) for event in events)
                assert opener._decoders[pipe].held <= GUEST[pipe].limit + frames.OVERHEAD
            if ended:
                broken += 1
                assert opener.live == 0
                break
        else:
            whole += 1
    assert broken
    assert os.environ.get("SPACE_FUZZ_SEED") or broken + whole > 20


def test_memory_stays_bounded_however_long_a_guest_babbles() -> None:
    """Before and after the handshake, with everything a guest can make us keep: bytes of no frame, half a frame, full windows."""
    rng = random.Random(1)
    noise = rng.randbytes(1 << 16)
    encoder, count = Encoder(), 3
    babble = [
        b"".join(encoder.frame(frames.DATA, number, b"ab", lane) for _ in range(8192) for lane in (0, 1)) for number in range(1, count + 1)
    ]
    tracemalloc.start()
    try:
        opener = Opener(GUEST, NONCE, 7)
        for _ in range(100):
            assert opener.receive(0, noise) == []
        searching, _ = tracemalloc.get_traced_memory()
        live, inboxes = hostile_opener(), [Inbox() for _ in babble]
        for data, inbox in zip(babble, inboxes, strict=True):
            live.send_open("x", b"\x80")
            for event in live.receive(0, data):
                assert isinstance(event, Data), event
                inbox.put(event)
        assert live.receive(1, frames.encode(frames.DATA, count, 2, bytes(BULK.limit))[:-1]) == []
        babbling, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert searching < 1 << 18
    assert babbling - searching < count * CONTROL.window + 2 * BULK.limit


def test_a_guests_message_is_decoded_or_refused() -> None:
    samples = [
        msgspec.msgpack.encode(value)
        for value in (
            guest.Done(),
            guest.Started(4),
            guest.Exited(0, None, oom_killed=False, timed_out=False, stdout_bytes=1 << 40, stderr_bytes=2, wall_ms=3),
            guest.Configured("b" * 36, "6.1", 1, 2, "0.1"),
            guest.TreeDone(1, 2, 3),
            guest.Metrics(1, 2, 3, 4, 5, 6, 7, 8, 9),
        )
    ]
    refused = taken = 0
    for rng in rounds():
        for _ in range(200):
            payload = mutated(rng, rng.choice(samples))
            try:
                message = guest.decode(payload)
            except ProtocolError:
                refused += 1
            else:
                taken += 1
                assert isinstance(message, guest.Message)
    assert refused


# Two honest sides, and everything that may happen between them


@dataclass
class Wire:
    """Bytes under way, by (direction, pipe)."""

    queues: dict[tuple[int, int], bytearray] = field(default_factory=dict)

    def put(self, side: int, pipe: int, data: bytes) -> None:
        self.queues.setdefault((side, pipe), bytearray()).extend(data)

    def take(self, side: int, pipe: int, most: int) -> bytes:
        queue = self.queues.get((side, pipe), bytearray())
        data = bytes(queue[:most])
        del queue[:most]
        return data


class Pair:
    """An opener (0) and an acceptor (1), what each sent on each stream and what each received."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.opener = Opener(layout, NONCE, 7)
        self.acceptor = Acceptor(layout)
        self.muxes: tuple[Mux, Mux] = (self.opener, self.acceptor)
        self.wire = Wire()
        self.sent: dict[tuple[int, int], bytearray] = {}
        self.got: dict[tuple[int, int], bytearray] = {}
        self.untaken: dict[tuple[int, int], int] = {}
        self.open: set[tuple[int, int]] = set()  # (side, stream) that may still send
        self.reset: set[int] = set()
        self.ended: set[tuple[int, int]] = set()
        for pipe in range(len(layout)):
            self.wire.put(0, pipe, self.opener.hello(pipe))

    def deliver(self, side: int, pipe: int, most: int) -> int:
        """Bytes that `side` wrote reach the other."""
        data = self.wire.take(side, pipe, most)
        for event in self.muxes[1 - side].receive(pipe, data):
            self.happens(1 - side, event)
        return len(data)

    def happens(self, side: int, event: Event) -> None:
        assert not isinstance(event, Broken), event.error
        match event:
            case Answer():
                self.wire.put(side, event.pipe, event.data)
            case Opened():
                self.open.add((side, event.stream))
            case Data() | Message():
                self.got.setdefault((side, event.stream), bytearray()).extend(event.payload)
                self.untaken[side, event.stream] = self.untaken.get((side, event.stream), 0) + len(event.payload)
            case Closed():
                assert (side, event.stream) not in self.ended
                self.ended.add((side, event.stream))
            case WasReset():
                self.reset.add(event.stream)
                self.open.discard((side, event.stream))
            case _:
                assert isinstance(event, Greeted | Credited) or type(event).__name__ == "Renewed", event

    def start(self, *, bulk: bool) -> None:
        number, frame = self.opener.send_open("echo", b"\x80", bulk=bulk)
        self.wire.put(0, self.opener.pipe_of(number), frame)
        self.open.add((0, number))

    def send(self, side: int, stream: int, size: int) -> int:
        mux = self.muxes[side]
        size = min(size, mux.may_send(stream))
        if size:
            payload = secrets.token_bytes(8) * (size // 8 + 1)
            payload = payload[: min(size, mux.limit(stream))]
            self.sent.setdefault((side, stream), bytearray()).extend(payload)
            self.wire.put(side, mux.pipe_of(stream), mux.send_data(stream, payload))
        return size

    def close(self, side: int, stream: int) -> None:
        mux = self.muxes[side]
        pipe = mux.pipe_of(stream)
        self.wire.put(side, pipe, mux.send_close(stream))
        self.open.discard((side, stream))

    def abandon(self, side: int, stream: int) -> None:
        self.reset.add(stream)
        self.wire.put(side, 0, self.muxes[side].send_reset(stream, "unavailable", "enough"))
        self.open.discard((side, stream))

    def consume(self, side: int, stream: int, most: int) -> None:
        size = min(most, self.untaken.get((side, stream), 0))
        if size:
            self.untaken[side, stream] -= size
            self.wire.put(side, 0, self.muxes[side].took(stream, size))

    def settle(self) -> None:
        """Everything under way arrives, everything that arrived is taken."""
        moving = True
        while moving:
            for side, stream in list(self.untaken):
                self.consume(side, stream, 1 << 30)
            moving = sum(self.deliver(side, pipe, 1 << 30) for side in (0, 1) for pipe in range(len(self.layout))) > 0

    def check(self) -> None:
        for (side, stream), got in self.got.items():
            sent = self.sent.get((1 - side, stream), b"")
            assert sent[: len(got)] == got
        for mux in self.muxes:
            for flow in mux._flows.values():
                assert 0 <= flow.may_send <= flow.window
                assert 0 <= flow.may_receive <= flow.window


@pytest.mark.parametrize("layout", [GUEST, NODE], ids=["guest", "node"])
@settings(max_examples=60, deadline=None, phases=[Phase.reuse, Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_credit_is_never_overrun_and_nothing_stays_stuck(layout: Layout, data: st.DataObject) -> None:
    pair = Pair(layout)
    pair.settle()
    assert pair.opener.ready
    rng = data.draw(st.randoms(use_true_random=False))
    for _ in range(data.draw(st.integers(1, 120))):
        some = sorted(pair.open)
        side, stream = rng.choice(some) if some else (0, 0)
        match rng.choice(("open", "send", "send", "send", "deliver", "deliver", "deliver", "consume", "consume", "close", "abandon")):
            case "open":
                pair.start(bulk=rng.random() < 0.5)
            case "send" if some:
                pair.send(side, stream, rng.choice((1, 1000, 65_536, 300_000)))
            case "deliver":
                pair.deliver(rng.randrange(2), rng.randrange(len(layout)), rng.choice((1, 17, 5000, 1 << 20)))
            case "consume" if pair.untaken:
                pair.consume(*rng.choice(sorted(pair.untaken)), rng.choice((1, 1000, 1 << 20)))
            case "close" if some:
                pair.close(side, stream)
            case "abandon" if some and rng.random() < 0.3:
                pair.abandon(side, stream)
        pair.check()
    # Nothing is stuck: with the rest delivered and taken, every stream has three quarters of its window again and can be ended.
    pair.settle()
    for side, stream in sorted(pair.open):
        flow = pair.muxes[side]._flows[stream]
        assert flow.may_send >= flow.window * 3 // 4
        assert pair.send(side, stream, 1) == 1
    pair.settle()
    for side, stream in sorted(pair.open):
        pair.close(side, stream)
    pair.settle()
    pair.check()
    assert pair.opener.live == pair.acceptor.live == 0
    for (side, stream), sent in pair.sent.items():
        if stream not in pair.reset:
            assert pair.got.get((1 - side, stream), b"") == sent
            assert (1 - side, stream) in pair.ended
