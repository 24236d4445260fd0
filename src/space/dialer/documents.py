"""The bytes of a policy document out of a descriptor that somebody sent."""

from __future__ import annotations

import fcntl
import os

from space.core.policy.document import MOST_BYTES
from space.model.errors import InvalidArgument

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


def contents(descriptor: int) -> bytes:
    """All of a sealed memfd; InvalidArgument for anything else: reading it could wait, or give other bytes to the next reader."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise InvalidArgument("a policy document comes in a memfd, and this is none") from None
    if seals & _SEALS != _SEALS:
        raise InvalidArgument("a policy document comes in a memfd that is sealed against writing, growing and shrinking")
    size = os.fstat(descriptor).st_size
    if size > MOST_BYTES:
        raise InvalidArgument(f"a policy document of {size} bytes, at most {MOST_BYTES} are possible")
    found = bytearray()
    while len(found) < size and (more := os.pread(descriptor, size - len(found), len(found))):
        found += more
    return bytes(found)
