"""What the node asks of rootd, as a protocol: `rpc.rootd_client` speaks it over the socket, `testing.memoryhost` in memory.

Every operation is idempotent by (sandbox, generation), and rootd does them in the order in which they were asked: so a caller that is
cancelled may send the undo at once. Faults are `space.model.errors`: `Unavailable` when rootd is not there (serve starts it again),
`Conflict` where `model.rootd` says so.
"""

from __future__ import annotations

from typing import Protocol

from space.model.rootd import (
    BeginSnapshot,
    CreateSandbox,
    KeepTemplate,
    RebaseTemplate,
    SealSnapshot,
    SealTemplate,
    StageSnapshot,
    StageTemplate,
    StartVmm,
)
from space.rpc.rootd_client import Description, Listeners, SnapshotDoor, SnapshotFiles, SnapshotOnHost, StagedSnapshot, Usage


class Rootd(Protocol):
    """rootd's operations. A descriptor that is returned belongs to the caller."""

    async def describe(self) -> Description:
        """What of this instance is on the host."""

    async def create_edge(self, slot: int, synthetic: str, *, literal: bool) -> Listeners:
        """Namespace, TAP, ruleset, and its listeners; or other destinations for the one that is there."""

    async def worker_cgroup(self, slot: int) -> tuple[int, ...]:
        """1 to 4 files, open for writing: who writes 0 there is in the cgroup of that slot's worker."""

    async def slot_counters(self, slot: int) -> dict[str, int]:
        """Packets by kind. NotFound."""

    async def provide_root(self, template: str) -> None:
        """The broker finds the root of that template when it is asked for it next. NotFound: the template has none."""

    async def destroy_slot(self, slot: int) -> None:
        """Conflict while a VMM of it lives."""

    async def create_sandbox(self, request: CreateSandbox) -> None:
        """Directory, disk, cgroup."""

    async def start_vmm(self, request: StartVmm) -> int:
        """A pidfd; the VMM's sockets listen. Gone when this generation has run and ended."""

    async def adopt_vmm(self, sandbox: str, generation: int) -> int | None:
        """A pidfd of the VMM if it lives."""

    async def kill_vmm(self, sandbox: str, generation: int) -> None:
        """SIGKILL to everything in its cgroup."""

    async def renew_sandbox(self, sandbox: str, generation: int, following: int) -> None:
        """Its disk is that of another generation, which boots from it. Conflict while the VMM lives."""

    async def destroy_sandbox(self, sandbox: str, generation: int) -> None:
        """Conflict while the VMM lives."""

    async def keep_template(self, request: KeepTemplate) -> None:
        """The sandbox's disk as it is becomes a template."""

    async def rebase_template(self, request: RebaseTemplate) -> None:
        """A template's disk under another digest."""

    async def stage_template(self, request: StageTemplate) -> int:
        """A descriptor to write a disk to."""

    async def seal_template(self, request: SealTemplate) -> None:
        """What was written is a template."""

    async def open_template(self, digest: str) -> int:
        """A descriptor of its disk."""

    async def drop_template(self, digest: str, *, force: bool = False) -> None:
        """Conflict while sandboxes of it are there."""

    async def usage(self, sandbox: str, generation: int) -> Usage:
        """What it uses of the host."""

    async def list_snapshots(self) -> tuple[SnapshotOnHost, ...]:
        """Every complete snapshot."""

    async def discard_snapshot(self, snapshot: str) -> None:
        """Conflict while a sandbox is made of it; nothing there is fine."""

    async def open_snapshot(self, snapshot: str) -> SnapshotFiles:
        """Its manifest and files, for reading."""

    async def stage_snapshot(self, request: StageSnapshot) -> StagedSnapshot:
        """Files to write."""

    async def seal_snapshot(self, request: SealSnapshot) -> None:
        """What was written is a snapshot, durably."""

    async def hold_memory(self, snapshot: str) -> None:
        """Returns when machines can be made of a shared snapshot."""

    async def release_memory(self, snapshot: str) -> None:
        """Let its memory go; machines that run keep it."""


class SnapshotRootd(Rootd, Protocol):
    """What the driver asks beside: a snapshot begins by the driver alone (`Machine.snapshot`)."""

    async def begin_snapshot(self, request: BeginSnapshot) -> SnapshotDoor:
        """The file for the device state, and the conversation."""
