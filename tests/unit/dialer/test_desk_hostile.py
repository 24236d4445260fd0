"""Workers that want to harm the dialer, or others through it: they harm themselves."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from space.core.wire import dialing
from space.core.wire.dialing import Request
from space.dialer.desk import Limits
from space.rpc.packets import send_with
from space.testing.dialerlab import NAME, ONE, OTHER, Place, placed
from space.testing.dnslab import run


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


Hostile = Callable[[Place, socket.socket], Awaitable[None]]


async def _garbage(at: Place, sock: socket.socket) -> None:
    sock.send(random.Random(6).randbytes(300))


async def _long(at: Place, sock: socket.socket) -> None:
    sock.send(b"x" * 4000)


async def _descriptor(at: Place, sock: socket.socket) -> None:
    read_end, write_end = os.pipe()
    send_with(sock, dialing.encode(Request(1, 1, "b.example.com", 1)), read_end)
    os.close(read_end)
    os.close(write_end)
    await until(lambda: _readable(sock))


async def _twice(at: Place, sock: socket.socket) -> None:
    at.zone.silent = True
    for _ in range(2):
        sock.send(dialing.encode(Request(1, 1, NAME, at.port)))


async def _flood(at: Place, sock: socket.socket) -> None:
    """Never reading."""
    for number in range(20_000):
        try:
            sock.send(dialing.encode(Request(number, 1, "b.example.com", 1)))
        except BlockingIOError:
            await asyncio.sleep(0)
            if number > 2000:
                return
        except OSError:
            return


async def _gone(at: Place, sock: socket.socket) -> None:
    sock.send(dialing.encode(Request(1, 1, NAME, at.port)))
    sock.close()


def _readable(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


@pytest.mark.parametrize("does", [_garbage, _long, _descriptor, _twice, _flood, _gone], ids=lambda one: one.__name__)
def test_a_hostile_worker_harms_itself_alone(does: Hostile) -> None:
    async def main() -> None:
        async with placed(Limits(take=0.2)) as at:
            before = descriptors()
            sock = await at.raw(ONE)
            good = await at.bound(OTHER)
            await does(at, sock)
            at.zone.silent = False
            begun = time.monotonic()
            _, made = await good.dial(NAME, at.port, 1)
            assert made is not None
            made.close()
            assert time.monotonic() - begun < 2.5
            good.close()
            sock.close()
            await at.control.end(ONE, 1)
            await at.control.end(OTHER, 1)
            await until(lambda: descriptors() <= before)

    run(main())


def test_arbitrary_messages_on_the_worker_socket_end_in_an_answer_or_a_hang_up() -> None:
    async def main() -> None:
        async with placed(Limits(rate=1e6, burst=10_000)) as at:
            chance = random.Random(11)
            good = dialing.encode(Request(1, 1, "b.example.com", 443))
            for _ in range(200):
                sock = await at.raw()
                message = bytearray(good)
                for _ in range(chance.randrange(1, 4)):
                    message[chance.randrange(len(message))] = chance.randrange(256)
                sock.send(bytes(message))
                await until(partial(_answered_or_gone, sock))
                sock.close()
            assert len((await at.control.describe()).bindings) == 1

    run(main())


def _answered_or_gone(sock: socket.socket) -> bool:
    try:
        return sock.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT) is not None
    except BlockingIOError:
        return False
