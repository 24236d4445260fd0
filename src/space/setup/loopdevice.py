"""Loop devices by system call, because a fresh machine need not have udev's nodes or a loaded module."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

from space.host import syscalls
from space.setup.faults import SetupFailed

_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LOOP_CLR_FD = 0x4C01
_AUTOCLEAR = 4
_DIRECT_IO = 16
MAJOR = 7
_CONTROL = (10, 237)
_TRIES = 16
_MS_NOSUID, _MS_NODEV, _MS_NOATIME = 2, 4, 1024


def mount(source: str, target: Path, kind: str, options: str) -> None:
    """Mount a file system without devices, set-id programs and access times on it."""
    syscalls.mount(source, str(target), kind, _MS_NOSUID | _MS_NODEV | _MS_NOATIME, options)


def device_node(path: Path, kind: int, major: int, minor: int) -> Path:
    """`path`, made with mode 0600 when nothing is there."""
    with suppress(FileExistsError):
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
    return path


def attach(image: Path) -> int:
    """Bind a free loop device to a file and return a descriptor of the device; the kernel frees it with its last user.

    Direct I/O, so that the host does not cache every block twice. Another process can take the free device between the
    two calls (all chroots of a machine share them), hence the loop.
    """
    control_path = device_node(Path("/dev/loop-control"), stat.S_IFCHR, *_CONTROL)
    with image.open("r+b", buffering=0) as file, control_path.open("r+b", buffering=0) as control:
        for _ in range(_TRIES):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            node = device_node(Path(f"/dev/loop{number}"), stat.S_IFBLK, MAJOR, number)
            device = os.open(node, os.O_RDWR | os.O_CLOEXEC)
            for flags in (_AUTOCLEAR | _DIRECT_IO, _AUTOCLEAR):  # direct I/O is refused over some file systems
                try:
                    fcntl.ioctl(device, _LOOP_CONFIGURE, _configuration(file.fileno(), flags, image))
                except OSError as error:
                    if error.errno == errno.EINVAL:
                        continue
                    os.close(device)
                    if error.errno == errno.EBUSY:
                        break
                    raise
                return device
    raise SetupFailed(f"no loop device for {image} after {_TRIES} tries: others take them as fast", hint="run `make setup` again")


def release(device: int) -> None:
    """Give an attached device back that was never mounted, and close it."""
    with suppress(OSError):
        fcntl.ioctl(device, _LOOP_CLR_FD)
    os.close(device)


def _configuration(file: int, flags: int, image: Path) -> bytes:
    """struct loop_config of linux/loop.h: descriptor, block size, loop_info64, reserve."""
    info = struct.pack("=5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, flags, bytes(image)[-63:], b"", b"", 0, 0)
    return struct.pack("=2I", file, 0) + info + bytes(64)
