"""The end of a process that is not our child, seen by its pidfd: readable once it has exited. No polling, no pid."""

from __future__ import annotations

import asyncio
import os
import select


class Pidfd:
    """Owns the descriptor. Must be made within the event loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(descriptor, self._on_exit)

    @property
    def exited(self) -> bool:
        """Whether the process has ended."""
        if not self._exited.done() and self._descriptor >= 0:
            poll = select.poll()  # the loop may not have looked yet
            poll.register(self._descriptor, select.POLLIN)
            if poll.poll(0):
                self._on_exit()
        return self._exited.done()

    async def wait(self) -> None:
        """Until it has ended; any number of callers."""
        await asyncio.shield(self._exited)

    def close(self) -> None:
        """Let go of it; idempotent. Callers that still wait are cancelled."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        if not self._exited.done():
            self._exited.cancel()

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if not self._exited.done():
            self._exited.set_result(None)
