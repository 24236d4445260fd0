"""Bodies of the mock server's answers that are made while they are read, by either client, and that can break off."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import httpx


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Pieces that do not wait for anybody."""

    def __init__(self, pieces: Iterator[bytes], left_early: Callable[[], None] = lambda: None) -> None:
        self._pieces = pieces
        self._left_early = left_early
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        self._ended = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._left_early()

    async def aclose(self) -> None:
        self.close()


class Waiting(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Pieces that wait for what happens: with asyncio they are waited for on a thread. `closed` tells their maker that nobody reads on."""

    def __init__(self, make: Callable[[Callable[[], bool]], Iterator[bytes]], changed: threading.Condition) -> None:
        self._changed = changed
        self._closed = False
        self._pieces = make(lambda: self._closed)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await asyncio.to_thread(next, self._pieces, None)) is not None:
            yield piece

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def aclose(self) -> None:
        self.close()


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body whose connection breaks after `left` bytes of it."""

    def __init__(self, body: object, left: int) -> None:
        assert isinstance(body, httpx.SyncByteStream)
        assert isinstance(body, httpx.AsyncByteStream)
        self._body = body
        self._left = left

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._body:
            yield self._some(piece)
            self._check()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._body:
            yield self._some(piece)
            self._check()

    def close(self) -> None:
        self._body.close()

    async def aclose(self) -> None:
        await self._body.aclose()

    def _some(self, piece: bytes) -> bytes:
        some = piece[: self._left]
        self._left -= len(some)
        self._is_over = len(some) < len(piece) or not self._left
        return some

    def _check(self) -> None:
        if self._is_over:
            raise httpx.ReadError("the connection was cut")
