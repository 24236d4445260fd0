"""Network namespaces kept by a bind mount, TAP devices in them, and who a process is."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from space.host import syscalls

TAP_MAC = bytes.fromhex("525400000001")  # the same in every namespace, so that a restored guest's neighbour entry stays right

_TUNSETIFF, _TUNSETPERSIST = 0x4004_54CA, 0x4004_54CB
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFHWADDR = 0x8913, 0x8914, 0x8924
_IFF_UP, _ARPHRD_ETHER = 0x1, 1


def keep_network(path: Path) -> None:
    """Leave the current network namespace for a new one and keep that one alive at `path` (in a process that ends after it)."""
    path.touch(mode=0o600, exist_ok=True)
    syscalls.unshare(syscalls.CLONE_NEWNET)
    syscalls.mount("/proc/self/ns/net", str(path), None, syscalls.MS_BIND)


def is_kept(path: Path) -> bool:
    """Whether `path` holds a namespace (and is not just the file that a crash left)."""
    try:
        return syscalls.filesystem_magic(str(path)) == syscalls.NSFS_MAGIC
    except FileNotFoundError:
        return False


def enter_network(path: Path) -> None:
    """Enter the namespace kept at `path`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(descriptor, syscalls.CLONE_NEWNET)
    finally:
        os.close(descriptor)


def let_go(path: Path) -> None:
    """Unmount whatever is on `path` and remove the file; nothing there is fine."""
    while True:
        try:
            syscalls.umount2(str(path), syscalls.MNT_DETACH)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise
            break
    with suppress(FileNotFoundError):
        path.unlink()


def open_tap(name: str) -> int:
    """Attach to the TAP `name` of this network namespace (made if it is not there); the caller owns the descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_tap(name: str, mac: bytes) -> None:
    """A persistent TAP in this network namespace, not up yet."""
    descriptor = open_tap(name)
    try:
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    finally:
        os.close(descriptor)
    with _control() as control:
        fcntl.ioctl(control, _SIOCSIFHWADDR, struct.pack("16sH14s", name.encode(), _ARPHRD_ETHER, mac))


def remove_tap(name: str) -> None:
    """Remove a TAP that `make_tap` made; OSError while a VMM holds it."""
    descriptor = open_tap(name)
    try:
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 0)
    finally:
        os.close(descriptor)


def set_up(name: str) -> None:
    """Bring an interface of this network namespace up."""
    with _control() as control:
        flags = _flags(control, name)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), flags | _IFF_UP))


def is_up(name: str) -> bool:
    """Whether an interface of this network namespace is up; OSError when there is none."""
    with _control() as control:
        return bool(_flags(control, name) & _IFF_UP)


def interfaces() -> set[str]:
    """The interfaces of this network namespace."""
    return {name for _, name in socket.if_nameindex()}


def _flags(control: socket.socket, name: str) -> int:
    answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
    return int(struct.unpack_from("16xH", answer)[0])


@contextmanager
def _control() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        yield control


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the pid, its name. None when it is gone or a zombie.

    One whose first thread has ended is shown as a zombie while its other threads run, and lives: whoever took it could end that thread.
    """
    fields = _stat(pid)
    return None if fields is None or (fields[0] in "ZX" and int(fields[17]) <= 1) else int(fields[19])


def is_headless(pid: int) -> bool:
    """Whether its first thread has ended, and others have not. A signal to that thread, as cgroup.kill sends it, is heard by nobody then;
    one to the process is.
    """
    fields = _stat(pid)
    return fields is not None and fields[0] in "ZX" and int(fields[17]) > 1


def _stat(pid: int) -> list[str] | None:
    """What the kernel tells of a process behind its name; None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return stat[stat.rindex(")") + 2 :].split()


def open_process(pid: int, started: int) -> int | None:
    """A pidfd of the process that has this pid and start time; None when it is gone. The caller owns the descriptor."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, OSError):
        return None
    # looked at after the pidfd is held: if it is the right one now, the descriptor is of the right one
    if start_time(pid) != started or has_ended(descriptor):
        os.close(descriptor)
        return None
    return descriptor


def has_ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd is dead (reaped or not)."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def wait_ended(pidfd: int, seconds: float) -> bool:
    """Wait until the process behind a pidfd is dead; False when it still lives after `seconds`."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(int(seconds * 1000)))
