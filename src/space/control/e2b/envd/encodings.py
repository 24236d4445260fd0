"""Bodies that are packed with gzip: taken in with bounds, and given where that alone is wanted."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator

from starlette.types import Message, Send

from space.model.errors import InvalidArgument, Unsupported

_GZIP = 16 + zlib.MAX_WBITS
# What is unpacked at a time, whatever the packed piece says.
_PIECE = 256 << 10
# Above this the event loop would stand still for too long.
_INLINE = 32 << 10
_LEVEL = 1


class NotAcceptable(Unsupported):
    """No encoding that the client takes is known here."""

    status, title = 406, "Not acceptable"


async def plain(pieces: AsyncIterator[bytes], coding: str) -> AsyncIterator[bytes]:
    """A request's body, unpacked. InvalidArgument, Unsupported."""
    match coding.strip().lower():
        case "" | "identity":
            async for piece in pieces:
                yield piece
        case "gzip" | "x-gzip":
            async for piece in _unpacked(pieces):
                yield piece
        case other:
            raise Unsupported(f"content encoding {other[:80]!r} is not understood", hint="send gzip, or the body as it is")


async def _unpacked(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    unpacker = zlib.decompressobj(_GZIP)
    begun = False
    async for piece in pieces:
        left = piece
        while left:
            if unpacker.eof:  # one member behind another
                unpacker = zlib.decompressobj(_GZIP)
            begun = True
            try:
                out = unpacker.decompress(left, _PIECE)
                left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
                while out:
                    yield out
                    # Everything may have been taken, and what it says not be out yet.
                    out = b"" if left or unpacker.eof or len(out) < _PIECE else unpacker.decompress(b"", _PIECE)
            except zlib.error as error:
                raise InvalidArgument(f"the body is not gzip: {error}") from None
    if not begun or not unpacker.eof:
        raise InvalidArgument("the body ends in the middle of its gzip stream")


def gzip_wanted(accept: str | None) -> bool:
    """Whether gzip is what a client asks for before anything else. NotAcceptable."""
    if accept is None or not accept.strip():
        return False
    wanted: dict[str, float] = {}
    for part in accept.split(","):
        name, _, rest = part.partition(";")
        wanted[name.strip().lower()] = _quality(rest)
    identity = wanted.get("identity", wanted.get("*", 1.0) if "*" in wanted else 1.0)
    gzip = wanted.get("gzip", wanted.get("*", 0.0))
    if identity > 0:
        # Browsers' runtimes name all that they know with every request: that is no wish.
        return gzip > 0 and set(wanted) == {"gzip"}
    if gzip > 0:
        return True
    raise NotAcceptable(f"no encoding of {accept[:80]!r} is known here", hint="identity and gzip are")


def _quality(parameters: str) -> float:
    name, _, value = parameters.partition("=")
    if name.strip().lower() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 1.0


class Packed:
    """An answer, packed on its way. One that has no body of its own (304) goes as it is."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._whole = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._whole = message["status"] != 200
            if not self._whole:
                head = [(name, value) for name, value in message["headers"] if name not in (b"content-length", b"accept-ranges", b"etag")]
                message = {**message, "headers": [*head, (b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]}
        elif message["type"] == "http.response.body" and not self._whole:
            data, more = message.get("body", b""), message.get("more_body", False)
            packed = await asyncio.to_thread(self._packer.compress, data) if len(data) > _INLINE else self._packer.compress(data)
            message = {**message, "body": packed if more else packed + self._packer.flush()}
        await self._send(message)
