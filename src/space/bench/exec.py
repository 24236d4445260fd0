"""`exec`: a noop through SDK, HTTP, control, node and channel, less a raw echo over the channel.

One channel takes one opener, so the raw echo goes to a second guest: same files, same devices, same memory, booted by `bare`, its
two sockets in our hands. Both guests idle while the other is asked, and the two are asked in turn. What the difference holds is
all of ours: four processes, three sockets and the daemon's dispatch of a stream instead of a frame on an open one.
"""

from __future__ import annotations

import space
from space.bench import bare, figures
from space.bench.figures import Section
from space.bench.stack import Stack, timed

ROUNDS = 500
_WARM = 50
_PAYLOAD = b"12345678"


def measure(stack: Stack) -> Section:
    """500 of each in turn, after 50 that are not counted; and the daemon's own noop on the raw channel, to split the difference."""
    whole: list[float] = []
    raw: list[float] = []
    daemon: list[float] = []
    with space.Sandbox.create(client=stack.client) as sandbox, bare.booted(stack.node().accelerator) as wire:
        echo = wire.echo()
        for _ in range(_WARM + ROUNDS):
            whole.append(timed(sandbox.noop) * 1000)
            raw.append(timed(lambda: echo.there_and_back(_PAYLOAD)) * 1000)
            daemon.append(timed(wire.noop) * 1000)
        del whole[:_WARM], raw[:_WARM], daemon[:_WARM]
        command = [timed(lambda: sandbox.run(["true"])) * 1000 for _ in range(20)]
        bare_command = [timed(lambda: wire.run(["true"])) * 1000 for _ in range(20)]
    return Section(
        {
            "noop_over_raw_ms": figures.difference(whole, raw, "ms"),
            "noop_over_raw_noop_ms": figures.difference(whole, daemon, "ms"),
            "true_over_raw_ms": figures.difference(command, bare_command, "ms"),
        },
        {"noop_ms": whole, "raw_echo_ms": raw, "raw_noop_ms": daemon, "true_ms": command, "raw_true_ms": bare_command},
    )
