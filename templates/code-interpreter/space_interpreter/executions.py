"""One execution: it waits for its turn, runs, and is interrupted when nobody wants to hear of it any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

from space_interpreter import results
from space_interpreter.contexts import Context, Contexts, Task
from space_interpreter.wire import Refused

QUEUED = 256
INTERRUPT_SECONDS = 3.0
INTERRUPTS = 3


class Execution:
    """Begun when it is made. seconds: how long it may run, from its turn on; None: as long as somebody listens.

    `lines` has what comes of it; None is its end. What nobody takes from there holds the kernel up.
    """

    def __init__(self, contexts: Contexts, context: Context, task: Task, seconds: float | None) -> None:
        self.lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(QUEUED)
        self._contexts = contexts
        self._context = context
        self._abandoned = False
        self._runs = False
        self._task = asyncio.create_task(self._run(task, seconds), name="execution")

    async def _run(self, task: Task, seconds: float | None) -> None:
        try:
            async with self._context.turn:
                self._runs = True
                kernel = await self._contexts.ready(self._context)
                if self._abandoned:  # while the kernel began
                    return
                task = replace(task, adopted=self._contexts.adopted(self._context))
                timer = None if seconds is None else asyncio.create_task(self._late(seconds), name="time of an execution")
                try:
                    async for line in kernel.execute(task):
                        await self._tell(line)
                finally:
                    if timer is not None:
                        timer.cancel()
        except Refused as refused:
            await self._tell(results.error("KernelError", refused.message, refused.message))
        await self._tell(results.END)
        await self._tell(None)

    async def _late(self, seconds: float) -> None:
        """Its time is over: it is interrupted until it ends, as for a client that has gone, but who asked hears of it."""
        await asyncio.sleep(seconds)
        await self._tell(results.TIMED_OUT)
        for _ in range(INTERRUPTS):
            if self._context.kernel is not None:
                await self._context.kernel.interrupt()
            await asyncio.sleep(INTERRUPT_SECONDS)
        self._contexts.drop(self._context)

    async def _tell(self, line: dict[str, Any] | None) -> None:
        if not self._abandoned:
            await self.lines.put(line)

    async def abandon(self) -> None:
        """Its client has gone. One that waits never begins; one that runs is interrupted, again if code catches that, and then loses its
        kernel. Returns when the context is free for the next.
        """
        self._abandoned = True
        while not self.lines.empty():
            self.lines.get_nowait()
        if not self._runs:
            self._task.cancel()
            return
        for _ in range(INTERRUPTS):
            if self._context.kernel is not None and not self._task.done():
                await self._context.kernel.interrupt()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), INTERRUPT_SECONDS)
                return
        self._contexts.drop(self._context)
        await self._task
