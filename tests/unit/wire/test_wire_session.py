"""Both ends of the Python session against each other, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import uvloop

from space.core.wire import frames, guest
from space.core.wire.events import GUEST, MAX_STREAMS, Answer, Opened, Ponged
from space.core.wire.frames import (
    BULK,
    CONTROL,
    DATA,
    HELLO,
    VERSION,
    AcceptorDecoder,
    Encoder,
    Frame,
    Greeting,
    decode_greeting,
    encode,
    encode_hello_ack,
)  # fmt: skip
from space.core.wire.mux import Acceptor
from space.model.errors import (
    Conflict,
    GuestError,
    Internal,
    NotFound,
    ProtocolError,
    SandboxDied,
    TooLarge,
    Unavailable,
)  # fmt: skip
from space.rpc.session import Data, Door, Handler, Heartbeat, Message, Served, Session, Stream

DONE = msgspec.msgpack.encode(guest.Done())
CALM = Heartbeat()
LIMIT = 30


def timed(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the coroutine in loops of both makes, with a deadline that only a hang reaches."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            async with asyncio.timeout(LIMIT):
                await test(*args, **kwargs)

        for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(main())

    return run


async def until(condition: Callable[[], bool]) -> None:
    """For what tells nobody that it has happened."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


class Host:
    """What the handlers under test did, and what they wait for."""

    def __init__(self) -> None:
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.begun: asyncio.Queue[str] = asyncio.Queue()

    async def handle(self, stream: Stream, verb: str, request: bytes) -> None:
        self.begun.put_nowait(verb)
        try:
            await getattr(self, verb.replace("-", "_"))(stream, request)
        except asyncio.CancelledError:
            self.cancelled.put_nowait(verb)
            raise

    async def noop(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(DONE)

    async def echo(self, stream: Stream, request: bytes) -> None:
        async for event in stream:
            await stream.send(event.payload, event.lane if isinstance(event, Data) else 0)

    async def flood(self, stream: Stream, request: bytes) -> None:
        await stream.send(bytes(int(request)))

    async def hang(self, stream: Stream, request: bytes) -> None:
        await asyncio.Event().wait()

    async def fail(self, stream: Stream, request: bytes) -> None:
        await stream.send(b"first")
        raise {"not_found": NotFound("no such program"), "died": SandboxDied("ha"), "bug": ValueError("secret words")}[request.decode()]

    async def nothing(self, stream: Stream, request: bytes) -> None:
        pass

    async def two(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(DONE)
        await stream.send_message(DONE)

    async def once(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(DONE, last=True)

    async def deaf(self, stream: Stream, request: bytes) -> None:
        """Answers without taking what it is sent."""
        await stream.send_message(DONE)


@contextlib.asynccontextmanager
async def linked(handler: Handler, heartbeat: Heartbeat = CALM) -> AsyncIterator[tuple[Session, Served]]:
    (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
    served = Served(GUEST, handler)
    await served.attach((theirs, their_bulk))
    session = await Session.open_guest(control, bulk, 7, reconnect=False, heartbeat=heartbeat)
    try:
        yield session, served
    finally:
        await session.aclose()
        await served.aclose()
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def collected(stream: Stream) -> bytes:
    return b"".join([event.payload async for event in stream])


# The ordinary


@timed
async def test_a_call_is_answered_and_leaves_nothing() -> None:
    async with linked(Host().handle) as (session, served):
        for _ in range(3):
            assert await session.call("noop", guest.Empty()) == DONE
        assert session.mux.live == 0
        assert session._streams == {}
        assert await session.call("noop", guest.Empty(), bulk=True) == DONE
        assert served.mux.live == 0
        assert served._streams == {}


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 262_144, 3_000_000])
@timed
async def test_bytes_come_back_as_they_went(size: int, bulk: bool) -> None:
    sent = secrets.token_bytes(size)
    async with linked(Host().handle) as (session, _), await session.open("echo", guest.Empty(), bulk=bulk) as stream:

        async def feed() -> None:
            await stream.send(sent)
            await stream.close()

        feeding = asyncio.create_task(feed())
        assert await collected(stream) == sent
        await feeding


@timed
async def test_lanes_and_messages_are_told_apart() -> None:
    async def handler(stream: Stream, verb: str, request: bytes) -> None:
        await stream.send_message(guest.Started(5))
        await stream.send(b"out")
        await stream.send(b"err", lane=1)
        await stream.send_message(guest.Done())

    async with linked(handler) as (session, _):
        events = [event async for event in await session.open("exec", b"", finish=True)]
    assert [type(event) for event in events] == [Message, Data, Data, Message]
    assert [event.lane for event in events if isinstance(event, Data)] == [0, 1]
    assert guest.decode(events[0].payload) == guest.Started(5)


@timed
async def test_a_thousand_streams_at_once() -> None:
    async with linked(Host().handle) as (session, _):
        streams = [await session.open("echo", guest.Empty(), bulk=number % 2 == 0) for number in range(MAX_STREAMS)]
        with pytest.raises(Conflict, match="1024 streams are open"):
            await session.open("echo", guest.Empty())
        for number, stream in enumerate(streams):
            await stream.send(b"%d" % number)
            await stream.close()
        assert [await collected(stream) for stream in streams] == [b"%d" % number for number in range(MAX_STREAMS)]
        assert session.mux.live == 0


# Errors


@timed
async def test_a_guests_error_keeps_its_code_and_comes_after_what_was_sent() -> None:
    async with linked(Host().handle) as (session, _):
        stream = await session.open("fail", b"not_found", finish=True)
        assert (await anext(stream)).payload == b"first"
        with pytest.raises(NotFound, match="no such program"):
            await anext(stream)
        with pytest.raises(NotFound):
            await stream.send(b"x")
        await stream.close()
        await stream.reset("unavailable", "twice is nothing")


@timed
async def test_a_guest_cannot_claim_what_is_not_its_to_say() -> None:
    async with linked(Host().handle) as (session, _):
        with pytest.raises(GuestError, match=r"ha \[sandbox_died\]"):
            await collected(await session.open("fail", b"died", finish=True))


@timed
async def test_a_handlers_bug_is_logged_once_and_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    async with linked(Host().handle) as (session, _):
        with pytest.raises(GuestError) as told:
            await collected(await session.open("fail", b"bug", finish=True))
    assert "secret" not in str(told.value)
    assert [record.message for record in caplog.records] == ["fail failed"]


@pytest.mark.parametrize(
    ("verb", "words"), [("nothing", "no message"), ("two", "more than one message"), ("flood", "more than one message")]
)
@timed
async def test_a_call_wants_exactly_one_message(verb: str, words: str) -> None:
    async with linked(Host().handle) as (session, _):
        with pytest.raises(ProtocolError, match=words):
            await session.call(verb, b"10")
        assert await session.call("noop", b"") == DONE


@timed
async def test_the_last_message_and_the_end_are_one_write() -> None:
    async with linked(Host().handle) as (session, served):
        for verb, writes in (("noop", 2), ("once", 1)):
            with mock.patch.object(served.ends[0], "write", wraps=served.ends[0].write) as write:
                assert await session.call(verb, b"") == DONE
            assert write.call_count == writes
        async with await session.open("echo", b"") as stream:
            await stream.send_message(DONE, last=True)
            assert [event.payload async for event in stream] == [DONE]
            with pytest.raises(Conflict, match="closed for sending"):
                await stream.send(b"x")


@timed
async def test_a_message_that_fits_no_frame_is_refused_here() -> None:
    async with linked(Host().handle) as (session, _), await session.open("echo", b"") as stream:
        with pytest.raises(TooLarge, match="65537 bytes, at most 65536"):
            await stream.send_message(bytes(65_537))


@timed
async def test_after_close_nothing_is_sent() -> None:
    async with linked(Host().handle) as (session, _), await session.open("echo", b"") as stream:
        await stream.close()
        await stream.close()
        with pytest.raises(Conflict, match="closed for sending"):
            await stream.send(b"x")


@timed
async def test_two_consumers_are_a_bug() -> None:
    async with linked(Host().handle) as (session, _), await session.open("echo", b"") as stream:
        first = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="two consumers"):
            await anext(stream)
        await stream.send(b"x")
        assert (await first).payload == b"x"


# Flow


@timed
async def test_a_slow_reader_stalls_only_itself() -> None:
    async with linked(Host().handle) as (session, served):
        slow = await session.open("flood", b"%d" % (8 * BULK.window), bulk=True, finish=True)
        slow_control = await session.open("flood", b"%d" % (8 * CONTROL.window), finish=True)
        for bulk in (False, True):
            fast = await session.open("flood", b"%d" % (4 * BULK.window), bulk=bulk, finish=True)
            assert len(await collected(fast)) == 4 * BULK.window
            assert await session.call("noop", b"") == DONE
        assert served.mux.may_send(slow.number) == 0
        assert served.mux.may_send(slow_control.number) == 0
        assert len(await collected(slow)) == 8 * BULK.window
        assert len(await collected(slow_control)) == 8 * CONTROL.window


@timed
async def test_a_sender_waits_for_credit_and_is_released_by_the_peers_end() -> None:
    async with linked(Host().handle) as (session, _), await session.open("deaf", b"") as stream:
        sender = asyncio.create_task(stream.send(bytes(2 * CONTROL.window)))
        assert [event.payload async for event in stream] == [DONE]
        with pytest.raises(Conflict, match="closed for sending"):
            await sender


# Cancellation


@pytest.mark.parametrize("what", ["consumer", "sender"])
@timed
async def test_cancelling_resets_the_stream_and_cancels_the_handler(what: str) -> None:
    host = Host()
    async with linked(host.handle) as (session, served):
        stream = await session.open("hang", b"")
        assert await host.begun.get() == "hang"
        task = asyncio.create_task(collected(stream) if what == "consumer" else stream.send(bytes(4 * CONTROL.window)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await host.cancelled.get() == "hang"
        assert session.mux.live == 0
        assert served.mux.live == 0
        assert await session.call("noop", b"") == DONE


@timed
async def test_leaving_the_context_early_resets_the_stream() -> None:
    host = Host()
    async with linked(host.handle) as (session, _):
        async with await session.open("hang", b""):
            await host.begun.get()
        assert await host.cancelled.get() == "hang"
        with contextlib.suppress(KeyError):
            async with await session.open("hang", b""):
                await host.begun.get()
                raise KeyError
        assert await host.cancelled.get() == "hang"


@timed
async def test_a_timeout_on_the_served_side_is_the_handlers_own_matter() -> None:
    async def handler(stream: Stream, verb: str, request: bytes) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(stream)
        await stream.send_message(DONE)

    async with linked(handler) as (session, _), await session.open("x", b"") as stream:
        assert [event.payload async for event in stream] == [DONE]


# Ends


@pytest.mark.parametrize("pipe", [0, 1])
@timed
async def test_a_closed_pipe_is_the_death_of_every_stream(pipe: int) -> None:
    host = Host()
    async with linked(host.handle) as (session, served):
        hang, echo = await session.open("hang", b""), await session.open("echo", b"", bulk=True)
        blocked = asyncio.create_task(hang.send(bytes(4 * CONTROL.window)))
        reading = asyncio.create_task(collected(echo))
        await host.begun.get()
        served.ends[pipe].abort()
        for task in (blocked, reading):
            with pytest.raises(SandboxDied, match=f"pipe {pipe} was closed"):
                await task
        with pytest.raises(SandboxDied):
            await session.open("noop", b"")
        assert isinstance(await session.closed, SandboxDied)


@timed
async def test_what_came_before_the_death_is_handed_out() -> None:
    async with linked(Host().handle) as (session, served):
        stream = await session.open("flood", b"100000", finish=True)
        whole = await session.open("flood", b"100000", finish=True)
        assert await session.call("noop", b"") == DONE
        await until(lambda: served.mux.live == 0)
        assert await session.call("noop", b"") == DONE  # behind them on the same pipe
        await served.aclose()
        await session.closed
        assert len(await collected(whole)) == 100_000
        assert len(await collected(stream)) == 100_000


@timed
async def test_a_session_that_is_closed_cancels_the_handlers() -> None:
    host = Host()
    async with linked(host.handle) as (session, served):
        stream = await session.open("hang", b"")
        await host.begun.get()
        await session.aclose()
        with pytest.raises(SandboxDied, match="closed by this side"):
            await anext(stream)
        await served.finished
        assert host.cancelled.get_nowait() == "hang"


# The guest that is not there yet, the one that was there before, the hostile one


@timed
async def test_hello_is_repeated_until_a_guest_answers() -> None:
    (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
    opening = asyncio.create_task(Session.open_guest(control, bulk, 7, reconnect=False))
    repeats = b""
    loop = asyncio.get_running_loop()
    theirs.setblocking(False)
    while len(repeats) < 3 * 68:
        repeats += await loop.sock_recv(theirs, 4096)
    assert repeats[:68] == repeats[68:136] == repeats[136:204]
    served = Served(GUEST, Host().handle)
    await served.attach((theirs, their_bulk))
    session = await opening
    assert await session.call("noop", b"") == DONE
    await session.aclose()
    await served.aclose()


@timed
async def test_giving_up_on_a_guest_closes_both_pipes() -> None:
    (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await Session.open_guest(control, bulk, 7, reconnect=False)
    await asyncio.sleep(0)
    for sock in (theirs, their_bulk):
        sock.settimeout(5)
        while sock.recv(4096):
            pass
        sock.close()


@timed
async def test_a_pipe_that_closes_during_the_handshake_is_a_death() -> None:
    (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
    theirs.close()
    with pytest.raises(SandboxDied, match="pipe 0"):
        await Session.open_guest(control, bulk, 7, reconnect=False)
    their_bulk.close()


class Port:
    """Lasting pipes as QEMU's ports are: the guest's end stays open while hosts come and go, with what was in flight."""

    def __init__(self) -> None:
        (self.control, self.guests_control), (self.bulk, self.guests_bulk) = socket.socketpair(), socket.socketpair()

    def plug(self) -> tuple[socket.socket, socket.socket]:
        return self.control.dup(), self.bulk.dup()

    def close(self) -> None:
        self.control.close()
        self.bulk.close()


@timed
async def test_a_second_host_finds_its_session_among_stale_bytes() -> None:
    port, host = Port(), Host()
    served = Served(GUEST, host.handle)
    await served.attach((port.guests_control, port.guests_bulk))
    first = await Session.open_guest(*port.plug(), 7, reconnect=False)
    await first.open("flood", b"%d" % (8 * BULK.window), bulk=True, finish=True)
    await first.open("flood", b"%d" % (8 * CONTROL.window), finish=True)
    hangs = [await first.open("hang", b"", bulk=bulk) for bulk in (False, True)]
    for _ in range(4):
        await host.begun.get()
    half_frames = [first.mux.send_data(hang.number, bytes(60_000))[:cut] for hang, cut in zip(hangs, (500, 7), strict=True)]
    await first.aclose()
    port.control.send(half_frames[0])
    port.bulk.send(half_frames[1])
    second = await Session.open_guest(*port.plug(), 7, reconnect=True)
    assert {await host.cancelled.get() for _ in range(4)} == {"flood", "hang"}
    assert await second.call("noop", b"") == DONE
    assert len(await collected(await second.open("flood", b"5000000", bulk=True, finish=True))) == 5_000_000
    assert served.mux.live == 0
    await second.aclose()
    port.close()
    await served.aclose()


@timed
async def test_a_new_hello_alone_ends_the_processes_of_the_session_before() -> None:
    port, host = Port(), Host()
    served = Served(GUEST, host.handle)
    await served.attach((port.guests_control, port.guests_bulk))
    first = await Session.open_guest(*port.plug(), 7, reconnect=False)
    await first.open("hang", b"")
    await host.begun.get()
    await first.aclose()
    second = await Session.open_guest(*port.plug(), 7, reconnect=False)
    assert await host.cancelled.get() == "hang"
    assert await second.call("noop", b"") == DONE
    await second.aclose()
    port.close()
    await served.aclose()


class Daemon:
    """The guest's daemon as the kernel lets it be: it reads nothing while it has something to write."""

    def __init__(self, served: Acceptor, pipe: int, sock: socket.socket) -> None:
        self.mux, self.pipe, self.sock = served, pipe, sock

    async def serve(self, stale: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.sock, stale)
        while data := await loop.sock_recv(self.sock, 4096):
            for event in self.mux.receive(self.pipe, data):
                if isinstance(event, Answer):
                    await loop.sock_sendall(self.sock, event.data)
                elif isinstance(event, Opened):
                    answer = self.mux.send_message(event.stream, DONE) + self.mux.send_close(event.stream)
                    await loop.sock_sendall(self.sock, answer)


def narrow() -> tuple[socket.socket, socket.socket]:
    """A pair of sockets that hold little."""
    pair = socket.socketpair()
    for sock in pair:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return pair


@timed
async def test_a_guest_that_writes_stale_output_before_it_reads_anything_is_reached_over_narrow_pipes() -> None:
    """Both sides are blocked in a write at first: ours of the zeros, which fill the pipe, and the guest's of two megabytes."""
    (control, theirs), (bulk, their_bulk) = narrow(), narrow()
    mux = Acceptor(GUEST)
    stale = encode(DATA, 1, 9, bytes(60_000))[500:] + random.Random(1).randbytes(2 << 20)
    async with asyncio.TaskGroup() as group:
        daemons = [group.create_task(Daemon(mux, pipe, sock).serve(stale)) for pipe, sock in enumerate((theirs, their_bulk))]
        session = await Session.open_guest(control, bulk, 7, reconnect=True)
        assert await session.call("noop", b"") == DONE
        await session.aclose()
        await asyncio.wait(daemons)
    theirs.close()
    their_bulk.close()


@timed
async def test_a_session_that_the_end_of_an_earlier_connection_ended_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow guest sees the earlier host's hang-up after our HELLO: it has acknowledged, and drops what we send."""
    monkeypatch.setattr("space.rpc.session._FIRST_PROOF", 0.05)
    (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
    for sock in (theirs, their_bulk):
        sock.setblocking(False)
    loop = asyncio.get_running_loop()
    opening = asyncio.create_task(Session.open_guest(control, bulk, 7, reconnect=True))
    for pipe, sock in ((CONTROL, theirs), (BULK, their_bulk)):
        forgetful = AcceptorDecoder(pipe)
        greeted = False
        while not greeted:
            for item in forgetful.receive(await loop.sock_recv(sock, 65536)):
                if isinstance(item, Frame) and item.type == HELLO:
                    await loop.sock_sendall(sock, encode_hello_ack(decode_greeting(item.payload)))
                    greeted = True
    served = Served(GUEST, Host().handle)  # to which that HELLO was never said
    await served.attach((theirs, their_bulk))
    session = await opening
    assert await session.call("noop", b"") == DONE
    await session.aclose()
    await served.aclose()


class Hostile:
    """A guest of raw bytes."""

    def __init__(self) -> None:
        (self.control, self.theirs), (self.bulk, self.their_bulk) = socket.socketpair(), socket.socketpair()
        self.encoder = Encoder()
        for sock in (self.theirs, self.their_bulk):
            sock.setblocking(False)

    async def session(self, heartbeat: Heartbeat = CALM) -> Session:
        loop = asyncio.get_running_loop()
        opening = asyncio.create_task(Session.open_guest(self.control, self.bulk, 7, reconnect=False, heartbeat=heartbeat))
        for number, sock in enumerate((self.theirs, self.their_bulk)):
            hello = b""
            while len(hello) < 68:
                hello += await loop.sock_recv(sock, 68 - len(hello))
            said = decode_greeting(hello[16:64])
            await loop.sock_sendall(sock, b"stale" + encode_hello_ack(Greeting(said.nonce, 7, VERSION, number)))
        return await opening

    async def says(self, kind: int, stream: int, payload: bytes = b"") -> None:
        await asyncio.get_running_loop().sock_sendall(self.theirs, self.encoder.frame(kind, stream, payload))

    def close(self) -> None:
        self.theirs.close()
        self.their_bulk.close()


@timed
async def test_a_malformed_byte_ends_the_session_with_its_reason() -> None:
    hostile = Hostile()
    session = await hostile.session()
    stream = await session.open("exec", b"")
    await hostile.says(frames.DATA, stream.number, b"good")
    await asyncio.get_running_loop().sock_sendall(hostile.theirs, bytes(16))
    assert (await anext(stream)).payload == b"good"
    with pytest.raises(SandboxDied, match="frame type 0 does not exist"):
        await anext(stream)
    assert isinstance((await session.closed).__cause__, ProtocolError)
    hostile.close()


@timed
async def test_a_flood_of_messages_nobody_reads_ends_the_session() -> None:
    hostile = Hostile()
    session = await hostile.session()
    stream = await session.open("exec", b"")
    with contextlib.suppress(OSError):
        for _ in range(5000):
            await hostile.says(frames.MSG, stream.number, b"\x80")
    assert "messages are unread" in (await session.closed).message
    hostile.close()


@timed
async def test_a_flood_of_pings_by_a_peer_that_reads_nothing_ends_the_session() -> None:
    hostile = Hostile()
    session = await hostile.session()
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while not session.closed.done():
            pings = b"".join(hostile.encoder.frame(frames.PING, 0, b"01234567") for _ in range(1000))
            await loop.sock_sendall(hostile.theirs, pings)
    assert "does not read" in (await session.closed).message
    hostile.close()


@timed
async def test_senders_wait_for_a_pipe_that_is_full_and_lose_nothing() -> None:
    hostile = Hostile()
    session = await hostile.session()
    streams = [await session.open("sink", b"", bulk=True) for _ in range(8)]
    senders = [asyncio.create_task(stream.send(bytes(BULK.window))) for stream in streams]
    await until(lambda: session.ends[1].paused)
    assert session.ends[1].unread < BULK.window
    assert not any(sender.done() for sender in senders[1:])
    taken, loop = 0, asyncio.get_running_loop()
    whole = 8 * (BULK.window + BULK.window // BULK.limit * frames.OVERHEAD + frames.OVERHEAD + len(b"\x04sink"))
    while taken < whole:
        taken += len(await loop.sock_recv(hostile.their_bulk, 1 << 20))
    await asyncio.gather(*senders)
    assert taken == whole
    await session.aclose()
    hostile.close()


# Heartbeat


@timed
async def test_a_silent_peer_is_dead_while_a_stream_is_open() -> None:
    hostile = Hostile()
    session = await hostile.session(Heartbeat(every=0.02, dead=0.1))
    stream = await session.open("exec", b"")
    with pytest.raises(SandboxDied, match="no byte came for"):
        await anext(stream)
    hostile.close()


@timed
async def test_a_peer_that_answers_pings_lives_however_long_it_says_nothing_else() -> None:
    async with linked(Host().handle, Heartbeat(every=0.01, dead=0.1)) as (session, _):
        stream = await session.open("hang", b"")
        pongs = 0

        def count(event: object) -> None:
            nonlocal pongs
            pongs += 1
            session._pinged = False

        session._tell[Ponged] = count
        await until(lambda: pongs == 20)
        assert not session.closed.done()
        await stream.reset("unavailable", "enough")


@timed
async def test_a_peer_that_is_held_may_be_silent_until_it_is_released() -> None:
    hostile = Hostile()
    session = await hostile.session(Heartbeat(every=0.01, dead=0.05))
    session.hold()
    stream = await session.open("exec", b"")
    reading = asyncio.create_task(anext(stream))
    done, _ = await asyncio.wait({reading}, timeout=0.2)
    assert not done
    session.release()
    with pytest.raises(SandboxDied, match="no byte came"):
        await reading
    hostile.close()


@timed
async def test_a_host_that_slept_does_not_take_its_own_silence_for_the_peers() -> None:
    async with linked(Host().handle, Heartbeat(every=0.02, dead=0.1)) as (session, _), await session.open("hang", b"") as stream:
        answered = asyncio.Event()
        session._tell[Ponged] = lambda _: answered.set()
        time.sleep(0.3)  # noqa: ASYNC251 - the point
        await answered.wait()
        assert not session.closed.done()
        await stream.reset("unavailable", "enough")


@timed
async def test_an_idle_session_has_no_timer() -> None:
    async with linked(Host().handle, Heartbeat(every=0.01, dead=0.05)) as (session, _):
        assert session._timer is None
        await session.call("noop", b"")
        assert session._timer is not None
        await until(lambda: session._timer is None)
        assert not session.closed.done()


# Control and node


@contextlib.asynccontextmanager
async def node(directory: Path, handler: Handler) -> AsyncIterator[Path]:
    path = directory / f"{secrets.token_hex(4)}.sock"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    sock.listen()
    server = Door(sock, frozenset({os.getuid()}), handler)
    server.open()
    try:
        yield path
    finally:
        await server.aclose()
        assert server.sessions == 0
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@timed
async def test_control_speaks_to_a_node_over_one_pipe(tmp_path: Path) -> None:
    async with node(tmp_path, Host().handle) as path:
        first, second = await Session.connect(path), await Session.connect(path)
        assert await first.call("noop", b"") == DONE
        assert await second.call("noop", b"", bulk=True) == DONE
        big = secrets.token_bytes(BULK.limit)
        async with await second.open("echo", b"") as stream:
            await stream.send(big)
            await stream.close()
            assert await collected(stream) == big
        with pytest.raises(SandboxDied, match="ha"):
            await collected(await first.open("fail", b"died", finish=True))
        with pytest.raises(Internal):
            await collected(await first.open("fail", b"bug", finish=True))
        await first.aclose()
        await second.aclose()


@timed
async def test_a_node_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no node answers"):
        await Session.connect(tmp_path / "none.sock")


@timed
async def test_a_node_that_stops_is_unavailable_to_its_streams(tmp_path: Path) -> None:
    host = Host()
    async with node(tmp_path, host.handle) as path:
        session = await Session.connect(path)
        stream = await session.open("hang", b"")
        await host.begun.get()
    with pytest.raises(Unavailable):
        await anext(stream)
    assert host.cancelled.get_nowait() == "hang"
    assert isinstance(await session.closed, Unavailable)


@timed
async def test_a_client_of_noise_is_hung_up_on_and_others_live(tmp_path: Path) -> None:
    async with node(tmp_path, Host().handle) as path:
        session = await Session.connect(path)
        noisy = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        noisy.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(noisy, str(path))
        await loop.sock_sendall(noisy, frames.encode_hello(Greeting(bytes(16), 0, VERSION, 0)) + bytes(64))
        heard = b""
        while piece := await loop.sock_recv(noisy, 4096):
            heard += piece
        assert heard == encode_hello_ack(Greeting(bytes(16), 0, VERSION, 0))
        assert await session.call("noop", b"") == DONE
        noisy.close()
        await session.aclose()


@timed
async def test_sockets_are_closed_at_the_end() -> None:
    (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
    ours = {f"socket:[{os.fstat(sock.fileno()).st_ino}]" for sock in (control, theirs, bulk, their_bulk)}

    def held() -> bool:
        names = set()
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                names.add(str(descriptor.readlink()))
        return bool(ours & names)

    served = Served(GUEST, Host().handle)
    await served.attach((theirs, their_bulk))
    session = await Session.open_guest(control, bulk, 7, reconnect=False)
    assert held()
    await session.call("noop", b"")
    await session.aclose()
    await served.aclose()
    await until(lambda: not held())
