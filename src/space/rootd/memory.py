"""Memory of shared snapshots: a sealed memfd in a process that holds it and can do nothing else.

    forked -> in its cgroup -> filled -> sealed -> rights given up -> said so -> waits for its end

The process is alone in the cgroup `memory-<snapshot>`, so the pages are charged to nobody's sandbox, and a rootd that follows another
finds it there. What is sealed is whole: the seals come last.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from space.config import snapshots as layout
from space.core.plan import firecracker
from space.host import files, syscalls
from space.model.errors import Conflict, Internal, InvalidArgument
from space.rootd import snapshots
from space.rootd.faults import fault
from space.rootd.log import log
from space.rootd.sandboxes import Place
from space.rootd.steps import reached

_NAME = "memory-"
_MEMFD = 3
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # seal, shrink, grow, write
_CHUNK = 16 << 20
HELD = b'{"held": true}\n'


@dataclass(slots=True)
class Fillings:
    """The read ends of pipes of holders that this rootd started and that still fill, by snapshot."""

    pipes: dict[str, int] = field(default_factory=dict)


def hold(place: Place, fillings: Fillings, snapshot: str) -> int:
    """A descriptor that has a line when the memory is held, and ends without one when it could not be. Idempotent."""
    manifest = snapshots.load(place.instance, snapshot)
    if not manifest.shared:
        raise InvalidArgument(f"snapshot {snapshot} is not shared: each sandbox that is made of it has a memory of its own")
    if is_held(place, manifest):
        _forget(fillings, snapshot)
        reader, writer = os.pipe()
        os.write(writer, HELD)
        os.close(writer)
        return reader
    tree = place.cgroup.child(_NAME + snapshot)
    if snapshot in fillings.pipes and tree.pids():
        return os.dup(fillings.pipes[snapshot])
    release(place, fillings, snapshot)
    source = snapshots.open_file(place.instance, snapshot, layout.MEMORY)
    reader, writer = os.pipe()
    go_reader, go = os.pipe()
    try:
        tree.create()
        pid = os.fork()
        if pid == 0:
            _become_holder(place, source, writer, go_reader)
        tree.add(pid)
        os.write(go, b"g")
    except BaseException:
        os.close(reader)
        raise
    finally:
        for descriptor in (source, writer, go_reader, go):
            os.close(descriptor)
    fillings.pipes[snapshot] = reader
    return os.dup(reader)


def borrow(place: Place, snapshot: str) -> int:
    """The sealed memory of a snapshot; the caller owns the descriptor. Conflict when nobody holds it."""
    for pid in place.cgroup.child(_NAME + snapshot).pids():
        with suppress(OSError):  # it has just ended, or has not made its memory yet
            pidfd = os.pidfd_open(pid)
            try:
                descriptor = syscalls.borrow_descriptor(pidfd, _MEMFD)
            finally:
                os.close(pidfd)
            with suppress(OSError):
                if fcntl.fcntl(descriptor, _F_GET_SEALS) & _SEALS == _SEALS:
                    return descriptor
            os.close(descriptor)
    raise Conflict(f"the memory of snapshot {snapshot} is not held", hint="hold_memory holds it")


def is_held(place: Place, manifest: layout.SnapshotManifest) -> bool:
    """Whether a machine can be made of it now. A Firecracker's needs no holder: it opens the file for reading, and the file is root's."""
    if manifest.machine.accelerator == firecracker.NAME:
        return True
    with suppress(Conflict):
        os.close(borrow(place, manifest.snapshot))
        return True
    return False


def release(place: Place, fillings: Fillings, snapshot: str) -> None:
    """End its holder, if there is one."""
    tree = place.cgroup.child(_NAME + snapshot)
    if not tree.exists():
        return
    if left := tree.kill_and_wait():
        raise Internal(f"the process {min(left)} that holds the memory of {snapshot} does not end")
    _forget(fillings, snapshot)
    tree.remove()


def _forget(fillings: Fillings, snapshot: str) -> None:
    if (pipe := fillings.pipes.pop(snapshot, None)) is not None:
        os.close(pipe)


def _become_holder(place: Place, source: int, writer: int, go: int) -> NoReturn:
    """In the child: it never returns, and ends by SIGKILL."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        source, writer, go = files.keep_only((source, writer, go))
        if os.read(go, 1) != b"g":
            os._exit(1)  # rootd died before this process was in its cgroup
        os.close(go)
        memfd = os.memfd_create("memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.dup2(memfd, _MEMFD)
        _fill(source, _MEMFD)
        os.close(source)
        if memfd != _MEMFD:
            os.close(memfd)
        reached("memory filled")
        fcntl.fcntl(_MEMFD, _F_ADD_SEALS, _SEALS)
        _give_up_rights(place.instance.memory_uid)
        os.write(writer, HELD)
        os.close(writer)
        while True:
            signal.pause()
    except BaseException as error:  # noqa: BLE001 (there is nobody to raise it to)
        log(f"the memory of a snapshot cannot be held: {fault(error) if isinstance(error, Exception) else error}", level="error")
    finally:
        os._exit(1)


def _fill(source: int, target: int) -> None:
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    position = 0
    for begin, end in files.extents(source, size):
        position = os.lseek(target, begin, os.SEEK_SET)
        while position < end:
            count = os.sendfile(target, source, position, min(_CHUNK, end - position))
            if not count:
                raise Internal(f"the memory of a snapshot ends at {position} of {size} bytes")
            position += count
        os.posix_fadvise(source, begin, end - begin, os.POSIX_FADV_DONTNEED)  # it is in memory once, that is enough


def _give_up_rights(uid: int) -> None:
    syscalls.drop_bounding_set()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
