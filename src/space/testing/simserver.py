"""A control with a SimNode as a process: for tools that ask over HTTP and have no event loop of ours.

python -m space.testing.simserver       # prints {"url": ..., "key": ...}, serves until its stdin ends
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import uvloop

from space.testing.simcontrol import a_world, controlled


async def serve() -> None:
    """Until stdin ends."""
    ended = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="simserver-") as root:
        async with a_world(Path(root)) as world, controlled(world):
            assert world.services is not None
            await world.services.link.wait_up()
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
            sys.stdout.write(json.dumps({"url": world.url, "key": world.key}) + "\n")
            sys.stdout.flush()
            await ended.wait()


if __name__ == "__main__":
    uvloop.run(serve())
