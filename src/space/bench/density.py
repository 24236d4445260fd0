"""`density`: memory that a clone has for itself, VMM included, before its first command and after it, beside a guest that was booted; and
two hundred clones at once, forty of which run while the others are paused: what the last of them took, and what those that idle cost.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import space
from space.bench import cost, figures
from space.bench.figures import Figure, Section
from space.bench.stack import Stack, stack

ROUNDS = 20
MEMORY_MIB = 256
CLONES, RUNNING = 200, 40
ENDS = 5  # so many first and last ones are compared by their medians
_SETTLE, _WINDOW = 10.0, 20.0


def measure(ours: Stack) -> Section:
    """Clones beside one that is there already: what all of them have in common, the VMM's files too, is nobody's own."""
    samples: dict[str, list[float]] = {name: [] for name in ("clone", "clone_guest", "clone_used", "clone_used_guest", "booted")}
    with stack(warm_templates="1", clones_ahead="0") as warm, ExitStack() as undo:
        warm.bake(MEMORY_MIB)
        undo.enter_context(space.Sandbox.create(client=warm.client, memory_mib=MEMORY_MIB))
        others = set(cost.vmms(warm.instance))
        for _ in range(ours.rounds(ROUNDS)):
            with space.Sandbox.create(client=warm.client, memory_mib=MEMORY_MIB) as sandbox:
                pid = next(iter(set(cost.vmms(warm.instance)) - others))
                _note(samples, "clone", pid)
                sandbox.run(["true"], check=True)
                _note(samples, "clone_used", pid)
        for _ in range(2):
            undo.enter_context(space.Sandbox.create(client=ours.client, memory_mib=MEMORY_MIB))
        samples["booted"] += [cost.unique_mib(pid, MEMORY_MIB)[0] for pid in cost.vmms(ours.instance)]
    booted = figures.median(samples["booted"])
    many = _many(ours.rounds(CLONES), samples)
    return Section(
        {
            **many,
            "clone_unique_mib": figures.of(samples["clone"], "MiB", booted=booted),
            "clone_guest_mib": figures.of(samples["clone_guest"], "MiB", guest=MEMORY_MIB),
            "clone_after_command_mib": figures.of(samples["clone_used"], "MiB", guest_part=figures.median(samples["clone_used_guest"])),
        },
        samples,
    )


def _many(count: int, samples: dict[str, list[float]]) -> dict[str, Figure]:
    """Clones beside one another until there are so many; each has run a command, and each that runs answers at the end."""
    running = min(RUNNING, count // 2)
    took: list[float] = []
    # What is counted is what guests may take; clones take a part of it.
    with stack(warm_templates="1", clones_ahead="0", memory_mib=str(1 << 17), max_sandboxes=str(count + 50)) as warm, ExitStack() as undo:
        warm.bake(MEMORY_MIB)
        _one(warm).delete()  # fills caches
        undo.callback(_delete_all, made := list[space.Sandbox]())
        before = available_mib()
        for number in range(count):
            began = time.perf_counter()
            made.append(_one(warm))
            took.append(time.perf_counter() - began)
            if number >= running:
                made[-1].pause()
        alive = cost.vmms(warm.instance)
        each = (before - available_mib()) / count
        time.sleep(_SETTLE)
        start, begun = sum(map(cost.cpu, alive)), time.monotonic()
        time.sleep(_WINDOW)
        idle = (sum(map(cost.cpu, alive)) - start) / (time.monotonic() - begun) / running * 100
        for sandbox in made[:running]:
            sandbox.run(["true"], check=True)
        clones = len(alive)
    samples["of_many_s"] = took
    first, last = took[:ENDS], took[-ENDS:]
    return {
        "clones": Figure(clones, "at once", {"running": running, "host_mib_each": each}),
        "last_over_first": figures.ratio(last, first, first_ms=figures.median(first) * 1000, last_ms=figures.median(last) * 1000),
        "idle_percent": Figure(idle, "% of a processor for each that runs", {"running": running}),
    }


def _one(warm: Stack) -> space.Sandbox:
    """A sandbox that has run a command."""
    sandbox = space.Sandbox.create(client=warm.client, memory_mib=MEMORY_MIB)
    sandbox.run(["true"], check=True)
    return sandbox


def _delete_all(made: list[space.Sandbox]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(space.Sandbox.delete, made))


def available_mib() -> float:
    """What the host could give to others: /proc/meminfo's MemAvailable."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 1024


def _note(samples: dict[str, list[float]], name: str, pid: int) -> None:
    whole, guests = cost.unique_mib(pid, MEMORY_MIB)
    samples[name].append(whole)
    samples[f"{name}_guest"].append(guests)
