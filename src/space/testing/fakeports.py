"""A control for tests of the ingress: it listens at `ports.sock`, answers Resolve as it is told, and is the guest's server behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from space.rpc import ingress_api as api

Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FakePorts:
    """answers: what a port is answered with, Stands unless told; servers: what speaks behind it. asked: every question."""

    def __init__(self) -> None:
        self.asked: list[api.Resolve | api.Api] = []
        self.answers: dict[tuple[str, int], api.Stands | api.Refused] = {}
        self.servers: dict[int, Server] = {}
        self.api: Server = canned(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\napi")
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.open += 1
        try:
            size = int.from_bytes(await reader.readexactly(4), "big")
            asked = api.TO_CONTROL.decode(await reader.readexactly(size))
            self.asked.append(asked)
            if isinstance(asked, api.Api):
                await self.api(reader, writer)
                return
            said = self.answers.get((asked.sandbox, asked.port), api.Stands())
            writer.write(api.word(said))
            if isinstance(said, api.Stands):
                await self.servers[asked.port](reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[FakePorts]:
        """While the block runs."""
        server = await asyncio.start_unix_server(self.serve, path)
        try:
            yield self
        finally:
            server.close()


def canned(*replies: bytes) -> Server:
    """Reads a head, writes a reply, as often as there are replies; then hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in replies:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            await writer.drain()

    return serve
