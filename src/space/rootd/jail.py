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
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from space.core.plan import machine, ruleset
from space.host import namespaces, syscalls

FIRST_DESCRIPTOR = 3
_OPEN_FILES = 256
_OOM_SCORE = 700  # on a machine out of memory a VMM goes before any service of ours or of the operator
_READ_ONLY = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
_TMPFS = syscalls.MS_NOSUID | syscalls.MS_NOEXEC


@dataclass(frozen=True, slots=True)
class Jail:
    """A VMM to be. descriptors: what it keeps, in this order from FIRST_DESCRIPTOR on, with the TAP after them. named_descriptors: it
    finds them as files, too.
    """

    root: Path
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


def become(jail: Jail, go: int, errors: int) -> NoReturn:
    """Wait for a byte on `go`, then turn into the VMM; what went wrong is written to `errors`, which exec closes."""
    try:
        errors = fcntl.fcntl(errors, fcntl.F_DUPFD_CLOEXEC, 512)
        if os.read(go, 1) != b"g":
            os._exit(1)  # rootd died before this process was in its cgroup
        _settle(jail, errors)
        os.execve(jail.argv[0], jail.argv, {})  # noqa: S606 (this is the point of it)
    except BaseException as error:  # noqa: BLE001 (there is nobody to raise it to)
        with suppress(OSError):
            os.write(errors, f"{type(error).__name__}: {error}"[:2000].encode())
    os._exit(127)


def _settle(jail: Jail, errors: int) -> None:
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
    _place_descriptors(null, jail.stderr, (*jail.descriptors, tap), errors)
    _limit(jail)
    _give_up_rights(jail.uid)


def _change_root(jail: Jail, kvm: int | None) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)
    syscalls.sethostname("vmm")
    root = syscalls.open_tree(str(jail.root), _READ_ONLY)
    parts = {
        machine.KERNEL: syscalls.open_tree(str(jail.kernel), _READ_ONLY | syscalls.MOUNT_ATTR_NOEXEC),
        machine.INITRAMFS: syscalls.open_tree(str(jail.initramfs), _READ_ONLY | syscalls.MOUNT_ATTR_NOEXEC),
    }
    if jail.named_descriptors:  # those of this process, which is the VMM to be
        parts = {machine.DESCRIPTORS: syscalls.open_tree("/proc/self/fd", _READ_ONLY | syscalls.MOUNT_ATTR_NOEXEC)}
    # Entering the mount namespace that we are in puts us at its real root: pivot_root refuses to work from inside a chroot.
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(own, syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.move_mount(root, "/")
    os.fchdir(root)
    _fill("tmp", [Path(path).name for path in parts], None, jail.uid, directories=jail.named_descriptors)
    for path, tree in parts.items():
        syscalls.move_mount(tree, path.lstrip("/"))
    if kvm is not None:
        _fill("dev", [], kvm, jail.uid)
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")


def _fill(directory: str, names: list[str], kvm: int | None, uid: int, *, directories: bool = False) -> None:
    """A tmpfs of a few entries on `directory`, read-only once they are there."""
    flags = _TMPFS if kvm is not None else _TMPFS | syscalls.MS_NODEV
    syscalls.mount("tmpfs", directory, "tmpfs", flags, "size=16k,nr_inodes=8,mode=0755")
    for name in names:
        if directories:
            os.mkdir(f"{directory}/{name}", 0o555)  # noqa: PTH102
            continue
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
