"""Taking a snapshot, in a process made for it: rootd has one thread, and a large guest takes seconds.

    staged -> ready -> (the node stops the VM, which writes its device state) -> copied -> synced -> described -> committed

What is said between the node and the process is in `model.rootd`. Whatever goes wrong, and when the node hangs up, nothing is left.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from space.config import snapshots as layout
from space.config.snapshots import SnapshotManifest
from space.core.plan import firecracker
from space.host import files, syscalls, vmmemory
from space.model.errors import Conflict, Gone, Internal
from space.model.rootd import BeginSnapshot, SandboxOp
from space.rootd import jailer, sandboxes, snapshots
from space.rootd.faults import fault
from space.rootd.log import log
from space.rootd.sandboxes import Place, Record
from space.rootd.steps import reached

_MOST_ROOM = 512 << 20
_MOST_STATE = 1 << 20  # 70 KiB, or some more with many processors


@dataclass(frozen=True, slots=True)
class _Job:
    """What the process works with: descriptors of the staged directory and of all files."""

    place: Place
    op: BeginSnapshot
    record: Record
    machine: layout.Machine
    staged: str
    every: int
    directory: int
    state: int
    disk: int
    base: int  # memory that the VM's is a private mapping of, -1 for one that booted

    def descriptors(self) -> list[int]:
        return [each for each in (self.every, self.directory, self.state, self.disk, self.base) if each >= 0]


def begin(place: Place, op: BeginSnapshot) -> tuple[int, int]:
    """Descriptors for the node: the file of the device state, and the conversation. Gone when the VM does not live."""
    record = sandboxes.get(place, SandboxOp(op.sandbox, op.generation))
    pidfd = sandboxes.vmm(place, record)
    if pidfd is None:
        raise Gone(f"the VMM of {op.sandbox} does not live")
    os.close(pidfd)
    shape = (record.accelerator, record.cpus, record.memory_mib, record.vmm)
    machine = snapshots.machine_of(place.instance, record.template, *shape)
    every = snapshots.open_directory(place.instance)
    staged = f"{layout.NEW}{op.snapshot}.{secrets.token_hex(6)}"
    opened = [every]
    try:
        if op.snapshot in files.names(every):
            raise Conflict(f"snapshot {op.snapshot} is there already")
        os.mkdir(staged, 0o700, dir_fd=every)
        directory = files.open_directory(staged, inside=every)
        opened.append(directory)
        fcntl.flock(directory, fcntl.LOCK_EX)
        state = files.open_beneath(directory, layout.STATE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        opened.append(state)
        # The VMM writes it while the VM stands still, and could say no more than that it failed. What is too much is given back.
        syscalls.fallocate(state, 0, _MOST_STATE, keep_size=True)
        disk = files.open_beneath(place.directory, f"{record.sandbox}/{sandboxes.DISK}", os.O_RDONLY)
        opened.append(disk)
        base = _open_base(place, record)
        if base >= 0:
            opened.append(base)
        reached("snapshot staged")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            if os.fork() == 0:
                theirs.close()
                _become_taker(_Job(place, op, record, machine, staged, every, directory, state, disk, base), ours)
            return os.dup(state), theirs.detach()
    except BaseException:
        files.remove_tree(every, staged)
        raise
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open_base(place: Place, record: Record) -> int:
    if not record.restored:
        return -1
    try:
        return files.open_beneath(place.directory, f"{record.sandbox}/{sandboxes.MEMORY}", os.O_RDONLY)
    except FileNotFoundError:
        return snapshots.open_file(place.instance, record.snapshot, layout.MEMORY)


def _become_taker(job: _Job, talk: socket.socket) -> NoReturn:
    """In the child: it never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        files.close_all_but({*job.descriptors(), job.place.directory, talk.fileno()})
        (_work_jailed if job.record.accelerator == firecracker.NAME else _work)(job, talk)
        status = 0
    except Exception as error:  # noqa: BLE001 (the boundary: whatever it is, the node gets a code and a sentence)
        files.remove_tree(job.every, job.staged)
        if not isinstance(error, _HungUp):
            found = fault(error)
            log(f"begin_snapshot {job.op.snapshot} {found.code}: {error}", level="warning", sandbox=job.op.sandbox)
            with suppress(OSError):
                _say(talk, step="failed", code=found.code, message=found.message[:500])
    finally:
        os._exit(status)


class _HungUp(Exception):
    """The node does not want it any more."""


def _say(talk: socket.socket, **words: Any) -> None:
    try:
        talk.send(json.dumps(words).encode(), socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionError) as error:
        raise _HungUp from error


def _until_wanted(talk: socket.socket) -> None:
    """It is ready, and waits for the word. A node that hangs up before it has read that is a reset here, and no end."""
    _say(talk, step="ready")
    try:
        word = talk.recv(16)
    except ConnectionError as error:
        raise _HungUp from error
    if word != b"go":
        raise _HungUp


def _work(job: _Job, talk: socket.socket) -> None:
    pid, size, booted = job.record.pid, job.record.memory_mib << 20, job.base < 0
    start = vmmemory.find(pid, size, backed=not booted)
    memory = files.open_beneath(job.directory, layout.MEMORY, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    if booted:
        os.ftruncate(memory, size)
    else:
        files.clone(job.base, memory)
    room = vmmemory.Room(_room(sum(length for _, length in vmmemory.own_runs(pid, start, size)), size))
    os.fdatasync(job.disk)  # so that little of it is dirty while the VM stands still
    reached("snapshot ready")
    _until_wanted(talk)
    began = time.monotonic()
    runs = vmmemory.own_runs(pid, start, size)
    taken = room.take(pid, start, runs)
    written = 0 if taken else vmmemory.copy(pid, start, runs, memory, skip_zeros=booted)
    read = time.monotonic()
    disk = files.open_beneath(job.directory, layout.DISK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    files.clone(job.disk, disk)
    reached("snapshot copied")
    pages = sum(length for _, length in runs) // vmmemory.PAGE
    _say(talk, step="copied", pages=pages, memory_ms=round((read - began) * 1000, 3), disk_ms=round((time.monotonic() - read) * 1000, 3))
    if taken:
        written = room.write(runs, memory, skip_zeros=booted)
    room.close()
    _commit(job, talk, {layout.MEMORY: memory, layout.STATE: job.state, layout.DISK: disk}, written)


def _work_jailed(job: _Job, talk: socket.socket) -> None:
    """Of a Firecracker, which writes memory and state itself, into its jail: they are taken from there before it runs on."""
    place, record = job.place, job.record
    jailer.make_room(place, record.sandbox, place.instance.vm_uid(record.slot))
    os.fdatasync(job.disk)
    reached("snapshot ready")
    _until_wanted(talk)
    began = time.monotonic()
    memory = files.open_beneath(job.directory, layout.MEMORY, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    private = jailer.take(place, record.sandbox, job.base, record.memory_mib << 20, memory, job.state)
    read = time.monotonic()
    disk = files.open_beneath(job.directory, layout.DISK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    files.clone(job.disk, disk)
    reached("snapshot copied")
    pages = -(-private // vmmemory.PAGE)
    _say(talk, step="copied", pages=pages, memory_ms=round((read - began) * 1000, 3), disk_ms=round((time.monotonic() - read) * 1000, 3))
    for descriptor in (memory, job.state):
        os.fchmod(descriptor, 0o444)  # jails have links of them; nobody else comes this far
    _commit(job, talk, {layout.MEMORY: memory, layout.STATE: job.state, layout.DISK: disk}, private)


def _room(now: int, size: int) -> int:
    """Bytes for the pages of a VM that has `now` of its own: with some for what it writes meanwhile. None where it is too much for this
    machine: then they are written to the file at once, and the VM waits longer.
    """
    wanted = min(size, now + now // 4 + (8 << 20))
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
    return wanted if wanted <= min(_MOST_ROOM, available // 4) else 0


def _commit(job: _Job, talk: socket.socket, parts: dict[str, int], private_bytes: int) -> None:
    op = job.op
    if not (written := os.fstat(job.state).st_size):
        raise Internal(f"the VMM of {op.sandbox} wrote no device state")
    os.ftruncate(job.state, written)
    told = parts if op.shared else (layout.STATE,)
    digests = {name: _digest(job.directory, name) for name in told} if op.durable else {}
    if op.durable:
        for descriptor in parts.values():
            os.fsync(descriptor)
    reached("snapshot synced")
    sizes = {name: os.fstat(descriptor).st_size for name, descriptor in parts.items()}
    manifest = SnapshotManifest(
        version=layout.VERSION,
        snapshot=op.snapshot,
        sandbox=op.sandbox,
        generation=op.generation,
        template=job.record.template,
        parent=job.record.snapshot if job.record.restored else "",
        shared=op.shared,
        durable=op.durable,
        machine=job.machine,
        disk_mib=job.record.disk_mib,
        memory_bytes=sizes[layout.MEMORY],
        state_bytes=sizes[layout.STATE],
        disk_bytes=sizes[layout.DISK],
        private_bytes=private_bytes,
        taken_at=time.time(),
        digests=digests,
        complete=True,
    )
    files.write_json(job.directory, layout.MANIFEST, manifest.to_json())
    if op.durable:
        files.sync(job.directory, layout.MANIFEST)
    reached("snapshot described")
    with suppress(BlockingIOError):
        talk.recv(16, socket.MSG_DONTWAIT)  # nothing more is to come but the end
        raise _HungUp
    try:
        os.rename(job.staged, op.snapshot, src_dir_fd=job.every, dst_dir_fd=job.every)
    except FileExistsError:
        raise Conflict(f"snapshot {op.snapshot} is there already") from None
    if op.durable:
        os.fsync(job.every)
    reached("snapshot committed")
    _say(talk, step="done", memory_bytes=manifest.memory_bytes, state_bytes=manifest.state_bytes, private_bytes=private_bytes)


def _digest(directory: int, name: str) -> str:
    """`layout.digest` of a file of the staged directory."""
    descriptor = files.open_beneath(directory, name, os.O_RDONLY)
    try:
        return layout.digest(descriptor)
    finally:
        os.close(descriptor)
