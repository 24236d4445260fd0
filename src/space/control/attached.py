"""A process that is there already: its output from any offset on, and a WebSocket to it (docs/protocol.md, section 4, "Attached later").

What a process wrote can be read after it and its sandbox have ended, for as long as the node keeps it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import Send

from space.control.call import Call, ClientGone, flag, number
from space.control.forms import Binary, Form, Told, form_for
from space.control.relay import BodyOutlet, Outlet, SocketOutlet, caught, relay
from space.control.services import Services
from space.control.socket import Socket, required
from space.control.wire import decode
from space.control.wire_processes import SignalRequest, WindowRequest, check_process_id, signal_number
from space.model.errors import InvalidArgument, SpaceError
from space.model.frames import MAX_PAYLOAD, Decoder, Frame, Kind
from space.rpc.node_api import Attach, Eof, Resize, Signal
from space.rpc.stream import Stream

SUBPROTOCOL = "space.frames.v1"
_FAR = 2**63 - 1


async def output(call: Call, services: Services) -> AttachedAnswer:
    """GET .../processes/{process}/output."""
    form = form_for(call.headers.get("accept", ""))
    follow = flag(call.argument("follow"), "follow", default=False)
    return AttachedAnswer(call, services, await _attach(call, services, follow=follow), form)


async def connect(call: Call, services: Services) -> ConnectedAnswer:
    """GET .../processes/{process}/connect, a WebSocket."""
    kill = flag(call.argument("kill_on_disconnect"), "kill_on_disconnect", default=False)
    asked = await _attach(call, services, follow=True, talk=True, kill=kill)
    required(call)
    return ConnectedAnswer(call, services, asked)


async def _attach(call: Call, services: Services, *, follow: bool, talk: bool = False, kill: bool = False) -> Attach:
    sandbox = (await services.sandboxes.get(call.tenant, call.params["id"])).id
    process = check_process_id(call.params["process"])
    return Attach(sandbox, process, _offset(call, "stdout"), _offset(call, "stderr"), follow, talk, kill)


def _offset(call: Call, name: str) -> int | None:
    text = call.argument(name)
    return None if text is None else number(text, name, default=0, least=-_FAR, most=_FAR)


@dataclass(frozen=True, slots=True)
class AttachedAnswer:
    """Output that is read while the answer is sent."""

    call: Call
    services: Services
    asked: Attach
    form: Form

    async def send(self, send: Send) -> None:
        """Send it. SpaceError only before the head has gone out; ClientGone."""
        client = asyncio.create_task(caught(self._left))
        try:
            with self.services.activity.during(self.asked.sandbox):
                async with await self.services.link.open("attach", self.asked, finish=True) as stream:
                    await relay(stream, Told(self.form), BodyOutlet(send, self.form.media_type), client, self.call.request_id)
        finally:
            client.cancel()

    async def _left(self) -> None:
        await self.call.gone()
        raise ClientGone


@dataclass(frozen=True, slots=True)
class ConnectedAnswer:
    """A WebSocket to a process."""

    call: Call
    services: Services
    asked: Attach

    async def send(self, send: Send) -> None:
        """Be the connection. SpaceError only before the upgrade; ClientGone."""
        socket = Socket(self.call, send, SUBPROTOCOL)
        outlet: Outlet = SocketOutlet(socket)
        with self.services.activity.during(self.asked.sandbox):
            async with await self.services.link.open("attach", self.asked) as stream:
                client = asyncio.create_task(caught(lambda: socket.listening(lambda: _listen(socket, stream))))
                try:
                    await relay(stream, Told(Binary()), outlet, client, self.call.request_id)
                finally:
                    client.cancel()
                    await asyncio.wait({client})


async def _listen(socket: Socket, stream: Stream) -> None:
    """The client's frames to the process, each when the one before was taken. ClientGone; InvalidArgument for what is no frame."""
    while True:
        for frame in _frames(await socket.receive()):
            message = _meaning(frame)
            try:
                await (stream.send(frame.payload) if message is None else stream.send_message(message))
            except SpaceError:
                # A process that has ended takes nothing, and a stream that has broken says so itself.
                return await _drain(socket)


async def _drain(socket: Socket) -> None:
    while True:
        await socket.receive()


def _frames(message: bytes) -> list[Frame]:
    decoder = Decoder()
    try:
        found = decoder.receive(message)
    except ValueError as error:
        raise InvalidArgument(f"a message is not of frames: {error}", hint="docs/protocol.md, section 4") from None
    if decoder.pending:
        raise InvalidArgument(
            f"a message ends within a frame ({decoder.pending} bytes of it)", hint=f"whole frames, each with at most {MAX_PAYLOAD} bytes"
        )
    return found


def _meaning(frame: Frame) -> Eof | Resize | Signal | None:
    """What the node is told; None for bytes of stdin."""
    match frame.kind:
        case Kind.STDIN:
            return None
        case Kind.STDIN_END:
            return Eof()
        case Kind.RESIZE:
            window = decode(frame.payload, WindowRequest)
            return Resize(window.rows, window.cols)
        case Kind.SIGNAL:
            asked = decode(frame.payload, SignalRequest)
            return Signal(signal_number(asked.signal), asked.all)
        case _:
            raise InvalidArgument(f"a client sends no {frame.kind.name.lower()} frames", hint="stdin, stdin_end, resize and signal")
