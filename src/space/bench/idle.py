"""`idle`: what 20 sandboxes that do nothing cost outside of their VMMs: serve, rootd, node and control together."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import space
from space.bench import cost, figures
from space.bench.figures import Figure, Section
from space.bench.stack import Stack

SANDBOXES = 20
_SETTLE = 10.0
_WINDOW = 10.0
_WINDOWS = 6


def measure(stack: Stack) -> Section:
    """Six windows of ten seconds, after ten for the guests to come to rest; percent of one processor."""
    with ExitStack() as undo, ThreadPoolExecutor(2) as pool:
        made = [pool.submit(space.Sandbox.create, memory_mib=256, client=stack.client) for _ in range(SANDBOXES)]
        for future in made:
            undo.enter_context(future.result())
        services = cost.services(stack.served)
        vmms = cost.vmms(stack.instance)
        time.sleep(_SETTLE)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(_WINDOWS):
            before, before_vmms, begun = _cpu(services), _cpu(vmms), time.monotonic()
            time.sleep(_WINDOW)
            elapsed = time.monotonic() - begun
            ours.append((_cpu(services) - before) / elapsed * 100)
            theirs.append((_cpu(vmms) - before_vmms) / elapsed * 100)
    alive = len(vmms)
    return Section(
        {
            "services_percent": figures.of(ours, "% of a processor", sandboxes=SANDBOXES, vmms_percent=figures.median(theirs)),
            "vmm_percent": Figure(figures.median(theirs) / max(alive, 1), "% of a processor each", {"vmms": alive}),
        },
        {"services_percent": ours, "vmms_percent": theirs},
    )


def _cpu(pids: list[int]) -> float:
    """CPU seconds of the processes so far, children that they have waited for included."""
    total = 0
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat").read_text()
        total += sum(int(field) for field in stat[stat.rindex(")") + 2 :].split()[11:15])
    return total / os.sysconf("SC_CLK_TCK")
