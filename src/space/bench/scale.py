"""`scale`: the hundredth sandbox beside the first, the others paused; and sixteen creates at once beside what one costs.

All are clones of one warm guest of 256 MiB, made when they are asked for. Sixteen times the CPU seconds of one over all processors is
what sixteen take at least: what the clock is above that is waiting.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack

import space
from space.bench import cost, figures
from space.bench.figures import Figure, Section
from space.bench.stack import Stack, stack

SANDBOXES = 100
AT_ONCE = 16
ENDS = 5  # so many first and last ones are compared by their medians
MEMORY_MIB = 256
_APART = 0.005


def measure(ours: Stack) -> Section:
    """First those one after the other, then, with all of them gone, those at once."""
    # What is counted is what guests may take; clones take a fifth of it.
    with stack(warm_templates="1", clones_ahead="0", memory_mib=str(1 << 17), concurrent_boots="0") as warm:
        warm.bake(MEMORY_MIB)
        _one(warm).delete()  # fills caches
        took = _one_after_the_other(warm, max(2 * ENDS, ours.rounds(SANDBOXES)))
        alone: list[float] = []
        walls: list[float] = []
        displaced: list[float] = []
        for _ in range(max(3, ours.rounds(10) // 2)):
            with cost.spent(warm.served) as one:
                sandbox = _one(warm)
            sandbox.delete()
            alone.append(one.cpu)
            wall, order = _at_once(warm)
            walls.append(wall)
            displaced.append(float(max(abs(place - number) for place, number in enumerate(order))))
    first, last = took[:ENDS], took[-ENDS:]
    share = [AT_ONCE * cpu / (os.cpu_count() or 1) for cpu in alone]
    return Section(
        {
            "last_over_first": figures.ratio(
                last, first, sandboxes=len(took), first_ms=figures.median(first) * 1000, last_ms=figures.median(last) * 1000
            ),
            "burst_over_share": figures.ratio(
                walls, share, burst_s=figures.median(walls), share_s=figures.median(share), one_cpu_s=figures.median(alone)
            ),
            "burst_displaced": Figure(max(displaced), "places at most from the order of asking", {"at_once": AT_ONCE}),
        },
        {"create_to_exec_s": took, "burst_s": walls, "one_cpu_s": alone, "displaced": displaced},
    )


def _one(warm: Stack) -> space.Sandbox:
    """A sandbox that has run a command."""
    sandbox = space.Sandbox.create(client=warm.client, memory_mib=MEMORY_MIB)
    sandbox.run(["true"], check=True)
    return sandbox


def _one_after_the_other(warm: Stack, count: int) -> list[float]:
    """Seconds of each, all before it paused."""
    took: list[float] = []
    with ExitStack() as undo:
        for _ in range(count):
            began = time.perf_counter()
            sandbox = undo.enter_context(_one(warm))
            took.append(time.perf_counter() - began)
            sandbox.pause()
    return took


def _at_once(warm: Stack) -> tuple[float, list[int]]:
    """Seconds until all have run a command; and in which order they had been asked for, by when each was there."""
    made: list[tuple[int, space.Sandbox]] = []
    lock = threading.Lock()

    def one(number: int) -> None:
        sandbox = space.Sandbox.create(client=warm.client, memory_mib=MEMORY_MIB)
        with lock:
            made.append((number, sandbox))
        sandbox.run(["true"], check=True)

    began = time.perf_counter()
    threads = [threading.Thread(target=one, args=(number,)) for number in range(AT_ONCE)]
    for thread in threads:
        thread.start()
        time.sleep(_APART)  # so that there is an order
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - began
    for _, sandbox in made:
        sandbox.delete()
    return wall, [number for number, _ in made]
