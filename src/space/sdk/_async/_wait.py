"""What waiting means with asyncio. Its twin in `_sync` is written by hand too; everything else there is generated."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import IO, ParamSpec, TypeVar

from space.sdk.request import as_bytes, reader, slices

PIECE = 256 << 10
Content = bytes | str | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]

P = ParamSpec("P")
T = TypeVar("T")


async def sleep(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


async def offload(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do blocking file work on a thread, so that the event loop goes on."""
    return await asyncio.to_thread(function, *args, **kwargs)


async def invoke(callback: Callable[[T], object], value: T) -> None:
    """Call a user's callback; a coroutine function is awaited."""
    result = callback(value)
    if inspect.isawaitable(result):
        await result


async def pieces_of(data: Content) -> AsyncIterator[bytes]:
    """What is to be sent, in pieces. A file, or anything else that may block, is read on a thread."""
    if isinstance(data, (bytes, bytearray, memoryview, str)):
        for piece in slices(as_bytes(data), PIECE):
            yield piece
    elif isinstance(data, AsyncIterable):
        async for piece in data:
            yield piece
    else:
        step = reader(data, PIECE)
        while piece := await offload(step):
            yield piece
