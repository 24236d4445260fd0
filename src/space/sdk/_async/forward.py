"""A port of this machine that leads to a port in a sandbox, with asyncio. Its twin in `_sync` is written by hand too: it has threads.

    a local connection -> a connection of the API -> a connection in the guest

Each local connection has its own. The end of a direction is passed on, the other one goes on; what one side does not take is not read from
the other. A local connection whose way to the guest fails is reset, as the kernel does with one that broke.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from space.model.errors import Conflict, Gone, InvalidArgument, NotFound, SpaceError
from space.sdk.sockets import PIECE, RESET_ON_CLOSE, address_fault

from .ports import AsyncConnection

BACKLOG = 128


class AsyncForward:
    """A local listener. A context manager; `address` is where it listens. Leaving it closes every connection."""

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncConnection]], host: str, port: int, *, alive: Callable[[], Awaitable[object]]
    ) -> None:
        if not 0 <= port <= 65535:
            raise InvalidArgument(f"{port} is no port", hint="1 to 65535, or 0 for a free one")
        self._connect = connect
        self._alive = alive
        self.ended: SpaceError | None = None
        self._wanted = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.failures: list[SpaceError] = []
        self._over = asyncio.Event()

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) of this machine."""
        if self._server is None or not self._server.sockets:
            raise Conflict("nothing is forwarded", hint="use it with `async with`")
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def __aenter__(self) -> Self:
        host, port = self._wanted
        try:
            self._server = await asyncio.start_server(self._accepted, host, port, backlog=BACKLOG, limit=PIECE)
        except OSError as error:
            raise address_fault(host, port, error) from error
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def serve_forever(self) -> None:
        """Until it is cancelled. Gone, NotFound: a connection found that the sandbox is there no more, and nothing listens now."""
        await self._over.wait()
        if self.ended is not None:
            raise self.ended

    async def aclose(self) -> None:
        """Listen no more, and close every connection. Idempotent."""
        if self._server is not None:
            self._server.close()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            async with await self._connect() as connection, asyncio.TaskGroup() as group:
                group.create_task(_outward(reader, connection), name="forward to the guest")
                group.create_task(_inward(connection, writer), name="forward from the guest")
        except* SpaceError as faults:
            self._failed(await self._looked(faults.exceptions[0]))
            _reset(writer)
        except* OSError:
            _reset(writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _looked(self, fault: BaseException) -> BaseException:
        """What a failure means: nothing listens on the port, or there is no sandbox any more, which ends it all."""
        if isinstance(fault, NotFound):
            with suppress(SpaceError):
                try:
                    await self._alive()
                except (Gone, NotFound) as gone:
                    fault = self.ended = gone
        elif isinstance(fault, Gone):
            self.ended = fault
        if self.ended is not None and self._server is not None:
            self._server.close()
            self._over.set()
        return fault

    def _failed(self, fault: BaseException) -> None:
        if isinstance(fault, SpaceError):
            del self.failures[:-15]
            self.failures.append(fault)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close it so that the other side sees a connection that broke, not one that ended."""
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()


async def _outward(reader: asyncio.StreamReader, connection: AsyncConnection) -> None:
    while data := await reader.read(PIECE):
        await connection.send(data)
    await connection.send_eof()


async def _inward(connection: AsyncConnection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.receive():
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
