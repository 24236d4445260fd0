"""Firecracker's jailer, and the directory that becomes the root of its jail.

    <sandbox>/jail/firecracker/<sandbox>/root/    kernel, initramfs, disk.img, memory, state: hard links (Firecracker takes paths)
                                              api/     shows the VM's run directory: its API's and its vsock's sockets, its console
                                              taken/   what it writes for a snapshot

The process is forked into its namespaces and its cgroup as any VMM, and then becomes the jailer, which makes the root, takes the uid and
becomes Firecracker: one process, known by its pid from the beginning. What the jailer leaves lies in the sandbox's own directory and
goes with it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from space.config import firecracker as shelf
from space.config import snapshots as layout
from space.core.plan import firecracker as plan
from space.core.plan import machine, ruleset
from space.host import files, namespaces, syscalls
from space.model.errors import Conflict
from space.rootd.sandboxes import DISK, MEMORY, Place, Record

_JAIL = "jail"
_OOM_SCORE = 700  # as of any VMM (`rootd.jail`)
_TUNSETOWNER = 0x400454CC
_LARGEST_STATE = 16 << 20  # 12 to 16 KiB were measured
# What the jailer needs of root; it gives that up with its uid.
_KEPT = (
    0,
    1,
    2,
    3,
    6,
    7,
    18,
    21,
    24,
    27,
)  # CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER SETGID SETUID SYS_CHROOT SYS_ADMIN SYS_RESOURCE MKNOD


@dataclass(frozen=True, slots=True)
class Jailed:
    """A Firecracker to be. run: what its jail shows as `api`. serial, stderr: descriptors that it writes to."""

    argv: tuple[str, ...]
    netns: Path
    uid: int
    threads: int
    run: Path
    api: Path
    serial: int
    stderr: int


def prepare(place: Place, record: Record, stderr: int) -> Jailed:
    """Make the directory and the console. The caller closes `serial`."""
    instance = place.instance
    uid = instance.vm_uid(record.slot)
    found = shelf.get(place.store, record.vmm)
    base = instance.sandboxes / record.sandbox / _JAIL
    root = base / plan.NAME / record.sandbox / "root"
    files.remove_tree(place.directory, f"{record.sandbox}/{_JAIL}")
    for directory in (base, base / plan.NAME, root.parent, root, root / plan.API.lstrip("/")):
        directory.mkdir(mode=0o711)
    _furnish(place, record, root)
    serial = _make_run(instance.vm_run(record.sandbox), uid, instance.node_uid)
    argv = plan.jailer_argv(
        str(found.jailer), str(found.binary), name=record.sandbox, uid=uid, base=str(base),
        largest_file=max(record.disk_mib, record.memory_mib) << 20,
    )  # fmt: skip
    threads = machine.limits(record.cpus, record.memory_mib).pids
    return Jailed(
        tuple(argv), instance.netns(record.slot), uid, threads, instance.vm_run(record.sandbox), root / plan.API.lstrip("/"), serial, stderr
    )


def open_root(place: Place, sandbox: str) -> int:
    """A descriptor of the root of a sandbox's jail, in which its VMM may do what it likes."""
    return files.open_directory(f"{sandbox}/{_JAIL}/{plan.NAME}/{sandbox}/root", inside=place.directory)


def _furnish(place: Place, record: Record, root: Path) -> None:
    manifest = place.store.template_by_digest(record.template)
    own = place.instance.sandboxes / record.sandbox
    links = {plan.DISK: own / DISK}
    if record.restored:
        snapshot = place.instance.snapshots / record.snapshot
        memory = own / MEMORY
        links |= {plan.MEMORY: memory if memory.exists() else snapshot / layout.MEMORY, plan.STATE: snapshot / layout.STATE}
    else:
        links |= {
            plan.KERNEL: place.store.path("kernel", manifest.kernel) / "vmlinux",
            plan.INITRAMFS: place.store.path("initramfs", manifest.initramfs) / "initrd.cpio",
        }
    for name, source in links.items():
        _link(source, root / name)


def _link(source: Path, target: Path) -> None:
    """The file itself, which its owner and mode guard; a copy where the artefacts lie on another file system."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with source.open("rb") as old, target.open("xb") as new:
            files.clone(old.fileno(), new.fileno())
            os.fchmod(new.fileno(), 0o444)


def _make_run(run: Path, uid: int, node: int) -> int:
    """The VM's run directory and in it the console, a pipe; its end for the VMM.

    The directory is the VMM's own, with the node's group for all that is made there: Firecracker makes its sockets itself. What fills
    it is charged to the sandbox's memory. A console that nobody reads takes no more than the pipe holds, and holds nobody up.
    """
    parent = files.open_directory(run.parent)
    try:
        files.remove_tree(parent, run.name)
    finally:
        os.close(parent)
    run.mkdir(mode=0o700)
    console = run / plan.SERIAL
    os.mkfifo(console, 0o640)
    os.chown(console, 0, node)
    console.chmod(0o640)  # whatever the umask was
    os.chown(run, uid, node)
    run.chmod(0o2770)
    return os.open(console, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)


def become(jailed: Jailed, go: int, errors: int) -> NoReturn:
    """In the forked child: turn into the jailer once a byte comes on `go`; what went wrong is written to `errors`, which exec closes."""
    try:
        errors = fcntl.fcntl(errors, fcntl.F_DUPFD_CLOEXEC, 512)
        _enter(jailed)
        if os.read(go, 1) != b"g":
            os._exit(1)  # rootd died before this process was in its cgroup
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64) for descriptor in (null, jailed.serial, jailed.stderr)]
        for number, descriptor in enumerate(moved):
            os.dup2(descriptor, number)
        os.closerange(3, errors)
        os.closerange(errors + 1, 1 << 20)
        for kind, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NPROC, jailed.threads),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_RTPRIO, 0),
        ):
            resource.setrlimit(kind, (value, value))
        os.setgroups([])
        syscalls.drop_bounding_set(_KEPT)
        os.execve(jailed.argv[0], jailed.argv, {})  # noqa: S606 (this is the point of it)
    except BaseException as error:  # noqa: BLE001 (there is nobody to raise it to)
        with suppress(OSError):
            os.write(errors, f"{type(error).__name__}: {error}"[:2000].encode())
    os._exit(127)


def _enter(jailed: Jailed) -> None:
    os.setsid()
    os.umask(0o007)  # the node's group is what reaches the sockets
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    namespaces.enter_network(jailed.netns)
    tap = namespaces.open_tap(ruleset.TAP)
    try:
        fcntl.ioctl(tap, _TUNSETOWNER, jailed.uid)  # Firecracker attaches to it by itself, under its own uid
    finally:
        os.close(tap)
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)
    syscalls.sethostname("vmm")
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount(str(jailed.run), str(jailed.api), None, syscalls.MS_BIND)


def take(place: Place, sandbox: str, base: int, size: int, memory: int, state: int) -> int:
    """What Firecracker wrote for a snapshot, into these files of root's: bytes of memory beyond `base` (-1: there is none).

    It wrote into its jail, so nothing there is believed: a name is opened without following anything, and is a plain file of the size.
    """
    root = open_root(place, sandbox)
    try:
        written = _open_taken(root, plan.MEMORY)
        try:
            if os.fstat(written).st_size != size:
                raise Conflict(f"the VMM of {sandbox} wrote a memory of {os.fstat(written).st_size} bytes, not {size}")
            if base < 0:
                files.clone(written, memory)
                private = sum(end - begin for begin, end in files.extents(written, size))
            else:
                files.clone(base, memory)
                private = files.copy_extents(written, memory, size)
        finally:
            os.close(written)
        written = _open_taken(root, plan.STATE)
        try:
            if os.fstat(written).st_size > _LARGEST_STATE:
                raise Conflict(f"the VMM of {sandbox} wrote a state of {os.fstat(written).st_size} bytes")
            files.copy_extents(written, state, os.fstat(written).st_size)
        finally:
            os.close(written)
        files.remove_tree(root, plan.TAKEN)
        return private
    finally:
        os.close(root)


def make_room(place: Place, sandbox: str, uid: int) -> None:
    """An empty directory in which Firecracker writes a snapshot."""
    root = open_root(place, sandbox)
    try:
        files.remove_tree(root, plan.TAKEN)
        os.mkdir(plan.TAKEN, 0o700, dir_fd=root)
        made = files.open_directory(plan.TAKEN, inside=root)
        try:
            os.fchown(made, uid, uid)
        finally:
            os.close(made)
    finally:
        os.close(root)


def _open_taken(root: int, name: str) -> int:
    descriptor = files.open_beneath(root, f"{plan.TAKEN}/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Conflict(f"the VMM wrote a {name} that is no plain file")
    return descriptor
