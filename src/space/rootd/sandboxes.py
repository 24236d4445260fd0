"""Sandboxes on disk: `<sandbox>/` with disk.img and root's own record, made whole under another name and renamed.

    .new.<sandbox>  ->  <sandbox>  ->  .gone.<sandbox>

so that a crash at any point leaves a whole sandbox or one that `tidy` removes. The host never mounts or checks disk.img.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from space.config import snapshots as layout
from space.config.artefacts import Store
from space.config.instance import Instance
from space.core.plan import machine
from space.host import cgroups, files, namespaces
from space.model import ids
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.rootd import CreateSandbox, KeepTemplate, RenewSandbox, SandboxOp, StartVmm
from space.rootd import slots, snapshots
from space.rootd.log import log
from space.rootd.steps import reached

RECORD, DISK, MEMORY = "sandbox.json", "disk.img", "memory"
NEW, GONE = ".new.", ".gone."


@dataclass(frozen=True, slots=True)
class Record:
    """Root's record of a sandbox. snapshot: what it was made of, if it was. pid and started (ticks since boot) name its VMM; answered: its
    start was answered to the node; accelerator and restored: how it was started; vmm: the digest of
    its Firecracker, if it is one.
    """

    sandbox: str
    generation: int
    slot: int
    template: str
    disk_mib: int
    memory_mib: int
    cpus: int
    snapshot: str = ""
    pid: int = 0
    started: int = 0
    answered: bool = False
    accelerator: str = ""
    restored: bool = False
    vmm: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an instance's sandboxes are: the instance, a held descriptor of their directory, and their cgroups."""

    instance: Instance
    directory: int
    cgroup: cgroups.Tree

    @property
    def store(self) -> Store:
        """Every template that the instance has."""
        return Store(self.instance.artefacts, self.instance.templates)

    def tree(self, sandbox: str) -> cgroups.Tree:
        return self.cgroup.child(sandbox)


def open_place(instance: Instance) -> Place:
    """Make what every sandbox needs, and hold it."""
    instance.sandboxes.mkdir(mode=0o711, parents=True, exist_ok=True)
    instance.templates.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chown(instance.templates, 0, instance.node_uid)
    instance.templates.chmod(0o750)
    for directory in (instance.run / "netns", instance.run / "vm"):
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    hierarchies = cgroups.find(instance.run_root / ".cgroup")
    return Place(instance, files.open_directory(instance.sandboxes), cgroups.Tree(hierarchies, instance.cgroup))


def find(place: Place, sandbox: str) -> Record | None:
    """The record of a sandbox, None when there is no such sandbox."""
    try:
        return Record(**files.read_json(place.directory, f"{sandbox}/{RECORD}"))
    except FileNotFoundError:
        return None


def get(place: Place, op: SandboxOp | StartVmm | KeepTemplate) -> Record:
    """The record of exactly this generation; NotFound otherwise."""
    record = find(place, op.sandbox)
    if record is None:
        raise NotFound(f"there is no sandbox {op.sandbox} on this host")
    if record.generation != op.generation:
        raise NotFound(f"sandbox {op.sandbox} has generation {record.generation} here, not {op.generation}")
    return record


def existing(place: Place) -> list[Record]:
    """Every sandbox that is there."""
    names = [name for name in files.names(place.directory) if not name.startswith(".")]
    return [record for name in sorted(names) if (record := find(place, name)) is not None]


def save(place: Place, record: Record) -> None:
    """Replace the record of a sandbox."""
    directory = files.open_directory(record.sandbox, inside=place.directory)
    try:
        files.write_json(directory, RECORD, asdict(record))
    finally:
        os.close(directory)


def vmm(place: Place, record: Record) -> int | None:
    """A pidfd of the sandbox's VMM if it lives: this pid, with this start time, in this cgroup. The caller owns it."""
    if not record.pid or record.pid not in place.tree(record.sandbox).pids():
        return None
    return namespaces.open_process(record.pid, record.started)


def is_alive(place: Place, record: Record) -> bool:
    """Whether the sandbox's VMM lives."""
    pidfd = vmm(place, record)
    if pidfd is not None:
        os.close(pidfd)
    return pidfd is not None


def create(place: Place, op: CreateSandbox) -> None:
    """Directory, disk and cgroup. Repeating it is fine; Conflict when another generation or another sandbox is in the way."""
    wanted = Record(op.sandbox, op.generation, op.slot, op.template, op.disk_mib, op.memory_mib, op.cpus, op.snapshot)
    found = find(place, op.sandbox)
    if found is not None:
        if replace(found, pid=0, started=0, answered=False, accelerator="", restored=False, vmm="") != wanted:
            raise Conflict(f"sandbox {op.sandbox} is there already, as generation {found.generation} or with another shape")
    else:
        _check_slot(place, op)
        _make_files(place, wanted)
        with suppress(OSError):  # a shipped one's is read-only for good
            os.utime(place.instance.templates / op.template)  # what is pruned goes by who stood on it last
    tree, limits = place.tree(op.sandbox), machine.limits(op.cpus, op.memory_mib)
    tree.create()
    tree.limit(**asdict(limits))


def destroy(place: Place, op: SandboxOp) -> None:
    """Remove all of it; nothing there, or a later generation, is fine. Conflict while a process of it lives."""
    record = find(place, op.sandbox)
    if record is not None and record.generation > op.generation:
        return
    if record is not None and record.generation < op.generation:
        raise Conflict(f"sandbox {op.sandbox} has generation {record.generation} here, not {op.generation}")
    if living := place.tree(op.sandbox).pids():
        raise Conflict(f"the VMM of {op.sandbox} lives (pid {min(living)})", hint="kill it and wait for its end first")
    remove(place, op.sandbox)


def renew(place: Place, op: RenewSandbox) -> None:
    """Its disk is that of the generation that follows, which boots from it; that is on stable storage then (the disk's blocks are the
    caller's). Repeating it is fine. Conflict while a process of it lives.
    """
    record = find(place, op.sandbox)
    if record is None or record.generation not in (op.generation, op.following) or op.following < op.generation:
        there = "not there" if record is None else f"there in generation {record.generation}"
        raise NotFound(f"sandbox {op.sandbox} is {there}: generation {op.generation} cannot be followed by {op.following}")
    if living := place.tree(op.sandbox).pids():
        raise Conflict(f"the VMM of {op.sandbox} lives (pid {min(living)})", hint="kill it and wait for its end first")
    fresh = Record(op.sandbox, op.following, record.slot, record.template, record.disk_mib, record.memory_mib, record.cpus)
    if fresh != record:
        save(place, fresh)
    reached("sandbox renewed")
    directory = files.open_directory(op.sandbox, inside=place.directory)
    try:
        with suppress(FileNotFoundError):
            os.unlink(MEMORY, dir_fd=directory)
        files.sync(directory, RECORD)
    finally:
        os.close(directory)
    os.fsync(place.directory)
    tree, limits = place.tree(op.sandbox), machine.limits(record.cpus, record.memory_mib)  # none after a reboot
    tree.create()
    tree.limit(**asdict(limits))


def remove(place: Place, sandbox: str) -> None:
    """Remove sockets, cgroups and files of a sandbox in which nothing lives; what is not there is fine."""
    run = files.open_directory(place.instance.run)
    try:
        files.remove_tree(run, f"vm/{sandbox}")
    finally:
        os.close(run)
    place.tree(sandbox).remove()
    with suppress(FileNotFoundError):
        os.rename(sandbox, GONE + sandbox, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    files.remove_tree(place.directory, GONE + sandbox)
    files.remove_tree(place.directory, NEW + sandbox)


def tidy(place: Place) -> None:
    """Remove what a crash left half made or half removed."""
    for name in files.names(place.directory):
        if name.startswith((NEW, GONE)):
            log(f"removing {name}, which an earlier rootd left unfinished")
            files.remove_tree(place.directory, name)


def _check_slot(place: Place, op: CreateSandbox) -> None:
    if not slots.exists(place.instance, op.slot):
        raise Conflict(f"there is no slot {op.slot}", hint="create_slot makes it")
    for other in existing(place):
        if other.slot == op.slot:
            raise Conflict(f"slot {op.slot} belongs to sandbox {other.sandbox}")


def _make_files(place: Place, record: Record) -> None:
    instance, staged = place.instance, NEW + record.sandbox
    manifest = place.store.template_by_digest(ids.digest(record.template))
    place.store.stands(manifest)
    origin = snapshots.usable(instance, record.snapshot) if record.snapshot else None
    smallest = origin.disk_mib if origin else -(-manifest.disk_bytes >> 20)
    if record.disk_mib < smallest:
        of = f"snapshot {record.snapshot}" if origin else f"template {manifest.name!r}"
        raise InvalidArgument(f"disk_mib is at least {smallest}, the size of {of}, not {record.disk_mib}")
    if origin:
        _check_origin(origin, record)
    files.remove_tree(place.directory, staged)
    os.mkdir(staged, 0o700, dir_fd=place.directory)
    directory = files.open_directory(staged, inside=place.directory)
    try:
        _clone_disk(place, record, directory)
        if origin and not origin.shared:
            source = snapshots.open_file(instance, record.snapshot, layout.MEMORY)
            _clone(record, source, directory, MEMORY, (instance.vm_uid(record.slot), instance.vm_uid(record.slot), 0o600))
            reached("memory linked")
        files.write_json(directory, RECORD, asdict(record))
        os.fchown(directory, 0, instance.node_uid)
        os.fchmod(directory, 0o710)
        os.rename(staged, record.sandbox, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    except BaseException:
        files.remove_tree(place.directory, staged)
        raise
    finally:
        os.close(directory)


def _check_origin(origin: layout.SnapshotManifest, record: Record) -> None:
    there = (origin.template, origin.machine.memory_mib, origin.machine.cpus)
    if there != (record.template, record.memory_mib, record.cpus):
        words = "snapshot {} is of template {}, {} MiB and {} CPUs, not of {}, {} MiB and {} CPUs"
        raise Conflict(words.format(origin.snapshot, *there, record.template, record.memory_mib, record.cpus))


def _clone_disk(place: Place, record: Record, directory: int) -> None:
    if record.snapshot:
        source = snapshots.open_file(place.instance, record.snapshot, layout.DISK)
    else:
        template = files.open_directory(place.store.directory(record.template))
        try:
            source = files.open_beneath(template, DISK, os.O_RDONLY)
        finally:
            os.close(template)
    owner = (place.instance.vm_uid(record.slot), place.instance.node_uid, 0o660)
    _clone(record, source, directory, DISK, owner, size=record.disk_mib << 20)


def _clone(record: Record, source: int, directory: int, name: str, owner: tuple[int, int, int], size: int | None = None) -> None:
    """A file of the sandbox's own that shares the blocks of `source`, which is closed. owner: uid, gid, mode."""
    target = -1
    try:
        target = files.open_beneath(directory, name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if not files.clone(source, target):
            words = f"{record.sandbox}: its {name} was copied, this file system has no reflinks (btrfs and XFS have)"
            log(words, level="warning", sandbox=record.sandbox)
        if size is not None:
            os.ftruncate(target, size)
        os.fchown(target, owner[0], owner[1])
        os.fchmod(target, owner[2])
    finally:
        for descriptor in (source, target):
            if descriptor >= 0:
                os.close(descriptor)
