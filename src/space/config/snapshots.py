"""Snapshots: memory, device state and disk of one instant of a machine, in one directory with one manifest.

    <instance>/snapshots/<id>/memory          guest memory, with holes where nothing was ever written
                              state           what QEMU says of its devices and processors
                              disk.img        the disk at that instant
                              manifest.json   what of this machine it needs to go on
    <instance>/snapshots/.new.<id>.<random>/  one that is being taken: it has its name once it is whole

Nothing of a snapshot is ever written again: its files are the source of reflinks. All is root's (0700).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from space.host import files
from space.model.errors import Conflict

VERSION: Final = 2
MEMORY, STATE, DISK, MANIFEST = "memory", "state", "disk.img", "manifest.json"
NEW: Final = ".new."
_BLOCK: Final = 64 << 10
# A kernel finds the same rate again within a few dozen parts of a million. A guest's clock that is off by more than this is wrong by
# seconds within hours.
_RATES_APART: Final = 250e-6
_REBAKE: Final = (
    "a sandbox boots from its disk when it is woken cold (`space wake --cold`); `space template rebake` makes a template's anew"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine must be to go on from a snapshot. All of it is compared, nothing is tried.

    vmm, kernel, initramfs: digests of artefacts. accelerator, cpu: how processors are made. command_line: the guest kernel's, without what
    only a boot reads. devices: `fingerprint` of the VMM's command line. protocol: the guest's daemon's. counter_khz: rate of the
    processor's counter, by which the guest's clock goes, 0 where it is not known for sure: within `_RATES_APART` it is the same.
    """

    vmm: str
    kernel: str
    initramfs: str
    protocol: int
    accelerator: str
    cpu: str
    cpus: int
    memory_mib: int
    command_line: str
    devices: str
    counter_khz: int


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """manifest.json. parent: the snapshot that the machine itself was made of. Sizes are those of the files, private_bytes is what was
    copied beyond the parent. digests (`digest`) by file, of a durable one: the state's always, and all of a shared one's, which may travel.
    complete: written last.
    """

    version: int
    snapshot: str
    sandbox: str
    generation: int
    template: str
    parent: str
    shared: bool
    durable: bool
    machine: Machine
    disk_mib: int
    memory_bytes: int
    state_bytes: int
    disk_bytes: int
    private_bytes: int
    taken_at: float
    digests: dict[str, str]
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """As it lies on the disk."""
        return asdict(self)


def parse(raw: Any, snapshot: str) -> SnapshotManifest:
    """The manifest of the snapshot of that name; Conflict, with the reason, for any that is not exactly as this version writes them."""
    if not isinstance(raw, dict):
        raise refused(snapshot, "its manifest is no object")
    if raw.get("version") != VERSION:
        raise refused(snapshot, f"its manifest has version {raw.get('version')!r:.20}, this is version {VERSION}")
    machine = raw.get("machine")
    shapes = ((raw, fields(SnapshotManifest), "manifest"), (machine, fields(Machine), "machine"))
    for found, shape, what in shapes:
        wanted = {field.name for field in shape}
        if not isinstance(found, dict) or set(found) != wanted:
            names = sorted(wanted ^ set(found)) if isinstance(found, dict) else [what]
            raise refused(snapshot, f"its {what} does not have the fields of this version: {', '.join(map(str, names))[:200]}")
    manifest = SnapshotManifest(**{**raw, "machine": Machine(**raw["machine"])})
    for value, type_name in (*_typed(manifest), *_typed(manifest.machine)):
        if type(value).__name__ != type_name.partition("[")[0]:
            raise refused(snapshot, f"its manifest holds {value!r:.40} where {type_name} is wanted")
    if manifest.snapshot != snapshot:
        raise refused(snapshot, f"its manifest is that of {manifest.snapshot[:64]!r}")
    if manifest.complete is not True:
        raise refused(snapshot, "it was never completed")
    return manifest


def _typed(value: SnapshotManifest | Machine) -> Iterable[tuple[Any, str]]:
    return ((getattr(value, field.name), str(field.type)) for field in fields(value) if field.name != "machine")


def check(manifest: SnapshotManifest, wanted: Machine) -> None:
    """Conflict, naming what differs, unless a machine like `wanted` can go on from the snapshot."""
    have = manifest.machine
    differing = [
        f"{field.name} is {getattr(have, field.name)!r:.80} there and {getattr(wanted, field.name)!r:.80} here"
        for field in fields(Machine)
        if field.name != "counter_khz" and getattr(have, field.name) != getattr(wanted, field.name)
    ]
    if not same_rate(have.counter_khz, wanted.counter_khz):
        differing.append(f"the processor's counter runs at {have.counter_khz} kHz there and at {wanted.counter_khz} kHz here")
    if differing:
        raise refused(manifest.snapshot, "; ".join(differing)[:600])


def same_rate(there: int, here: int) -> bool:
    """Whether a guest's clock goes right here; of a rate that is not known nothing can be said."""
    return not there or not here or abs(there - here) <= _RATES_APART * there


def check_part(manifest: SnapshotManifest, name: str, descriptor: int) -> None:
    """Conflict unless it has the size that the manifest says, and the device state of a durable one its bytes.

    Of a shared one, from which clones are made in milliseconds, only sizes are looked at.
    """
    size = {MEMORY: manifest.memory_bytes, STATE: manifest.state_bytes, DISK: manifest.disk_bytes}[name]
    if (there := os.fstat(descriptor).st_size) != size:
        raise refused(manifest.snapshot, f"its {name} has {there} bytes, not {size}")
    told = manifest.digests.get(name, "") if name == STATE and not manifest.shared else ""
    if told and digest(descriptor) != told:
        raise refused(manifest.snapshot, f"its {name} is not what was stored")


def digest(descriptor: int) -> str:
    """SHA-256 of a file's size and of each of its blocks of 64 KiB that is not all zeros, behind its place: so holes cost nothing, and it
    does not matter where a file system has them.
    """
    size = os.fstat(descriptor).st_size
    found = hashlib.sha256(size.to_bytes(8, "little"))
    done = 0
    for begin, end in files.extents(descriptor, size):
        place = max(done, begin - begin % _BLOCK)
        while place < end:
            block = os.pread(descriptor, _BLOCK, place)
            if block.count(0) != len(block):
                found.update(place.to_bytes(8, "little"))
                found.update(block)
            place += _BLOCK
        done = place
    return found.hexdigest()


def fingerprint(words: Iterable[str]) -> str:
    """A digest of a VMM's command line: two machines of the same one have the same devices in the same places."""
    return hashlib.sha256(json.dumps(list(words)).encode()).hexdigest()[:32]


def refused(snapshot: str, why: str) -> Conflict:
    """What is raised for one that cannot be used."""
    return Conflict(f"snapshot {snapshot} cannot be used: {why}", hint=_REBAKE)
