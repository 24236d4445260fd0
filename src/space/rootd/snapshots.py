"""Snapshots on disk (`config.snapshots` has their layout): read, listed, discarded. (`taking` makes them.)"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from space.config import firecracker as shelf
from space.config import snapshots as layout
from space.config.artefacts import Store
from space.config.instance import Instance
from space.config.snapshots import SnapshotManifest
from space.core.plan import firecracker as jailed
from space.core.plan import machine
from space.host import clockrate, files
from space.model.errors import Conflict, NotFound
from space.rootd.log import log

GONE = ".gone."


def open_directory(instance: Instance) -> int:
    """A descriptor of the directory of all snapshots; the caller closes it."""
    instance.snapshots.mkdir(mode=0o700, parents=True, exist_ok=True)
    return files.open_directory(instance.snapshots)


def load(instance: Instance, snapshot: str) -> SnapshotManifest:
    """The manifest of a complete snapshot. NotFound without one; Conflict, with the reason, for one that cannot be used."""
    directory = open_directory(instance)
    try:
        return layout.parse(files.read_json(directory, f"{snapshot}/{layout.MANIFEST}"), snapshot)
    except FileNotFoundError:
        raise NotFound(f"there is no snapshot {snapshot} on this host") from None
    except ValueError as error:
        raise Conflict(f"snapshot {snapshot} cannot be used: its manifest cannot be read: {error}") from None
    finally:
        os.close(directory)


def existing(instance: Instance) -> list[SnapshotManifest | str]:
    """Every one that is there; of one that cannot be used here its name, for it is somebody's, and a sandbox boots from its disk."""
    directory = open_directory(instance)
    try:
        names = [name for name in files.names(directory) if not name.startswith(".")]
    finally:
        os.close(directory)
    return [usable(instance, name) or name for name in sorted(names)]


def usable(instance: Instance, snapshot: str) -> SnapshotManifest | None:
    """Its manifest; None, with a line in the log, where its disk is all that can be had of it, if it is there."""
    try:
        return load(instance, snapshot)
    except (Conflict, NotFound) as error:
        log(f"{error}", level="warning")
        return None


def check_parts(instance: Instance, manifest: SnapshotManifest) -> None:
    """Conflict unless its files are those that the manifest describes."""
    for name in (layout.MEMORY, layout.STATE, layout.DISK):
        descriptor = open_file(instance, manifest.snapshot, name)
        try:
            layout.check_part(manifest, name, descriptor)
        finally:
            os.close(descriptor)


def open_file(instance: Instance, snapshot: str, name: str) -> int:
    """One of its files, to read."""
    directory = open_directory(instance)
    try:
        return files.open_beneath(directory, f"{snapshot}/{name}", os.O_RDONLY)
    except FileNotFoundError:
        raise NotFound(f"there is no snapshot {snapshot} on this host") from None
    finally:
        os.close(directory)


def is_needed(instance: Instance, snapshot: str, origin: str, *, begun: bool) -> bool:
    """Whether a sandbox that was made of `origin` needs this snapshot. One that has begun has memory and disk of its own, unless the memory
    is one that is shared.
    """
    if origin != snapshot:
        return False
    if not begun:
        return True
    try:
        return load(instance, snapshot).shared
    except (NotFound, Conflict):
        return False


def discard(instance: Instance, snapshot: str) -> None:
    """Remove it; one that is not there is fine. The caller has made sure that nothing is made of it."""
    directory = open_directory(instance)
    try:
        with suppress(FileNotFoundError):
            os.rename(snapshot, GONE + snapshot, src_dir_fd=directory, dst_dir_fd=directory)
        files.remove_tree(directory, GONE + snapshot)
        files.remove_tree(directory, staged(snapshot))
    finally:
        os.close(directory)


def staged(snapshot: str) -> str:
    """The directory of one that is coming as a file."""
    return f"{layout.NEW}{snapshot}.import"


def tidy(instance: Instance) -> None:
    """Remove what a crash left half made or half removed; one that is being taken is locked by whoever takes it."""
    directory = open_directory(instance)
    try:
        for name in files.names(directory):
            if name.startswith(GONE) or (name.startswith(layout.NEW) and not _is_locked(directory, name)):
                log(f"removing {name}, which an earlier rootd left unfinished")
                files.remove_tree(directory, name)
    finally:
        os.close(directory)


def _is_locked(directory: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        descriptor = files.open_directory(name, inside=directory)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def machine_of(instance: Instance, template: str, accelerator: str, cpus: int, memory_mib: int, firecracker: str = "") -> layout.Machine:
    """What a machine of this host, template and shape is to a snapshot. NotFound without the template or its VMM.

    firecracker: the digest of the one that it is or was made by, if it is one.
    """
    store = Store(instance.artefacts, instance.templates)
    manifest = store.template_by_digest(template)
    if accelerator == jailed.NAME:
        return layout.Machine(
            vmm=shelf.get(store, firecracker).digest,
            kernel=manifest.kernel,
            initramfs=manifest.initramfs,
            protocol=manifest.protocol,
            accelerator=accelerator,
            cpu="host",
            cpus=cpus,
            memory_mib=memory_mib,
            command_line=jailed.kernel_arguments(),
            devices=layout.fingerprint(call.line() for call in jailed.devices(cpus, memory_mib)),
            counter_khz=clockrate.sure_khz(),
        )
    vmm = store.path("qemu", manifest.qemu) / "root"
    if not Path(f"{vmm}{machine.BINARY}").exists():
        raise NotFound(
            f"the VMM {manifest.qemu} is not on this machine any more", hint="a sandbox boots from its disk when it is woken cold"
        )
    plan = machine.Machine(cpus, memory_mib, accelerator, 0)
    return layout.Machine(
        vmm=manifest.qemu,
        kernel=manifest.kernel,
        initramfs=manifest.initramfs,
        protocol=manifest.protocol,
        accelerator=accelerator,
        cpu=machine.cpu(accelerator),
        cpus=cpus,
        memory_mib=memory_mib,
        command_line=machine.kernel_arguments(plan),
        devices=layout.fingerprint(machine.devices(plan)),
        counter_khz=clockrate.sure_khz(),
    )
