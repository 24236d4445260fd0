"""What a supervisor asks of the kernel beyond `space.host`: a descriptor of another process, which boot it is."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_PIDFD_GETFD = 438  # the same number on every architecture


def fetch_descriptor(pidfd: int, number: int) -> int:
    """A duplicate (close-on-exec) of descriptor `number` of another process; OSError when it has none or has ended."""
    found = int(_LIBC.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"pidfd_getfd({number}): {os.strerror(code)}")
    return found


def boot_id() -> str:
    """Which boot of the host this is: start times mean nothing across boots."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
