"""PUT and GET /v1/sandboxes/{id}/tree: one tar stream each way, passed through with back-pressure and counted on both sides.

An upload succeeds only if the guest counted the bytes and the CRC-32 that control forwarded. A download ends well only after
the guest's count equals what control passed on; after any fault the connection is cut before the body's end mark, so that a
part of a tree can never be taken for the whole.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import Send

from space.control import limits
from space.control.call import Call, ClientGone, CutOff
from space.control.link import NodeLink, decoded
from space.control.wire import TreeInfo
from space.core.wire.events import Data, Message
from space.model.errors import DeadlineExceeded, GuestError, ProtocolError, SpaceError, Unsupported
from space.rpc.node_api import Tree, TreeDone
from space.rpc.stream import Stream

MEDIA_TYPE = "application/x-tar"


@dataclass(slots=True)
class _Count:
    size: int = 0
    crc32: int = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)

    def verify(self, told: TreeDone) -> None:
        """GuestError unless the other side counted the same."""
        if (told.bytes, told.crc32) != (self.size, self.crc32):
            raise GuestError(
                f"the tree did not arrive whole: the guest counted {told.bytes} bytes with CRC {told.crc32:08x}, "
                f"control {self.size} with {self.crc32:08x}",
                hint="repeat the transfer",
            )


async def put(call: Call, link: NodeLink, tree: Tree) -> TreeInfo:
    """Take the body into the guest."""
    if call.media_type not in (MEDIA_TYPE, "application/octet-stream", ""):
        raise Unsupported(f"media type {call.media_type[:80]!r} is no tar stream", hint=f"send {MEDIA_TYPE}")
    count = _Count()
    async with await link.open("tree_put", tree, bulk=True) as stream:
        told = asyncio.ensure_future(_told(stream))
        sent = asyncio.ensure_future(_forward(call, stream, count))
        try:
            # The guest may refuse in the middle (disk full, bad archive): then the rest of the body is not waited for.
            await asyncio.wait({told, sent}, return_when=asyncio.FIRST_COMPLETED)
            if not told.done() and sent.result():
                await asyncio.wait({told}, timeout=limits.TREE_STALL_SECONDS)
            if not told.done():
                raise DeadlineExceeded(f"the guest did not confirm the tree within {limits.TREE_STALL_SECONDS:g} s")
            done = told.result()
            if not sent.done():
                raise ProtocolError("the guest confirmed the tree before it was sent")
        finally:
            for task in (told, sent):
                task.cancel()
            await asyncio.gather(told, sent, return_exceptions=True)
    count.verify(done)
    return TreeInfo(done.entries, done.bytes, done.crc32)


async def _forward(call: Call, stream: Stream, count: _Count) -> bool:
    """Whether all of it was sent; False when the stream broke, of which `_told` knows more."""
    async for piece in call.pieces(None):
        count.add(piece)
        try:
            async with asyncio.timeout(limits.TREE_STALL_SECONDS):
                await stream.send(piece)
        except TimeoutError:
            raise DeadlineExceeded(f"the guest took nothing of the tree for {limits.TREE_STALL_SECONDS:g} s") from None
        except SpaceError:
            return False
    await stream.close()
    return True


async def _told(stream: Stream) -> TreeDone:
    async for event in stream:
        if isinstance(event, Message):
            told: TreeDone = decoded(event, TreeDone)
            return told
    raise ProtocolError("the node ended the tree's stream without a count")


@dataclass(frozen=True, slots=True)
class TreeAnswer:
    """A tree that is read while the answer is sent."""

    call: Call
    link: NodeLink
    tree: Tree

    async def send(self, send: Send) -> None:
        """Send it. SpaceError only before the head has gone out, then CutOff; ClientGone."""
        left = asyncio.ensure_future(self.call.gone())
        started = False
        try:
            async with await self.link.open("tree_get", self.tree, bulk=True, finish=True) as stream:
                async for data in _verified(stream):
                    if left.done():
                        raise ClientGone
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
        finally:
            left.cancel()


async def _head(send: Send) -> None:
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _verified(stream: Stream) -> AsyncIterator[bytes]:
    """The tree's bytes; it ends without a fault only if the guest counted the same."""
    count = _Count()
    events = aiter(stream)
    while True:
        try:
            async with asyncio.timeout(limits.TREE_STALL_SECONDS):
                event = await anext(events, None)
        except TimeoutError:
            raise DeadlineExceeded(f"the guest gave nothing of the tree for {limits.TREE_STALL_SECONDS:g} s") from None
        match event:
            case Data():
                count.add(event.payload)
                yield event.payload
            case Message():
                count.verify(decoded(event, TreeDone))
                return
            case _:
                raise ProtocolError("the node ended the tree's stream without a count")
