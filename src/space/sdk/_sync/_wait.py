"""What waiting means without asyncio: the twin of `_async/_wait.py`, written by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def offload(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do it here and now."""
    return function(*args, **kwargs)


def invoke(callback: Callable[[T], object], value: T) -> None:
    """Call a user's callback."""
    callback(value)
