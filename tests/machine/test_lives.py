"""Lives of real guests by the node's verbs: suspended, woken, stopped, started, rolled back, forked, with nothing lost and nothing left."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import msgspec
import pytest
import uvloop

from space.config.settings import Settings
from space.model.errors import Conflict
from space.model.ids import new_checkpoint_id, new_process_id, new_sandbox_id
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Data, Message, Session
from space.testing import leaks
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance


@pytest.fixture
def bare() -> Iterator[BareInstance]:
    with bare_instance(*BESIDE_NODE, "node") as one:
        yield one


@dataclass
class Host:
    """Control's part, played by root."""

    session: Session

    async def states(self, verb: str, asked: msgspec.Struct) -> list[api.SandboxState]:
        async with await self.session.open(verb, asked, finish=True) as stream:
            found = [event.payload async for event in stream if isinstance(event, Message)]
        return [msgspec.msgpack.decode(each, type=api.SandboxState) for each in found if b"forked" not in each[:12]]

    async def last(self, verb: str, asked: msgspec.Struct) -> api.SandboxState:
        return (await self.states(verb, asked))[-1]

    async def create(self, **more: object) -> api.SandboxState:
        asked = msgspec.structs.replace(api.Create(new_sandbox_id(), "acme", 1, "base", 1, 256, 2048, {}), **more)
        state = await self.last("create", asked)
        assert state.phase == "running", state.reason
        return state

    async def do(self, verb: str, sandbox: str, phase: str) -> api.SandboxState:
        state = await self.last(verb, api.Target(sandbox))
        assert state.phase == phase, state.reason
        return state

    async def wake(self, sandbox: str, generation: int, *, cold: bool = False) -> api.SandboxState:
        state = await self.last("wake", life_api.Wake(sandbox=sandbox, generation=generation, cold=cold))
        assert (state.phase, state.generation) == ("running", generation), state.reason
        return state

    async def run(self, sandbox: str, script: str) -> str:
        asked = api.Exec(sandbox, ["sh", "-ec", script], user="root")
        async with await self.session.open("exec", asked, finish=True) as stream:
            out, end = b"", b""
            async for event in stream:
                out, end = (out + event.payload, end) if isinstance(event, Data) else (out, event.payload)
        ended = msgspec.msgpack.decode(end, type=api.Exited)
        assert ended.code == 0, (script, out, ended)
        return out.decode().strip()

    async def delete(self, *sandboxes: str) -> None:
        for sandbox in sandboxes:
            await self.session.call("delete", api.Target(sandbox))


def run(bare: BareInstance, work: Callable[[Host], Awaitable[None]]) -> None:
    async def with_session() -> None:
        session = await Session.connect(bare.instance.node_socket)
        try:
            await work(Host(session))
        finally:
            await session.aclose()

    uvloop.run(with_session())
    leaks.settle(lambda: leaks.of_sandboxes(bare.instance))


SUMS = "cat /tmp/c/* | sha256sum; cat /dev/shm/c/* | sha256sum; ls /tmp/c | wc -l"


@pytest.mark.parametrize("cycles", [5, pytest.param(20, marks=pytest.mark.full)])
def test_cycles_of_write_suspend_and_wake_lose_nothing_and_processes_go_on_without_a_gap(bare: BareInstance, cycles: int) -> None:
    async def work(host: Host) -> None:
        sandbox = (await host.create()).sandbox
        await host.run(sandbox, "mkdir /tmp/c /dev/shm/c; echo start > /tmp/c/0; cp /tmp/c/0 /dev/shm/c/0")
        name = new_process_id()
        script = "n=0; while :; do n=$((n+1)); echo line $n; sleep 0.05; done"
        await host.session.call("exec", api.Exec(sandbox, ["sh", "-c", script], process=name, attach=False, named=True))
        for cycle in range(1, cycles + 1):
            await host.run(sandbox, f"head -c 300000 /dev/urandom > /tmp/c/{cycle}; cp /tmp/c/{cycle} /dev/shm/c/{cycle}")
            sums = await host.run(sandbox, SUMS)
            suspended = await host.do("suspend", sandbox, "suspended")
            with pytest.raises(Conflict, match="is suspended"):
                await host.run(sandbox, "true")
            woken = await host.wake(sandbox, cycle + 1)
            assert woken.start == "restore"
            assert await host.run(sandbox, SUMS) == sums
            assert abs(int(await host.run(sandbox, "date +%s")) - time.time()) < 5
        print("suspend:", suspended.stages_ms, suspended.snapshot_bytes >> 20, "MiB; wake:", woken.stages_ms)
        asked = api.Attach(sandbox, name, stdout=0, follow=False)
        async with await host.session.open("attach", asked, finish=True) as stream:
            out = b"".join([event.payload async for event in stream if isinstance(event, Data)])
        numbers = [int(each) for each in re.findall(rb"line (\d+)\n", out)]
        assert len(numbers) > 20 * cycles / 5
        assert numbers == list(range(1, len(numbers) + 1))
        await host.delete(sandbox)

    run(bare, work)


def test_stop_keeps_the_disk_and_a_suspended_one_is_stopped_without_a_boot(bare: BareInstance) -> None:
    async def work(host: Host) -> None:
        sandbox = (await host.create()).sandbox
        await host.run(sandbox, "echo kept > /root/kept; echo lost > /dev/shm/lost")
        stopped = await host.do("stop", sandbox, "stopped")
        started = await host.wake(sandbox, 2)
        print("stop:", stopped.stages_ms, "start:", started.stages_ms)
        assert started.start == "cold"
        assert await host.run(sandbox, "cat /root/kept; ls /dev/shm") == "kept"
        await host.run(sandbox, "echo more > /root/more; echo here > /dev/shm/here")
        await host.do("suspend", sandbox, "suspended")
        assert (await host.do("stop", sandbox, "stopped")).snapshot_bytes == 0
        await host.wake(sandbox, 3)
        assert await host.run(sandbox, "cat /root/kept /root/more; ls /dev/shm") == "kept\nmore"
        await host.do("suspend", sandbox, "suspended")
        assert (await host.wake(sandbox, 4, cold=True)).start == "cold"
        assert await host.run(sandbox, "cat /root/more") == "more"
        await host.delete(sandbox)

    run(bare, work)


def test_a_checkpoint_is_gone_back_to_with_memory_and_disk(bare: BareInstance) -> None:
    async def work(host: Host) -> None:
        sandbox, name = (await host.create()).sandbox, new_checkpoint_id()
        await host.run(sandbox, "echo before | tee /root/x /dev/shm/x")
        asked = life_api.Checkpoint(sandbox=sandbox, checkpoint=name)
        made = msgspec.msgpack.decode(await host.session.call("checkpoint", asked), type=life_api.Checkpointed)
        print(f"checkpoint: stood still for {made.stopped_ms} ms, {made.bytes >> 20} MiB")
        assert made.stopped_ms < 1000
        for generation in (2, 3):
            await host.run(sandbox, "echo after | tee /root/x /dev/shm/x")
            back = await host.last("rollback", life_api.Rollback(sandbox=sandbox, checkpoint=name, generation=generation))
            assert (back.phase, back.checkpoints) == ("running", 1), back.reason
            assert await host.run(sandbox, "cat /root/x /dev/shm/x") == "before\nbefore"
        await host.delete(sandbox)

    run(bare, work)


WHO = """hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id /proc/sys/kernel/random/uuid
head -c 16 /dev/urandom | od -An -tx1"""


def test_forks_share_the_past_and_differ_in_files_and_identity_and_their_processes_go_on(bare: BareInstance) -> None:
    async def work(host: Host) -> None:
        parent, name = (await host.create()).sandbox, new_process_id()
        await host.run(parent, "echo common > /root/x")
        script = "n=0; while :; do n=$((n+1)); echo line $n; sleep 0.2; done"
        await host.session.call("exec", api.Exec(parent, ["sh", "-c", script], process=name, attach=False, named=True))
        children = [life_api.Child(sandbox=new_sandbox_id(), generation=1) for _ in range(3)]
        ends = {each.sandbox: each for each in await host.states("fork", life_api.Fork(sandbox=parent, children=children))}
        assert [each.phase for each in ends.values()] == ["running"] * 3, ends
        print("fork:", next(iter(ends.values())).stages_ms)
        everyone = [parent, *ends]
        for sandbox in everyone:
            await host.run(sandbox, f"echo {sandbox} >> /root/x")
        for sandbox in everyone:
            assert await host.run(sandbox, "cat /root/x") == f"common\n{sandbox}"
        who = [(await host.run(sandbox, WHO)).splitlines() for sandbox in everyone]
        for column in zip(*who[1:], strict=True):
            assert len(set(column)) == len(ends), column
        assert not set(who[0]) & {word for each in who[1:] for word in each}
        for sandbox in everyone:  # each has the process, and its own output of it
            async with asyncio.timeout(20):
                listed = msgspec.msgpack.decode(await host.session.call("processes", api.Target(sandbox)), type=api.ProcessList)
            assert [(each.process, each.state) for each in listed.processes if each.process == name] == [(name, "running")]
        await host.delete(*everyone)

    run(bare, work)


def _fork(parent: str, count: int) -> life_api.Fork:
    return life_api.Fork(sandbox=parent, children=[life_api.Child(sandbox=new_sandbox_id(), generation=1) for _ in range(count)])


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_tree_of_forks_of_depth_three_diverges_in_files_memory_and_identity_and_outlives_its_root(bare: BareInstance) -> None:
    async def work(host: Host) -> None:
        root = (await host.create()).sandbox
        lineage = {root: [root]}
        await host.run(root, f"echo {root} | tee -a /root/line > /dev/shm/line; head -c 2000000 /dev/urandom > /root/common")
        common = await host.run(root, "sha256sum < /root/common")
        generation = [root]
        for _ in range(3):
            following: list[str] = []
            for parent in generation:
                for state in await host.states("fork", asked := _fork(parent, 2)):
                    assert state.phase in ("requested", "preparing", "running"), state.reason
                for child in asked.children:
                    lineage[child.sandbox] = [*lineage[parent], child.sandbox]
                    await host.run(child.sandbox, f"echo {child.sandbox} | tee -a /root/line >> /dev/shm/line")
                    following.append(child.sandbox)
                await host.run(parent, "echo after >> /root/later")  # the parent goes on, and no child sees that
            generation = following[:2]
        assert len(lineage) == 11
        await host.delete(root)
        who = set[str]()
        for sandbox in list(lineage)[1:]:
            for place in ("/root/line", "/dev/shm/line"):
                assert (await host.run(sandbox, f"cat {place}")).split() == lineage[sandbox], sandbox
            assert await host.run(sandbox, "sha256sum < /root/common") == common
            who |= set((await host.run(sandbox, WHO)).splitlines())
        assert len(who) == 5 * (len(lineage) - 1)  # nothing of anybody's identity is another's
        leaf = list(lineage)[-1]
        await host.do("suspend", leaf, "suspended")
        await host.delete(*[each for each in lineage if each not in (root, leaf)])
        await host.wake(leaf, 2)  # of a snapshot that needs none of its forebears
        assert (await host.run(leaf, "cat /dev/shm/line")).split() == lineage[leaf]
        await host.delete(leaf)

    run(bare, work)


@pytest.fixture
def keeping() -> Iterator[BareInstance]:
    """A node that keeps templates warm."""
    with bare_instance(*BESIDE_NODE, "node", settings=Settings(accelerator="tcg", warm_templates=2)) as one:
        yield one


async def _from_the_pool(host: Host, bare: BareInstance) -> tuple[list[api.SandboxState], list[float]]:
    """Sandboxes that were clones before they were asked for, and how long each took to its first command."""
    states, took = [], []
    for _ in range(3):
        async with asyncio.timeout(60):
            before = -1
            while (there := len(list(bare.instance.sandboxes.iterdir()))) != before:  # until no more are made
                before = there
                await asyncio.sleep(4)
        began = time.monotonic()
        states.append(await host.create())
        assert await host.run(states[-1].sandbox, "echo up") == "up"
        took.append(time.monotonic() - began)
        assert states[-1].start == "pool"
    return states, took


def test_a_sandbox_of_a_warm_template_is_a_clone_in_a_fraction_of_a_boot_and_another_machine(keeping: BareInstance) -> None:
    async def work(host: Host) -> None:
        began = time.monotonic()
        cold = await host.create()
        assert await host.run(cold.sandbox, "echo up") == "up"
        first = time.monotonic() - began
        assert cold.start == "cold"
        await host.session.call("bake", life_api.Bake(tenant="acme", template="base", cpus=1, memory_mib=256, disk_mib=2048))
        clones: list[api.SandboxState] = []
        took: list[float] = []
        while len(took) < 3:
            began = time.monotonic()
            state = await host.create()
            assert await host.run(state.sandbox, "echo up") == "up"
            if state.start == "warm":  # one that was made ahead meanwhile is measured below
                clones.append(state)
                took.append(time.monotonic() - began)
            else:
                assert state.start == "pool"
                await host.delete(state.sandbox)
        best = clones[took.index(min(took))].stages_ms
        own = sum(best[name] for name in ("queue", "slot", "clone", "egress"))
        print(f"create to first exec: cold {first:.2f} s, clone {min(took):.3f} s ({first / min(took):.1f} times), stages {best}")
        print(f"own stages {own:.1f} ms")
        pooled, sooner = await _from_the_pool(host, keeping)
        print(f"from the pool {min(sooner):.3f} s ({first / min(sooner):.1f} times), stages {pooled[sooner.index(min(sooner))].stages_ms}")
        clones += pooled
        who = [(await host.run(each.sandbox, WHO)).splitlines() for each in clones]
        for column in zip(*who, strict=True):
            assert len(set(column)) == len(clones), column
        assert [each[0] for each in who] == [each.sandbox for each in clones]
        await host.delete(cold.sandbox, *(each.sandbox for each in clones))
        assert first / min(took) > 4
        assert first / min(sooner) > 12

    async def with_session() -> None:
        session = await Session.connect(keeping.instance.node_socket)
        try:
            await work(Host(session))
        finally:
            await session.aclose()

    uvloop.run(with_session())
