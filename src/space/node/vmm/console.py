"""A guest's console: drained into a ring at a bounded pace, and made printable before anybody sees it.

Everything here was written by the guest: escape sequences that could drive an operator's terminal never leave this module.
"""

from __future__ import annotations

import asyncio
import io
import socket
from contextlib import suppress

from space.node import limits
from space.node.vmm.pace import Pace

_CHUNK = 16 * 1024


def last_lines(raw: bytes, count: int = 6, width: int = 160) -> list[str]:
    """The last lines of a console, as plain text: at most `count` of at most `width` characters."""
    text = raw[-(count * width * 4) :].decode("utf-8", "replace")
    lines = ["".join(c if c.isprintable() else "?" for c in line).strip()[:width] for line in text.splitlines()]
    return [line for line in lines if line][-count:]


class Console:
    """Owns the socket of one VMM's serial port. Must be made within the event loop."""

    def __init__(self, link: socket.socket | io.FileIO) -> None:
        self._link = link
        self._ring = bytearray()
        self._task = asyncio.create_task(self._drain(), name="serial console")

    def tail(self) -> bytes:
        """The last `limits.SERIAL_RING` bytes at most."""
        return bytes(self._ring)

    async def drained(self, seconds: float) -> None:
        """After the VMM's end: until the rest has been read, at most so long."""
        await asyncio.wait({self._task}, timeout=seconds)

    async def aclose(self) -> None:
        """Let go of the socket; idempotent."""
        self._task.cancel()
        await asyncio.wait({self._task})
        self._link.close()

    async def _read(self) -> bytes:
        assert isinstance(self._link, socket.socket)
        return await asyncio.get_running_loop().sock_recv(self._link, _CHUNK)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        pace = Pace(limits.SERIAL_RATE)
        with suppress(OSError):
            while chunk := await self._read():
                self._ring += chunk
                del self._ring[: -limits.SERIAL_RING]
                if wait := pace.spend(len(chunk), loop.time()):
                    await asyncio.sleep(wait)  # the guest's writes to its console wait meanwhile, nothing else does


class PipeConsole(Console):
    """The same of a console that is a pipe. Owns the file, whose descriptor does not block."""

    def __init__(self, pipe: io.FileIO) -> None:
        self._pipe = pipe
        super().__init__(pipe)

    async def _read(self) -> bytes:
        while (chunk := self._pipe.read(_CHUNK)) is None:
            there = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_reader(self._pipe, there.set)
            try:
                await there.wait()
            finally:
                loop.remove_reader(self._pipe)
        return chunk
