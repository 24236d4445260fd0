"""Places at which a test stops the real node, or kills the real rootd: stages of a life (`node.stages`), steps of rootd's (`rootd.steps`).

with bare_instance(*BESIDE) as bare:           # without rootd and node
    stops = Stops(bare)
    stops.start("rootd"); stops.start("node")
    stops.arm("imprint", "after")              # the next sandbox that gets there waits
    ...; stops.wait(); bare.kill("node"); stops.go()
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from space.testing.bareinstance import BareInstance

_WITHIN = 60.0
_NODE = """
import asyncio, os, sys
from pathlib import Path
from space.node import server
armed, reached, go = (Path({place!r}) / name for name in ("armed", "reached", "go"))
async def trace(sandbox, stage, when):
    try:
        if armed.read_text() != f"{{stage.value}} {{when}}":
            return
        armed.rename(reached)
    except FileNotFoundError:
        return
    while not go.exists():
        await asyncio.sleep(0.005)
sys.exit(server.main(trace))
"""
_ROOTD = """
import os, sys
from pathlib import Path
from space.rootd import arrivals, memory, sandboxes, server, taking, templates
armed, reached = (Path({place!r}) / name for name in ("armed", "reached"))
def stop(step):
    try:
        if armed.read_text() != step:
            return
        armed.rename(reached)
    except FileNotFoundError:
        return
    os.kill(os.getpid(), 9)
for module in (arrivals, memory, sandboxes, taking, templates):
    module.reached = stop
sys.exit(server.main())
"""


class Stops:
    """One an instance. Its services begin with a program of its own."""

    def __init__(self, bare: BareInstance) -> None:
        self._bare = bare
        self._place = bare.instance.data / "stops"
        self._place.mkdir()
        os.chown(self._place, bare.instance.node_uid, bare.instance.node_uid)

    def start(self, name: str) -> None:
        """The node or rootd."""
        program = {"node": _NODE, "rootd": _ROOTD}[name]
        self._bare.start(name, "-c", program.format(place=str(self._place)))

    def restart(self, name: str) -> None:
        """SIGKILL, and the next one."""
        self._bare.kill(name)
        self.start(name)

    def arm(self, stage: str, when: str = "") -> None:
        """The next that comes there: a stage, before or after it, stops the node's work on that sandbox; a step kills who takes it."""
        for name in ("go", "reached"):
            with suppress(FileNotFoundError):
                (self._place / name).unlink()
        (self._place / "armed").write_text(f"{stage} {when}".strip())

    @property
    def reached(self) -> bool:
        """Whether somebody came there."""
        return (self._place / "reached").exists()

    def wait(self) -> None:
        """Until somebody came there."""
        deadline = time.monotonic() + _WITHIN
        while not self.reached:
            assert time.monotonic() < deadline, f"nobody came to {(self._place / 'armed').read_text()}"
            time.sleep(0.005)

    def go(self) -> None:
        """Whoever waits goes on, and nobody else is stopped."""
        with suppress(FileNotFoundError):
            (self._place / "armed").unlink()
        Path(self._place / "go").touch()
