"""The sweep: everything of one instance, nothing of another, whoever lives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from space.host import cgroups, namespaces
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


def _process_of(uid: int, root: Path | None = None) -> int:
    """A process that has taken a uid, and a root, and not executed anything since."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        if root is not None:
            os.chroot(root)
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


def test_sweep_spares_a_process_of_the_same_uid_in_another_root(host: RootHost, root: Path) -> None:
    """A chroot on this kernel may have an instance of its own, which cannot be told apart by its uids."""
    stranger = _process_of(host.instance.vm_uid(0), root)
    ours = _process_of(host.instance.vm_uid(1))
    try:
        assert sweep(host.instance) == []
        assert os.waitstatus_to_exitcode(os.waitpid(ours, 0)[1]) == -9
        assert namespaces.start_time(stranger) is not None
    finally:
        os.kill(stranger, signal.SIGKILL)
        os.waitpid(stranger, 0)


def test_sweep_ends_what_serve_recorded_and_not_who_has_its_pid_by_now(host: RootHost) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    recorded, other = _process_of(0), _process_of(0)
    records = [
        {"role": "node", "pid": recorded, "started": namespaces.start_time(recorded), "boot": boot, "build": ""},
        {"role": "control", "pid": other, "started": 1, "boot": boot, "build": ""},
        {"role": "rootd", "pid": other, "started": namespaces.start_time(other), "boot": "another", "build": ""},
    ]
    host.instance.services.write_text(json.dumps(records))
    try:
        assert sweep(host.instance) == []
        assert os.waitstatus_to_exitcode(os.waitpid(recorded, 0)[1]) == -9
        assert namespaces.start_time(other) is not None
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)


def test_what_a_sweep_could_not_remove_keeps_its_uid_block(host: RootHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: cgroups.Tree) -> None:
        raise OSError("it does not go")

    with monkeypatch.context() as patch:
        patch.setattr(cgroups.Tree, "remove", refuse)
        assert sweep(host.instance, data=True) == ["it does not go"]
    assert (host.instance.data / "instance.json").exists()
    assert sweep(host.instance, data=True) == []
    assert not host.instance.data.exists()
