"""One process a data directory: two nodes on one ledger, or two controls on one database, would undo each other's work."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from space.model.errors import Conflict


def hold(directory: Path, role: str) -> int:
    """Hold a service's data directory until the descriptor is closed, which the process's end does; Conflict when another one has it."""
    path = directory / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise Conflict(f"another {role} works in {directory}: pid {holder}", hint="end that one") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
