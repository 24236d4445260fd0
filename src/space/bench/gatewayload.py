"""Both ends of what the section `gateway` measures: an upstream and clients, each a process of its own whose cost counts for nobody."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from multiprocessing.connection import Connection
from typing import Literal, cast

import uvloop

NAME = "allowed.example.com"
SMALL, LARGE = 1024, 8 << 20
Mode = Literal["keepalive", "newconn", "bulk"]
CONNECTIONS: dict[Mode, int] = {"keepalive": 32, "newconn": 8, "bulk": 4}
PATHS: dict[Mode, str] = {"keepalive": "/simple/package/", "newconn": "/simple/package/", "bulk": "/simple/large/"}
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Target:
    """Where clients go. connect: what they ask an explicit proxy for first, or empty. root: PEM of whom they trust."""

    address: str
    port: int
    host: str
    root: str
    connect: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """An upstream. dns: the port of a resolver that leads NAME to it. pid: its process."""

    port: int
    dns: int
    pid: int


class _Upstream(asyncio.Protocol):
    """Answers each request: a kilobyte, or eight megabytes where the path says so."""

    _SMALL = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % SMALL + b"x" * SMALL
    _LARGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % LARGE + random.Random(7).randbytes(LARGE)  # noqa: S311 - constant bytes are a search's best or worst

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._data = b""

    def data_received(self, data: bytes) -> None:
        *heads, self._data = (self._data + data).split(b"\r\n\r\n")
        for head in heads:
            self._transport.write(self._LARGE if b"/large/" in head.split(b"\r\n", 1)[0] else self._SMALL)


def _serve(pem: str, pipe: Connection) -> None:
    from space.testing.dnslab import Zone, serve

    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        context.set_alpn_protocols(["http/1.1"])
        # The gateway's listener has the same port at every other address.
        server = await asyncio.get_running_loop().create_server(_Upstream, "127.0.0.1", 0, ssl=context, backlog=512, reuse_port=True)
        zone = Zone()
        await serve(zone)
        zone.address(NAME, "127.0.0.1", ttl=300)
        pipe.send(Served(server.sockets[0].getsockname()[1], zone.port, os.getpid()))
        await server.serve_forever()

    uvloop.run(main())


@contextmanager
def upstream(pem: str) -> Iterator[Served]:
    """pem: a file with its chain and key."""
    mine, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve, args=(pem, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield mine.recv()
    finally:
        process.kill()
        process.join()


class _Client(asyncio.Protocol):
    """Asks again as soon as it has its answer; or, `once`, closes then."""

    def __init__(self, load: _Load, *, once: bool) -> None:
        self._load = load
        self._once = once
        self._head = b""
        self._left = -1
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, separator, rest = self._head.partition(b"\r\n\r\n")
            if not separator:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self._load.failures += 1
                self._transport.abort()
                return
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._head, self._left, data = b"", int(length), rest
        self._left -= len(data)
        self._load.count += len(data) if self._load.counts_bytes else 0
        if self._left == 0:
            self._left = -1
            self._load.count += 0 if self._load.counts_bytes else 1
            if self._once:
                self._transport.close()
            else:
                self._transport.write(self._load.request)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


class _Load:
    def __init__(self, target: Target, mode: Mode) -> None:
        self.target = target
        self.mode: Mode = mode
        self.counts_bytes = mode == "bulk"
        self.count = self.failures = 0
        lines = [f"GET {PATHS[mode]} HTTP/1.1", f"Host: {target.host}", "User-Agent: bench", "Accept: */*", "Accept-Encoding: gzip"]
        self.request = ("\r\n".join(lines) + "\r\n\r\n").encode()
        self._context = ssl.create_default_context(cadata=target.root)
        self._context.set_alpn_protocols(["http/1.1"])

    async def keep(self) -> None:
        """One connection after the other, or one for ever."""
        while True:
            try:
                await self._one()
            except (OSError, ssl.SSLError, EOFError):
                self.failures += 1
                await asyncio.sleep(0.05)

    async def _one(self) -> None:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, (self.target.address, self.target.port))
            if self.target.connect:
                await loop.sock_sendall(sock, f"CONNECT {self.target.connect} HTTP/1.1\r\nHost: {self.target.connect}\r\n\r\n".encode())
                said = b""
                while b"\r\n\r\n" not in said:
                    said += (more := await loop.sock_recv(sock, 4096))
                    if not more:
                        raise EOFError
            made = lambda: _Client(self, once=self.mode == "newconn")  # noqa: E731
            _, client = await loop.create_connection(made, sock=sock, ssl=self._context, server_hostname=NAME)
        except BaseException:
            sock.close()
            raise
        await client.over


def _load(target: Target, mode: Mode, pipe: Connection) -> None:
    async def main() -> None:
        load = _Load(target, mode)
        tasks = [asyncio.create_task(load.keep()) for _ in range(CONNECTIONS[mode])]

        def asked() -> None:
            pipe.recv()
            pipe.send((load.count, load.failures))

        asyncio.get_running_loop().add_reader(pipe.fileno(), asked)
        await asyncio.gather(*tasks)

    uvloop.run(main())


class Load:
    """Clients that are at it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def count(self) -> tuple[int, int]:
        """Requests (or bytes) that were answered until now, and failures."""
        self._pipe.send("count")
        if not self._pipe.poll(30):
            raise TimeoutError("the clients do not answer")
        found: tuple[int, int] = self._pipe.recv()
        return found


@contextmanager
def load(target: Target, mode: Mode) -> Iterator[Load]:
    """Clients in a process of their own."""
    ip_address(target.address)
    mine, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_load, args=(target, mode, theirs), daemon=True)
    process.start()
    try:
        yield Load(mine)
    finally:
        process.kill()
        process.join()
