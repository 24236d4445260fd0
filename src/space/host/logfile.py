"""A log that bounds itself: whoever writes it drops its older half when it has grown too long.

serve opens a service's log and hands the descriptor down; the service outlives serve and may not open the file itself, so nobody
else could rotate it without losing lines or missing a burst. The file keeps at least half of the limit, from a line's beginning.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

LIMIT = 8 << 20


def write_line(descriptor: int, line: bytes, limit: int = LIMIT) -> None:
    """Append a line, after making room. A log that cannot be written (a full disk, a reader that left) is no reason to fail."""
    with suppress(OSError):
        trim(descriptor, limit)
        view = memoryview(line)
        while view:
            view = view[os.write(descriptor, view) :]


def trim(descriptor: int, limit: int = LIMIT) -> bool:
    """Drop the older half of a file that is longer than `limit` bytes; whether it did. A terminal, a pipe and what cannot be read stay."""
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size <= limit:
        return False
    keep = limit // 2
    try:
        kept = os.pread(descriptor, keep, facts.st_size - keep)
    except OSError:
        return False  # opened for writing only, by somebody who keeps it in order otherwise
    kept = kept[kept.find(b"\n") + 1 :]
    os.ftruncate(descriptor, 0)
    while kept:
        kept = kept[os.write(descriptor, kept) :]
    return True
