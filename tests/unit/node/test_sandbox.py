"""A sandbox's life on a simulated node: every stage can fail, be deleted at, and be crashed at, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from space.core.lifecycle.admission import Capacity
from space.model.errors import Conflict, Gone, NoCapacity, NotFound, SandboxDied, SpaceError
from space.model.ids import new_sandbox_id
from space.model.isolation import EMULATED
from space.node.stages import COLD, Stage
from space.rpc import node_api as api
from space.rpc.session import Message, Session
from space.testing.guest import FakeGuest
from space.testing.memoryhost import MemoryHost
from space.testing.memorynode import MemoryNode


def spec(sandbox: str | None = None, **changed: object) -> api.Create:
    made = api.Create(sandbox or new_sandbox_id(), "acme", 1, "base", 1, 512, 2048, {"GREETING": "hi"})
    return msgspec.structs.replace(made, **changed)


async def states(session: Session, asked: api.Create) -> list[api.SandboxState]:
    async with await session.open("create", asked, finish=True) as stream:
        return [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream if isinstance(event, Message)]


async def call(session: Session, verb: str, request: msgspec.Struct, kind: type[api.SandboxState] = api.SandboxState) -> api.SandboxState:
    return msgspec.msgpack.decode(await session.call(verb, request), type=kind)


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true within 20 s"
        await asyncio.sleep(0.005)


async def listed(session: Session) -> list[api.SandboxState]:
    return msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList).sandboxes


class Stop:
    """A trace that holds every sandbox at one place."""

    def __init__(self, stage: Stage, when: str) -> None:
        self.place = (stage, when)
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, sandbox: str, stage: Stage, when: str) -> None:
        if (stage, when) == self.place:
            self.reached.set()
            await self.go.wait()


PLACES = [(stage, when) for stage in COLD for when in ("before", "after")]


async def test_create_goes_through_its_phases_and_times_its_stages(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        asked = spec()
        seen = await states(session, asked)
        assert [state.phase for state in seen] == ["requested", "preparing", "running"]
        assert list(seen[-1].stages_ms) == [stage.value for stage in COLD]
        assert seen[-1].isolation == EMULATED
        assert seen[0].revision < seen[1].revision < seen[2].revision
        vmm = sim.host.vmm(asked.sandbox)
        assert vmm is not None
        guest = vmm.guest
        assert isinstance(guest, FakeGuest)
        assert guest.configured is not None
        assert (guest.configured.hostname, guest.configured.env) == (asked.sandbox, [(b"GREETING", b"hi")])
        assert len(guest.configured.entropy) == 64
        gone = await call(session, "delete", api.Target(asked.sandbox))
        assert gone.phase == "gone"
        assert sim.host.leftovers() == []
        assert sim.node.around.ledger.records() == []
        assert sim.node.around.ledger.holdings() == []
        assert sim.node.around.gate.memory_mib == 0
        assert await listed(session) == []


async def test_a_repeated_create_joins_the_first(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        asked = spec()
        first, second = await asyncio.gather(states(session, asked), states(session, asked))
        assert (first[-1].phase, second[-1]) == ("running", first[-1])
        assert sim.host.calls.count("start_vmm") == 1
        with pytest.raises(Conflict, match="generation 1"):
            await states(session, msgspec.structs.replace(asked, generation=2))
        with pytest.raises(Conflict):
            await states(session, msgspec.structs.replace(asked, tenant="other"))


@pytest.mark.parametrize("op", ["create_edge", "worker_cgroup", "create_sandbox", "start_vmm"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_step_of_rootd_that_fails_leaves_nothing(tmp_path: Path, op: str, when: str) -> None:
    host = MemoryHost()
    host.fail_next(op, NoCapacity("the machine is full: no space left on device"), when=when)
    async with MemoryNode(tmp_path, host=host) as sim, sim.connected() as session:
        asked = spec()
        last = (await states(session, asked))[-1]
        assert last.phase == "failed"
        assert last.reason is not None
        assert "the machine is full" in last.reason
        await until(lambda: not host.leftovers())
        await until(lambda: sim.node.around.gate.memory_mib == 0)
        assert [state.phase for state in await listed(session)] == ["failed"]
        await until(lambda: not sim.node.around.ledger.holdings())
        await call(session, "delete", api.Target(asked.sandbox))
        assert sim.node.around.ledger.records() == []


async def test_releases_that_fail_are_repeated_until_the_host_is_clean(tmp_path: Path) -> None:
    host = MemoryHost()
    async with MemoryNode(tmp_path, host=host) as sim, sim.connected() as session:
        asked = spec()
        await states(session, asked)
        for op in ("adopt_vmm", "kill_vmm", "destroy_sandbox", "destroy_slot"):
            host.fail_next(op)
            host.fail_next(op, Conflict("not yet"), when="after")
        assert (await call(session, "delete", api.Target(asked.sandbox))).phase == "gone"
        assert host.leftovers() == []


class Mute:
    """A guest that never says hello."""

    async def serve(self, control: object, bulk: object) -> None:
        self.pipes = [control, bulk]

    def kill(self) -> None:
        self.pipes = []


@pytest.mark.parametrize("stage", [Stage.BOOT, Stage.CONFIGURE])
async def test_a_guest_that_dies_while_it_boots_fails_the_create_at_once(tmp_path: Path, stage: Stage) -> None:
    stop = Stop(stage, "before")
    async with MemoryNode(tmp_path, guests=Mute if stage is Stage.BOOT else FakeGuest, trace=stop) as sim, sim.connected() as session:
        asked = spec()
        creating = asyncio.create_task(states(session, asked))
        await stop.reached.wait()
        vmm = sim.host.vmm(asked.sandbox)
        assert vmm is not None
        stop.go.set()
        vmm.die("the guest's kernel panicked: Kernel panic - not syncing")
        last = (await creating)[-1]
        assert last.reason == f"{stage.value}: the guest's kernel panicked: Kernel panic - not syncing"
        await until(lambda: not sim.host.leftovers())


@pytest.mark.parametrize(("stage", "when"), PLACES)
async def test_delete_in_the_middle_of_create_leaves_nothing(tmp_path: Path, stage: Stage, when: str) -> None:
    stop = Stop(stage, when)
    async with MemoryNode(tmp_path, trace=stop) as sim, sim.connected() as session:
        asked = spec()
        creating = asyncio.create_task(states(session, asked))
        await stop.reached.wait()
        gone, again = await asyncio.gather(*(call(session, "delete", api.Target(asked.sandbox)) for _ in range(2)))
        assert (gone.phase, again.phase) == ("gone", "gone")
        assert (await creating)[-1].phase in ("deleting", "gone")
        assert sim.host.leftovers() == []
        assert sim.node.around.ledger.records() == []
        assert sim.node.around.ledger.holdings() == []
        assert sim.node.around.gate.memory_mib == 0


@pytest.mark.parametrize(("stage", "when"), PLACES)
async def test_a_node_that_is_killed_in_the_middle_of_create_is_followed_by_one_that_cleans_up(
    tmp_path: Path, stage: Stage, when: str
) -> None:
    stop = Stop(stage, when)
    async with MemoryNode(tmp_path, trace=stop) as sim:
        asked = spec()
        async with sim.connected() as session:
            creating = asyncio.create_task(states(session, asked))
            await stop.reached.wait()
            sim.crash()
            with pytest.raises(SpaceError):
                await creating
        await sim.start()
        async with sim.connected() as session:
            await until(lambda: not sim.host.leftovers())
            (state,) = await listed(session)
            assert (state.phase, state.reason) == ("failed", "the node was restarted while the sandbox was being prepared")
            await call(session, "delete", api.Target(asked.sandbox))
        assert sim.node.around.ledger.records() == []
        assert sim.node.around.ledger.holdings() == []


async def test_a_running_and_a_paused_sandbox_are_adopted_and_usable(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim:
        one, two = spec(), spec()
        async with sim.connected() as session:
            await states(session, one)
            await states(session, two)
            await call(session, "pause", api.Target(two.sandbox))
        sim.crash()
        await sim.start()
        async with sim.connected() as session:
            assert {state.sandbox: state.phase for state in await listed(session)} == {one.sandbox: "running", two.sandbox: "paused"}
            await session.call("noop", api.Target(one.sandbox))
            with pytest.raises(Conflict, match="resume it first"):
                await session.call("noop", api.Target(two.sandbox))
            await call(session, "resume", api.Target(two.sandbox))
            await session.call("noop", api.Target(two.sandbox))
            assert sim.host.calls.count("start_vmm") == 2
            assert sim.node.around.gate.memory_mib == 2 * (512 + 80)
            for each in (one, two):
                await call(session, "delete", api.Target(each.sandbox))
        assert sim.host.leftovers() == []


async def test_a_vmm_that_died_while_the_node_was_down_has_failed_and_keeps_its_disk(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim:
        asked = spec()
        async with sim.connected() as session:
            await states(session, asked)
        sim.crash()
        vmm = sim.host.vmm(asked.sandbox)
        assert vmm is not None
        vmm.die()
        sim.host.slots[77] = False  # a slot that no row holds
        await sim.start()
        async with sim.connected() as session:
            await until(lambda: sim.host.leftovers() == [f"files of {asked.sandbox}"])
            (state,) = await listed(session)
            assert (state.phase, state.reason) == ("failed", "its VM ended while the node was down")
            await call(session, "delete", api.Target(asked.sandbox))
        assert sim.host.leftovers() == []


async def test_a_deletion_that_a_crash_broke_off_is_carried_on(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim:
        asked = spec()
        async with sim.connected() as session:
            await states(session, asked)
            for _ in range(200):
                sim.host.fail_next("kill_vmm")
            deleting = asyncio.create_task(call(session, "delete", api.Target(asked.sandbox)))
            await until(lambda: "kill_vmm" in sim.host.calls)
            sim.crash()
            with pytest.raises(SpaceError):
                await deleting
        sim.host._faults.clear()
        await sim.start()
        await until(lambda: not sim.host.leftovers())
        await until(lambda: sim.node.around.ledger.records() == [])


async def test_a_vmm_that_dies_fails_the_sandbox_ends_its_calls_and_frees_its_compute(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        asked = spec()
        await states(session, asked)
        async with await session.open("exec", api.Exec(asked.sandbox, ["sleep", "60"]), finish=True) as stream:
            await anext(stream)  # started
            vmm = sim.host.vmm(asked.sandbox)
            assert vmm is not None
            began = asyncio.get_running_loop().time()
            vmm.die("the guest powered off")
            with pytest.raises(SandboxDied, match="ended during the call: the guest powered off"):
                await anext(stream)
            assert asyncio.get_running_loop().time() - began < 1
        await until(lambda: sim.host.leftovers() == [f"files of {asked.sandbox}"])
        await until(lambda: sim.node.around.gate.memory_mib == 0)
        with pytest.raises(Gone, match="has failed: the guest powered off"):
            await session.call("noop", api.Target(asked.sandbox))
        await call(session, "delete", api.Target(asked.sandbox))
        assert sim.host.leftovers() == []


async def test_pause_and_resume_are_idempotent_and_set_the_clock(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        asked = spec()
        await states(session, asked)
        vmm = sim.host.vmm(asked.sandbox)
        assert vmm is not None
        assert isinstance(vmm.guest, FakeGuest)
        before = vmm.guest.configured
        assert before is not None
        paused = [await call(session, "pause", api.Target(asked.sandbox)) for _ in range(2)]
        assert paused[0] == paused[1]
        assert not vmm.running.is_set()
        with pytest.raises(Conflict, match="is paused"):
            await session.call("exec", api.Exec(asked.sandbox, ["true"]))
        resumed = [await call(session, "resume", api.Target(asked.sandbox)) for _ in range(2)]
        assert resumed[0] == resumed[1]
        after = vmm.guest.configured
        assert after is not None
        assert after.realtime_ns > before.realtime_ns
        await session.call("noop", api.Target(asked.sandbox))


async def test_what_does_not_fit_is_refused_at_once_and_nothing_is_kept(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path, capacity=Capacity(1000, 9, 1, 9)) as sim, sim.connected() as session:
        first = spec()
        await states(session, first)
        with pytest.raises(NoCapacity, match="408 of 1000 MiB are free"):
            await states(session, spec())
        assert len(sim.node.around.ledger.records()) == 1
        await call(session, "delete", api.Target(first.sandbox))
        assert (await states(session, spec()))[-1].phase == "running"


async def test_boots_take_turns(tmp_path: Path) -> None:
    booting: set[str] = set()
    most = 0

    async def trace(sandbox: str, stage: Stage, when: str) -> None:
        nonlocal most
        if (stage, when) == (Stage.SLOT, "before"):
            booting.add(sandbox)
            most = max(most, len(booting))
        if (stage, when) == (Stage.CONFIGURE, "after"):
            booting.discard(sandbox)
        await asyncio.sleep(0.001)

    async with MemoryNode(tmp_path, capacity=Capacity(1 << 20, 99, 2, 99), trace=trace) as sim, sim.connected() as session:
        done = await asyncio.gather(*(states(session, spec()) for _ in range(12)))
        assert {each[-1].phase for each in done} == {"running"}
        assert most == 2
        assert len(sim.host.slots) == 12


async def test_watch_shows_what_is_there_and_then_each_change(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        asked = spec()
        await states(session, asked)
        async with await session.open("watch", api.Empty(), finish=True) as watch:

            async def seen() -> str:
                return msgspec.msgpack.decode((await anext(watch)).payload, type=api.SandboxState).phase

            assert await seen() == "running"
            await call(session, "pause", api.Target(asked.sandbox))
            assert await seen() == "paused"
            await call(session, "delete", api.Target(asked.sandbox))
            assert await seen() in ("deleting", "gone")


async def test_deleting_what_is_not_there_says_gone(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        assert sim.host.calls == ["describe", "list_snapshots"]
        assert (await call(session, "delete", api.Target(new_sandbox_id()))).phase == "gone"
        with pytest.raises(NotFound):
            await session.call("noop", api.Target(new_sandbox_id()))
