"""VMMs: started in their jail, found again, killed.

    forked -> in the cgroup -> recorded -> released -> exec -> answered

A child that is not released dies of the closed pipe, so every VMM that runs is in its sandbox's cgroup and in its record.
rootd's own death touches none of them.
"""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from space.config import firecracker as shelf
from space.config import snapshots as layout
from space.core.plan import firecracker, machine
from space.host import clockrate, files, namespaces, syscalls
from space.model.errors import Conflict, Gone, Internal, Unsupported
from space.model.rootd import SandboxOp, StartVmm
from space.rootd import jail, jailer, memory, sandboxes, slots, snapshots
from space.rootd.log import log
from space.rootd.sandboxes import Place, Record

SOCKETS = ("qmp", "control", "bulk", "serial")  # as machine.Descriptors has them
_STDERR_LIMIT = 16 << 10
_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4


@dataclass(slots=True)
class Children:
    """The VMMs that this rootd started, by pid: the sandbox, and a descriptor of what the VMM wrote on standard error. trees: what their
    mount namespaces are copies of.
    """

    by_pid: dict[int, tuple[str, int]] = field(default_factory=dict)
    trees: jail.Trees = field(default_factory=jail.Trees)


def start(place: Place, children: Children, op: StartVmm) -> int:
    """Boot the sandbox's VMM and return a pidfd that the caller owns. The one that runs already, if it does.

    Gone when this generation's VMM was started and has ended: a generation boots once.
    """
    record = sandboxes.get(place, op)
    running = sandboxes.vmm(place, record)
    if running is not None:
        sandboxes.save(place, replace(record, answered=True))
        return running
    if record.answered:
        raise Gone(f"the VMM of {record.sandbox} generation {record.generation} was started and has ended")
    if not slots.exists(place.instance, record.slot):
        raise Conflict(f"slot {record.slot} of {record.sandbox} is gone", hint="create_slot makes it")
    if op.accelerator != "tcg" and not Path("/dev/kvm").exists():
        raise Unsupported("this machine has no /dev/kvm", hint="accelerator `tcg` emulates")
    if op.accelerator == firecracker.NAME:
        return _start_firecracker(place, children, replace(record, accelerator=op.accelerator, restored=op.restore))
    if op.restore:
        _check_origin(place, record, op.accelerator)
    with ExitStack() as stack:
        listeners = [stack.enter_context(listener) for listener in _listen(place, record)]
        disk = files.open_beneath(place.directory, f"{record.sandbox}/{sandboxes.DISK}", os.O_RDWR)
        stack.callback(os.close, disk)
        origin = _open_origin(place, record) if op.restore else ()
        for descriptor in origin:
            stack.callback(os.close, descriptor)
        stderr = _bounded_file()
        stack.callback(os.close, stderr)
        record = replace(record, accelerator=op.accelerator, restored=op.restore)
        plan = _plan(place, record, (*(listener.fileno() for listener in listeners), disk, *origin), stderr, children.trees)
        pid, pidfd = _spawn(place, record, functools.partial(jail.become, plan))
        children.by_pid[pid] = (record.sandbox, os.dup(stderr))
        return pidfd


def _start_firecracker(place: Place, children: Children, record: Record) -> int:
    """A boot takes the machine's current one, a restore the one that made the snapshot."""
    if record.restored:
        if not record.snapshot:
            raise _no_snapshot(record)
        origin = snapshots.load(place.instance, record.snapshot)
        record = replace(record, vmm=origin.machine.vmm if origin.machine.accelerator == firecracker.NAME else "")
        _check_origin(place, record, record.accelerator)
    else:
        record = replace(record, vmm=shelf.current(place.store).digest)
    with ExitStack() as stack:
        stderr = _bounded_file()
        stack.callback(os.close, stderr)
        plan = jailer.prepare(place, record, stderr)
        stack.callback(os.close, plan.serial)
        pid, pidfd = _spawn(place, record, functools.partial(jailer.become, plan))
        children.by_pid[pid] = (record.sandbox, os.dup(stderr))
        return pidfd


def adopt(place: Place, op: SandboxOp) -> int | None:
    """A pidfd of this generation's VMM, None when it does not live. The caller owns it."""
    record = sandboxes.find(place, op.sandbox)
    if record is None or record.generation != op.generation:
        return None
    return sandboxes.vmm(place, record)


def kill(place: Place, op: SandboxOp) -> None:
    """Send SIGKILL to everything in the sandbox's cgroup; nothing there, or another generation, is fine."""
    record = sandboxes.find(place, op.sandbox)
    if record is None or record.generation == op.generation:
        place.tree(op.sandbox).kill()


def reap(children: Children) -> None:
    """Reap what has ended (orphans too: rootd is a subreaper) and say how our VMMs did."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in children.by_pid:
            sandbox, stderr = children.by_pid.pop(pid)
            with os.fdopen(stderr, "rb") as file:
                file.seek(0)
                words = file.read(_STDERR_LIMIT).rstrip(b"\0").decode(errors="replace").strip()
            said = words[-2000:] or "it said nothing"
            log(f"{sandbox}: the VMM (pid {pid}) ended with {os.waitstatus_to_exitcode(status)}: {said}", sandbox=sandbox)


def _listen(place: Place, record: Record) -> list[socket.socket]:
    """The listening sockets of a VM, in a directory of their own that is made anew."""
    directory, gid = place.instance.vm_run(record.sandbox), place.instance.node_uid
    run = files.open_directory(directory.parent)
    try:
        files.remove_tree(run, record.sandbox)
    finally:
        os.close(run)
    directory.mkdir(mode=0o700)
    listeners = []
    for name in SOCKETS:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listeners.append(listener)
        path = directory / f"{name}.sock"
        listener.bind(str(path))
        listener.listen(4)
        os.chown(path, 0, gid)
        path.chmod(0o660)
    os.chown(directory, 0, gid)
    directory.chmod(0o750)
    return listeners


def _bounded_file() -> int:
    """A file in memory that cannot grow: what a VMM says on standard error is bounded and outlives it."""
    descriptor = os.memfd_create("stderr", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, _STDERR_LIMIT)
    fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_GROW | _F_SEAL_SHRINK | _F_SEAL_SEAL)
    return descriptor


def _check_origin(place: Place, record: Record, accelerator: str) -> None:
    if not record.snapshot:
        raise _no_snapshot(record)
    manifest = snapshots.load(place.instance, record.snapshot)
    shape = (accelerator, record.cpus, record.memory_mib, record.vmm)
    layout.check(manifest, snapshots.machine_of(place.instance, record.template, *shape))
    snapshots.check_parts(place.instance, manifest)


def _no_snapshot(record: Record) -> Conflict:
    return Conflict(f"sandbox {record.sandbox} was not made of a snapshot", hint="it boots from its disk when it is woken cold")


def _open_origin(place: Place, record: Record) -> tuple[int, int]:
    """Memory and device state of the snapshot that the sandbox was made of; the caller owns the descriptors."""
    state = snapshots.open_file(place.instance, record.snapshot, layout.STATE)
    try:
        try:
            return files.open_beneath(place.directory, f"{record.sandbox}/{sandboxes.MEMORY}", os.O_RDWR), state
        except FileNotFoundError:
            return memory.borrow(place, record.snapshot), state
    except BaseException:
        os.close(state)
        raise


def _plan(place: Place, record: Record, descriptors: tuple[int, ...], stderr: int, trees: jail.Trees) -> jail.Jail:
    store = place.store
    manifest = store.template_by_digest(record.template)
    *numbers, tap = range(jail.FIRST_DESCRIPTOR, jail.FIRST_DESCRIPTOR + len(descriptors) + 1)
    given = dict(zip((*SOCKETS, "disk", "memory", "state"), numbers, strict=False))
    plan = machine.Machine(record.cpus, record.memory_mib, record.accelerator, *clockrate.tsc(), restore=record.restored)
    return jail.Jail(
        tree=trees.of(store.path("qemu", manifest.qemu) / "root"),
        kernel=store.path("kernel", manifest.kernel) / "vmlinux",
        initramfs=store.path("initramfs", manifest.initramfs) / "initrd.cpio",
        named_descriptors=record.restored,
        netns=place.instance.netns(record.slot),
        uid=place.instance.vm_uid(record.slot),
        kvm=record.accelerator == "kvm",
        descriptors=descriptors,
        stderr=stderr,
        largest_file=record.disk_mib << 20,
        threads=machine.limits(record.cpus, record.memory_mib).pids,
        argv=tuple(machine.qemu_argv(plan, machine.Descriptors(tap=tap, **given))),
    )


def _spawn(place: Place, record: Record, become: Callable[[int, int], NoReturn]) -> tuple[int, int]:
    go_reader, go = os.pipe()
    errors, errors_writer = os.pipe()
    try:
        pid = _fork_into_new_pids()
    except BaseException:
        for descriptor in (go_reader, go, errors, errors_writer):
            os.close(descriptor)
        raise
    if pid == 0:
        os.close(go)
        become(go_reader, errors_writer)
    os.close(go_reader)
    os.close(errors_writer)
    try:
        pidfd = os.pidfd_open(pid)
    except BaseException:
        os.close(go)  # the child waits for a word on it, and ends without one
        os.close(errors)
        os.waitpid(pid, 0)
        raise
    try:
        with os.fdopen(errors, "rb") as failure:
            try:
                place.tree(record.sandbox).add(pid)
                started = namespaces.start_time(pid)
                if started is None:
                    words = failure.read(4096) or b"it ended before it began"
                    raise Internal(f"the VMM of {record.sandbox} could not be started: {words.decode(errors='replace')}")
                record = replace(record, pid=pid, started=started)
                sandboxes.save(place, record)
                with suppress(BrokenPipeError):
                    os.write(go, b"g")
            finally:
                os.close(go)
            if words := failure.read(4096):
                raise Internal(f"the VMM of {record.sandbox} could not be started: {words.decode(errors='replace')}")
        sandboxes.save(place, replace(record, answered=True))
    except BaseException:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)  # it may run already: then its record could not be written
        os.close(pidfd)
        os.waitpid(pid, 0)
        raise
    return pid, pidfd


def _fork_into_new_pids() -> int:
    """fork, with the child as the first process of a new PID namespace. However it ends, our next child is in our own again."""
    own, pid = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC), -1
    try:
        syscalls.unshare(syscalls.CLONE_NEWPID)
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                syscalls.setns(own, syscalls.CLONE_NEWPID)
        return pid
    finally:
        os.close(own)
