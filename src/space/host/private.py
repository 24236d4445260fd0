"""A process that holds keys: nobody of its uid reads its memory, it leaves no core file, and is not swapped out where that can be had."""

from __future__ import annotations

import os
import resource

from space.host import syscalls


def keep_memory_private() -> bool:
    """For the rest of this process's life; whether its memory is locked as well.

    Locked only where the limit is none: under a limit a later allocation would fail, which ends a process at a moment nobody chose.
    """
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY:
        return False
    try:
        syscalls.mlockall(syscalls.MCL_CURRENT | syscalls.MCL_FUTURE | syscalls.MCL_ONFAULT)
    except OSError:
        return False
    return True
