"""One contract for kept processes and terminals: the fake guest's, and the daemon's in a real guest (marker `machine`)."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from space.bench import bare
from space.core.wire import guest
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.rpc.session import Session
from space.testing.guest import FakeGuest
from space.testing.kept import Kept, forget, kept_now

SIZE = guest.Window(24, 80)
BOOT = 90.0


class Place:
    """A guest; `again` ends the session that is there and begins another."""

    def __init__(self, connect: Callable[[], Awaitable[Session]]) -> None:
        self._connect = connect
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        assert self._session is not None, "`again` was called"
        return self._session

    async def again(self) -> Session:
        await self.aclose()
        self._session = await self._connect()
        return self._session

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.aclose()


Test = Callable[[Place], Awaitable[None]]
Run = Callable[[Test], None]


async def until(claim: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it is so: the guest announces none of this."""
    while not await claim():  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)


async def ended(place: Place) -> bool:
    return all(one.ended for one in await kept_now(place.session))


async def running(place: Place) -> int:
    return guest.expect(guest.Metrics, await place.session.call("metrics", guest.Empty())).processes


async def _is(found: Awaitable[int], wanted: int) -> bool:
    return await found == wanted


def on_fake(test: Test) -> None:
    async def main() -> None:
        fake = FakeGuest()

        async def connect() -> Session:
            (control, theirs), (bulk, their_bulk) = socket.socketpair(), socket.socketpair()
            await fake.serve(theirs, their_bulk)
            return await Session.open_guest(control, bulk, 1, reconnect=True)

        async with AsyncExitStack() as stack:
            place = Place(connect)
            stack.callback(fake.kill)
            stack.push_async_callback(place.aclose)
            await place.again()
            async with asyncio.timeout(20):
                await test(place)

    asyncio.run(main())


@pytest.fixture(scope="module")
def real() -> Iterator[Run]:
    """One guest for all of them; none leaves anything kept."""
    with bare.running("tcg") as machine:

        async def connect() -> Session:
            async with asyncio.timeout(BOOT):
                return await Session.open_guest(*machine.connect(), 1, reconnect=True)

        def run(test: Test) -> None:
            async def main() -> None:
                place = Place(connect)
                try:
                    session = await place.again()
                    request = guest.Configure(time.time_ns(), os.urandom(64), "kept", [], 1)
                    guest.expect(guest.Configured, await session.call("configure", request))
                    async with asyncio.timeout(60):
                        await test(place)
                    assert await kept_now(place.session) == []
                finally:
                    await place.aclose()

            asyncio.run(main())

        yield run


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.machine)])
def run(request: pytest.FixtureRequest) -> Run:
    return on_fake if request.param == "fake" else request.getfixturevalue("real")


def test_a_kept_process_goes_on_when_its_session_has_died(run: Run) -> None:
    async def test(place: Place) -> None:
        kept = Kept("one")
        stream = await kept.start(place.session, ["cat"], stdin=True)
        await stream.send(b"before\n")
        await kept.until(stream, lambda out: out == b"before\n")
        stream = await kept.attach(await place.again())
        await stream.send(b"after\n")
        await stream.send_message(guest.Eof())
        exited = await kept.finish(stream)
        assert (bytes(kept.output[0]), exited.code) == (b"before\nafter\n", 0)
        assert await kept_now(place.session) == [], "our CLOSE forgot it"

    run(test)


def test_output_is_had_again_from_any_offset_that_is_kept(run: Run) -> None:
    async def test(place: Place) -> None:
        kept = Kept("one")
        stream = await kept.start(place.session, ["cat"], stdin=True)
        text = b"".join(b"%07d\n" % number for number in range(100_000))
        await stream.send(text[:600_000])
        await kept.until(stream, lambda out: len(out) == 600_000)
        for at in (600_000, 599_999, 540_000):
            stream = await kept.attach(await place.again(), stdout=at)
            await kept.until(stream, lambda out: len(out) == 600_000)
        for wrong in (0, 600_001):
            with pytest.raises(InvalidArgument):
                await kept.attach(place.session, stdout=wrong)
        stream = await kept.attach(place.session)
        await stream.send(text[600_000:])
        await stream.send_message(guest.Eof())
        await kept.finish(stream)
        assert bytes(kept.output[0]) == text

    run(test)


def test_a_process_that_ended_meanwhile_has_its_exit_and_output_waiting(run: Run) -> None:
    async def test(place: Place) -> None:
        kept = Kept("one")
        await kept.start(place.session, ["echo", "all"])
        await until(lambda: ended(place))
        for _ in range(3):
            stream = await kept.attach(await place.again(), stdout=0)
            assert (await kept.until_exit(stream)).code == 0
            assert bytes(kept.output[0]) == b"all\n"
            kept.exited = None
        await stream.send_message(guest.Signal(9, all=True))
        assert [one.process for one in await kept_now(place.session)] == ["one"]
        await kept.finish(await kept.attach(place.session))
        with pytest.raises(NotFound):
            await kept.attach(place.session)

    run(test)


def test_a_second_attach_takes_the_process_over(run: Run) -> None:
    async def test(place: Place) -> None:
        kept = Kept("one")
        first = await kept.start(place.session, ["cat"], stdin=True)
        second = await kept.attach(place.session)
        with pytest.raises(Conflict):
            await anext(first)
        await second.send(b"x")
        await kept.until(second, lambda out: out == b"x")
        await forget(place.session, "one")

    run(test)


def test_names_are_checked_and_taken_once(run: Run) -> None:
    async def test(place: Place) -> None:
        await Kept("one").start(place.session, ["sleep", "60"])
        await Kept("two").start(place.session, ["sleep", "60"])
        with pytest.raises(Conflict):
            await Kept("one").start(place.session, ["sleep", "60"])
        with pytest.raises(InvalidArgument):
            await Kept("One").start(place.session, ["sleep", "60"])
        with pytest.raises(NotFound):
            await Kept("three").start(place.session, ["/nothing"])
        assert [(one.process, one.ended) for one in await kept_now(place.session)] == [("one", False), ("two", False)]
        await forget(place.session, "one")
        with pytest.raises(NotFound):
            await forget(place.session, "one")
        assert [one.process for one in await kept_now(place.session)] == ["two"]
        await forget(place.session, "two")

    run(test)


def test_signals_end_a_process_and_are_ignored_by_one_that_has_ended(run: Run) -> None:
    async def test(place: Place) -> None:
        for number, everybody in ((15, False), (9, True), (1, True)):
            kept = Kept("one")
            stream = await kept.start(place.session, ["sleep", "60"])
            await stream.send_message(guest.Signal(number, everybody))
            exited = await kept.until_exit(stream)
            assert (exited.code, exited.signal) == (None, number)
            stream = await kept.attach(await place.again())
            await stream.send_message(guest.Signal(15, all=False))
            kept.exited = None
            await kept.finish(stream)

    run(test)


def test_a_timeout_ends_a_kept_process_that_nobody_watches(run: Run) -> None:
    async def test(place: Place) -> None:
        kept = Kept("one")
        await kept.start(place.session, ["sleep", "60"], timeout_ms=300)
        await place.again()
        await until(lambda: ended(place))
        exited = await kept.finish(await kept.attach(place.session))
        assert (exited.signal, exited.timed_out) == (9, True)

    run(test)


def test_what_is_not_kept_ends_with_its_session(run: Run) -> None:
    async def test(place: Place) -> None:
        request = guest.Exec([b"sleep", b"60"], None, [], None, None, False)
        await anext(await place.session.open("exec", request, finish=True))
        await Kept("one").start(place.session, ["sleep", "60"])
        before = await running(place)
        await place.again()
        await until(lambda: _is(running(place), before - 1))
        assert [one.ended for one in await kept_now(place.session)] == [False]
        await forget(place.session, "one")

    run(test)


def test_a_terminal_echoes_knows_its_size_and_takes_control_characters(run: Run) -> None:
    async def test(place: Place) -> None:
        kept = Kept("sized")
        exited = await kept.finish(await kept.start(place.session, ["stty", "size"], pty=SIZE))
        assert (bytes(kept.output[0]), exited.stderr_bytes) == (b"24 80\r\n", 0)
        kept = Kept("echoes")
        stream = await kept.start(place.session, ["cat"], pty=SIZE)
        await stream.send(b"hello\r")
        await kept.until(stream, lambda out: out == b"hello\r\nhello\r\n")
        await stream.send_message(guest.Eof())
        assert (await kept.finish(stream)).code == 0
        kept = Kept("stopped")
        stream = await kept.start(place.session, ["cat"], pty=SIZE)
        await stream.send(b"\x03")
        assert (await kept.finish(stream)).signal == 2
        kept = Kept("term")
        await kept.finish(await kept.start(place.session, ["env"], pty=SIZE, env={b"A": b"1"}))
        assert {b"TERM=xterm-256color", b"A=1"} <= set(bytes(kept.output[0]).split(b"\r\n"))
        with pytest.raises(InvalidArgument):
            await anext(await place.session.open("exec", guest.Exec([b"cat"], None, [], None, None, False, SIZE, None)))

    run(test)
