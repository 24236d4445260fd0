"""`start`: a cold create to the end of a first command, beside the same boot by a plain script; and what of it is our own work."""

from __future__ import annotations

import time

import space
from space.bench import bare, figures
from space.bench.figures import Figure, Section
from space.bench.stack import Stack

ROUNDS = 5
# The guest's own time: from the spawned VMM to its daemon's hello. All the rest is ours.
_GUESTS = ("boot",)


def measure(stack: Stack) -> Section:
    """Five of each, one after the other in turn, so that both meet the same machine."""
    accelerator = stack.node().accelerator
    samples: dict[str, list[float]] = {
        name: [] for name in ("cold_ms", "create_ms", "bare_ms", "bare_boot_ms", "own_ms", "outside_node_ms")
    }
    stages: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        configured, done = bare.boot_to_first_exec(accelerator)
        samples["bare_boot_ms"].append(configured * 1000)
        samples["bare_ms"].append(done * 1000)
        begun = time.perf_counter()
        with space.Sandbox.create(client=stack.client) as sandbox:
            created = (time.perf_counter() - begun) * 1000
            sandbox.run(["true"], check=True)
            samples["cold_ms"].append((time.perf_counter() - begun) * 1000)
            samples["create_ms"].append(created)
            taken = stack.stages_ms(sandbox.id)
        for name, value in taken.items():
            stages.setdefault(name, []).append(value)
        samples["own_ms"].append(created - sum(taken.get(name, 0.0) for name in _GUESTS))
        samples["outside_node_ms"].append(created - sum(taken.values()))
    bare_ms = figures.median(samples["bare_ms"])
    found: dict[str, Figure] = {
        "cold_ms": figures.of(samples["cold_ms"], "ms", bare_script=bare_ms),
        "cold_over_bare": figures.ratio(samples["cold_ms"], samples["bare_ms"], bare_script_ms=bare_ms),
        "own_stages_ms": figures.of(samples["own_ms"], "ms", create=figures.median(samples["create_ms"])),
        "outside_node_ms": figures.of(samples["outside_node_ms"], "ms", create=figures.median(samples["create_ms"])),
    }
    for name, values in stages.items():
        found[f"stage_{name}_ms"] = figures.of(values, "ms")
    return Section(found, samples | {f"stage_{name}_ms": values for name, values in stages.items()})
