"""cgroups of the gateway's workers: one a slot, made when its entrances are asked for, and gone with the slot.

A worker puts itself in, by descriptors that were opened here: the kernel goes by who opened them, and nobody passes on what they lead to.
"""

from __future__ import annotations

import os

from space.host import cgroups
from space.model.errors import Conflict
from space.rootd.sandboxes import Place

MEMORY_BYTES = 256 << 20  # a worker has some MiB; a flood that is buffered within its limits has tens
PIDS = 4
CPU_PERIOD_USEC = 100_000


def entrances(instance: cgroups.Tree, slot: int) -> tuple[int, ...]:
    """Files: who writes 0 there is in the slot's cgroup. One for each controller that limits it, and one by which it is killed."""
    tree = _tree(instance, slot)
    tree.create()
    tree.limit(memory_bytes=MEMORY_BYTES, pids=PIDS, cpu_quota_usec=CPU_PERIOD_USEC, cpu_period_usec=CPU_PERIOD_USEC)
    ends = tree.hierarchies.unified / tree.name if tree.hierarchies.unified is not None else tree.directory("freezer")
    opened: list[int] = []
    try:
        for path in dict.fromkeys((tree.directory("memory"), tree.directory("pids"), tree.directory("cpu"), ends)):
            opened.append(os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))  # noqa: PERF401 (closed when one fails)
    except BaseException:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return tuple(opened)


def end(place: Place, slot: int) -> None:
    """Nothing is in it, and it is gone; nothing there is fine. A worker has been ended by its zygote long before."""
    tree = _tree(place.cgroup, slot)
    if tree.exists():
        if left := tree.kill_and_wait():
            raise Conflict(f"the worker of slot {slot} outlives SIGKILL: {sorted(left)}")
        tree.remove()


def _tree(instance: cgroups.Tree, slot: int) -> cgroups.Tree:
    return instance.child(f"worker-{slot}")
