"""Sessions with peers as they are: not there yet, there before, hostile, silent, asleep."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time

import pytest

from space.core.wire import frames
from space.core.wire.events import GUEST, Answer, Opened, Ponged
from space.core.wire.frames import (
    BULK,
    CONTROL,
    DATA,
    HELLO,
    AcceptorDecoder,
    Frame,
    decode_greeting,
    encode,
    encode_hello_ack,
)  # fmt: skip
from space.core.wire.mux import Acceptor
from space.model.errors import (
    ProtocolError,
    SandboxDied,
)  # fmt: skip
from space.rpc.session import Heartbeat, Served, Session
from space.testing.sessionlab import DONE, Host, Hostile, collected, linked, timed, until

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
