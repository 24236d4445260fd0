"""A booted guest for tests of what its daemon keeps: a session that can be broken off, and the proof that nothing is left."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from space.bench.bare import Running
from space.core.wire import guest
from space.rpc.session import Data, Session
from space.testing.kept import forget, kept_now

BOOT = 90.0
SIZE = guest.Window(24, 80)


class Place:
    """That guest, and a session that can be broken off."""

    def __init__(self, machine: Running) -> None:
        self._machine = machine
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        assert self._session is not None, "`again` was called"
        return self._session

    async def again(self) -> Session:
        """Hang up, whatever is on its way, and begin another session."""
        if self._session is not None:
            await self._session.aclose()
        async with asyncio.timeout(BOOT):
            self._session = await Session.open_guest(*self._machine.connect(), 1, reconnect=True)
        return self._session

    async def run(self, *argv: str, user: str | None = None) -> str:
        """A command that is not kept; what it wrote."""
        words = [word.encode() for word in argv]
        out = b""
        async with await self.session.open("exec", guest.Exec(words, None, [], user, None, False), finish=True) as stream:
            async for event in stream:
                out += event.payload if isinstance(event, Data) else b""
        return out.decode()

    async def count(self, argument: str) -> int:
        """How many processes have that argument."""
        hidden = f"{argument[:-1]}[{argument[-1]}]"
        return int(await self.run("sh", "-c", f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx '{hidden}' || true"))

    async def until(self, claim: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
        """Wait until it is so."""
        async with asyncio.timeout(seconds):
            while not await claim():  # noqa: ASYNC110 - the guest announces none of this
                await asyncio.sleep(0.05)

    async def until_count(self, argument: str, wanted: int) -> None:
        async def right() -> bool:
            return await self.count(argument) == wanted

        await self.until(right)


Test = Callable[[Place], Awaitable[None]]


@asynccontextmanager
async def in_place(machine: Running) -> AsyncIterator[Place]:
    """The guest, configured; it keeps nothing at the end."""
    place = Place(machine)
    session = await place.again()
    try:
        request = guest.Configure(time.time_ns(), os.urandom(64), "kept", [], 1)
        guest.expect(guest.Configured, await session.call("configure", request))
        yield place
        assert await kept_now(place.session) == []
    except BaseException:
        for one in await kept_now(place.session):
            await forget(place.session, one.process)
        raise
    finally:
        await place.session.aclose()


def on(machine: Running, test: Test, seconds: float = 120) -> None:
    """Run a test there."""

    async def main() -> None:
        async with asyncio.timeout(seconds), in_place(machine) as place:
            await test(place)

    asyncio.run(main())


def sh(script: str) -> list[str]:
    """A script's command."""
    return ["sh", "-c", script]
