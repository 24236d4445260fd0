"""One end of a byte stream in an event loop, for those who relay: read what is there, write, wait for room. Small in memory either way.

    data = await wire.read()          what has come (b"": the other end sends no more)       Lost: the connection is gone
    wire.write(data); await wire.drain()

One reader and one who drains at a time. Nothing is read while a quarter of a megabyte waits to be taken here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

from space.model.errors import Unavailable

HIGH_WATER = 262_144


class Lost(Exception):
    """The connection is gone."""


class Wire(asyncio.Protocol):
    """left: called once when the other end sends no more, or is gone, while nobody reads here. Set it when that is news."""

    def __init__(self, made: Callable[[Wire], None] = lambda _: None) -> None:
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._held = 0
        self._paused = False
        self._full = False
        self._reader: asyncio.Future[None] | None = None
        self._drainer: asyncio.Future[None] | None = None
        self.ended = False  # the other end sends no more
        self.gone = False
        self.left: Callable[[], object] | None = None
        self.lost: Callable[[], None] | None = None  # called once at the very end

    # -- what its owner does -----------------------------------------------------------------------------------------

    @property
    def transport(self) -> asyncio.Transport:
        """What is below. Lost."""
        if self._transport is None:
            raise Lost
        return self._transport

    async def read(self) -> bytes:
        """Wait for bytes. Lost."""
        while not self._pieces:
            if self.gone:
                raise Lost
            if self.ended:
                return b""
            await self._wait_for_bytes()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def _wait_for_bytes(self) -> None:
        assert self._reader is None, "one reader at a time"
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def take(self) -> bytes:
        """What is there and nobody has read; without waiting."""
        data, self._held = b"".join(self._pieces), 0
        self._pieces.clear()
        return data

    def unread(self, data: bytes) -> None:
        """Put back what was read too much."""
        if data:
            self._pieces.insert(0, data)
            self._held += len(data)

    @property
    def waiting(self) -> bool:
        """Whether bytes are there that nobody has taken."""
        return bool(self._pieces)

    def write(self, data: bytes) -> None:
        """Send; to one that is gone it is dropped, and `drain` says so."""
        if self._transport is not None and data:
            self._transport.write(data)

    async def drain(self) -> None:
        """Until there is room for more. Lost."""
        while True:
            if self.gone:
                raise Lost
            if not self._full:
                return
            assert self._drainer is None, "one who drains at a time"
            self._drainer = self._loop.create_future()
            try:
                await self._drainer
            finally:
                self._drainer = None

    async def secure(self, context: ssl.SSLContext) -> None:
        """Speak TLS from here on, as the client. OSError (ssl.SSLError), TimeoutError, Lost."""
        transport = await self._loop.start_tls(self.transport, self, context, server_hostname="localhost", ssl_handshake_timeout=20.0)
        if transport is None:
            raise Lost
        self._transport = transport

    def end(self) -> None:
        """Say that no more comes; where that cannot be said apart (TLS), close once all is sent."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError, RuntimeError):
                self._transport.write_eof()
        else:
            self._transport.close()

    def close(self) -> None:
        """Close once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- what the loop does ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(bytes(data))
        self._held += len(data)
        if self._held > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self.ended = True
        if self._reader is None and self.left is not None:
            self._say_left()
        self._wake()
        return True

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake_drainer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = self.ended = True
        self._transport = None
        self._wake()
        self._wake_drainer()
        if self.left is not None:
            self._say_left()
        lost, self.lost = self.lost, None
        if lost is not None:
            lost()

    def _say_left(self) -> None:
        left, self.left = self.left, None
        if left is not None:
            left()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_drainer(self) -> None:
        if self._drainer is not None and not self._drainer.done():
            self._drainer.set_result(None)


async def dial(path: Path, who: str) -> Wire:
    """A connection to whoever listens there. Unavailable, in `who`'s name."""
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, str(path))
        _, wire = await loop.create_unix_connection(Wire, sock=sock)
    except OSError as error:  # also a full backlog: nobody waits for a place in it
        sock.close()
        raise Unavailable(f"{who} cannot be reached: {error.strerror or error}", hint="repeat in a moment") from error
    except BaseException:
        sock.close()
        raise
    return wire
