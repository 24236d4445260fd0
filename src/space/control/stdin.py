"""A process's stdin on its way from the request's body to the guest.

Many clients (httpx, curl without special care) read no answer before their whole body is sent. If control stopped reading
the body while the guest is slow, a process that answers as it reads (`cat`) would wait for the client, and the client for
it. So the body (16 MiB at most) is always read on: what the guest has not taken yet waits in memory, and beyond a limit in
an unlinked file; the guest is fed at its own pace.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator

from space.control import limits

_PIECE = 64 * 1024


class Spool:
    """Bytes in, bytes out, in order; one writer, one reader."""

    def __init__(self, memory: int = limits.STDIN_IN_MEMORY) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=memory)  # noqa: SIM115 - closed by close()
        self._written = 0
        self._read = 0
        self._ended = False
        self._moved = asyncio.Event()

    def write(self, data: bytes) -> None:
        """Add. The page cache takes it; nothing waits for a disk."""
        self._file.seek(self._written)
        self._file.write(data)
        self._written += len(data)
        self._moved.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._moved.set()

    def close(self) -> None:
        """Let go of what is left."""
        self._file.close()

    async def pieces(self) -> AsyncIterator[bytes]:
        """What was written, up to the end."""
        while True:
            while self._read == self._written:
                if self._ended:
                    return
                self._moved.clear()
                await self._moved.wait()
            self._file.seek(self._read)
            piece = self._file.read(min(_PIECE, self._written - self._read))
            self._read += len(piece)
            yield piece
