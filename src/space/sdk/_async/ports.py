"""A connection to a port in a sandbox: bytes both ways, each direction with its own end, as TCP has them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from space.model.errors import Conflict
from space.sdk.request import slices
from space.sdk.sockets import PIECE

from ._socket import WebSocket


class AsyncConnection:
    """One connection to a program that listens in the sandbox. One may receive while another sends. A context manager."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._sent_eof = False
        self._received_eof = False

    async def send(self, data: bytes) -> None:
        """Send all of it; waits while the other side takes nothing. Conflict after `send_eof`, StreamCut when the connection broke."""
        if self._sent_eof:
            raise Conflict("this direction of the connection was ended", hint="send before send_eof()")
        for piece in slices(bytes(data), PIECE):
            await self._socket.send(piece)

    async def receive(self) -> bytes:
        """The next bytes as they come; b"" when the other side sends no more. StreamCut when the connection broke before that."""
        if self._received_eof:
            return b""
        data = await self._socket.receive()
        self._received_eof = not data
        return data or b""

    async def send_eof(self) -> None:
        """Send no more; the other side may go on. Idempotent."""
        if not self._sent_eof:
            self._sent_eof = True
            await self._socket.send(b"")

    async def aclose(self) -> None:
        """Close both directions. Idempotent."""
        await self._socket.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()
