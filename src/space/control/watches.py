"""GET .../files/watch: what happens to a path, as lines of JSON. `watching` comes first: from then on nothing is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Send

from space.control import limits, problems, wire_files
from space.control.call import Call, ClientGone, flag
from space.control.route import NDJSON
from space.control.services import Services
from space.control.wire import check_user
from space.control.wire_files import WatchLine, check_name, file_change
from space.core.wire import files as guest
from space.core.wire.events import Data, Message
from space.core.wire.guest import decode
from space.model.errors import DeadlineExceeded, ProtocolError, SpaceError, Unsupported
from space.rpc.node_api import Forward
from space.rpc.stream import Stream

_HEARTBEAT = WatchLine("heartbeat")
_WATCHING = WatchLine("watching")


async def watch(call: Call, services: Services) -> WatchAnswer:
    """GET .../files/watch."""
    accept = call.headers.get("accept", "*/*")
    if not any(part.partition(";")[0].strip().lower() in (NDJSON, "*/*", "application/*", "") for part in accept.split(",")):
        raise Unsupported(f"cannot answer as {accept[:80]!r}", hint=f"accept {NDJSON}")
    recursive = flag(call.argument("recursive"), "recursive", default=False)
    request = guest.Watch(check_name("path", call.argument("path")), check_user(call.argument("user")), recursive)
    await services.sandboxes.usable(call.tenant, call.params["id"])
    return WatchAnswer(call, services, Forward(call.params["id"], msgspec.msgpack.encode(request)))


@dataclass(slots=True)
class WatchAnswer:
    """Changes that are told while the answer is sent."""

    call: Call
    services: Services
    request: Forward
    started: bool = False

    async def send(self, send: Send) -> None:
        """Send it. SpaceError only before the head has gone out; ClientGone."""
        left = asyncio.ensure_future(self.call.gone())
        try:
            with self.services.activity.during(self.request.sandbox):
                async with await self.services.link.open("watch", self.request, finish=True) as stream:
                    await self._follow(stream, left, send)
        except SpaceError as error:
            if not self.started:
                raise
            problem = msgspec.to_builtins(problems.describe(error, self.call.request_id))
            await self._write(send, [WatchLine("error", problem=problem)])
        finally:
            left.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _follow(self, stream: Stream, left: asyncio.Future[None], send: Send) -> None:
        clock = asyncio.get_running_loop().time
        begun_by = clock() + limits.WATCH_SECONDS
        events = aiter(stream)
        coming: asyncio.Future[Any] = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                patience = limits.HEARTBEAT_SECONDS if self.started else max(begun_by - clock(), 0)
                done, _ = await asyncio.wait({coming, left}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if left in done:
                    raise ClientGone
                if coming not in done:
                    if not self.started:
                        raise DeadlineExceeded(f"the guest did not begin to watch within {limits.WATCH_SECONDS:g} s")
                    await self._write(send, [_HEARTBEAT])
                    continue
                event = coming.result()
                if event is None and self.started:
                    return  # the path itself is gone, which was the last change
                if not isinstance(event, Message):
                    raise ProtocolError("the guest's watch is no stream of messages")
                lines = list(_lines(event))
                if not self.started and lines != [_WATCHING]:
                    raise ProtocolError("the guest told of changes before it said that it watches")
                await self._write(send, lines)
                coming = asyncio.ensure_future(anext(events, None))
        finally:
            coming.cancel()

    async def _write(self, send: Send, lines: list[WatchLine]) -> None:
        if not self.started:
            self.started = True
            headers = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = b"".join(wire_files.encode(line) + b"\n" for line in lines)
        await send({"type": "http.response.body", "body": body, "more_body": True})


def _lines(event: Data | Message) -> Iterator[WatchLine]:
    match decode(event.payload):
        case guest.Watching():
            yield _WATCHING
        case guest.Overflow():
            yield WatchLine("overflow")
        case guest.Changes(changes):
            for one in map(file_change, changes):
                yield WatchLine(one.kind, one.path, one.origin, one.directory)
        case _:
            raise ProtocolError("the guest's watch told of something else than changes")
