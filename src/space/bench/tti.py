"""`tti`: time to interactive as public comparisons of sandboxes take it: from the call that creates one to the end of its first command.

Three ways to ask: one after the other, one every 200 ms, and so many at once. Of each: median, p95 and p99 of what is left when the best
and the worst twentieth are dropped, and how many of all succeeded. The server has its defaults and one warm template. Beside them stand
two programs that start no virtual machine, of Debian's packages: bubblewrap, and runsc.
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import space
from space.bench import figures, rivals
from space.bench.figures import Figure, Section
from space.bench.stack import Stack, stack
from space.model.errors import SpaceError

SEQUENTIAL = 50
STAGGERED = 50
APART = 0.2
BURST = 16
_FLOORS = {
    "bubblewrap": ("usr/bin/bwrap", "--ro-bind", "/", "/", "--unshare-all", "true"),
    "runsc": ("usr/bin/runsc", "--network=none", "--ignore-cgroups", "do", "true"),
}


def measure(ours: Stack) -> Section:
    """The three, each on a server at rest."""
    samples: dict[str, list[float]] = {}
    found: dict[str, Figure] = {}
    floors = {f"{name}_ms": floor for name in _FLOORS if (floor := _floor(name, ours.rounds(20))) is not None}
    with stack(warm_templates="1") as warm:
        warm.bake()
        _interactive(warm)
        ways: dict[str, Callable[[], list[float | None]]] = {
            "sequential": lambda: [_interactive(warm) for _ in range(ours.rounds(SEQUENTIAL))],
            "staggered": lambda: _together(warm, ours.rounds(STAGGERED), APART),
            "burst": lambda: _together(warm, max(4, ours.rounds(BURST)), 0.0),
        }
        for name, attempts in ways.items():
            warm.until_ahead(1)
            took = attempts()
            good = [seconds * 1000 for seconds in took if seconds is not None]
            samples[f"{name}_ms"] = good
            if kept := trimmed(good):
                found[f"{name}_ms"] = figures.of(kept, "ms", p95=percentile(kept, 95), p99=percentile(kept, 99), **floors)
            found[f"{name}_success"] = Figure(len(good) / len(took), "of all", {"attempts": float(len(took))})
    return Section(found, samples)


def trimmed(samples: Sequence[float]) -> list[float]:
    """Without the best and the worst twentieth, in order."""
    ordered = sorted(samples)
    drop = len(ordered) // 20
    return ordered[drop : len(ordered) - drop]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank of samples in order."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _interactive(warm: Stack) -> float | None:
    """Seconds to the end of the first command; None when there was no sandbox, or no right answer of it."""
    began = time.perf_counter()
    try:
        with space.Sandbox.create(client=warm.client) as sandbox:
            right = sandbox.run(["echo", "ready"]).stdout == b"ready\n"
            took = time.perf_counter() - began
    except SpaceError:
        return None
    return took if right else None


def _together(warm: Stack, count: int, apart: float) -> list[float | None]:
    took: list[float | None] = []

    def one() -> None:
        took.append(_interactive(warm))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
        if apart:
            time.sleep(apart)
    for thread in threads:
        thread.join()
    return took


def _floor(name: str, count: int) -> float | None:
    """Median milliseconds of that program around `true`; None where it cannot be had or does not run here, which is said."""
    program, *words = _FLOORS[name]
    took: list[float] = []
    try:
        argv = [str(rivals.debian(name, (name,)) / program), *words]
        for _ in range(count):
            began = time.perf_counter()
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60)
            took.append((time.perf_counter() - began) * 1000)
    except (rivals.NotHad, OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        print(f" ({name} is left out: {error} {said[-200:]})", end="", file=sys.stderr, flush=True)
        return None
    return figures.median(took)
