"""`start`: a create to the end of a first command: booted, cloned of a warm template, and of a clone made ahead; and what is ours of it.

Three servers of the same run, asked in turn: one keeps nothing warm, one clones when it is asked, one has made a clone before. A cold
create is beside the same boot by a plain script. Processor time is that of all the server's processes and of the VMM.
"""

from __future__ import annotations

import space
from space.bench import bare, cost, figures
from space.bench.figures import Figure, Section
from space.bench.stack import Stack, stack
from space.model.errors import Internal

ROUNDS = 50
_BARE = 10
# What is the VMM's and the guest's own time; all the rest of a create is ours.
_GUESTS = {"cold": ("boot",), "warm": ("spawn", "load", "resume", "hello", "imprint", "claim"), "pool": ("resume", "claim")}
# From the files that a machine is made of to its daemon's hello.
_HELLO = {"cold": ("disk", "spawn", "boot"), "warm": ("clone", "spawn", "load", "resume", "hello")}
Samples = dict[str, list[float]]


def measure(ours: Stack) -> Section:
    """One of each in a round, so that all meet the same machine."""
    samples: Samples = {}
    accelerator = ours.node().accelerator
    with (
        stack(warm_templates="1", clones_ahead="0") as warm,
        stack(warm_templates="1", clones_ahead="1") as pool,
    ):
        for one in (warm, pool):
            one.bake()
        _create(samples, warm, "warm")  # fills caches: in no figure
        _create(samples, pool, "warm")  # the first who asks has one made ahead for the next
        samples.clear()
        for number in range(ours.rounds(ROUNDS)):
            if number < ours.rounds(_BARE):
                configured, done = bare.boot_to_first_exec(accelerator)
                _add(samples, bare_boot_ms=configured * 1000, bare_ms=done * 1000)
            _create(samples, ours, "cold")
            _create(samples, warm, "warm")
            pool.until_ahead(1)
            _create(samples, pool, "pool")
            pool.until_ahead(1)  # who makes it does not share the processors with the next round
    return Section(_figures(samples), samples)


def _create(samples: Samples, where: Stack, start: str) -> None:
    """A sandbox that begins like that, to the end of its first command."""
    with cost.in_server(where.served, "POST", "/v1/sandboxes") as in_server, cost.spent(where.served) as whole:
        with cost.spent(where.served) as created:
            sandbox = space.Sandbox.create(client=where.client)
        sandbox.run(["true"], check=True)
    with sandbox:
        state = where.state(sandbox.id)
    if state.start != start:
        raise Internal(f"a sandbox that was to begin {start} began {state.start}: {state.reason}")
    stages = state.stages_ms
    for name, took in stages.items():
        _add(samples, **{f"{start}_stage_{name}_ms": took})
    own = created.wall * 1000 - sum(stages.get(name, 0.0) for name in _GUESTS[start])
    _add(samples, **{
        f"{start}_ms": whole.wall * 1000, f"{start}_cpu_ms": whole.cpu * 1000, f"{start}_own_ms": own,
        f"{start}_create_ms": created.wall * 1000, f"{start}_in_server_ms": in_server[0],
    })  # fmt: skip
    if start in _HELLO:
        _add(samples, **{f"{start}_hello_ms": sum(stages.get(name, 0.0) for name in _HELLO[start])})


def _figures(samples: Samples) -> dict[str, Figure]:
    bare_ms = figures.median(samples["bare_ms"])
    found = {
        "warm_over_cold": _sooner(samples, "warm_ms", "cold_ms"),
        "pooled_over_cold": _sooner(samples, "pool_ms", "cold_ms"),
        "hello_over_cold": _sooner(samples, "warm_hello_ms", "cold_hello_ms"),
        "warm_over_cold_cpu": _sooner(samples, "warm_cpu_ms", "cold_cpu_ms"),
        "pooled_over_cold_cpu": _sooner(samples, "pool_cpu_ms", "cold_cpu_ms"),
        "own_stages_ms": figures.of(samples["warm_own_ms"], "ms", create=figures.median(samples["warm_create_ms"])),
        "pooled_create_ms": figures.of(samples["pool_in_server_ms"], "ms", client=figures.median(samples["pool_create_ms"])),
        "cold_over_bare": Figure(figures.median(samples["cold_ms"]) / bare_ms, "ratio", {"bare_script_ms": bare_ms}),
        "cold_own_stages_ms": figures.of(samples["cold_own_ms"], "ms", create=figures.median(samples["cold_create_ms"])),
    }
    for name in ("cold", "warm", "pool"):
        found[f"{name}_ms"] = figures.of(samples[f"{name}_ms"], "ms", cpu_ms=figures.median(samples[f"{name}_cpu_ms"]))
    return found | {name: figures.of(values, "ms") for name, values in samples.items() if "_stage_" in name}


def _sooner(samples: Samples, one: str, other: str) -> Figure:
    """How many times sooner than the other."""
    return figures.ratio(samples[other], samples[one], **{one: figures.median(samples[one]), other: figures.median(samples[other])})


def _add(samples: Samples, **found: float) -> None:
    for name, value in found.items():
        samples.setdefault(name, []).append(value)
