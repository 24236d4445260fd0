"""A process that holds keys cannot be read by another one of its uid, and one that does not can (so the test would see it)."""

from __future__ import annotations

import os
import resource
import signal

import pytest

from space.host import syscalls
from space.host.private import keep_memory_private

UID = 12345


def _holder(private: bool) -> int:
    """A process of another uid that waits; its pid, once it is as it should be."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # as after an exec: a change of uid alone takes it away
            if private:
                keep_memory_private()
            os.write(told, b"%d" % resource.getrlimit(resource.RLIMIT_CORE)[1])
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    with os.fdopen(ready, "rb", buffering=0) as file:
        limit = file.read(20)
        assert not private or limit == b"0", "no core file"
    return pid


def _can_read(pid: int) -> bool:
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(UID, UID, UID)
            os.setresuid(UID, UID, UID)
            descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
            os.close(descriptor)
        except OSError:
            os._exit(1)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another uid")
@pytest.mark.parametrize("private", [True, False])
def test_only_a_process_that_does_not_keep_its_memory_private_is_read_by_its_own_uid(private: bool) -> None:
    pid = _holder(private)
    try:
        assert _can_read(pid) != private
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
