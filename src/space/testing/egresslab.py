"""Upstream servers that say what they saw, and clients that speak bytes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import uvloop

from space.gateway.records import Connected, Requested
from space.gateway.surroundings import Leaf, Limits, Ruling
from space.testing.egress import Lab, server_context, stack_of

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ALLOWED = "allowed.example.com"
OTHER = "other.example.com"
REFUSED = "refused.example.com"


def run(main: Coroutine[Any, Any, None]) -> None:
    """A test's body, on the loop that the gateway uses."""
    uvloop.run(asyncio.wait_for(main, 60))


class Upstream:
    """A server. seen: every byte that it got. handler: what it does with one connection; the usual one answers each request."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.seen = b""
        self.connections = 0
        self.open = 0
        self.heads: list[bytes] = []
        self.resumed: list[bool] = []  # of each connection: whether its TLS session was an earlier one's
        self._handler = handler or self.answer
        self._server: asyncio.Server | None = None

    async def start(self, context: ssl.SSLContext | None, address: str = "127.0.0.1", port: int = 0) -> int:
        self._server = await asyncio.start_server(self._serve, address, port, ssl=context, limit=2**20)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        over = writer.get_extra_info("ssl_object")
        self.resumed.append(over is not None and bool(over.session_reused))
        try:
            await self._handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, ValueError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def head(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        self.seen += head
        self.heads.append(head)
        return head

    async def body(self, reader: asyncio.StreamReader, head: bytes) -> int:
        """Reads one, returns its length."""
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            total = 0
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
                total += size
            await reader.readline()
            return total
        length = int(lower.split(b"content-length: ")[1].split(b"\r\n")[0]) if b"content-length: " in lower else 0
        left = length
        while left:
            left -= len(await reader.readexactly(min(left, 65_536)))
        return length

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await self.head(reader)
            length = await self.body(reader, head)
            said = b"%s got %d" % (head.split(b"\r\n")[0], length)
            said = b"" if head.startswith(b"HEAD ") else said
            writer.write(b'HTTP/1.1 200 OK\r\nAlt-Svc: h3=":443"\r\nContent-Length: %d\r\n\r\n%s' % (len(said), said))
            await writer.drain()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


class Place:
    """A lab with one port for every name, and upstreams by name."""

    def __init__(self, lab: Lab, port: int, directory: Path) -> None:
        self.lab = lab
        self.port = port
        self.directory = directory
        self.upstreams: dict[str, Upstream] = {}

    async def serve(self, name: str, handler: Handler | None = None, *, leaf: Leaf | None = None, plain: bool = False) -> Upstream:
        upstream = Upstream(handler)
        context = None if plain else server_context(leaf or self.lab.signer.make(name), self.directory)
        port = await upstream.start(context)
        self.lab.dialer.places[name, self.port] = ("127.0.0.1", port)
        self.upstreams[name] = upstream
        return upstream

    def rules(self, *rules: Mapping[str, Any], **top: Any) -> None:
        self.lab.policy({"rule": [{"port": self.port, **rule} for rule in rules], **top})

    async def raw(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.lab.address(name), self.port, limit=2**20)

    async def tls(
        self, name: str, *, sni: str | None = None, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = context or self.lab.client_context()
        return await asyncio.open_connection(self.lab.address(name), self.port, ssl=context, server_hostname=sni or name, limit=2**20)

    async def exchange(self, name: str, data: bytes, *, plain: bool = False) -> bytes:
        """Everything that is answered to some bytes, until the gateway closes."""
        reader, writer = await (self.raw(name) if plain else self.tls(name))
        writer.write(data)
        try:
            return await reader.read(-1)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    def host(self, name: str) -> bytes:
        return f"{name}:{self.port}".encode()

    def requests(self) -> list[Requested]:
        return [record for record in self.lab.records if isinstance(record, Requested)]

    def ends(self) -> list[Connected]:
        return [record for record in self.lab.records if isinstance(record, Connected)]

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not what():  # noqa: ASYNC110 - what is waited for happens in other tasks and processes
                await asyncio.sleep(0.005)

    async def empty(self) -> None:
        """Both sides of everything are closed."""
        await self.until(lambda: not len(self.lab.worker))
        await self.until(lambda: all(upstream.open == 0 for upstream in self.upstreams.values()))
        assert self.lab.worker.shared.counts.upstreams == 0
        assert self.lab.worker.shared.counts.handshakes == 0
        assert self.lab.worker.shared.counts.connections == 0


@contextlib.asynccontextmanager
async def place(directory: Path, *, limits: Limits | None = None, **changes: Any) -> AsyncIterator[Place]:
    """One, with two names allowed. changes: of its surroundings."""
    lab = Lab(Ruling(1, stack_of()), limits=limits or Limits(sweep=0.05), changes=changes)
    made = Place(lab, lab.listen(), directory)
    made.rules({"host": ALLOWED}, {"host": OTHER})
    try:
        yield made
    finally:
        await lab.close()
        for upstream in made.upstreams.values():
            upstream.close()


def get(at: Place, path: str = "/", fields: str = "", *, method: str = "GET", name: str = ALLOWED) -> bytes:
    """A request. fields: each with its line end."""
    return f"{method} {path} HTTP/1.1\r\nHost: {name}:{at.port}\r\n{fields}\r\n".encode()


async def reply(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """One with a length."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split(b" ")[1]), await reader.readexactly(length)
