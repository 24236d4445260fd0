"""PUT and GET /v1/sandboxes/{id}/tree: one tar stream each way, passed through with back-pressure and counted on both sides.

An upload succeeds only if the guest counted the bytes and the CRC-32 that control forwarded. A download ends well only after
the guest's count equals what control passed on; after any fault the connection is cut before the body's end mark, so that a
part of a tree can never be taken for the whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import Send

from space.control.call import Call, CutOff
from space.control.link import NodeLink, decoded
from space.control.services import Services
from space.control.transfer import Count, events, upload
from space.control.wire import TreeInfo
from space.core.wire.events import Data, Message
from space.model.errors import SpaceError, Unsupported
from space.rpc.node_api import Tree, TreeDone
from space.rpc.stream import Stream

MEDIA_TYPE = "application/x-tar"


async def put(call: Call, link: NodeLink, tree: Tree) -> TreeInfo:
    """Take the body into the guest."""
    if call.media_type not in (MEDIA_TYPE, "application/octet-stream", ""):
        raise Unsupported(f"media type {call.media_type[:80]!r} is no tar stream", hint=f"send {MEDIA_TYPE}")
    count = Count()
    async with await link.open("tree_put", tree, bulk=True) as stream:
        done = await upload(call.pieces(None), stream, "the tree", count, stream.close, _done)
    count.verify("the tree", done.bytes, done.crc32)
    return TreeInfo(done.entries, done.bytes, done.crc32)


def _done(message: Message) -> TreeDone:
    told: TreeDone = decoded(message, TreeDone)
    return told


@dataclass(frozen=True, slots=True)
class TreeAnswer:
    """A tree that is read while the answer is sent."""

    call: Call
    services: Services
    tree: Tree

    async def send(self, send: Send) -> None:
        """Send it. SpaceError only before the head has gone out, then CutOff; ClientGone."""
        await self.call.while_there(self._send(send))

    async def _send(self, send: Send) -> None:
        started = False
        try:
            with self.services.activity.during(self.tree.sandbox):
                async with await self.services.link.open("tree_get", self.tree, bulk=True, finish=True) as stream:
                    async for data in _verified(stream):
                        if not started:
                            started = True
                            await _head(send)
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            if not started:
                await _head(send)
            await send({"type": "http.response.body", "body": b""})
        except SpaceError as error:
            if started:
                raise CutOff(error) from error
            raise


async def _head(send: Send) -> None:
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _verified(stream: Stream) -> AsyncIterator[bytes]:
    """The tree's bytes; it ends without a fault only if the guest counted the same."""
    count = Count()
    async for event in events(stream, "the tree"):
        if isinstance(event, Data):
            count.add(event.payload)
            yield event.payload
            continue
        done = _done(event)
        count.verify("the tree", done.bytes, done.crc32)
        return
