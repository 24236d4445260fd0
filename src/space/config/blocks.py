"""Blocks of uids: where they lie, and which are spoken for by somebody else on this kernel.

They begin at 0x70000000: above what adduser gives people (from 1,000), what it gives them as subordinate uids (from 100,000, and
past 655,360 after some ten users) and what systemd-nspawn takes for containers (0x00080000 to 0x6FFFFFFF); below 0x7FFFFFFF, the
largest number that every interface takes. Each uid has a gid of the same number.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FIRST = 0x7000_0000
_SIZE = 4096
_SUBORDINATE = (Path("/etc/subuid"), Path("/etc/subgid"))


def uids(index: int) -> range:
    """The block with that index."""
    return range(_FIRST + index * _SIZE, _FIRST + (index + 1) * _SIZE)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else claims or releases a block meanwhile. The kernel ends it with the process."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def taken(subordinate: tuple[Path, ...] = _SUBORDINATE, proc: Path = Path("/proc")) -> list[range]:
    """Ranges that are not ours to give: subordinate ids of the host's users, and the ids of every process that lives.

    A process of another root file system on this kernel (a chroot with an instance of its own, a container) is among them.
    """
    found = grants(subordinate)
    living = {number for entry in proc.iterdir() if entry.name.isdigit() for number in _ids(entry)}
    return found + [range(number, number + 1) for number in living if number >= _FIRST]


def grants(subordinate: tuple[Path, ...] = _SUBORDINATE) -> list[range]:
    """Subordinate ids of the host's users."""
    return [granted for path in subordinate for granted in _grants(path)]


def overlaps(block: range, others: list[range]) -> bool:
    """Whether any number of the block lies in one of the others."""
    return any(block.start < other.stop and other.start < block.stop for other in others)


def _grants(path: Path) -> Iterator[range]:
    """`name:first:count` lines; a line that is none grants nothing."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            fields = line.split(":")
            if len(fields) == 3 and fields[1].isdigit() and fields[2].strip().isdigit():
                yield range(int(fields[1]), int(fields[1]) + int(fields[2]))


def _ids(entry: Path) -> set[int]:
    """Every uid and gid that a process has; none of a zombie, which some containers' init never reaps, unless other threads of it live."""
    with suppress(OSError):
        lines = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines() if ":" in line)
        if lines["State"].split()[0] not in "ZX" or int(lines["Threads"]) > 1:
            return {int(number) for name in ("Uid", "Gid") for number in lines[name].split()}
    return set()
