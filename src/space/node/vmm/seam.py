"""The VMM seam: what the node's lifecycle needs of any VMM. Drivers: qemu.py, firecracker.py, and the fake.

One contract suite (tests/contract/test_vmm.py) runs over every driver.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

# Why a machine ended (`Machine.wait`) whose guest had come to its end in order: its files are on its disk.
SHUT_DOWN = "the guest shut itself down"


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """What to boot. The sandbox's files and slot exist already. disk_mib: of a restore, where the sandbox's disk is larger than its
    snapshot's: how large.
    """

    sandbox: str
    generation: int
    cpus: int
    memory_mib: int
    accelerator: str
    disk_mib: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """What to make of a machine's present instant.

    shared: a template's, of which many clones map one memory; otherwise each machine that is made of it gets a memory of its own. durable:
    on stable storage, with digests, before `snapshot` returns. resume: let the machine run on as soon as all is copied; without it the
    machine stands still afterwards (suspend: it is killed next, and a crash in between leaves machine and snapshot).
    """

    snapshot: str
    shared: bool = False
    durable: bool = False
    resume: bool = True


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that is there. stopped_ms: how long the vCPUs stood still for it (until all was copied). private_bytes: memory that was
    copied beyond what the machine shares with the snapshot that it was made of. stages_ms: ready, stop, state, copy (of it memory and
    disk), resume, done.
    """

    snapshot: str
    stopped_ms: float
    private_bytes: int
    stages_ms: dict[str, float]


# One byte pipe to the guest: a connected stream socket, non-blocking. Whoever gets it owns it; rpc.Session.open_guest takes it over.
# (A socket and not a reader with a writer: measured in one process, asyncio's streams move 0.3 GB/s, a Protocol on the socket 1.7 GB/s.)
Pipe = socket.socket


class Channel(Protocol):
    """Whoever talks over a machine's pipes, to a driver whose snapshots end these."""

    async def part(self) -> None:
        """The processors stop next, and the pipes end with that: nothing is to be under way. Raises nothing but a cancellation."""

    async def join(self) -> None:
        """They run on: `connect` makes other pipes."""


class Machine(Protocol):
    """One VMM process."""

    ends_pipes: bool  # by its snapshots: see `Channel`
    load_ms: float  # how long it took to load the state that it goes on from; 0.0 of one that was booted or found

    async def connect(self) -> tuple[Pipe, Pipe]:
        """Fresh (control, bulk) pipes; the guest's daemon may not be there yet. Earlier pipes are dead after it. Where snapshots end pipes
        these may be ended once more by a guest that is slow to hear of it (`guest.greeted`).
        """

    async def pause(self) -> None:
        """Stop the vCPUs; idempotent."""

    async def resume(self) -> None:
        """Let the vCPUs run; idempotent."""

    async def keep_going(self, stalled: Callable[[bool], object]) -> None:
        """As long as this runs: a guest that stands still because the host has no room for what it writes goes on as soon as there is.
        stalled: called when that begins, and when it is over. Nothing that the guest wrote is lost by it.
        """

    async def snapshot(self, plan: SnapshotPlan, channel: Channel) -> Taken:
        """Take memory, device state and disk in one window in which nothing runs. Running or paused before, and so after it.

        channel: parted with, and joined once the machine runs again, by drivers whose snapshots end the pipes. Of one that does not run
        then, whoever lets it run joins it. Ask the guest first (`prepare_snapshot`). After an error or a cancellation there is no
        snapshot, and a machine that ran runs again.
        """

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

    async def restore(self, plan: MachinePlan) -> Machine:
        """A machine that goes on from the snapshot of which the sandbox was made (`CreateSandbox.snapshot`). It stands still (dormant: it
        uses no CPU) until `resume`; then connect with a generation that the guest does not know, `imprint` and `claim`.

        Conflict, with the reason, when the snapshot was taken of another machine than this one. After an exception or a cancellation
        nothing of it is left.
        """

    async def adopt(self, sandbox: str, generation: int) -> Machine | None:
        """The machine that an earlier node started, if it lives."""
