"""What a sandbox notices of another one that floods the same gateway: connections, DNS, handshakes, heads, all of it as fast as it can.

The neighbour asks at a steady rate over kept connections, and how long each answer takes is compared with the same a moment before, without
the flood. Two slots, each with its worker in a cgroup as rootd makes it, and its guest in one that is held to a processor as a VMM is.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import ssl
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvloop

from space.bench.gatewayload import NAME, PATHS, Served, Target
from space.core.wire.dns import Type
from space.host import syscalls
from space.host.cgroups import Tree

ROUNDS = 5
_SECONDS, _WARM = 3.0, 0.7
_CONNECTIONS, _PAUSE = 4, 0.02  # of the neighbour: 200 requests a second at most
_AT_ONCE = 32  # of each kind of the flood
_SLICE = 200_000  # nanoseconds: how long who measures waits for a processor is not what is measured
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Noticed:
    """Seconds of the neighbour's requests in one round."""

    p50: float
    p99: float


def _guest(work: Callable[..., Awaitable[None]], target: Target, dns: tuple[str, int], pipe: Connection) -> None:
    uvloop.run(_run(work, target, dns, pipe))


async def _run(work: Callable[..., Awaitable[None]], target: Target, dns: tuple[str, int], pipe: Connection) -> None:
    pipe.recv()  # in its cgroup now
    await work(target, dns, pipe)


@contextmanager
def _as_guest(work: Callable[..., Awaitable[None]], target: Target, dns: tuple[str, int], cgroup: Tree) -> Iterator[Connection]:
    """That work in a process of its own, held as a guest is. Its pipe."""
    mine, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_guest, args=(work, target, dns, theirs), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        cgroup.create()
        cgroup.limit(memory_bytes=512 << 20, pids=16, cpu_quota_usec=100_000, cpu_period_usec=100_000)
        cgroup.add(process.pid)
        if work is _neighbour:
            syscalls.set_slice(_SLICE, process.pid)
        mine.send("begin")
        yield mine
    finally:
        process.kill()
        process.join()


def _context(target: Target) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=target.root)
    context.set_alpn_protocols(["http/1.1"])
    return context


# -- the neighbour -----------------------------------------------------------------------------------------------------


async def _neighbour(target: Target, _: tuple[str, int], pipe: Connection) -> None:
    """Asks, and tells for each question on the pipe what has been since the last one: seconds of answers, and failures."""
    seconds: list[float] = []
    failures = 0
    context = _context(target)
    request = f"GET {PATHS['keepalive']} HTTP/1.1\r\nHost: {target.host}\r\nUser-Agent: bench\r\n\r\n".encode()

    def asked() -> None:
        nonlocal failures
        pipe.recv()
        pipe.send((seconds[:], failures))
        seconds.clear()
        failures = 0

    async def ask() -> None:
        nonlocal failures
        reader, writer = await asyncio.open_connection(target.address, target.port, ssl=context, server_hostname=NAME)
        while True:
            begun = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            seconds.append(time.perf_counter() - begun)
            failures += not head.startswith(b"HTTP/1.1 200")
            await asyncio.sleep(_PAUSE)

    async def keep() -> None:
        nonlocal failures
        while True:
            try:
                await ask()
            except (OSError, EOFError, ssl.SSLError):
                failures += 1
                await asyncio.sleep(_PAUSE)

    asyncio.get_running_loop().add_reader(pipe.fileno(), asked)
    await asyncio.gather(*[keep() for _ in range(_CONNECTIONS)])


def _taken(pipe: Connection, seconds: float) -> tuple[list[float], int]:
    """What the neighbour has seen in the next seconds."""
    pipe.send("since")
    pipe.recv()
    time.sleep(seconds)
    pipe.send("now")
    found: tuple[list[float], int] = pipe.recv()
    return found


# -- the flood ---------------------------------------------------------------------------------------------------------


async def _flood(target: Target, dns: tuple[str, int], _: Connection) -> None:
    context = _context(target)
    kinds = (_connections, _handshakes, _heads)
    await asyncio.gather(_names(dns), *[_again(kind, target, context) for kind in kinds for _ in range(_AT_ONCE)])


async def _again(kind: Callable[[Target, ssl.SSLContext], Awaitable[None]], target: Target, context: ssl.SSLContext) -> None:
    while True:
        try:
            await kind(target, context)
        except (OSError, EOFError, ssl.SSLError):
            await asyncio.sleep(0)


async def _connections(target: Target, _: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, (target.address, target.port))


async def _handshakes(target: Target, context: ssl.SSLContext) -> None:
    _, writer = await asyncio.open_connection(target.address, target.port, ssl=context, server_hostname=NAME)
    writer.close()


async def _heads(target: Target, context: ssl.SSLContext) -> None:
    """Heads that are refused, each with many fields, one behind the other without waiting."""
    fields = "".join(f"X-Field-{number}: {'x' * 64}\r\n" for number in range(100))
    head = f"GET /elsewhere HTTP/1.1\r\nHost: {target.host}\r\n{fields}\r\n".encode()
    reader, writer = await asyncio.open_connection(target.address, target.port, ssl=context, server_hostname=NAME)
    try:
        while True:
            writer.write(head)
            await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


async def _names(dns: tuple[str, int]) -> None:
    """Queries for names that are not allowed, without waiting for answers."""
    number = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(dns)
        while True:
            for _ in range(16):
                number += 1
                label = b"n%d" % number
                question = bytes([len(label)]) + label + b"\7example\3com\0" + Type.A.to_bytes(2, "big") + b"\0\1"
                try:
                    sock.send((number & 0xFFFF).to_bytes(2, "big") + b"\1\0\0\1\0\0\0\0\0\0" + question)
                except OSError:
                    break
            await asyncio.sleep(0)


# -- both --------------------------------------------------------------------------------------------------------------


def rounds(
    flooding: Target, dns: tuple[str, int], neighbour: Target, cgroup: Tree, upstreams: Sequence[Served]
) -> list[tuple[Noticed, Noticed]]:
    """Quiet, and while the other one floods, round by round. RuntimeError when a request of the neighbour fails."""
    found = []
    for slot, upstream in enumerate(upstreams):
        tree = cgroup.child(f"upstream-{slot}")
        tree.create()
        tree.add(upstream.pid)
    syscalls.set_slice(_SLICE, upstreams[1].pid)
    with _as_guest(_neighbour, neighbour, dns, cgroup.child("guest-1")) as pipe:
        time.sleep(2 * _WARM)
        for _ in range(ROUNDS):
            quiet = _noticed(*_taken(pipe, _SECONDS))
            with _as_guest(_flood, flooding, dns, cgroup.child("guest-0")):
                time.sleep(2 * _WARM)
                loud = _noticed(*_taken(pipe, _SECONDS))
            found.append((quiet, loud))
            time.sleep(_WARM)
    return found


def _noticed(seconds: list[float], failures: int) -> Noticed:
    if failures or len(seconds) < 20:
        raise RuntimeError(f"{failures} requests of the neighbour failed, {len(seconds)} were answered")
    cuts = statistics.quantiles(seconds, n=100)
    return Noticed(cuts[49], cuts[98])
