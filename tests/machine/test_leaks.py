"""Create and delete again and again: descriptors, memory and everything on the host are back where they began."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import space
from space.model.ids import new_sandbox_id
from space.rpc import node_api as api
from space.rpc.session import Message, Session
from space.testing import leaks
from space.testing.machine import Server
from space.testing.memorynode import MemoryNode

ROLES = ("rootd", "node", "control")
MIB = 1 << 20


def cycles(one: Server, count: int) -> None:
    """That many creates and deletes, two at a time."""
    served = one.served
    assert served is not None
    with space.Client(api_url=served.url, api_key=served.api_key) as client:

        def cycle(number: int) -> None:
            with space.Sandbox.create(client=client) as sandbox:
                assert sandbox.run(["echo", str(number)]).stdout == f"{number}\n".encode()

        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(cycle, range(count)):
                pass


def check(one: Server, warm: int, count: int) -> None:
    cycles(one, warm)  # what is made once: connections, caches, prepared statements
    leaks.settle(lambda: leaks.of_sandboxes(one.instance))
    pids = {role: one.pid(role) for role in ROLES}
    open_before = {role: len(leaks.descriptors(pid)) for role, pid in pids.items()}
    memory_before = {role: leaks.resident_bytes(pid) for role, pid in pids.items()}
    cycles(one, count)
    leaks.settle(lambda: leaks.of_sandboxes(one.instance))
    assert {role: one.pid(role) for role in ROLES} == pids
    for role, pid in pids.items():
        now = leaks.descriptors(pid)
        assert len(now) <= open_before[role] + 2, f"{role} has {len(now)} descriptors, {open_before[role]} before: {now}"
        grown = leaks.resident_bytes(pid) - memory_before[role]
        assert grown < 12 * MIB, f"{role} grew by {grown / MIB:.1f} MiB over {count} cycles"


async def simulated_cycles(node: MemoryNode, count: int) -> None:
    """That many creates and deletes over one session with a node whose guests and host are in memory, ten at a time."""

    async def cycle(session: Session) -> None:
        name = new_sandbox_id()
        made = api.Create(name, "acme", 1, "base", 1, 512, 2048, {})
        async with await session.open("create", made, finish=True) as stream:
            seen = [event.payload async for event in stream if isinstance(event, Message)]
        assert msgspec.msgpack.decode(seen[-1], type=api.SandboxState).phase == "running"
        await session.call("delete", api.Target(name))

    async with node.connected() as session:
        for _ in range(count // 10):
            async with asyncio.TaskGroup() as group:
                for _ in range(10):
                    group.create_task(cycle(session))


def test_a_thousand_simulated_cycles_leave_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with MemoryNode(tmp_path) as node:
            await simulated_cycles(node, 200)
            await asyncio.sleep(0)
            gc.collect()
            tasks, files, memory = len(asyncio.all_tasks()), len(leaks.descriptors(os.getpid())), leaks.resident_bytes(os.getpid())
            await simulated_cycles(node, 1000)
            await asyncio.sleep(0)
            gc.collect()
            assert node.host.leftovers() == []
            assert node.node.around.ledger.holdings() == []
            assert node.node.around.ledger.records() == []
            assert len(asyncio.all_tasks()) <= tasks
            assert len(leaks.descriptors(os.getpid())) <= files
            grown = leaks.resident_bytes(os.getpid()) - memory
            assert grown < 8 * MIB, f"the node grew by {grown / MIB:.1f} MiB over 1,000 cycles"

    asyncio.run(run())


def test_five_cycles_leave_nothing(server: Callable[[], Server]) -> None:
    check(server(), 1, 5)


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_fifty_cycles_leave_nothing(server: Callable[[], Server]) -> None:
    check(server(), 2, 50)
