"""Both ends of the Python session against each other, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest

from space.core.wire import frames, guest
from space.core.wire.events import GUEST, MAX_STREAMS
from space.core.wire.frames import (
    BULK,
    CONTROL,
    VERSION,
    Greeting,
    encode_hello_ack,
)  # fmt: skip
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
from space.rpc.session import Data, Door, Handler, Message, Served, Session, Stream
from space.testing.sessionlab import DONE, Host, collected, linked, timed, until

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
async def test_a_stream_that_is_reset_in_the_read_that_opens_it_hurts_no_other() -> None:
    host = Host()
    async with linked(host.handle) as (session, served):
        stream = await session.open("hang", b"")
        await host.begun.get()
        for _ in range(3):  # nothing is awaited that would let the other end read in between
            gone = await session.open("hang", b"")
            gone.reset_now("unavailable", "left")
        assert await session.call("noop", b"") == DONE
        assert served.mux.live == 1
        assert [host.begun.get_nowait() for _ in range(host.begun.qsize())] == ["noop"]
        stream.reset_now("unavailable", "left")


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
