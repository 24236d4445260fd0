"""control as a real process over a world's store and node: started, killed, started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator

from space.config.settings import save_effective
from space.testing.simcontrol import World


class Control:
    """The process. Its listener stays open here, as serve keeps it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        world.port = self._listener.getsockname()[1]
        self.process: asyncio.subprocess.Process | None = None
        instance = world.instance
        instance.data.mkdir(parents=True, exist_ok=True)
        (instance.data / "instance.json").write_text(json.dumps({"name": instance.name, "index": instance.index}))
        save_effective(instance, world.settings)

    async def start(self) -> None:
        """Start it, also again; it is ready when this returns."""
        ready, ready_write = os.pipe()
        instance = self._world.instance
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "space.control.server", "--instance", instance.name,
            "--listen-fd", str(self._listener.fileno()), "--ready-fd", str(ready_write),
            "--data-root", str(instance.data_root), "--run-root", str(instance.run_root),
            pass_fds=[self._listener.fileno(), ready_write],
            stderr=(instance.data / "control.log").open("ab"),
        )  # fmt: skip
        os.close(ready_write)
        loop = asyncio.get_running_loop()
        said = await asyncio.wait_for(loop.run_in_executor(None, os.read, ready, 16), 60)
        os.close(ready)
        assert said == b"ready\n", self.log()

    def log(self) -> str:
        """What it has logged so far."""
        return (self._world.instance.data / "control.log").read_text()

    async def kill(self) -> None:
        """SIGKILL, now."""
        assert self.process is not None
        self.process.kill()
        assert await self.process.wait() == -signal.SIGKILL

    async def end(self) -> int:
        """SIGTERM; its exit status."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), 20)

    def close(self) -> None:
        """Close the listener."""
        self._listener.close()


@contextlib.asynccontextmanager
async def a_process(world: World) -> AsyncIterator[Control]:
    """A control that runs while the block does, and a client for it."""
    control = Control(world)
    try:
        await control.start()
        world.client = world.as_key(world.key)
        yield control
    finally:
        await world.client.aclose()
        if control.process is not None and control.process.returncode is None:
            control.process.kill()
            await control.process.wait()
        control.close()
