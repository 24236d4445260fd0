"""Whole lives on the real Firecracker and its jailer, by the node's verbs; what the jailed process is; what is left when one is killed.

For a host with KVM and a Firecracker (marker `lab`): nested in emulation all is slow there, so one node serves all tests of this file, and
each does much with few guests.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import uvloop
from tests.contract.test_vmm import Subject, Talker, configure, has, hello, make, on_firecracker, take_over
from tests.machine.test_lives import Host, run

from space.config import firecracker
from space.config.artefacts import Store
from space.config.instance import DATA_ROOT
from space.config.settings import Settings
from space.core.wire import guest
from space.model.ids import new_checkpoint_id, new_process_id, new_sandbox_id, new_snapshot_id
from space.model.isolation import HARDWARE
from space.node.vmm.firecracker import FirecrackerVmm
from space.node.vmm.seam import SnapshotPlan
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Data, Session
from space.testing import machine
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def bare() -> Iterator[BareInstance]:
    with bare_instance(*BESIDE_NODE, "node", settings=Settings(accelerator="firecracker", warm_templates=0)) as one:
        yield one


@pytest.fixture
def keeping() -> Iterator[BareInstance]:
    """A node that keeps templates warm."""
    with bare_instance(*BESIDE_NODE, "node", settings=Settings(accelerator="firecracker", warm_templates=1, clones_ahead=1)) as one:
        yield one


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.2)


async def lines(host: Host, sandbox: str, process: str) -> list[int]:
    """What a process has counted so far."""
    asked = api.Attach(sandbox, process, stdout=0, follow=False)
    async with await host.session.open("attach", asked, finish=True) as stream:
        out = b"".join([event.payload async for event in stream if isinstance(event, Data)])
    return [int(each) for each in re.findall(rb"line (\d+)\n", out)]


def test_a_sandbox_goes_through_every_life_and_loses_nothing(bare: BareInstance) -> None:
    async def work(host: Host) -> None:
        state = await host.create()
        sandbox, name, counting = state.sandbox, new_checkpoint_id(), new_process_id()
        print("create:", state.stages_ms)
        assert state.isolation == HARDWARE
        await host.run(sandbox, "echo before | tee /root/x /dev/shm/x")
        script = "n=0; while :; do n=$((n+1)); echo line $n; sleep 0.2; done"
        await host.session.call("exec", api.Exec(sandbox, ["sh", "-c", script], process=counting, attach=False, named=True))

        await host.do("pause", sandbox, "paused")
        await host.do("resume", sandbox, "running")
        asked = life_api.Checkpoint(sandbox=sandbox, checkpoint=name)
        made = msgspec.msgpack.decode(await host.session.call("checkpoint", asked), type=life_api.Checkpointed)
        print(f"checkpoint: stood still for {made.stopped_ms:.0f} ms, {made.bytes >> 20} MiB")
        known = await lines(host, sandbox, counting)

        async def goes_on() -> bool:
            return len(await lines(host, sandbox, counting)) > len(known)

        await until(goes_on, 30)
        child = life_api.Child(sandbox=new_sandbox_id(), generation=1)
        states = await host.states("fork", life_api.Fork(sandbox=sandbox, children=[child]))
        (forked,) = [each for each in states if each.phase == "running"]
        print("fork:", forked.stages_ms)
        await host.run(child.sandbox, "echo child > /root/x")
        await host.run(sandbox, "echo after | tee /root/x /dev/shm/x")
        assert await host.run(child.sandbox, "cat /root/x /dev/shm/x") == "child\nbefore"
        await host.delete(child.sandbox)

        suspended = await host.do("suspend", sandbox, "suspended")
        woken = await host.wake(sandbox, 2)
        print("suspend:", suspended.stages_ms, suspended.snapshot_bytes >> 20, "MiB; wake:", woken.stages_ms)
        assert await host.run(sandbox, "cat /root/x /dev/shm/x") == "after\nafter"
        assert abs(int(await host.run(sandbox, "date +%s")) - time.time()) < 5
        counted = await lines(host, sandbox, counting)
        assert counted == list(range(1, len(counted) + 1)), "no line was lost or came twice"

        back = await host.last("rollback", life_api.Rollback(sandbox=sandbox, checkpoint=name, generation=3))
        assert back.phase == "running", back.reason
        assert await host.run(sandbox, "cat /root/x /dev/shm/x") == "before\nbefore"
        await host.run(sandbox, "echo kept > /root/x")
        stopped = await host.do("stop", sandbox, "stopped")
        started = await host.wake(sandbox, 4)
        print("stop:", stopped.stages_ms, "start:", started.stages_ms)
        assert await host.run(sandbox, "cat /root/x; ls /dev/shm") == "kept"
        await host.delete(sandbox)

    run(bare, work)


JAIL = {"api", "dev", "disk.img", "firecracker", "firecracker.pid", "initramfs", "kernel", "memory", "run", "state", "taken"}


def is_jailed(pid: int, bare: BareInstance) -> None:
    """What `/proc` says of it, of each of its threads."""
    proc = Path(f"/proc/{pid}")
    assert os.readlink(proc / "exe").endswith("/firecracker")  # noqa: PTH115
    uids = {bare.instance.vm_uid(slot) for slot in range(8)}
    threads = list((proc / "task").iterdir())
    assert len(threads) > 2, "its API, its VMM and a processor"
    for thread in threads:
        status = dict(line.split(":\t", 1) for line in (thread / "status").read_text().splitlines() if ":\t" in line)
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        for name in ("Uid", "Gid"):
            (number,) = set(status[name].split())
            assert int(number) in uids
        assert set(status["Groups"].split()) <= {number}
        outside, inside = status["NSpid"].split()
        assert outside != inside
    for kind in ("net", "mnt", "ipc", "uts", "pid"):
        assert (proc / "ns" / kind).stat().st_ino != Path(f"/proc/self/ns/{kind}").stat().st_ino, kind
    assert (proc / "ns/net").stat().st_ino in {each.stat().st_ino for each in (bare.instance.run / "netns").iterdir()}
    assert {entry.name for entry in (proc / "root").iterdir()} <= JAIL
    limits = (proc / "limits").read_text()
    assert re.search(r"Max open files +256 +256", limits)
    assert re.search(r"Max core file size +0 +0", limits)
    assert bare.instance.name in (proc / "cgroup").read_text()


def test_the_jailed_process_has_no_capabilities_a_seccomp_filter_a_uid_and_namespaces_of_its_own(bare: BareInstance) -> None:
    async def work(host: Host) -> None:
        sandbox = (await host.create()).sandbox
        (pid,) = machine.vmm_pids(bare.instance)
        is_jailed(pid, bare)
        await host.delete(sandbox)

    run(bare, work)


def test_whoever_is_killed_a_sandbox_goes_on_or_is_told_and_nothing_is_left(bare: BareInstance) -> None:
    async def work(host: Host) -> None:
        one, other = (await host.create()).sandbox, (await host.create()).sandbox
        await host.run(one, "echo here > /dev/shm/here")
        bare.kill("node")
        bare.start("node")
        host.session = await Session.connect(bare.instance.node_socket)
        assert await host.run(one, "cat /dev/shm/here") == "here", "it was adopted"
        bare.kill("rootd")
        bare.start("rootd")
        assert await host.run(one, "cat /dev/shm/here") == "here"
        for pid in machine.vmm_pids(bare.instance)[:1]:
            machine.kill(pid)

        async def one_has_failed() -> bool:
            listed = msgspec.msgpack.decode(await host.session.call("list", api.Empty()), type=api.SandboxList)
            return sorted(each.phase for each in listed.sandboxes) == ["failed", "running"]

        await until(one_has_failed, 30)
        await host.delete(one, other)
        assert machine.vmm_pids(bare.instance) == []

    run(bare, work)


def is_shared_safely(subject: Subject) -> None:
    """The memory that clones of a shared snapshot map is root's, and nobody may write it."""
    assert isinstance(subject.vmm, FirecrackerVmm)
    found = []
    for pid in machine.vmm_pids(subject.vmm.instance):
        with suppress(FileNotFoundError):  # the one that booted has none
            found.append(Path(f"/proc/{pid}/root/memory").stat())
    assert found
    assert {(each.st_uid, each.st_mode & 0o777) for each in found} == {(0, 0o444)}


async def twenty_restores(subject: Subject) -> None:
    """Of three generations, four at once: each answers, and is another machine with what was made before its snapshot."""

    async def one(snapshot: str, slot: int, made: tuple[str, ...]) -> None:
        async with subject.clone(snapshot, slot) as (plan, _, session):
            await take_over(session, plan)
            assert [await has(session, each) for each in made] == [True] * len(made)
            if snapshot == first:
                is_shared_safely(subject)
            await make(session, "own")

    async def next_generation(snapshot: str, name: str, made: str) -> None:
        async with subject.clone(snapshot, 1) as (plan, restored, session):
            await take_over(session, plan)
            await make(session, made)
            talker = Talker(restored, plan, session)
            await restored.snapshot(SnapshotPlan(name), talker)
            await talker.answered()
            await talker.session.aclose()

    second, third = new_snapshot_id(), new_snapshot_id()
    async with subject.warm(shared=True) as (first, _):
        try:
            for _ in range(3):
                await asyncio.gather(*(one(first, slot, ()) for slot in range(1, 5)))
            await next_generation(first, second, "second")
            await asyncio.gather(*(one(second, slot, ("second",)) for slot in range(1, 5)))
            await next_generation(second, third, "third")
            await asyncio.gather(*(one(third, slot, ("second", "third")) for slot in range(1, 5)))
        finally:
            for each in (second, third):
                await subject.rootd.discard_snapshot(each)


def test_twenty_restores_of_three_generations_four_at_once_answer_each(tmp_path: Path) -> None:
    on_firecracker(twenty_restores, tmp_path)


@contextmanager
def another_is_current(store: Store) -> Iterator[Path]:
    """A Firecracker of other bytes and the same version is the one that boots new sandboxes; its directory."""
    shelf, now = store.root / firecracker.KIND, firecracker.current(store)
    other = shelf / f"{'0' * 60}0123"
    shutil.copytree(now.directory, other)
    (other / firecracker.BINARY).chmod(0o755)
    with (other / firecracker.BINARY).open("ab") as file:
        file.write(b"another build")
    link = shelf / firecracker.CURRENT
    try:
        link.unlink()
        link.symlink_to(other.name)
        yield other
    finally:
        link.unlink()
        link.symlink_to(now.digest)
        shutil.rmtree(other)


def boots_what(subject: Subject) -> int:
    """The size of the program that runs as the only VMM of this instance."""
    assert isinstance(subject.vmm, FirecrackerVmm)
    (pid,) = machine.vmm_pids(subject.vmm.instance)
    return Path(f"/proc/{pid}/exe").stat().st_size


async def each_snapshot_by_its_own(subject: Subject) -> None:
    """What a Firecracker saved is restored by it, while another boots what is new."""
    store = Store(DATA_ROOT / "artefacts")
    ours = firecracker.current(store)
    async with subject.prepared(0) as plan:
        booted = await subject.vmm.boot(plan)
        name = new_snapshot_id()
        session = await hello(booted, life=guest.life(plan.sandbox, 1))
        await configure(session, plan)
        await booted.snapshot(SnapshotPlan(name), Talker(booted, plan, session))
        await booted.kill()
        await booted.aclose()
    try:
        with another_is_current(store) as other:
            async with subject.prepared(1) as plan:
                booted = await subject.vmm.boot(plan)
                assert boots_what(subject) == (other / firecracker.BINARY).stat().st_size
                await booted.kill()
                await booted.aclose()
            async with subject.clone(name, 2) as (plan, _, session):
                await take_over(session, plan)
                assert boots_what(subject) == ours.binary.stat().st_size
    finally:
        await subject.rootd.discard_snapshot(name)


def test_two_firecrackers_stand_side_by_side_and_each_snapshot_is_restored_by_its_own(tmp_path: Path) -> None:
    on_firecracker(each_snapshot_by_its_own, tmp_path)


def test_a_template_is_baked_by_firecracker_and_cloned_warm_and_from_the_pool(keeping: BareInstance) -> None:
    async def work(host: Host) -> None:
        await host.session.call("bake", life_api.Bake(tenant="acme", template="base", cpus=1, memory_mib=256, disk_mib=2048))
        warm = await host.create()
        print("warm:", warm.stages_ms)
        assert warm.start == "warm"

        async def one_is_ahead() -> bool:
            return msgspec.msgpack.decode(await host.session.call("info", api.Empty()), type=api.NodeInfo).ahead > 0

        await until(one_is_ahead, 180)
        pooled = await host.create()
        print("pool:", pooled.stages_ms)
        assert pooled.start == "pool"
        who = [await host.run(each.sandbox, "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id") for each in (warm, pooled)]
        assert not set(who[0].split()) & set(who[1].split())
        await host.delete(warm.sandbox, pooled.sandbox)

    async def with_session() -> None:
        session = await Session.connect(keeping.instance.node_socket)
        try:
            await work(Host(session))
        finally:
            await session.aclose()

    uvloop.run(with_session())  # what is warm stays; that the instance leaves nothing is its own end's matter
