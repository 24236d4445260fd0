"""A client for load: HTTP/1.1 on connections that stay open, in a few lines, so that the load costs little beside what it measures."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from space.model.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. seconds: from the first byte sent to the last one read."""

    status: int
    body: bytes
    seconds: float


class Connection:
    """One connection to a server on loopback, one request at a time.

    reader: of the rest of an answer that does not end, after `open`.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
        self.reader = reader
        self._writer = writer
        self._head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"

    @classmethod
    async def to(cls, port: int, key: str) -> Self:
        """Connect."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader, writer, key)

    async def ask(self, method: str, path: str, body: bytes = b"") -> Reply:
        """One request and its whole answer, which has a length."""
        began = time.perf_counter()
        status, head = await self.open(method, path, body)
        length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), None)
        if length is None and status != 204:
            raise ProtocolError(f"{method} {path}: an answer without a length ({status})")
        data = await self.reader.readexactly(length or 0)
        return Reply(status, data, time.perf_counter() - began)

    async def open(self, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
        """One request and the head of its answer; what follows is at `reader`."""
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}{kind}\r\n".encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        return int(head[9:12]), head

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


async def closed_loop(connections: list[Connection], count: int, one: Callable[[Connection], Awaitable[float]]) -> list[float]:
    """`one` so often, as fast as the connections allow, each one at a time: what each took."""
    left = iter(range(count))
    took: list[float] = []

    async def work(connection: Connection) -> None:
        took.extend([await one(connection) for _ in left])

    await asyncio.gather(*map(work, connections))
    return took


async def open_loop(connections: list[Connection], count: int, rate: float, one: Callable[[Connection], Awaitable[float]]) -> list[float]:
    """`one` so often, `rate` a second whatever the answers take: seconds from when each was due to its end, so that a queue is seen."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)
    took: list[float] = []
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.01

    async def at(due: float) -> None:
        await asyncio.sleep(due - loop.time())
        connection = await free.get()
        await one(connection)
        took.append(loop.time() - due)
        free.put_nowait(connection)

    await asyncio.gather(*(at(begin + number / rate) for number in range(count)))
    return took


@contextmanager
def beside(pid: int) -> Iterator[None]:
    """A process has a processor to itself while the block runs, where there are two; this one takes the others."""
    ours = os.sched_getaffinity(0)
    first, *rest = sorted(ours)
    if not rest:
        yield
        return
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {first})
    os.sched_setaffinity(0, set(rest))
    try:
        yield
    finally:
        os.sched_setaffinity(0, ours)
