"""What the sections share: a private server, its accelerator, and the node's own account of a create."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

import space
from space.config.instance import Instance
from space.model.errors import DeadlineExceeded
from space.model.sandbox import DEFAULT_CPUS, DEFAULT_MEMORY_MIB, DEFAULT_TEMPLATE
from space.rpc.life_api import Bake
from space.rpc.node_api import Empty, NodeInfo, SandboxList, SandboxState
from space.rpc.session import Message, Session
from space.serve.private import Served, private_instance


@dataclass(frozen=True, slots=True)
class Stack:
    """A server of the bench's own and a client of it."""

    served: Served
    client: space.Client
    quick: bool = False

    def rounds(self, whole: int) -> int:
        """How many samples to take: a tenth of a whole run's, five at least, where the run is a quick one."""
        return max(5, whole // 10) if self.quick else whole

    @property
    def instance(self) -> Instance:
        return self.served.instance

    def node(self) -> NodeInfo:
        """What the node says of itself."""
        return msgspec.msgpack.decode(asyncio.run(_ask(self.instance, "info"))[0], type=NodeInfo)

    def state(self, sandbox_id: str) -> SandboxState:
        """A sandbox as the node tells of it: how it began, and how long each stage of that took."""
        answers = asyncio.run(_ask(self.instance, "list"))
        found = [state for answer in answers for state in msgspec.msgpack.decode(answer, type=SandboxList).sandboxes]
        return next(state for state in found if state.sandbox == sandbox_id)

    def bake(self, memory_mib: int = DEFAULT_MEMORY_MIB) -> None:
        """There is a warm guest of the default template in that size, of which creates are clones."""
        asyncio.run(_ask(self.instance, "bake", Bake("bench", DEFAULT_TEMPLATE, DEFAULT_CPUS, memory_mib)))

    def until_ahead(self, count: int, seconds: float = 60.0) -> None:
        """Until so many clones were made ahead; DeadlineExceeded."""
        end = time.monotonic() + seconds
        while self.node().ahead < count:
            if time.monotonic() > end:
                raise DeadlineExceeded(f"{count} clones are not made ahead after {seconds:.0f} s")
            time.sleep(0.1)


@contextmanager
def stack(*, quick: bool = False, **settings: str) -> Iterator[Stack]:
    """A private server for as long as the block runs. It keeps nothing warm unless the settings say so."""
    with private_instance(settings) as served, space.Client(api_url=served.url, api_key=served.api_key) as client:
        yield Stack(served, client, quick)


async def _ask(instance: Instance, verb: str, asked: msgspec.Struct | None = None) -> list[bytes]:
    """Every message of the answer."""
    session = await Session.connect(instance.node_socket)
    try:
        async with await session.open(verb, Empty() if asked is None else asked, finish=True) as stream:
            return [event.payload async for event in stream if isinstance(event, Message)]
    finally:
        await session.aclose()


def timed(action: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def environment(isolation: str) -> dict[str, object]:
    """Where figures were taken: they mean nothing without it."""
    models = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processors": os.cpu_count(),
        "processor": next(iter(models), "unknown"),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "space": space.__version__,
        "isolation": isolation,
        "load": os.getloadavg()[0],
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
