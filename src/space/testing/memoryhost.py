"""rootd's operations in memory, with the rules of `model.rootd`: idempotent by (sandbox, generation), conflicts where it says so.

A VMM here is a `MemoryVmm`: an end that can be seen by descriptor (a pipe stands in for the pidfd: readable once it is dead), and a guest
behind two pipes. An edge's listeners and its worker's cgroup files are descriptors that lead nowhere. `leftovers()` says what is still on
this host. `fail_next(op)` makes the next call of an operation fail, before or after it had its effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from space.config import manifest
from space.config.artefacts import Store
from space.model.errors import Conflict, Gone, InvalidArgument, NotFound, Unavailable
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
from space.rpc.rootd_client import Description, Listeners, SandboxOnHost, SnapshotFiles, SnapshotOnHost, StagedSnapshot, Usage
from space.testing.guest import FakeGuest


@dataclass(slots=True)
class MemoryVmm:
    """A process that is not one. on_death: called once when it ends."""

    accelerator: str
    alive: bool = True
    running: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = "the VMM was killed or crashed"
    guest: object | None = None  # the fake driver's
    watch: int = -1
    life: int = -1
    on_death: list[Callable[[], object]] = field(default_factory=list)
    full: asyncio.Event = field(default_factory=asyncio.Event)  # its disk has no room, until a test clears it and sets the other
    roomy: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.watch, self.life = os.pipe()
        self.running.set()

    def die(self, why: str | None = None) -> None:
        """End; idempotent."""
        if self.alive:
            self.alive = False
            self.why = why or self.why
            os.close(self.life)
            for call in self.on_death:
                call()

    def pidfd(self) -> int:
        """A descriptor that is readable once it is dead."""
        return os.dup(self.watch)


@dataclass(slots=True)
class _Files:
    record: CreateSandbox
    vmm: MemoryVmm | None = None


@dataclass(slots=True)
class MemorySnapshot:
    """A snapshot. image: what the fake driver makes guests of; let_go: called when it is discarded."""

    told: SnapshotOnHost
    image: object
    let_go: Callable[[], object]


class MemoryHost:
    """One host's root. slots: number to whether its filter lets literal addresses in; rootless: templates without a root certificate."""

    def __init__(self) -> None:
        self.slots: dict[int, bool] = {}
        self.rootless: set[str] = set()
        self.provided: set[str] = set()
        self.on_destroy: Callable[[], object] = lambda: None  # called when a slot goes
        self.sandboxes: dict[str, _Files] = {}
        self.snapshots: dict[str, MemorySnapshot] = {}
        self.held: set[str] = set()
        self.calls: list[str] = []
        self.store: Store | None = None  # where templates are, as the node sees them
        self.staged: dict[str, int] = {}
        self.disks: dict[str, int] = {}  # of templates that were staged
        self.travelled: dict[str, object] = {}  # guests that went out as files, by snapshot
        self.coming: dict[str, tuple[int, StageSnapshot]] = {}  # device state, of snapshots that are written
        self._faults: dict[str, list[tuple[Exception, str]]] = defaultdict(list)

    def fail_next(self, op: str, error: Exception | None = None, *, when: str = "before") -> None:
        """The next call of `op` raises `error`, `before` or `after` it had its effect."""
        self._faults[op].append((error or Unavailable("rootd is away"), when))

    def leftovers(self) -> list[str]:
        """Everything that is on this host."""
        living = [f"vmm of {name}" for name, files in self.sandboxes.items() if files.vmm is not None and files.vmm.alive]
        return (
            [f"slot {slot}" for slot in sorted(self.slots)]
            + [f"files of {name}" for name in sorted(self.sandboxes)]
            + living
            + self._stored()
        )

    def _stored(self) -> list[str]:
        coming = [f"snapshot {name} that comes" for name in sorted(self.coming)]
        return [f"snapshot {name}" for name in sorted(self.snapshots)] + coming + [f"memory of {name}" for name in sorted(self.held)]

    def vmm(self, sandbox: str) -> MemoryVmm | None:
        """The VMM of a sandbox, if one was started."""
        files = self.sandboxes.get(sandbox)
        return files.vmm if files is not None else None

    def image(self, sandbox: str) -> object:
        """What the fake driver makes the guest of, of a sandbox that was made of a snapshot."""
        return self.snapshots[self.sandboxes[sandbox].record.snapshot].image

    # -- the operations ------------------------------------------------------------------------------------------

    async def describe(self) -> Description:
        """All there is."""
        await self._enter("describe")
        found = [
            SandboxOnHost(name, files.record.generation, files.record.slot, files.vmm is not None and files.vmm.alive)
            for name, files in self.sandboxes.items()
        ]
        return Description(tuple(sorted(self.slots)), tuple(found))

    async def create_edge(self, slot: int, synthetic: str, *, literal: bool) -> Listeners:
        """A number, and where its packets go."""
        await self._enter("create_edge")
        assert synthetic, "a network"
        self.slots[slot] = literal
        await self._leave("create_edge")
        return Listeners(*(_nowhere() for _ in range(3)))

    async def worker_cgroup(self, slot: int) -> tuple[int, ...]:
        """Two hierarchies."""
        await self._enter("worker_cgroup")
        await self._leave("worker_cgroup")
        return _nowhere(), _nowhere()

    async def slot_counters(self, slot: int) -> dict[str, int]:
        """Fixed figures."""
        await self._enter("slot_counters")
        if slot not in self.slots:
            raise NotFound(f"there is no slot {slot} on this host")
        return {"guest_udp": 2, "admitted_tcp": 5}

    async def provide_root(self, template: str) -> None:
        """The broker has it."""
        await self._enter("provide_root")
        if template in self.rootless:
            raise NotFound(f"template {template} has no root certificate", hint="build it again")
        self.provided.add(template)
        await self._leave("provide_root")

    async def destroy_slot(self, slot: int) -> None:
        """Conflict while a VMM of it lives."""
        await self._enter("destroy_slot")
        for name, files in self.sandboxes.items():
            if files.record.slot == slot and files.vmm is not None and files.vmm.alive:
                raise Conflict(f"slot {slot} is used by the VMM of {name}")
        if self.slots.pop(slot, None) is not None:
            self.on_destroy()
        await self._leave("destroy_slot")

    async def create_sandbox(self, record: CreateSandbox) -> None:
        """Conflict with another generation."""
        await self._enter("create_sandbox")
        there = self.sandboxes.get(record.sandbox)
        if there is None and record.snapshot:
            self._check_origin(record)
        if there is not None and there.record != record:
            raise Conflict(f"{record.sandbox} is there with another record")
        if there is None:
            self.sandboxes[record.sandbox] = _Files(record)
        await self._leave("create_sandbox")

    async def start_vmm(self, record: StartVmm) -> int:
        """Needs files and slot."""
        await self._enter("start_vmm")
        files = self._files(record.sandbox, record.generation)
        if files is None:
            raise NotFound(f"there is no sandbox {record.sandbox}")
        if files.record.slot not in self.slots:
            raise Conflict(f"slot {files.record.slot} of {record.sandbox} is not there")
        if record.restore and not files.record.snapshot:
            raise Conflict(f"sandbox {record.sandbox} was not made of a snapshot")
        if record.restore and self.snapshots[files.record.snapshot].told.shared and files.record.snapshot not in self.held:
            raise Conflict(f"the memory of snapshot {files.record.snapshot} is not held")
        if files.vmm is None:
            files.vmm = MemoryVmm(record.accelerator)
            if record.restore:
                files.vmm.running.clear()
        elif not files.vmm.alive:
            raise Gone(f"the VMM of {record.sandbox} generation {record.generation} was started and has ended")
        vmm = files.vmm
        await self._leave("start_vmm")
        return vmm.pidfd()

    async def adopt_vmm(self, sandbox: str, generation: int) -> int | None:
        """None when it does not live."""
        await self._enter("adopt_vmm")
        files = self._files(sandbox, generation)
        return files.vmm.pidfd() if files is not None and files.vmm is not None and files.vmm.alive else None

    async def kill_vmm(self, sandbox: str, generation: int) -> None:
        """Idempotent."""
        await self._enter("kill_vmm")
        files = self._files(sandbox, generation)
        if files is not None and files.vmm is not None:
            files.vmm.die()
        await self._leave("kill_vmm")

    async def renew_sandbox(self, sandbox: str, generation: int, following: int) -> None:
        """The same files under another number."""
        await self._enter("renew_sandbox")
        files = self.sandboxes.get(sandbox)
        if files is None or files.record.generation not in (generation, following):
            raise NotFound(f"sandbox {sandbox} is not there in generation {generation}")
        if files.vmm is not None and files.vmm.alive:
            raise Conflict(f"the VMM of {sandbox} lives")
        if files.vmm is not None:
            os.close(files.vmm.watch)
        self.sandboxes[sandbox] = _Files(replace(files.record, generation=following, snapshot=""))
        await self._leave("renew_sandbox")

    async def destroy_sandbox(self, sandbox: str, generation: int) -> None:
        """Conflict while the VMM lives."""
        await self._enter("destroy_sandbox")
        files = self._files(sandbox, generation)
        if files is not None:
            if files.vmm is not None and files.vmm.alive:
                raise Conflict(f"the VMM of {sandbox} lives")
            if files.vmm is not None:
                os.close(files.vmm.watch)
            del self.sandboxes[sandbox]
        await self._leave("destroy_sandbox")

    async def usage(self, sandbox: str, generation: int) -> Usage:
        """Fixed figures."""
        await self._enter("usage")
        if self._files(sandbox, generation) is None:
            raise NotFound(f"there is no sandbox {sandbox}")
        return Usage(memory_bytes=64 << 20, cpu_usec=1_500_000)

    async def keep_template(self, request: KeepTemplate) -> None:
        """No disk, only a manifest."""
        await self._enter("keep_template")
        files = self._files(request.sandbox, request.generation)
        if files is None:
            raise NotFound(f"there is no sandbox {request.sandbox}")
        self._put(request.digest, files.record.template, request.settings)
        await self._leave("keep_template")

    async def rebase_template(self, request: RebaseTemplate) -> None:
        """The same for another."""
        await self._enter("rebase_template")
        self._put(request.digest, request.onto, request.settings)
        await self._leave("rebase_template")

    async def stage_template(self, request: StageTemplate) -> int:
        """A file in memory."""
        await self._enter("stage_template")
        descriptor = os.memfd_create(request.digest)
        os.ftruncate(descriptor, request.disk_mib << 20)
        self.staged[request.digest] = os.dup(descriptor)
        await self._leave("stage_template")
        return descriptor

    async def seal_template(self, request: SealTemplate) -> None:
        """It is what it is."""
        await self._enter("seal_template")
        self._put(request.digest, request.onto, request.settings, os.fstat(self.staged[request.digest]).st_size)
        self.disks[request.digest] = self.staged.pop(request.digest)
        await self._leave("seal_template")

    async def open_template(self, digest: str) -> int:
        """What was staged, else an empty disk."""
        await self._enter("open_template")
        if self._template(digest) is None:
            raise NotFound(f"there is no template {digest} in this instance")
        return os.dup(self.disks[digest]) if digest in self.disks else os.memfd_create(digest)

    async def drop_template(self, digest: str, *, force: bool = False) -> None:
        """Conflict while sandboxes of it are there."""
        await self._enter("drop_template")
        users = [name for name, files in self.sandboxes.items() if files.record.template == digest]
        if users and not force:
            raise Conflict(f"template {digest} has {len(users)} sandboxes, {users[0]} among them", hint="delete them first")
        for kept in (self.staged, self.disks):
            if digest in kept:
                os.close(kept.pop(digest))
        if self.store is not None and self.store.own is not None:
            shutil.rmtree(self.store.own / digest, ignore_errors=True)
        await self._leave("drop_template")

    def _put(self, digest: str, onto: str, settings: str, disk_bytes: int | None = None) -> None:
        if self.store is None or self.store.own is None:
            raise NotFound(f"there is no template {onto}")
        machine = self.store.template_by_digest(onto)
        machine = machine if disk_bytes is None else replace(machine, disk_bytes=disk_bytes)
        directory = self.store.own / digest
        directory.mkdir(parents=True, exist_ok=True)
        replace(machine, digest=digest, parent=onto, version=manifest.VERSION, **manifest.settings(settings)).save(
            directory / "manifest.json"
        )
        (directory / "disk.img").touch()

    def _template(self, digest: str) -> object | None:
        try:
            return None if self.store is None else self.store.template_by_digest(digest)
        except NotFound:
            return None

    async def begin_snapshot(self, record: BeginSnapshot, image: object, let_go: Callable[[], object]) -> None:
        """All of it at once. (The real one is a conversation that only the driver has.)"""
        await self._enter("begin_snapshot")
        files = self._files(record.sandbox, record.generation)
        if files is None or files.vmm is None or not files.vmm.alive:
            raise Gone(f"the VMM of {record.sandbox} does not live")
        if record.snapshot in self.snapshots:
            raise Conflict(f"snapshot {record.snapshot} is there already")
        shape = files.record
        told = SnapshotOnHost(
            snapshot=record.snapshot,
            sandbox=record.sandbox,
            generation=record.generation,
            template=shape.template,
            parent=shape.snapshot,
            shared=record.shared,
            durable=record.durable,
            cpus=shape.cpus,
            memory_mib=shape.memory_mib,
            disk_mib=shape.disk_mib,
            accelerator=files.vmm.accelerator,
            private_bytes=32 << 20,
            taken_at=1.0,
            held=False,
        )
        self.snapshots[record.snapshot] = MemorySnapshot(told, image, let_go)
        await self._leave("begin_snapshot")

    async def list_snapshots(self) -> tuple[SnapshotOnHost, ...]:
        """All there are."""
        await self._enter("list_snapshots")
        return tuple(replace(each.told, held=name in self.held) for name, each in self.snapshots.items())

    async def discard_snapshot(self, snapshot: str) -> None:
        """Conflict while a sandbox is made of it."""
        await self._enter("discard_snapshot")
        for name, files in self.sandboxes.items():
            begun = files.vmm is not None and not (snapshot in self.snapshots and self.snapshots[snapshot].told.shared)
            if files.record.snapshot == snapshot and not begun:
                raise Conflict(f"sandbox {name} is made of snapshot {snapshot}")
        self.held.discard(snapshot)
        self._unstage(snapshot)
        if (found := self.snapshots.pop(snapshot, None)) is not None:
            found.let_go()
        await self._leave("discard_snapshot")

    async def open_snapshot(self, snapshot: str) -> SnapshotFiles:
        """Its device state names it, so that what is written of these files elsewhere is the same guest."""
        await self._enter("open_snapshot")
        if snapshot not in self.snapshots:
            raise NotFound(f"there is no snapshot {snapshot} on this host")
        told = self.snapshots[snapshot].told
        if told.shared:
            raise Conflict(f"snapshot {snapshot} is a template's")
        image = self.snapshots[snapshot].image
        self.travelled[snapshot] = FakeGuest(image) if isinstance(image, FakeGuest) else image
        files = [os.memfd_create(f"{snapshot} {name}") for name in ("memory", "state", "disk")]
        os.pwrite(files[0], b"memory", 3 << 16)
        os.ftruncate(files[0], told.memory_mib << 20)
        os.write(files[1], snapshot.encode())
        os.pwrite(files[2], b"disk", 5 << 16)
        os.ftruncate(files[2], told.disk_mib << 20)
        return SnapshotFiles({"state_bytes": len(snapshot), **asdict(told)}, *files)

    async def stage_snapshot(self, request: StageSnapshot) -> StagedSnapshot:
        """Files in memory."""
        await self._enter("stage_snapshot")
        if request.snapshot in self.snapshots:
            raise Conflict(f"snapshot {request.snapshot} is there already")
        sizes = (0, request.memory_mib << 20, request.state_bytes, request.disk_mib << 20)
        files = [os.memfd_create(request.snapshot) for _ in sizes]
        for descriptor, size in zip(files, sizes, strict=True):
            os.ftruncate(descriptor, size)
        self._unstage(request.snapshot)
        self.coming[request.snapshot] = (os.dup(files[2]), request)
        await self._leave("stage_snapshot")
        return StagedSnapshot(*files)

    async def seal_snapshot(self, request: SealSnapshot) -> None:
        """The guest that went out."""
        await self._enter("seal_snapshot")
        if request.snapshot not in self.snapshots:
            state, _ = self.coming[request.snapshot]
            image = self.travelled[os.pread(state, 64, 0).decode()]
            told = {name: value for name, value in json.loads(request.facts).items() if name != "state_bytes"}
            here = {"snapshot": request.snapshot, "sandbox": request.sandbox, "generation": request.generation, "parent": ""}
            self.snapshots[request.snapshot] = MemorySnapshot(SnapshotOnHost(**(told | here)), image, lambda: None)
            self._unstage(request.snapshot)
        await self._leave("seal_snapshot")

    def _unstage(self, snapshot: str) -> None:
        if (staged := self.coming.pop(snapshot, None)) is not None:
            os.close(staged[0])

    async def hold_memory(self, snapshot: str) -> None:
        """Of a shared one."""
        await self._enter("hold_memory")
        if snapshot not in self.snapshots:
            raise NotFound(f"there is no snapshot {snapshot} on this host")
        if not self.snapshots[snapshot].told.shared:
            raise InvalidArgument(f"snapshot {snapshot} is not shared")
        self.held.add(snapshot)
        await self._leave("hold_memory")

    async def release_memory(self, snapshot: str) -> None:
        """Idempotent."""
        await self._enter("release_memory")
        self.held.discard(snapshot)
        await self._leave("release_memory")

    def _check_origin(self, record: CreateSandbox) -> None:
        if record.snapshot not in self.snapshots:
            raise NotFound(f"there is no snapshot {record.snapshot} on this host")
        told = self.snapshots[record.snapshot].told
        if (told.template, told.memory_mib, told.cpus) != (record.template, record.memory_mib, record.cpus):
            raise Conflict(f"snapshot {record.snapshot} is of another template or shape")
        if record.disk_mib < told.disk_mib:
            raise InvalidArgument(f"disk_mib is at least {told.disk_mib}, not {record.disk_mib}")

    def _files(self, sandbox: str, generation: int) -> _Files | None:
        files = self.sandboxes.get(sandbox)
        return files if files is not None and files.record.generation == generation else None

    async def _enter(self, op: str) -> None:
        self.calls.append(op)
        await asyncio.sleep(0)  # as over a socket, the caller may be cancelled before and after
        self._fault(op, "before")

    async def _leave(self, op: str) -> None:
        await asyncio.sleep(0)
        self._fault(op, "after")

    def _fault(self, op: str, when: str) -> None:
        faults = self._faults[op]
        if faults and faults[0][1] == when:
            raise faults.pop(0)[0]


def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
