"""From the node's stream of a process to its client: frames in order, a heartbeat when nothing comes, exactly one last frame.

A fault before the first frame is an ordinary problem; later it is an error frame.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.types import Send

from space.control import limits, problems
from space.control.call import ClientGone
from space.control.forms import Told
from space.control.socket import FAULT, WELL, Socket
from space.model.errors import ProtocolError, SpaceError
from space.model.frames import Kind
from space.rpc.stream import Stream


class Outlet(Protocol):
    """Where frames go."""

    @property
    def started(self) -> bool:
        """Whether something has gone out, so that a fault can be no answer of its own any more."""

    async def write(self, frame: bytes) -> None:
        """A frame; waits for the client."""

    async def finish(self, frame: bytes, *, well: bool) -> None:
        """The last frame, and the end."""


class BodyOutlet:
    """The body of an answer."""

    def __init__(self, send: Send, media_type: str) -> None:
        self._send = send
        self._media_type = media_type
        self.started = False

    async def write(self, frame: bytes) -> None:
        await self._piece(frame, more=True)

    async def finish(self, frame: bytes, *, well: bool) -> None:
        await self._piece(frame, more=False)

    async def _piece(self, frame: bytes, *, more: bool) -> None:
        if not self.started:
            self.started = True
            headers = [(b"content-type", self._media_type.encode()), (b"cache-control", b"no-store")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": frame, "more_body": more})


class SocketOutlet:
    """A WebSocket, accepted with the first frame."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    @property
    def started(self) -> bool:
        return self._socket.accepted

    async def write(self, frame: bytes) -> None:
        await self._socket.accept()
        await self._socket.send(frame)

    async def finish(self, frame: bytes, *, well: bool) -> None:
        await self.write(frame)
        await self._socket.close(WELL if well else FAULT)


async def relay(stream: Stream, told: Told, outlet: Outlet, client: asyncio.Task[BaseException | None], request_id: str) -> None:
    """Pass on until the last frame. client: ends with what its side raised. SpaceError only while nothing has gone out; ClientGone."""
    try:
        last = await _follow(stream, told, outlet, client)
    except SpaceError as fault:
        if not outlet.started:
            raise
        await outlet.finish(told.form.told(Kind.ERROR, problems.describe(fault, request_id)), well=False)
        return
    await outlet.finish(last, well=True)


async def _follow(stream: Stream, told: Told, outlet: Outlet, client: asyncio.Task[BaseException | None]) -> bytes:
    """Every frame but the last, which is returned."""
    events = aiter(stream)
    coming = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait({coming, client}, timeout=limits.HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if client in done and (error := client.result()) is not None:
                raise error
            if coming not in done:
                if outlet.started:
                    await outlet.write(told.form.told(Kind.HEARTBEAT, {}))
                continue
            event = coming.result()
            if event is None:
                raise ProtocolError("the node ended the process's stream without saying how the process ended")
            frame, last = told.frame(event)
            if last:
                return frame
            await outlet.write(frame)
            coming = asyncio.ensure_future(anext(events, None))
    finally:
        coming.cancel()


async def caught(work: Callable[[], Awaitable[None]]) -> BaseException | None:
    """A helper's fault as a value: in a task group it would cancel the relay, which has a last frame to send.

    `work` is called here, so that a task which is cancelled before its first step leaves no coroutine that nobody awaits.
    """
    try:
        await work()
    except (SpaceError, ClientGone) as error:
        return error
    return None
