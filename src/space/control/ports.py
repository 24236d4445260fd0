"""GET .../ports/{port}: a WebSocket to a port of the sandbox's loopback. Binary messages are the bytes; an empty one ends a direction.

The two directions end apart, as TCP's do. The connection closes with 1000 when both have ended, with 1011 and a reason on a fault;
a client that leaves resets the connection in the guest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from starlette.types import Send

from space.control import limits
from space.control.call import Call
from space.control.services import Services
from space.control.socket import FAULT, WELL, Socket, required
from space.core.wire import files as guest
from space.core.wire.events import Data, Message
from space.core.wire.guest import expect
from space.model.errors import DeadlineExceeded, InvalidArgument, ProtocolError, SpaceError
from space.rpc.node_api import Forward
from space.rpc.stream import Stream


async def connect(call: Call, services: Services) -> PortAnswer:
    """GET .../ports/{port}, a WebSocket."""
    await services.sandboxes.usable(call.tenant, call.params["id"])
    text = call.params["port"]
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 65_535:
        raise InvalidArgument(f"port: {text[:16]!r} is none (1 to 65535)", hint=".../ports/8080")
    required(call)
    return PortAnswer(call, services, Forward(call.params["id"], msgspec.msgpack.encode(guest.Connect(int(text)))))


@dataclass(frozen=True, slots=True)
class PortAnswer:
    """A connection."""

    call: Call
    services: Services
    request: Forward

    async def send(self, send: Send) -> None:
        """Be it. SpaceError only before the upgrade; ClientGone."""
        socket = Socket(self.call, send)
        try:
            with self.services.activity.during(self.request.sandbox):
                async with await self.services.link.open("connect", self.request, bulk=True) as stream:
                    await _connected(stream)
                    await socket.accept()
                    await _both(socket, stream)
            await socket.close(WELL)
        except SpaceError as error:
            if not socket.accepted:
                raise
            await socket.close(FAULT, f"{error.code}: {error.message}")


async def _connected(stream: Stream) -> None:
    try:
        async with asyncio.timeout(limits.PORT_SECONDS):
            event = await anext(aiter(stream), None)
    except TimeoutError:
        raise DeadlineExceeded(f"the port did not answer within {limits.PORT_SECONDS:g} s") from None
    if not isinstance(event, Message):
        raise ProtocolError("the node ended the connection's stream before it stood")
    expect(guest.Connected, event.payload)


async def _both(socket: Socket, stream: Stream) -> None:
    """Until both directions have ended, or one of them has failed."""
    sent = asyncio.Event()
    into = asyncio.create_task(socket.listening(lambda: _into(socket, stream, sent)))
    out = asyncio.create_task(_out(socket, stream, sent))
    try:
        await asyncio.wait({into, out}, return_when=asyncio.FIRST_COMPLETED)
        for task in (out, into):  # what the stream says explains what the sender met
            if task.done():
                task.result()
                return
    finally:
        for task in (into, out):
            task.cancel()
        await asyncio.gather(into, out, return_exceptions=True)


async def _into(socket: Socket, stream: Stream, sent: asyncio.Event) -> None:
    """Until the client has gone."""
    while data := await socket.receive():
        await stream.send(data)
    await stream.close()
    sent.set()
    await socket.receive()
    raise InvalidArgument("a message came after the empty one", hint="the empty message ends a direction")


async def _out(socket: Socket, stream: Stream, sent: asyncio.Event) -> None:
    """Until both directions have ended."""
    async for event in stream:
        if not isinstance(event, Data):
            raise ProtocolError("the guest sent a message on a connection's stream")
        await socket.send(event.payload)
    await socket.send(b"")
    await sent.wait()
