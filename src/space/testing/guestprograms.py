"""The programs that FakeGuest knows, by name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from space.model.errors import InvalidArgument

if TYPE_CHECKING:
    from space.testing.guestprocesses import Process

_PIECE = 64 << 10


async def _echo(process: Process, lane: int = 0) -> int:
    await process.write(b" ".join(process.request.argv[1:]) + b"\n", lane)
    return 0


async def _err(process: Process) -> int:
    return await _echo(process, 1)


async def _cat(process: Process) -> int:
    while data := await process.read():
        await process.write(data)
    return 0


async def _env(process: Process) -> int:
    for name, value in process.env.items():
        await process.write(name + b"=" + value + b"\n")
    return 0


async def _true(_: Process) -> int:
    return 0


async def _false(_: Process) -> int:
    return 1


async def _exit(process: Process) -> int:
    return number(process) & 0xFF


async def _signal(process: Process) -> int:
    return -number(process)


async def _sleep(process: Process) -> int:
    await asyncio.sleep(float(process.request.argv[1]))
    return 0


async def _deaf(process: Process) -> int:
    """Closes its stdin, says so, and runs on until a signal ends it."""
    process.deaf = True
    await process.write(b"closed\n")
    await asyncio.Event().wait()
    return 0


async def _yes_bytes(process: Process) -> int:
    for piece in pieces(b"y\n" * (_PIECE // 2), number(process)):
        await process.write(piece)
    return 0


async def _count(process: Process) -> int:
    for one in range(1, number(process) + 1):
        await process.write(b"%d\n" % one, one & 1)
    return 0


async def _stty(process: Process) -> int:
    if process.window is None:
        return 1
    await process.write(b"%d %d\n" % (process.window.rows, process.window.cols))
    return 0


async def _sizes(process: Process) -> int:
    async def tell() -> None:
        while True:
            await _stty(process)
            process.resized.clear()
            await process.resized.wait()

    teller = asyncio.create_task(tell())
    try:
        while await process.read():
            pass
    finally:
        teller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await teller
    return 0


PROGRAMS: dict[str, Callable[[Process], Awaitable[int]]] = {
    "deaf": _deaf,
    "echo": _echo,
    "err": _err,
    "cat": _cat,
    "env": _env,
    "true": _true,
    "false": _false,
    "exit": _exit,
    "signal": _signal,
    "sleep": _sleep,
    "yes-bytes": _yes_bytes,
    "count": _count,
    "stty": _stty,
    "sizes": _sizes,
}


NUMBERED = frozenset({"exit", "signal", "yes-bytes", "count"})


def number(process: Process) -> int:
    """The program's argument; InvalidArgument when it is none."""
    try:
        return int(process.request.argv[1])
    except (IndexError, ValueError):
        raise InvalidArgument(f"{process.request.argv[0]!r} wants a number") from None


def pieces(block: bytes, total: int) -> list[bytes]:
    """`total` bytes, as blocks and the rest of one."""
    whole, rest = divmod(total, len(block))
    return [block] * whole + ([block[:rest]] if rest else [])
