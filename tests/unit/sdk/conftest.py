"""Both forms of the SDK behind one: a test is a coroutine over the asynchronous form, and is run over the other one as well."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from space.sdk import AsyncClient, AsyncSandbox, Client, Connection, Forward, Process, Sandbox, Terminal, Watch
from space.sdk._sync.files import Files
from space.sdk.testing import MockServer
from space.testing.simcontrol import World, a_world, controlled

_OBJECTS = (Client, Sandbox, Process, Terminal, Files, Connection, Forward, Watch)
_END = object()


class Awaited:
    """An object of the synchronous form that looks like one of the asynchronous form: each call goes to a thread."""

    def __init__(self, thing: Any, **more: Any) -> None:
        self._thing = thing
        self.__dict__.update(more)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, "close" if name == "aclose" else name)
        if not callable(found):
            return _awaited(found)
        if inspect.isgeneratorfunction(found) or name in ("watch", "forward"):
            return lambda *given, **named: _awaited(found(*given, **named))

        async def call(*given: Any, **named: Any) -> Any:
            return _awaited(await asyncio.to_thread(found, *given, **named))

        return call

    def __aiter__(self) -> Awaited:
        return self

    async def __anext__(self) -> Any:
        found = await asyncio.to_thread(next, self._thing, _END)
        if found is _END:
            raise StopAsyncIteration
        return found

    async def __aenter__(self) -> Awaited:
        await asyncio.to_thread(self._thing.__enter__)
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await asyncio.to_thread(self._thing.__exit__, *failure)


def _awaited(found: Any) -> Any:
    return Awaited(found) if isinstance(found, _OBJECTS) or inspect.isgenerator(found) else found


Opened = Callable[[MockServer], AbstractAsyncContextManager[Any]]
Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=["async", "sync"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """A new sandbox of a server, in the form of this run."""

    @asynccontextmanager
    async def made(server: MockServer) -> AsyncIterator[Any]:
        if request.param == "async":
            async with server.async_client() as client, await AsyncSandbox.create(client=client) as sandbox:
                sandbox.client = client  # type: ignore[attr-defined]
                yield sandbox
        else:
            with server.client() as plain, Sandbox.create(client=plain) as sync:
                yield Awaited(sync, client=Awaited(plain))

    return made


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats come at once: the pauses between them are decisions with tests of their own."""

    async def soon(_: float) -> None:
        await asyncio.sleep(0)

    for module in ("client", "process", "files", "sandbox"):
        monkeypatch.setattr(f"space.sdk._sync.{module}.sleep", lambda _: None)
        monkeypatch.setattr(f"space.sdk._async.{module}.sleep", soon)


Real = Callable[[Path], AbstractAsyncContextManager[tuple[World, AsyncClient]]]


@pytest.fixture
def real() -> Real:
    """control on loopback, its node connected, and a client with the admin's key."""

    @asynccontextmanager
    async def made(root: Path) -> AsyncIterator[tuple[World, AsyncClient]]:
        async with a_world(root) as world, controlled(world):
            assert world.services is not None
            await asyncio.wait_for(world.services.link.wait_up(), 10)
            async with AsyncClient(api_url=world.url, api_key=world.key) as client:
                yield world, client

    return made
