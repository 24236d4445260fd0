"""What a forked child does to itself before it becomes a VMM. It never returns.

Own PID namespace (made by the fork), the slot's network namespace, own mount, IPC and UTS namespaces; a root that holds the
VMM's files and the guest's kernel, all read-only; own uid and gid, no groups, no capabilities, no new privileges, limits.
QEMU adds its seccomp filter itself.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from space.core.plan import machine, ruleset
from space.host import namespaces, process, syscalls
from space.model.errors import Internal

FIRST_DESCRIPTOR = 3
_OPEN_FILES = 256
_OOM_SCORE = 700  # on a machine out of memory a VMM goes before any service of ours or of the operator
_READ_ONLY = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
_TMPFS = syscalls.MS_NOSUID | syscalls.MS_NOEXEC


@dataclass(frozen=True, slots=True)
class Jail:
    """A VMM to be. tree: a descriptor of the mount namespace that its own is a copy of (`Trees`). descriptors: what it keeps, in this order
    from FIRST_DESCRIPTOR on, with the TAP after them. named_descriptors: it finds them as files, too.
    """

    tree: int
    kernel: Path
    initramfs: Path
    named_descriptors: bool
    netns: Path
    uid: int
    kvm: bool
    descriptors: tuple[int, ...]
    stderr: int
    largest_file: int
    threads: int
    argv: tuple[str, ...]


@dataclass(slots=True)
class Trees:
    """Mount namespaces to copy, by the artefact whose files they show: each holds these, a /tmp with the places of what is a VMM's own,
    and nothing of the host.

    A namespace made of the host's has the host's tree to drop, and the kernel waits for everybody who might still walk it (2 to 13 ms).
    So that is done once for an artefact, and a VMM's namespace is a copy of one in which there is nothing to drop.
    """

    kept: dict[tuple[Path, int, int], int] = field(default_factory=dict)

    def of(self, root: Path) -> int:
        """A descriptor of the namespace, which stays ours. The artefact is told by its inode as well: one may be made anew in its place."""
        there = root.stat()
        key = (root, there.st_dev, there.st_ino)
        if key not in self.kept:
            self.kept[key] = _made(root)
        return self.kept[key]


def become(jail: Jail, go: int, errors: int) -> NoReturn:
    """Turn into the VMM once a byte comes on `go`; what went wrong is written to `errors`, which exec closes."""
    try:
        errors = fcntl.fcntl(errors, fcntl.F_DUPFD_CLOEXEC, 512)
        null, tap = _enter(jail)
        if os.read(go, 1) != b"g":
            os._exit(1)  # rootd died before this process was in its cgroup
        _place_descriptors(null, jail.stderr, (*jail.descriptors, tap), errors)
        _limit(jail)
        _give_up_rights(jail.uid)
        os.execve(jail.argv[0], jail.argv, {})  # noqa: S606 (this is the point of it)
    except BaseException as error:  # noqa: BLE001 (there is nobody to raise it to)
        with suppress(OSError):
            os.write(errors, f"{type(error).__name__}: {error}"[:2000].encode())
    os._exit(127)


def _enter(jail: Jail) -> tuple[int, int]:
    """Leave everything of rootd's but its descriptors and rights; /dev/null and the TAP. Meanwhile rootd puts this process into its cgroup,
    which takes as long.
    """
    os.setsid()
    os.umask(0o077)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    namespaces.enter_network(jail.netns)
    tap = namespaces.open_tap(ruleset.TAP)
    kvm = os.stat("/dev/kvm").st_rdev if jail.kvm else None  # noqa: PTH116
    _change_root(jail, kvm)
    return null, tap


def _change_root(jail: Jail, kvm: int | None) -> None:
    parts = {
        machine.KERNEL: syscalls.open_tree(str(jail.kernel), _READ_ONLY | syscalls.MOUNT_ATTR_NOEXEC),
        machine.INITRAMFS: syscalls.open_tree(str(jail.initramfs), _READ_ONLY | syscalls.MOUNT_ATTR_NOEXEC),
    }
    if jail.named_descriptors:  # those of this process, which is the VMM to be
        parts = {machine.DESCRIPTORS: syscalls.open_tree("/proc/self/fd", _READ_ONLY | syscalls.MOUNT_ATTR_NOEXEC)}
    syscalls.setns(jail.tree, syscalls.CLONE_NEWNS)
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)
    syscalls.sethostname("vmm")
    for path, tree in parts.items():
        syscalls.move_mount(tree, path)
    if kvm is not None:
        _fill("/dev", [], [], kvm, jail.uid)
    os.chdir("/")


def _made(root: Path) -> int:
    """A namespace for `Trees`, made in a child that leaves it behind."""
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def work() -> bytes:
            socket.send_fds(theirs, [b"n"], [_lay_out(root)])
            return b""

        process.forked(work)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if len(descriptors) != 1:
        raise Internal(f"no mount namespace of {root} could be made")
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def _lay_out(root: Path) -> int:
    """Leave the mount namespace for one that holds the artefact and a read-only /tmp; a descriptor of that one."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    tree = syscalls.open_tree(str(root), _READ_ONLY)
    # Entering the mount namespace that we are in puts us at its real root: pivot_root refuses to work from inside a chroot.
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(own, syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.move_mount(tree, "/")
    os.fchdir(tree)
    _fill("tmp", [Path(path).name for path in (machine.KERNEL, machine.INITRAMFS)], [Path(machine.DESCRIPTORS).name], None, 0)
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    return own


def _fill(directory: str, names: list[str], directories: list[str], kvm: int | None, uid: int) -> None:
    """A tmpfs of a few entries on `directory`, read-only once they are there."""
    flags = _TMPFS if kvm is not None else _TMPFS | syscalls.MS_NODEV
    syscalls.mount("tmpfs", directory, "tmpfs", flags, "size=16k,nr_inodes=8,mode=0755")
    for name in directories:
        os.mkdir(f"{directory}/{name}", 0o555)  # noqa: PTH102
    for name in names:
        os.close(os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    if kvm is not None:
        os.mknod(f"{directory}/kvm", stat.S_IFCHR | 0o600, kvm)
        os.chown(f"{directory}/kvm", uid, uid)
    syscalls.mount("none", directory, None, syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | flags)


def _place_descriptors(null: int, stderr: int, kept: tuple[int, ...], errors: int) -> None:
    # out of the way first: a number that is wanted may be in use for another one
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64) for descriptor in (null, stderr, stderr, *kept)]
    for number, descriptor in enumerate(moved):
        os.dup2(descriptor, number)
    last = FIRST_DESCRIPTOR + len(kept)
    os.closerange(last, errors)
    os.closerange(errors + 1, 1 << 20)


def _limit(jail: Jail) -> None:
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, jail.threads),
        (resource.RLIMIT_FSIZE, jail.largest_file),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_RTPRIO, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _give_up_rights(uid: int) -> None:
    syscalls.drop_bounding_set()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
