"""Ways to cut the same bytes, and the flow that everything is judged for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from space.core.policy.agreement import Flow

Pieces = list[bytes]
FLOW = Flow("a.example.com", 443, secure=True)


def ways(data: bytes) -> list[Pieces]:
    """The same bytes in other pieces: two halves, uneven ones, and one by one if there are few."""
    middle = len(data) // 2
    uneven, at, step = [], 0, 1
    while at < len(data):
        uneven.append(data[at : at + step])
        at += step
        step = step * 3 % 97 + 1
    found = [[data[:middle], data[middle:]], uneven]
    return [*found, [data[at : at + 1] for at in range(len(data))]] if len(data) < 600 else found


def same(read: Callable[[Pieces], Any], data: bytes) -> Any:
    """What `read` makes of the whole, which it makes of every other way as well."""
    whole = read([data])
    for way in ways(data):
        assert read(way) == whole, f"{read(way)!r} in pieces, {whole!r} as a whole"
    return whole


def every_way(read: Callable[..., Any], data: bytes, *more: object) -> Any:
    """`same`, of a reader that takes more arguments."""
    return same(lambda pieces: read(pieces, *more), data)
