"""The VMM seam: what the node's lifecycle needs of any VMM. Drivers: qemu.py, fake.py (and Firecracker later).

One contract suite (tests/contract/test_vmm.py) runs over every driver.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """What to boot. The sandbox's files and slot exist already."""

    sandbox: str
    generation: int
    cpus: int
    memory_mib: int
    accelerator: str


# One byte pipe to the guest: a connected stream socket, non-blocking. Whoever gets it owns it; rpc.Session.open_guest takes it over.
# (A socket and not a reader with a writer: measured in one process, asyncio's streams move 0.3 GB/s, a Protocol on the socket 1.7 GB/s.)
Pipe = socket.socket


class Machine(Protocol):
    """One VMM process."""

    async def connect(self) -> tuple[Pipe, Pipe]:
        """Fresh (control, bulk) pipes; the guest's daemon may not be there yet. Earlier pipes are dead after it."""

    async def pause(self) -> None:
        """Stop the vCPUs; idempotent."""

    async def resume(self) -> None:
        """Let the vCPUs run; idempotent."""

    async def wait(self) -> str:
        """Until the VMM is gone; why, as far as known (one sentence). Any number of callers."""

    async def kill(self) -> None:
        """End it, and return when it is confirmed dead; idempotent."""

    def serial(self) -> bytes:
        """The last of what the guest wrote on its console (bounded)."""

    async def aclose(self) -> None:
        """Let go of the machine without ending it."""


class Vmm(Protocol):
    """A driver."""

    async def boot(self, plan: MachinePlan) -> Machine:
        """Start a VMM. After an exception or a cancellation nothing of it is left."""

    async def adopt(self, sandbox: str, generation: int) -> Machine | None:
        """The machine that an earlier node started, if it lives."""
