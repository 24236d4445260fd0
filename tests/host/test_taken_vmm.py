"""Somebody runs code in a VMM: what the jail leaves him (`space.testing.takenvmm`)."""

from __future__ import annotations

import os
from pathlib import Path

from space.config import blocks
from space.host import namespaces
from space.rootd.sweep import sweep
from space.rpc.rootd_client import SandboxOnHost
from space.testing.roothost import WORD, RootHost
from space.testing.takenvmm import taken


def _without_its_first_thread(host: RootHost, slot: int = 0) -> tuple[str, int, int]:
    """A VMM that lives on in its other threads, as a zombie to who looks at the first one: its sandbox, its pid and a pidfd."""
    request = host.prepare(slot=slot)
    pidfd = host.start(request)
    assert host.talk(request) == WORD
    pid: int = host.record(request)["pid"]
    with taken(pid) as vmm:
        vmm.end_first_thread()
    while "zombie" not in Path(f"/proc/{pid}/status").read_text():
        os.sched_yield()
    assert not namespaces.has_ended(pidfd)
    return request.sandbox, pid, pidfd


def test_a_vmm_that_ends_its_first_thread_is_not_taken_for_dead(host: RootHost) -> None:
    sandbox, pid, pidfd = _without_its_first_thread(host)
    assert host.ask(lambda client: client.describe()).sandboxes == (SandboxOnHost(sandbox, 1, 0, alive=True),)
    assert host.tree().child(sandbox).pids() == {pid}
    assert host.instance.vm_uid(0) in blocks._ids(Path(f"/proc/{pid}"))
    host.ask(lambda client: client.kill_vmm(sandbox, 1))
    assert namespaces.wait_ended(pidfd, 10)
    os.close(pidfd)
    host.ask(lambda client: client.destroy_sandbox(sandbox, 1))


def test_a_sweep_ends_a_vmm_that_ended_its_first_thread(host: RootHost) -> None:
    _, _, pidfd = _without_its_first_thread(host)
    host.stop_rootd()
    assert sweep(host.instance) == []
    assert namespaces.has_ended(pidfd)
    os.close(pidfd)
