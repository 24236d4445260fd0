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
from space.rpc.node_api import Empty, NodeInfo, SandboxList
from space.rpc.session import Session
from space.serve.private import Served, private_instance


@dataclass(frozen=True, slots=True)
class Stack:
    """A server of the bench's own and a client of it."""

    served: Served
    client: space.Client

    @property
    def instance(self) -> Instance:
        return self.served.instance

    def node(self) -> NodeInfo:
        """What the node says of itself."""
        return msgspec.msgpack.decode(asyncio.run(_ask(self.instance, "info")), type=NodeInfo)

    def stages_ms(self, sandbox_id: str) -> dict[str, float]:
        """How long each stage of the sandbox's create took in the node."""
        found = msgspec.msgpack.decode(asyncio.run(_ask(self.instance, "list")), type=SandboxList)
        return next(state.stages_ms for state in found.sandboxes if state.sandbox == sandbox_id)


@contextmanager
def stack() -> Iterator[Stack]:
    """A private server for as long as the block runs."""
    with private_instance() as served, space.Client(api_url=served.url, api_key=served.api_key) as client:
        yield Stack(served, client)


async def _ask(instance: Instance, verb: str) -> bytes:
    session = await Session.connect(instance.node_socket)
    try:
        return await session.call(verb, Empty())
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
