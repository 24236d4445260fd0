"""Create and delete again and again: descriptors, memory and everything on the host are back where they began."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import space
from space.testing import leaks
from space.testing.machine import Server

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


def test_five_cycles_leave_nothing(server: Callable[[], Server]) -> None:
    check(server(), 1, 5)


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_fifty_cycles_leave_nothing(server: Callable[[], Server]) -> None:
    check(server(), 2, 50)
