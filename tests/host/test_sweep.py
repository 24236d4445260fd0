"""The sweep: everything of one instance, nothing of another, whoever lives."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from space.host import namespaces
from space.rootd.sweep import sweep
from space.testing import roothost
from space.testing.machine import isolated_python
from space.testing.roothost import WORD, RootHost


@pytest.fixture
def neighbour(root: Path, artefacts: Path) -> Iterator[RootHost]:
    """Another instance in the same directories, with a VMM that lives."""
    other = RootHost(roothost.make_instance(f"n{os.getpid()}", root, artefacts, os.getpid() + 250_000))
    try:
        other.start_rootd()
        yield other
    finally:
        if other.rootd is not None:
            other.stop_rootd()
        other.listener.close()
        assert sweep(other.instance) == []
    assert other.traces() == []


def _process_of(uid: int) -> int:
    """A process that has taken a uid and not executed anything since."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        os.close(writer)  # the last one once the parent has closed its own
        while True:
            signal.pause()
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    return pid


@pytest.mark.parametrize("rootd", ["lives", "dead"])
def test_sweep_of_one_instance_leaves_the_other_running(host: RootHost, neighbour: RootHost, rootd: str) -> None:
    mine, others = host.prepare(), neighbour.prepare()
    pidfd = host.start(mine)
    os.close(neighbour.start(others))
    worker = _process_of(host.instance.node_uid)
    try:
        if rootd == "dead":
            host.stop_rootd(signal.SIGKILL)
        for _ in range(2):
            assert sweep(host.instance) == []
        assert namespaces.wait_ended(pidfd, 0)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -9
        if host.rootd is not None:
            assert host.rootd.wait(10) == -9
            host.rootd = None
    finally:
        os.close(pidfd)
    assert host.traces() == []
    assert neighbour.talk(others) == WORD
    assert [one.alive for one in neighbour.ask(lambda client: client.describe()).sandboxes] == [True]
    assert host.instance.data.exists()


def test_sweep_as_a_command_removes_the_data_as_well(host: RootHost, neighbour: RootHost) -> None:
    request = host.prepare()
    os.close(host.start(request))
    host.stop_rootd(signal.SIGKILL)
    (host.instance.data / "node").mkdir()
    (host.instance.data / "node" / "link").symlink_to(neighbour.instance.data)
    command = [isolated_python(), "-I", "-m", "space.rootd.sweep", "--instance", host.instance.name, "--data"]
    command += ["--data-root", str(host.instance.data_root), "--run-root", str(host.instance.run_root)]
    for _ in range(2):  # the second time there is no such instance any more
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert not host.instance.data.exists()
    assert host.traces() == []
    assert (neighbour.instance.data / "instance.json").exists()


def test_sweep_of_an_instance_that_never_ran_is_fine(unserved: RootHost) -> None:
    assert sweep(unserved.instance) == []
    assert unserved.traces() == []
