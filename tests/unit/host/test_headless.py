"""A process whose first thread has ended is shown as a zombie; while others of its threads run it lives, and is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from space.config import blocks
from space.host import namespaces
from space.rootd import sweep

_PROGRAM = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
print(flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone
"""


@pytest.fixture
def headless() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":
            os.sched_yield()
        yield process
        process.kill()


def test_it_lives_by_every_look(headless: subprocess.Popen[bytes]) -> None:
    pid = headless.pid
    started = namespaces.start_time(pid)
    assert started is not None
    assert namespaces.is_headless(pid)
    assert os.getuid() in blocks._ids(Path(f"/proc/{pid}"))
    assert sweep._has_our_root(Path(f"/proc/{pid}"))
    pidfd = namespaces.open_process(pid, started)
    assert pidfd is not None
    assert not namespaces.has_ended(pidfd)
    os.close(pidfd)


def test_it_is_gone_once_all_of_it_is(headless: subprocess.Popen[bytes]) -> None:
    headless.kill()  # heard by the thread that lives
    os.waitid(os.P_PID, headless.pid, os.WEXITED | os.WNOWAIT)  # a zombie for good, until it is reaped
    assert namespaces.start_time(headless.pid) is None
    assert not namespaces.is_headless(headless.pid)
    assert blocks._ids(Path(f"/proc/{headless.pid}")) == set()
    headless.wait()
    assert namespaces.start_time(headless.pid) is None
    assert not namespaces.is_headless(headless.pid)
