"""The loop file's size: allocated whole, whatever it was made with, and larger only by allocating first.

    fallocate the file -> the loop device sees it -> the file system takes it         (each step idempotent, run again after a crash)

A file system that believes in room that its host has not is lost when the host's disk is full (btrfs turns read-only for good), so
no step believes before the one under it has.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from space.host import syscalls
from space.setup import command, loopdevice, mounts
from space.setup.faults import SetupFailed

GIB = 1 << 30
MIB = 1 << 20
_LOOP_SET_CAPACITY = 0x4C07
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def is_whole(image: Path) -> bool:
    """Whether every block of the file is allocated."""
    facts = image.stat()
    return facts.st_blocks * 512 >= facts.st_size


def allocate(image: Path) -> bool:
    """Allocate what is missing of a file, in place, also while it is in use: no byte of it changes. Whether anything was missing.

    SetupFailed when the host's disk has no room for the rest, or its file system allocates nothing.
    """
    if is_whole(image):
        return False
    facts = image.stat()
    _fallocate(image, facts.st_size, missing=facts.st_size - facts.st_blocks * 512)
    return True


def grow(image: Path, mounted: Path, wanted: int) -> bool:
    """Make the file, its device and the file system on it `wanted` bytes large; whether it was smaller. It never shrinks.

    The caller holds the machine's lock. SetupFailed says which step was not done; the steps before it are kept and do no harm.
    """
    size = image.stat().st_size
    if wanted < size:
        raise SetupFailed(f"{image} has {size / GIB:.2f} GiB and does not shrink", hint="ask for more, or for nothing")
    if wanted > size:
        facts = os.statvfs(image.parent)
        free = facts.f_bavail * facts.f_frsize
        if wanted - size > free * 3 // 4:
            raise SetupFailed(
                f"{(wanted - size) / GIB:.2f} GiB more were asked for, and {image.parent} has {free / GIB:.2f} GiB free",
                hint="ask for three quarters of it at most",
            )
        _fallocate(image, wanted, missing=wanted - size)
    device = _device(mounted)
    if device is None:
        raise SetupFailed(f"{image} is not mounted at {mounted}", hint="`space setup` mounts it")
    before = _sectors(device)
    _announce(device)
    kind = mounts.kind(mounted)
    argv = ["xfs_growfs", str(mounted)] if kind == "xfs" else ["btrfs", "filesystem", "resize", "max", str(mounted)]
    command.run(argv, what=f"let the {kind} at {mounted} take its new size")
    return wanted > size or _sectors(device) > before


def _fallocate(image: Path, size: int, *, missing: int) -> None:
    with image.open("r+b", buffering=0) as file:
        try:
            syscalls.fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise SetupFailed(
                    f"{image} needs {missing / GIB:.2f} GiB more, and {image.parent} has no room for it",
                    hint="free some space there: until it is allocated, a full disk makes the storage read-only for good",
                ) from error
            if error.errno in _UNSUPPORTED:
                raise SetupFailed(
                    f"the file system of {image.parent} cannot allocate a file's blocks ahead",
                    hint="mount btrfs or XFS at the data directory",
                ) from error
            raise


def _device(mounted: Path) -> Path | None:
    source = mounts.source(mounted)
    return Path(source) if source is not None and source.startswith("/dev/loop") else None


def _sectors(device: Path) -> int:
    return int(Path(f"/sys/block/{device.name}/size").read_text())


def _announce(device: Path) -> None:
    """The device looks at its file's size anew."""
    loopdevice.device_node(device, stat.S_IFBLK, loopdevice.MAJOR, int(device.name.removeprefix("loop")))
    descriptor = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _LOOP_SET_CAPACITY, 0)
    finally:
        os.close(descriptor)
