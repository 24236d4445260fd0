"""Work that a cancellation must not tear: it is finished first, and the cancellation is passed on after it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T], name: str) -> T:
    """Await `work` however often the caller is cancelled; then its result or error, or the cancellation if there was one."""
    task = asyncio.create_task(work, name=name)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (fault := task.exception()) is not None:
        raise cancelled from fault
    raise cancelled


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and return when they have ended, however often the caller is cancelled meanwhile (then the cancellation)."""
    cancelled: asyncio.CancelledError | None = None
    for task in tasks:
        task.cancel()
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at, or the loop would complain
    if cancelled is not None:
        raise cancelled
