"""A WebSocket of a client as handlers see it: bytes both ways, accepted when the answer is known to be yes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Send
from uvicorn.protocols.utils import ClientDisconnected

from space.control import limits
from space.control.call import Call, ClientGone
from space.control.problems import UpgradeRequired
from space.model.errors import InvalidArgument

WELL = 1000
UNSUPPORTED_DATA = 1003
FAULT = 1011
_MAX_REASON = 120  # of a close frame, in bytes, are 123


def required(call: Call) -> None:
    """UpgradeRequired when the request asks for no WebSocket."""
    if not call.is_socket:
        raise UpgradeRequired(
            "this path is a WebSocket's", hint="ask with `Upgrade: websocket` (a WebSocket library does), and a ws:// or wss:// address"
        )


class Socket:
    """One connection. Before `accept` a fault is an ordinary answer."""

    def __init__(self, call: Call, send: Send, subprotocol: str | None = None) -> None:
        self._call = call
        self._send = send
        self._subprotocol = subprotocol if subprotocol in call.scope.get("subprotocols", ()) else None
        self.accepted = False
        self._closed = False

    async def accept(self) -> None:
        """Upgrade. Idempotent."""
        if not self.accepted:
            self.accepted = True
            await self._tell({"type": "websocket.accept", "subprotocol": self._subprotocol, "headers": []})

    async def receive(self) -> bytes:
        """The next message. ClientGone when the client has closed; InvalidArgument for text."""
        while True:
            message = await self._call.receive()
            match message["type"]:
                case "websocket.receive":
                    data = message.get("bytes")
                    if data is None:
                        raise InvalidArgument("text messages are not understood here", hint="send binary messages")
                    return bytes(data)
                case "websocket.disconnect":
                    raise ClientGone

    async def listening(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work`, which receives. ClientGone also while it waits for something else and the connection is lost."""
        lost: asyncio.Future[None] = self._call.scope["space.lost"]
        task = asyncio.create_task(work())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            # What came before the end is still passed on.
            await asyncio.wait({task}, timeout=limits.CLOSE_SECONDS)
            if not task.done():
                raise ClientGone
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def send(self, data: bytes) -> None:
        """One message; waits until the transport takes it. ClientGone."""
        await self._tell({"type": "websocket.send", "bytes": data})

    async def close(self, code: int = WELL, reason: str = "") -> None:
        """The last word. Idempotent."""
        if not self._closed:
            self._closed = True
            short = reason.encode()[:_MAX_REASON].decode(errors="ignore")
            await self._tell({"type": "websocket.close", "code": code, "reason": short})

    async def _tell(self, message: dict[str, object]) -> None:
        try:
            await self._send(message)
        except (ClientDisconnected, RuntimeError):  # uvicorn raises the second once its side has closed
            raise ClientGone from None
