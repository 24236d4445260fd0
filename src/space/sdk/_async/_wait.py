"""What waiting means with asyncio. Its twin in `_sync` is written by hand too; everything else there is generated."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
