"""POST /v1/sandboxes/{id}/processes: a command, its stdin in the request's body, its life in the answer's (docs/protocol.md, section 4).

A fault before the first sign of the process is an HTTP problem; later it is an error frame. Exactly one exit or error
frame ends the answer. A client that goes away resets the node's stream, which kills the process and all its children.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.types import Send

from space.control import limits, problems, wire
from space.control.call import Call, ClientGone, flag
from space.control.link import NodeLink, decoded
from space.control.stdin import Spool
from space.control.wire_processes import ProcessRequest, check_process
from space.core.wire.events import Data, Message
from space.model import frames
from space.model.errors import InvalidArgument, ProtocolError, SpaceError, TooLarge, Unsupported
from space.model.frames import Kind
from space.model.sandbox import MAX_STDIN, ExitStatus
from space.rpc.node_api import Exec, Exited, Started
from space.rpc.stream import Stream

NDJSON = "application/x-ndjson"
_LENGTH = struct.Struct("<I")


class Form(Protocol):
    """How frames are written."""

    media_type: str

    def told(self, kind: Kind, fields: dict[str, Any]) -> bytes:
        """A frame with fields."""

    def output(self, kind: Kind, data: bytes, offset: int) -> bytes:
        """A frame with bytes."""


class Binary:
    """Frames as they are."""

    media_type = frames.MEDIA_TYPE

    def told(self, kind: Kind, fields: dict[str, Any]) -> bytes:
        return frames.encode(kind, msgspec.json.encode(fields) if kind is not Kind.HEARTBEAT else b"")

    def output(self, kind: Kind, data: bytes, offset: int) -> bytes:
        return frames.encode(kind, data, offset)


class Lines:
    """One JSON object a line, bytes in base64."""

    media_type = NDJSON

    def told(self, kind: Kind, fields: dict[str, Any]) -> bytes:
        return msgspec.json.encode({"kind": kind.name.lower(), **fields}) + b"\n"

    def output(self, kind: Kind, data: bytes, offset: int) -> bytes:
        line = {"kind": kind.name.lower(), "offset": offset, "data_base64": base64.b64encode(data).decode()}
        return msgspec.json.encode(line) + b"\n"


def form_for(accept: str) -> Form:
    """The first media type that both sides know; Unsupported otherwise."""
    for part in (accept or "*/*").split(","):
        match part.partition(";")[0].strip().lower():
            case frames.MEDIA_TYPE | "*/*" | "application/*":
                return Binary()
            case "application/x-ndjson":
                return Lines()
            case _:
                pass
    raise Unsupported(f"cannot answer as {accept[:80]!r}", hint=f"accept {frames.MEDIA_TYPE} or {NDJSON}")


async def read_request(call: Call) -> tuple[ProcessRequest, AsyncIterator[bytes] | None]:
    """The process, and its stdin still to be read (None: there is none)."""
    if call.media_type == frames.PROCESS_MEDIA_TYPE:
        return await _framed(call)
    body = await call.json(limits.MAX_PROCESS_JSON)
    decode = asyncio.to_thread(wire.decode, body, ProcessRequest) if len(body) > limits.DECODE_INLINE else None
    request = check_process(await decode if decode is not None else wire.decode(body, ProcessRequest))
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
            raise InvalidArgument(f"the body ends after {len(head)} bytes, and the process object needs {wanted}")
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


def checked(call: Call) -> Form:
    """The answer's form, when the query is one that this version can do."""
    if not flag(call.argument("stream"), "stream", default=False):
        raise InvalidArgument("stream=1 is missing", hint="POST .../processes?stream=1: this version runs attached processes only")
    return form_for(call.headers.get("accept", ""))


@dataclass(frozen=True, slots=True)
class ProcessAnswer:
    """A process that runs while the answer is sent."""

    call: Call
    link: NodeLink
    sandbox: str
    request: ProcessRequest
    stdin: AsyncIterator[bytes] | None
    form: Form

    async def send(self, send: Send) -> None:
        """Run it. SpaceError only before the head has gone out; ClientGone."""
        asked = self.request
        wanted = Exec(self.sandbox, asked.argv, asked.cwd, asked.env, asked.user, asked.timeout_ms, self.stdin is not None)
        spool = Spool()
        try:
            async with await self.link.open("exec", wanted) as stream, asyncio.TaskGroup() as group:
                helpers = [group.create_task(self._feed(stream, spool)), client := group.create_task(_caught(self._take(spool)))]
                try:
                    await _Relay(self, stream, client, send).run()
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


async def _caught(work: Any) -> BaseException | None:
    """A helper's fault as a value: in a task group it would cancel the relay, which has a last frame to send."""
    try:
        await work
    except (SpaceError, ClientGone) as error:
        return error
    return None


class _Relay:
    """Events of the node's stream to frames of the answer."""

    def __init__(self, answer: ProcessAnswer, stream: Stream, client: asyncio.Task[BaseException | None], send: Send) -> None:
        self._answer = answer
        self._form = answer.form
        self._events = aiter(stream)
        self._client = client
        self._send = send
        self._head_sent = False
        self._counts = {Kind.STDOUT: 0, Kind.STDERR: 0}

    async def run(self) -> None:
        try:
            last = await self._follow()
        except SpaceError as fault:
            if not self._head_sent:
                raise
            problem = problems.describe(fault, self._answer.call.request_id)
            last = self._form.told(Kind.ERROR, msgspec.to_builtins(problem))
        await self._write(last, more=False)

    async def _follow(self) -> bytes:
        """Every frame but the last, which is returned."""
        coming = asyncio.ensure_future(anext(self._events, None))
        try:
            while True:
                done, _ = await asyncio.wait({coming, self._client}, timeout=limits.HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if self._client in done and (error := self._client.result()) is not None:
                    raise error
                if coming not in done:
                    await self._write(self._form.told(Kind.HEARTBEAT, {}))
                    continue
                event = coming.result()
                if event is None:
                    raise ProtocolError("the node ended the process's stream without saying how the process ended")
                frame, last = self._frame(event)
                if last:
                    return frame
                await self._write(frame)
                coming = asyncio.ensure_future(anext(self._events, None))
        finally:
            coming.cancel()

    def _frame(self, event: Data | Message) -> tuple[bytes, bool]:
        if isinstance(event, Data):
            kind = Kind.STDERR if event.lane else Kind.STDOUT
            offset = self._counts[kind]
            self._counts[kind] += len(event.payload)
            return self._form.output(kind, event.payload, offset), False
        told = decoded(event, Started | Exited)
        if isinstance(told, Started):
            return self._form.told(Kind.START, {"pid": told.pid}), False
        seen = (self._counts[Kind.STDOUT], self._counts[Kind.STDERR])
        if seen != (told.stdout_bytes, told.stderr_bytes):
            raise ProtocolError(f"the process wrote {told.stdout_bytes} and {told.stderr_bytes} bytes, and {seen[0]} and {seen[1]} arrived")
        status = ExitStatus(told.code, told.signal, told.oom_killed, told.timed_out, told.wall_ms, told.stdout_bytes, told.stderr_bytes)
        return self._form.told(Kind.EXIT, msgspec.to_builtins(status)), True

    async def _write(self, frame: bytes, *, more: bool = True) -> None:
        if not self._head_sent:
            self._head_sent = True
            headers = [(b"content-type", self._form.media_type.encode()), (b"cache-control", b"no-store")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": frame, "more_body": more})
