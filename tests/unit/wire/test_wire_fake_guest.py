"""FakeGuest does what docs/protocol.md, section 2 says."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import tarfile
import zlib
from collections.abc import AsyncIterator

import pytest

from space.core.wire import guest
from space.model.errors import GuestError, InvalidArgument, NotFound, SandboxDied, Unsupported
from space.rpc.session import Data, Session
from space.testing.guest import FakeGuest


@contextlib.asynccontextmanager
async def booted() -> AsyncIterator[tuple[FakeGuest, Session]]:
    fake = FakeGuest()
    (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
    await fake.serve(theirs, their_bulk)
    session = await Session.open_guest(control, bulk, 7, reconnect=False)
    try:
        async with asyncio.timeout(20):
            yield fake, session
    finally:
        await session.aclose()
        fake.kill()


async def ran(
    session: Session, *argv: str, stdin: bytes | None = None, env: dict[bytes, bytes] | None = None, timeout_ms: int | None = None
) -> tuple[bytes, bytes, guest.Exited]:
    output, messages = [b"", b""], []
    request = guest.Exec([word.encode() for word in argv], None, list((env or {}).items()), None, timeout_ms, stdin is not None)
    async with await session.open("exec", request, finish=stdin is None) as stream:
        if stdin is not None:
            await stream.send(stdin)
            await stream.close()
        async for event in stream:
            if isinstance(event, Data):
                output[event.lane] += event.payload
            else:
                messages.append(guest.decode(event.payload))
    started, exited = messages
    assert isinstance(started, guest.Started)
    assert isinstance(exited, guest.Exited)
    assert (exited.stdout_bytes, exited.stderr_bytes) == (len(output[0]), len(output[1]))
    return output[0], output[1], exited


def tar(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def test_programs() -> None:
    async def main() -> None:
        async with booted() as (fake, session):
            assert (await ran(session, "/bin/echo", "a", "b"))[0] == b"a b\n"
            assert (await ran(session, "err", "a"))[1] == b"a\n"
            assert (await ran(session, "cat", stdin=b"in" * 200_000))[0] == b"in" * 200_000
            assert (await ran(session, "yes-bytes", "300001"))[0] == b"y\n" * 150_000 + b"y"
            assert [(await ran(session, *argv.split()))[2].code for argv in ("true", "false", "exit 7", "sleep 0")] == [0, 1, 7, 0]
            assert (await ran(session, "signal", "15"))[2].signal == 15
            late = (await ran(session, "sleep", "60", timeout_ms=10))[2]
            assert (late.code, late.signal, late.timed_out) == (None, 9, True)
            assert fake.running == {}
            for argv in (("sh", "-c", "true"), ("nothing",)):
                with pytest.raises(NotFound, match="there is no program"):
                    await ran(session, *argv)
            with pytest.raises(InvalidArgument, match="wants a number"):
                await ran(session, "exit", "x")

    asyncio.run(main())


def test_configure_comes_before_the_requests_own_environment() -> None:
    async def main() -> None:
        async with booted() as (fake, session):
            request = guest.Configure(1, bytes(32), "sb-1", [(b"A", b"1"), (b"B", b"1")], 7)
            assert guest.expect(guest.Configured, await session.call("configure", request)).disk_bytes == 2 << 30
            assert fake.configured == request
            assert (await ran(session, "env", env={b"B": b"2"}))[0] == b"A=1\nB=2\n"

    asyncio.run(main())


def test_a_tree_comes_back_as_it_went() -> None:
    async def main() -> None:
        async with booted() as (_, session):
            sent = tar(a=b"1" * 600_000, b=b"")
            want = guest.TreeDone(2, len(sent), zlib.crc32(sent))
            async with await session.open("tree_put", guest.Tree(b"/x", None), bulk=True) as stream:
                await stream.send(sent)
                await stream.close()
                assert [guest.decode(event.payload) async for event in stream] == [want]
            events = [event async for event in await session.open("tree_get", guest.Tree(b"/x", None), bulk=True, finish=True)]
            assert b"".join(event.payload for event in events if isinstance(event, Data)) == sent
            assert guest.decode(events[-1].payload) == want
            with pytest.raises(NotFound):
                await session.call("tree_get", guest.Tree(b"/y", None), bulk=True)
            async with await session.open("tree_put", guest.Tree(b"/x", None), bulk=True) as stream:
                await stream.send(b"no tar" * 200)
                await stream.close()
                with pytest.raises(GuestError, match="no tar stream"):
                    await anext(stream)

    asyncio.run(main())


def test_the_other_verbs() -> None:
    async def main() -> None:
        async with booted() as (fake, session):
            assert guest.expect(guest.Done, await session.call("noop", guest.Empty()))
            assert guest.expect(guest.Metrics, await session.call("metrics", guest.Empty())).processes == 1
            events = [event async for event in await session.open("source", guest.Source(300_000), bulk=True, finish=True)]
            assert sum(len(event.payload) for event in events[:-1]) == 300_000
            assert guest.decode(events[-1].payload) == guest.TreeDone(0, 300_000, 0)
            async with await session.open("sink", guest.Empty()) as stream:
                await stream.send(bytes(400_000))
                await stream.close()
                assert guest.decode((await anext(stream)).payload) == guest.TreeDone(0, 400_000, 0)
            with pytest.raises(Unsupported):
                await session.call("root", guest.Empty())
            with pytest.raises(InvalidArgument):
                await session.call("source", guest.Empty())
            assert guest.expect(guest.Done, await session.call("shutdown", guest.Empty()))
            assert isinstance(await session.closed, SandboxDied)
            assert fake.off.is_set()

    asyncio.run(main())


def test_killing_the_guest_ends_its_processes_and_sessions() -> None:
    async def main() -> None:
        async with booted() as (fake, session):
            stream = await session.open("exec", guest.Exec([b"sleep", b"60"], None, [], None, None, False), finish=True)
            assert isinstance(guest.decode((await anext(stream)).payload), guest.Started)
            assert list(fake.running.values()) == [[b"sleep", b"60"]]
            fake.kill()
            with pytest.raises(SandboxDied):
                await anext(stream)
            while fake.running:  # noqa: ASYNC110 - the cancelled task tells nobody
                await asyncio.sleep(0)

    asyncio.run(main())


def test_pipes_can_be_replaced() -> None:
    async def main() -> None:
        async with booted() as (fake, session):
            (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
            await fake.serve(theirs, their_bulk)
            second = await Session.open_guest(control, bulk, 7, reconnect=True)
            assert isinstance(await session.closed, SandboxDied)
            assert guest.expect(guest.Done, await second.call("noop", guest.Empty()))
            await second.aclose()

    asyncio.run(main())
