"""POST /v1/sandboxes/{id}/processes: a command, its stdin in the request's body, its life in the answer's (docs/protocol.md, section 4).

A fault before the first sign of the process is an HTTP problem; later it is an error frame. Exactly one exit or error
frame ends the answer. A client that goes away resets the node's stream, which kills the process and all its children,
unless it was asked for with kill_on_disconnect false. Without stream=1 the process runs in the background.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from starlette.types import Send

from space.control import answers, limits, wire
from space.control.answers import Answer
from space.control.call import Call, ClientGone, flag
from space.control.forms import Form, Told, form_for
from space.control.relay import BodyOutlet, caught, relay
from space.control.services import Services
from space.control.stdin import Spool
from space.control.wire_processes import ProcessRequest, check_process, process_info
from space.model import frames
from space.model.errors import InvalidArgument, SpaceError, TooLarge, Unsupported
from space.model.ids import new_process_id
from space.model.sandbox import MAX_STDIN
from space.rpc.node_api import Exec, ProcessInfo, ProcessTarget, Started, Window
from space.rpc.stream import Stream

_LENGTH = struct.Struct("<I")


async def read_request(call: Call, *, attached: bool) -> tuple[ProcessRequest, AsyncIterator[bytes] | None]:
    """The process, and its stdin still to be read (None: there is none)."""
    if call.media_type == frames.PROCESS_MEDIA_TYPE:
        if not attached:
            raise Unsupported("a process in the background takes no stdin with its request", hint="send application/json")
        return await _framed(call)
    body = await call.json(limits.MAX_PROCESS_JSON)
    decode = asyncio.to_thread(wire.decode, body, ProcessRequest) if len(body) > limits.DECODE_INLINE else None
    request = check_process(await decode if decode is not None else wire.decode(body, ProcessRequest), attached=attached)
    stdin = request.stdin.encode() if request.stdin is not None else request.stdin_base64
    if stdin is None:
        return request, None
    if len(stdin) > MAX_STDIN:
        raise TooLarge(f"stdin of {len(stdin)} bytes is larger than {MAX_STDIN}")
    return request, _once(stdin)


async def _framed(call: Call) -> tuple[ProcessRequest, AsyncIterator[bytes]]:
    pieces = call.pieces(_LENGTH.size + limits.MAX_JSON + MAX_STDIN, "length, process and stdin together")
    head = bytearray()
    wanted = _LENGTH.size
    while len(head) < wanted:
        piece = await anext(pieces, None)
        if piece is None:
            raise InvalidArgument(
                f"the body ends after {len(head)} bytes, and the process object needs {wanted}", hint="u32 length, the object, then stdin"
            )
        head += piece
        if wanted == _LENGTH.size and len(head) >= wanted:
            (length,) = _LENGTH.unpack_from(head)
            if length > limits.MAX_JSON:
                raise TooLarge(f"a process object of {length} bytes is larger than {limits.MAX_JSON}")
            wanted += length
    request = check_process(wire.decode(bytes(head[_LENGTH.size : wanted]), ProcessRequest))
    if request.stdin is not None or request.stdin_base64 is not None:
        raise InvalidArgument("stdin is given in the object and may come behind it too", hint="leave it out of the object")
    return request, _rest(bytes(head[wanted:]), pieces)


async def _rest(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    taken = 0
    if first:
        taken = len(first)
        yield first
    async for piece in pieces:
        taken += len(piece)
        if taken > MAX_STDIN:
            raise TooLarge(f"stdin is larger than {MAX_STDIN} bytes")
        yield piece


async def _once(data: bytes) -> AsyncIterator[bytes]:
    if data:
        yield data


async def start(call: Call, services: Services) -> Answer | ProcessAnswer:
    """POST .../processes: attached to this request with stream=1, else in the background."""
    attached = flag(call.argument("stream"), "stream", default=False)
    form = form_for(call.headers.get("accept", "")) if attached else None
    sandbox = call.params["id"]
    await services.sandboxes.usable(call.tenant, sandbox)
    request, stdin = await read_request(call, attached=attached)
    if form is not None:
        return ProcessAnswer(call, services, wanted(sandbox, request, stdin=stdin is not None, attached=True), stdin, form)
    asked = wanted(sandbox, request, stdin=False, attached=False)
    with services.activity.during(sandbox):
        await services.link.call("exec", asked, Started)
        info = await services.link.call("process", ProcessTarget(sandbox, asked.process), ProcessInfo)
    return answers.value(process_info(info), 201, Location=f"/v1/sandboxes/{sandbox}/processes/{asked.process}")


def wanted(sandbox: str, asked: ProcessRequest, *, stdin: bool, attached: bool) -> Exec:
    """What the node is asked for. stdin: whether the request brings some."""
    pty = None if asked.pty is None else Window(asked.pty.rows, asked.pty.cols)
    overflow = asked.overflow or ("block" if attached else "drop_oldest")
    return Exec(
        sandbox,
        asked.argv,
        asked.cwd,
        asked.env,
        asked.user,
        asked.timeout_ms,
        stdin=stdin or asked.stdin_open or pty is not None,
        process=asked.id or new_process_id(),
        named=asked.id is not None,
        pty=pty,
        attach=attached,
        kill_on_disconnect=asked.kill_on_disconnect is not False,
        overflow=overflow,
        spool_bytes=asked.spool_bytes or 0,
    )


@dataclass(frozen=True, slots=True)
class ProcessAnswer:
    """A process that runs while the answer is sent."""

    call: Call
    services: Services
    wanted: Exec
    stdin: AsyncIterator[bytes] | None
    form: Form

    async def send(self, send: Send) -> None:
        """Run it. SpaceError only before the head has gone out; ClientGone."""
        spool = Spool()
        outlet = BodyOutlet(send, self.form.media_type)
        try:
            with self.services.activity.during(self.wanted.sandbox):
                async with await self.services.link.open("exec", self.wanted) as stream, asyncio.TaskGroup() as group:
                    helpers = [group.create_task(self._feed(stream, spool)), client := group.create_task(caught(lambda: self._take(spool)))]
                    try:
                        await relay(stream, Told(self.form), outlet, client, self.call.request_id)
                    finally:
                        for helper in helpers:
                            helper.cancel()
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            spool.close()

    async def _take(self, spool: Spool) -> None:
        """The client's side: all of stdin, then nothing until it goes away."""
        if self.stdin is not None:
            async with aclosing(self.stdin):  # type: ignore[type-var]
                async for piece in self.stdin:
                    spool.write(piece)
        if self.stdin is not None or not self.wanted.stdin:
            spool.end()
        await self.call.gone()
        raise ClientGone

    async def _feed(self, stream: Stream, spool: Spool) -> None:
        """The guest's side. A process need not read its stdin; whether it ran well is not decided here."""
        try:
            async for piece in spool.pieces():
                await stream.send(piece)
            await stream.close()
        except SpaceError:
            return
