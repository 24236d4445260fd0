"""`lives`: how long a running sandbox of 256 MiB stands still for a checkpoint and a fork; what pause and resume take in the server."""

from __future__ import annotations

import time

import space
from space.bench import cost, figures
from space.bench.figures import Section
from space.bench.stack import Stack

ROUNDS = 50
MEMORY_MIB = 256
_ROUTE = "/v1/sandboxes/{id}"


def measure(stack: Stack) -> Section:
    """Between two instants the sandbox runs a command, so that there is something new to copy."""
    samples: dict[str, list[float]] = {name: [] for name in ("checkpoint", "fork", "child", "pause", "resume")}
    with space.Sandbox.create(client=stack.client, memory_mib=MEMORY_MIB) as sandbox:
        for _ in range(stack.rounds(ROUNDS)):
            sandbox.run("head -c 4000000 /dev/urandom > /dev/shm/new", check=True)
            kept = sandbox.checkpoint()
            samples["checkpoint"].append(kept.stopped_ms)
            sandbox.drop_checkpoint(kept.id)
            began = time.perf_counter()
            (child,) = sandbox.fork()
            with child:
                child.run(["true"], check=True)
                samples["child"].append((time.perf_counter() - began) * 1000)
            samples["fork"].append(stack.state(sandbox.id).stages_ms["stopped"])
            for name, call in (("pause", sandbox.pause), ("resume", sandbox.resume)):
                with cost.in_server(stack.served, "POST", f"{_ROUTE}/{name}") as took:
                    call()
                samples[name] += took
    return Section(
        {
            "checkpoint_stopped_ms": figures.of(samples["checkpoint"], "ms", memory_mib=MEMORY_MIB),
            "fork_stopped_ms": figures.of(samples["fork"], "ms", fork_to_childs_first_command_ms=figures.median(samples["child"])),
            "pause_ms": figures.of(samples["pause"], "ms"),
            "resume_ms": figures.of(samples["resume"], "ms"),
        },
        {f"{name}_ms": values for name, values in samples.items()},
    )
