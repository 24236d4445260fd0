"""What waiting means without asyncio: the twin of `_async/_wait.py`, written by hand."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, ParamSpec, TypeVar

from space.model.errors import InvalidArgument
from space.sdk.request import as_bytes, reader, slices

PIECE = 256 << 10
Content = bytes | str | IO[bytes] | Iterable[bytes]

P = ParamSpec("P")
T = TypeVar("T")


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def offload(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do it here and now."""
    return function(*args, **kwargs)


def invoke(callback: Callable[[T], object], value: T) -> None:
    """Call a user's callback. InvalidArgument for a coroutine function, which nothing would await."""
    result = callback(value)
    if inspect.iscoroutine(result):
        result.close()
        raise InvalidArgument("a callback is a coroutine function, which only AsyncSandbox awaits", hint="give a plain function")


def pieces_of(data: Content) -> Iterator[bytes]:
    """What is to be sent, in pieces."""
    if isinstance(data, (bytes, bytearray, memoryview, str)):
        yield from slices(as_bytes(data), PIECE)
    else:
        step = reader(data, PIECE)
        while piece := step():
            yield piece
