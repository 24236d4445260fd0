"""Bytes on their way into a guest, and out of it: with back-pressure, counted on both sides, and never a part taken for the whole."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from space.control import limits
from space.core.wire.events import Data, Message
from space.model.errors import DeadlineExceeded, GuestError, ProtocolError, SpaceError
from space.rpc.stream import Stream

T = TypeVar("T")


@dataclass(slots=True)
class Count:
    """What went by."""

    size: int = 0
    crc32: int = 0

    def add(self, data: bytes) -> None:
        """It went by."""
        self.size += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)

    def verify(self, what: str, size: int, crc32: int) -> None:
        """GuestError unless the other side counted the same."""
        if (size, crc32) != (self.size, self.crc32):
            raise GuestError(
                f"{what} did not arrive whole: the guest counted {size} bytes with CRC {crc32:08x}, "
                f"control {self.size} with {self.crc32:08x}",
                hint="repeat the transfer",
            )


async def upload(
    pieces: AsyncIterator[bytes],
    stream: Stream,
    what: str,
    count: Count,
    finish: Callable[[], Awaitable[None]],
    told: Callable[[Message], T],
) -> T:
    """All pieces into the stream, then `finish`, then the guest's answer as `told` reads it. ClientGone, and the stream's faults."""
    telling = asyncio.ensure_future(_told(stream, what, told))
    sending = asyncio.ensure_future(_forward(pieces, stream, what, count, finish))
    try:
        # The guest may refuse in the middle (disk full, bad archive): then the rest of the body is not waited for.
        await asyncio.wait({telling, sending}, return_when=asyncio.FIRST_COMPLETED)
        if not telling.done() and sending.result():
            await asyncio.wait({telling}, timeout=limits.TREE_STALL_SECONDS)
        if not telling.done():
            raise DeadlineExceeded(f"the guest did not confirm {what} within {limits.TREE_STALL_SECONDS:g} s")
        done = telling.result()
        if not sending.done():
            raise ProtocolError(f"the guest confirmed {what} before it was sent")
        return done
    finally:
        for task in (telling, sending):
            task.cancel()
        await asyncio.gather(telling, sending, return_exceptions=True)


async def _forward(pieces: AsyncIterator[bytes], stream: Stream, what: str, count: Count, finish: Callable[[], Awaitable[None]]) -> bool:
    """Whether all of it was sent; False when the stream broke, of which `_told` knows more."""
    async for piece in pieces:
        count.add(piece)
        try:
            async with asyncio.timeout(limits.TREE_STALL_SECONDS):
                await stream.send(piece)
        except TimeoutError:
            raise DeadlineExceeded(f"the guest took nothing of {what} for {limits.TREE_STALL_SECONDS:g} s") from None
        except SpaceError:
            return False
    try:
        await finish()
    except SpaceError:
        return False
    return True


async def _told(stream: Stream, what: str, told: Callable[[Message], T]) -> T:
    async for event in stream:
        if isinstance(event, Message):
            return told(event)
    raise ProtocolError(f"the node ended the stream of {what} without an answer")


async def events(stream: Stream, what: str) -> AsyncIterator[Data | Message]:
    """What comes, each within the time that a guest has."""
    coming = aiter(stream)
    while True:
        try:
            async with asyncio.timeout(limits.TREE_STALL_SECONDS):
                event = await anext(coming, None)
        except TimeoutError:
            raise DeadlineExceeded(f"the guest gave nothing of {what} for {limits.TREE_STALL_SECONDS:g} s") from None
        if event is None:
            raise ProtocolError(f"the node ended the stream of {what} before its count")
        yield event
