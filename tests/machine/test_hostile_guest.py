"""root in a guest takes the daemon's ports and writes what it likes to the host: its own sandbox ends, its neighbour notices nothing.

The attacker duplicates the descriptors of PID 1 (pidfd_getfd), so that its bytes travel the very virtio ports that the node reads.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from space.model.errors import ProtocolError, SandboxDied, SpaceError
from space.model.ids import new_sandbox_id
from space.rpc import node_api as api
from space.rpc.session import Session
from space.testing import leaks
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance

# argv[1]: what is written, in Python. P: the duplicated ports' descriptors. Kept short: it travels as an argument.
_ATTACK = """
import ctypes, os, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
one = os.pidfd_open(1)
P = []
for name in os.listdir('/proc/1/fd'):
    try:
        if 'vport' in os.readlink('/proc/1/fd/' + name):
            fd = libc.syscall(438, one, int(name), 0)
            if fd >= 0: os.set_blocking(fd, True); P.append(fd)
    except OSError: pass
assert P, 'no port could be taken'
def frame(kind, stream, seq, payload=b''):
    return struct.pack('<IBBHII', len(payload), kind, 0, 0, stream, seq) + payload + struct.pack('<I', seq)
def everywhere(data, times=1):
    def go(fd):
        for _ in range(times):
            left = memoryview(data)
            while left: left = left[os.write(fd, left):]
    threads = [threading.Thread(target=go, args=(fd,)) for fd in P]
    [t.start() for t in threads]; [t.join() for t in threads]
"""
ATTACKS = {
    "garbage": "everywhere(os.urandom(1 << 20))",
    "oversized": "everywhere(struct.pack('<IBBHII', 0xffffffff, 4, 0, 0, 1, 5))",
    "truncated and interleaved": "everywhere(frame(4, 1, 5, bytes(3000))[:1500] + frame(8, 0, 6, bytes(8)) * 50)",
    "forged hello": "everywhere(frame(2, 0, 1, b'\\0SPACE-READY\\1\\r\\n\\0' + bytes(32)) + frame(4, 9999, 2, b'x'))",
    "flood": "everywhere(bytes(1 << 20), 200)",
}


@pytest.fixture
def bare() -> Iterator[BareInstance]:
    with bare_instance(*BESIDE_NODE, "node") as one:
        yield one


async def create(session: Session) -> str:
    name = new_sandbox_id()
    async with await session.open("create", api.Create(name, "acme", 1, "base", 1, 256, 2048, {}), finish=True) as stream:
        last = [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream][-1]
    assert last.phase == "running", last.reason
    return name


async def strike(session: Session, sandbox: str, attack: str) -> SpaceError | str:
    """Run it as root; what the caller was told."""
    request = api.Exec(sandbox, ["python3", "-c", _ATTACK + ATTACKS[attack]], user="root")
    heard = b""
    try:
        async with asyncio.timeout(60), await session.open("exec", request, finish=True) as stream:
            async for event in stream:
                heard += event.payload
    except SpaceError as error:
        return error
    return heard.decode(errors="replace")


async def failed(session: Session, sandbox: str) -> str:
    """Until it has failed: the reason."""
    async with asyncio.timeout(30), await session.open("watch", api.Empty(), finish=True) as watch:
        async for event in watch:
            state = msgspec.msgpack.decode(event.payload, type=api.SandboxState)
            if (state.sandbox, state.phase) == (sandbox, "failed"):
                return state.reason or ""
    raise AssertionError("the watch ended")


async def latencies(session: Session, sandbox: str, until: asyncio.Event) -> list[float]:
    """Milliseconds of round trips to a neighbour, one after the other."""
    found: list[float] = []
    while not until.is_set() or len(found) < 50:
        began = time.monotonic()
        await session.call("noop", api.Target(sandbox))
        found.append((time.monotonic() - began) * 1000)
        await asyncio.sleep(0.01)
    return found


def peak(bare: BareInstance) -> int:
    """The most memory that was resident in the node since `forget_peak`, in bytes."""
    lines = Path(f"/proc/{bare.pid('node')}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def forget_peak(bare: BareInstance) -> None:
    Path(f"/proc/{bare.pid('node')}/clear_refs").write_text("5")


def test_a_guest_that_attacks_its_channel_loses_its_sandbox_and_nobody_notices(bare: BareInstance) -> None:
    async def work() -> None:
        session, beside = await Session.connect(bare.instance.node_socket), await Session.connect(bare.instance.node_socket)
        neighbour = await create(beside)
        quiet_over = asyncio.Event()
        quiet_over.set()
        quiet = await latencies(beside, neighbour, quiet_over)
        for attack in ATTACKS:
            attacker = await create(session)
            forget_peak(bare)
            before, over = peak(bare), asyncio.Event()
            measuring = asyncio.create_task(latencies(beside, neighbour, over))
            began = time.monotonic()
            told = await strike(session, attacker, attack)
            took = time.monotonic() - began
            assert isinstance(told, SandboxDied | ProtocolError), f"{attack}: {told}"
            reason = await failed(session, attacker)
            over.set()
            during = await measuring
            grown = peak(bare) - before
            print(
                f"{attack}: told after {took:.1f} s; reason: {reason!r}; peak of RSS {grown / 1024:+.0f} KiB;"
                f" neighbour's noop, median (worst) ms: quiet {statistics.median(quiet):.1f} ({max(quiet):.0f}),"
                f" attacked {statistics.median(during):.1f} ({max(during):.0f})"
            )
            assert reason.isprintable()
            assert grown < 16 << 20
            # two emulated guests share the processors: what is asserted is that nothing stalls behind the attacker
            assert statistics.median(during) < 20 * statistics.median(quiet) + 100
            assert max(during) < 5_000
            await session.call("delete", api.Target(attacker))
        await beside.call("delete", api.Target(neighbour))
        await session.aclose()
        await beside.aclose()

    uvloop.run(work())
    leaks.settle(lambda: leaks.of_sandboxes(bare.instance))
