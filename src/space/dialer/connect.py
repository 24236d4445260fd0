"""A connection to one of the checked addresses: the next is tried while the last one still has not answered (RFC 8305), a few at most.

What comes out is the socket itself, not blocking, with TCP_NODELAY, whose peer is compared with the address that was dialled. Nothing is
kept, no proxy of the environment is asked.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import chain, zip_longest

from space.core.policy.addresses import Address
from space.dialer.vet import Checked

_FILTERED = (errno.EPERM, errno.EACCES)


@dataclass(frozen=True, slots=True)
class Haste:
    """attempts: addresses tried at most. stagger: seconds until the next is tried beside. attempt, total: seconds."""

    attempts: int = 6
    stagger: float = 0.25
    attempt: float = 8.0
    total: float = 12.0


@dataclass(frozen=True, slots=True)
class Connected:
    """The receiver closes it."""

    sock: socket.socket
    address: Address


@dataclass(frozen=True, slots=True)
class NotConnected:
    """None of them answered; the reason is that of the last one."""

    reason: str


def order(addresses: Sequence[Address]) -> list[Address]:
    """Families in turn, IPv6 first, each in the answer's order."""
    six, four = [one for one in addresses if one.version == 6], [one for one in addresses if one.version == 4]
    return [address for address in chain.from_iterable(zip_longest(six, four)) if address is not None]


async def connect(checked: Checked, port: int, haste: Haste = Haste()) -> Connected | NotConnected:
    """The first that answers; the others are given up. A cancelled call leaves no socket."""
    waiting = order(checked.addresses)[: haste.attempts]
    if len(waiting) == 1:  # nothing to race with
        return await _attempt(waiting[0], port, min(haste.attempt, haste.total))
    running: set[asyncio.Task[Connected | NotConnected]] = set()
    why = NotConnected("connect_failed")
    try:
        async with asyncio.timeout(haste.total):
            while waiting or running:
                if waiting:
                    running.add(asyncio.create_task(_attempt(waiting.pop(0), port, haste.attempt)))
                done, running = await asyncio.wait(running, timeout=haste.stagger if waiting else None, return_when=asyncio.FIRST_COMPLETED)
                won, why = _first_of([task.result() for task in done], why)
                if won is not None:
                    return won
    except TimeoutError:
        why = NotConnected("connect_timeout")
    finally:
        await _give_up(running)
    return why


def _first_of(ended: Sequence[Connected | NotConnected], why: NotConnected) -> tuple[Connected | None, NotConnected]:
    """One that is connected (others that are as well are closed), and why the last one is not."""
    won: Connected | None = None
    for one in ended:
        if isinstance(one, NotConnected):
            why = one
        elif won is None:
            won = one
        else:
            one.sock.close()
    return won, why


async def _give_up(tasks: set[asyncio.Task[Connected | NotConnected]]) -> None:
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Connected):
            ended.sock.close()


async def _attempt(address: Address, port: int, seconds: float) -> Connected | NotConnected:
    loop = asyncio.get_running_loop()
    try:
        sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError:
        return NotConnected("connect_resources")
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(seconds):
            await loop.sock_connect(sock, (str(address), port))
        peer = sock.getpeername()
        # A port of our own choosing can meet itself on an own address (simultaneous open): that is nobody's server.
        if (ip_address(peer[0]), peer[1]) != (address, port) or peer == sock.getsockname():
            sock.close()
            return NotConnected("connect_peer")
    except TimeoutError:
        sock.close()
        return NotConnected("connect_timeout")
    except OSError as error:
        sock.close()
        return NotConnected(_reason(error))
    except BaseException:
        sock.close()
        raise
    return Connected(sock, address)


def _reason(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "connect_refused"
    return "connect_filtered" if error.errno in _FILTERED else "connect_failed"
