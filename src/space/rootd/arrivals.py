"""Snapshots that travel: one that is here is opened to be read; one that comes is staged, written by the caller, and committed once whole.

    .new.<id>.import  ->  <id>

The caller holds a descriptor of the staged directory, which is locked as long as that is open: so `snapshots.tidy` removes it only when
nobody writes it any more. That its bytes are those of a machine which this installation stored is the caller's to know (`node.parcels`).
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from space.config import snapshots as layout
from space.config.instance import Instance
from space.host import files
from space.model.errors import Conflict, NotFound
from space.model.rootd import SealSnapshot, StageSnapshot
from space.rootd import snapshots
from space.rootd.steps import reached

PARTS = (layout.MEMORY, layout.STATE, layout.DISK)


def opened(instance: Instance, snapshot: str) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Its manifest, and its files for reading; Conflict of one that many share: a template is a file of its own."""
    manifest = snapshots.load(instance, snapshot)
    if manifest.shared:
        raise Conflict(f"snapshot {snapshot} is a template's, whose memory does not travel", hint="export the template")
    with ExitStack() as stack:
        found = tuple(_held(stack, snapshots.open_file(instance, snapshot, name)) for name in PARTS)
        stack.pop_all()
    return {"manifest": asdict(manifest)}, found


def stage(instance: Instance, op: StageSnapshot) -> tuple[int, ...]:
    """Directory, memory, device state, disk; asked again, others."""
    sizes, name = (op.memory_mib << 20, op.state_bytes, op.disk_mib << 20), snapshots.staged(op.snapshot)
    with ExitStack() as stack:
        every = snapshots.open_directory(instance)
        stack.callback(os.close, every)
        if op.snapshot in files.names(every):
            raise Conflict(f"snapshot {op.snapshot} is there already")
        files.remove_tree(every, name)
        os.mkdir(name, 0o700, dir_fd=every)
        with ExitStack() as made:
            made.callback(files.remove_tree, every, name)
            found = [_held(made, files.open_directory(name, inside=every))]
            fcntl.flock(found[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            for part, size in zip(PARTS, sizes, strict=True):
                found.append(_held(made, files.open_beneath(found[0], part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)))
                os.ftruncate(found[-1], size)
            reached("snapshot import staged")
            made.pop_all()
        return tuple(found)


def seal(instance: Instance, op: SealSnapshot) -> None:
    """It is a snapshot, on stable storage; asked again, it is one already. Conflict where what was written is another than was told."""
    name = snapshots.staged(op.snapshot)
    with ExitStack() as stack:
        every = _held(stack, snapshots.open_directory(instance))
        if op.snapshot in files.names(every):
            snapshots.load(instance, op.snapshot)
            return
        try:
            directory = _held(stack, files.open_directory(name, inside=every))
        except FileNotFoundError:
            raise NotFound(f"nothing was staged for snapshot {op.snapshot}") from None
        files.write_json(directory, layout.MANIFEST, _described(directory, op).to_json())
        for part in (*PARTS, layout.MANIFEST):
            files.sync(directory, part)
        reached("snapshot import described")
        os.rename(name, op.snapshot, src_dir_fd=every, dst_dir_fd=every)
        os.fsync(every)
        reached("snapshot import committed")


def _described(directory: int, op: SealSnapshot) -> layout.SnapshotManifest:
    """What lies there, under its new name; what the machine was is as it was told."""
    with ExitStack() as stack:
        there = {part: _held(stack, files.open_beneath(directory, part, os.O_RDONLY)) for part in PARTS}
        sizes = {part: os.fstat(descriptor).st_size for part, descriptor in there.items()}
        state = layout.digest(there[layout.STATE])
    here = {"snapshot": op.snapshot, "sandbox": op.sandbox, "generation": op.generation, "parent": ""}
    told = layout.parse({**json.loads(op.facts), **here, "shared": False, "durable": True}, op.snapshot)
    sized = {layout.MEMORY: told.machine.memory_mib << 20, layout.STATE: told.state_bytes, layout.DISK: told.disk_mib << 20}
    if sizes != sized or (told.memory_bytes, told.disk_bytes) != (sizes[layout.MEMORY], sizes[layout.DISK]):
        raise Conflict(f"the files of snapshot {op.snapshot} have {sizes}, and {sized} was told")
    if told.digests.get(layout.STATE) != state:
        raise Conflict(f"the device state of snapshot {op.snapshot} is not what was stored")
    return told


def _held(stack: ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor
