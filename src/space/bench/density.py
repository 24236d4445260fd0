"""`density`: memory that a clone has for itself, VMM included, before its first command and after it; beside a guest that was booted."""

from __future__ import annotations

from contextlib import ExitStack

import space
from space.bench import cost, figures
from space.bench.figures import Section
from space.bench.stack import Stack, stack

ROUNDS = 20
MEMORY_MIB = 256


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
    return Section(
        {
            "clone_unique_mib": figures.of(samples["clone"], "MiB", booted=booted),
            "clone_guest_mib": figures.of(samples["clone_guest"], "MiB", guest=MEMORY_MIB),
            "clone_after_command_mib": figures.of(samples["clone_used"], "MiB", guest_part=figures.median(samples["clone_used_guest"])),
        },
        samples,
    )


def _note(samples: dict[str, list[float]], name: str, pid: int) -> None:
    whole, guests = cost.unique_mib(pid, MEMORY_MIB)
    samples[name].append(whole)
    samples[f"{name}_guest"].append(guests)
