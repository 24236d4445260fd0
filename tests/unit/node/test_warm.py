"""Warm templates on a simulated node: baked once a size was missed, cloned from then on, found again, and never in anybody's way."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.unit.node.test_lives import Hold, created, found, guest_of, last, node, quiet, spec, until, wake

from space.core.lifecycle.admission import Capacity
from space.core.plan.machine import VMM_OVERHEAD_MIB
from space.model.errors import Internal
from space.node import limits
from space.node.stages import RESTORED, Stage
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Session
from space.testing.memoryhost import MemoryHost
from space.testing.memorynode import MemoryNode


@pytest.fixture(autouse=True)
def no_clones_ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "ahead" not in request.node.name:
        monkeypatch.setattr(MemoryNode, "clones_ahead", 0)
    monkeypatch.setattr(limits, "AHEAD_QUIET", 0.01)


def baked(sim: MemoryNode) -> list[str]:
    return sorted(sim.host.held)


async def test_the_first_of_a_size_boots_and_the_next_are_clones_of_its_kind(tmp_path: Path) -> None:
    async with node(tmp_path, warm=4) as (sim, session):
        first = await created(session)
        assert found(sim, first).state.start == "cold"
        await until(lambda: len(baked(sim)) == 1)
        assert [each.record.sandbox for each in sim.host.sandboxes.values()] == [first], "what was booted for it is gone"
        states = [await last(session, "create", spec()) for _ in range(2)]
        assert [(each.phase, each.start) for each in states] == [("running", "warm")] * 2
        assert [each for each in states[0].stages_ms if each != Stage.LOAD] == [stage.value for stage in RESTORED]
        imprints = [guest_of(sim, each.sandbox).imprinted for each in states]
        assert len({each.machine_id for each in imprints if each}) == 2
        assert [guest_of(sim, each.sandbox).claimed is not None for each in states] == [True, True]
        other = await last(session, "create", spec(memory_mib=256))
        assert other.start == "cold"  # of another size
        await until(lambda: len(baked(sim)) == 2)
        await last(session, "suspend", api.Target(states[0].sandbox))  # its snapshot is its own
        assert (await last(session, "wake", wake(states[0].sandbox, 2))).start == "restore"
        for sandbox in (first, other.sandbox, *(each.sandbox for each in states)):
            await session.call("delete", api.Target(sandbox))
        await quiet(sim)
        assert {each.split()[0] for each in sim.host.leftovers()} == {"snapshot", "memory"}
        assert sim.node.around.gate.memory_mib == 2 * 32


def _baked_anew(sim: MemoryNode, before: str) -> bool:
    return before not in baked(sim) and sim.node.warm.known == 1


async def test_a_clone_that_cannot_be_is_booted_and_the_size_is_baked_anew(tmp_path: Path) -> None:
    async with node(tmp_path, warm=4, host=(host := MemoryHost())) as (sim, session):
        await created(session)
        await until(lambda: len(baked(sim)) == 1)
        for _ in range(4):  # what came up in between clears the count
            (before,) = baked(sim)
            host.fail_next("start_vmm", Internal("another VMM"))
            state = await last(session, "create", spec())
            assert (state.phase, state.start) == ("running", "cold"), state.reason
            await until(partial(_baked_anew, sim, before))
            assert (await last(session, "create", spec())).start == "warm"


async def test_a_size_whose_snapshots_are_spoilt_one_after_the_other_is_baked_no_more_until_it_is_asked_for(tmp_path: Path) -> None:
    async with node(tmp_path, warm=4, host=(host := MemoryHost())) as (sim, session):
        await created(session)
        for _ in range(3):
            await until(lambda: sim.node.warm.known == 1)
            host.fail_next("start_vmm", Internal("another VMM"))
            assert (await last(session, "create", spec())).start == "cold"
        await until(lambda: not baked(sim))
        for _ in range(2):
            assert (await last(session, "create", spec())).start == "cold"
        assert not baked(sim)
        (size,) = sim.node.warm._refused
        await sim.node.warm.bake(size)
        assert (await last(session, "create", spec())).start == "warm"


async def test_what_is_warm_is_found_again_after_a_kill_and_what_was_half_baked_is_gone(tmp_path: Path) -> None:
    hold = Hold(Stage.SNAPSHOT, "after")
    async with MemoryNode(tmp_path, trace=hold, warm=4) as sim:
        async with sim.connected() as session:
            await created(session)
            await hold.reached.wait()  # of the bake: its snapshot has no row yet
        sim.crash()
        hold.armed = False
        await sim.start()
        async with sim.connected() as session:
            await until(lambda: not sim.host.snapshots and len(sim.host.sandboxes) == 1)
            await created(session)
            await until(lambda: len(baked(sim)) == 1)
        sim.crash()
        await sim.start()
        async with sim.connected() as session:
            await until(lambda: sim.node.warm.known == 1)
            assert (await last(session, "create", spec())).start == "warm"


async def test_a_node_that_ends_while_it_bakes_undoes_what_is_half_baked(tmp_path: Path) -> None:
    hold = Hold(Stage.SNAPSHOT, "after")
    async with MemoryNode(tmp_path, trace=hold, warm=4) as sim:
        async with sim.connected() as session:
            first = await created(session)
            await hold.reached.wait()
        asyncio.get_running_loop().call_later(0.1, hold.go.set)
        await sim.node.stop(5)
        assert [each.record.sandbox for each in sim.host.sandboxes.values()] == [first]


async def test_memory_that_is_kept_warm_gives_way_to_a_sandbox(tmp_path: Path) -> None:
    room = Capacity(memory_mib=2 * (512 + VMM_OVERHEAD_MIB), sandboxes=10, boots=10, queue=10)
    async with node(tmp_path, warm=4, capacity=room) as (sim, session):
        first = await created(session)
        await until(lambda: len(baked(sim)) == 1)
        assert (await last(session, "create", spec())).phase == "running"
        await until(lambda: not baked(sim))
        await session.call("delete", api.Target(first))


async def test_a_size_is_baked_when_it_is_asked_for(tmp_path: Path) -> None:
    async with node(tmp_path, warm=4) as (sim, session):
        asked = life_api.Bake(tenant="acme", template="base", cpus=1, memory_mib=512, disk_mib=2048)
        for _ in range(2):
            await session.call("bake", asked)
        assert len(baked(sim)) == 1
        assert (await last(session, "create", spec())).start == "warm"


async def test_the_usual_size_is_made_warm_by_itself_and_never_in_place_of_one_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WARM_AFTER", 0.05)
    async with node(tmp_path / "idle", warm=1) as (sim, _):
        await until(lambda: sim.node.warm.known == 1)
    asked = life_api.Bake(tenant="acme", template="base", cpus=1, memory_mib=256, disk_mib=2048)
    async with node(tmp_path / "asked", warm=1) as (sim, session):
        await session.call("bake", asked)
        kept = baked(sim)
        await asyncio.sleep(0.2)  # in which the usual one would have been made
        assert baked(sim) == kept
        assert (await last(session, "create", spec(memory_mib=256))).start == "warm"


async def test_a_node_that_keeps_nothing_warm_bakes_nothing(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        await created(session)
        await asyncio.sleep(0.1)
        assert not sim.host.snapshots


@pytest.mark.parametrize("stage", RESTORED)
async def test_a_node_that_is_killed_while_it_clones_leaves_nothing_of_the_clone(tmp_path: Path, stage: Stage) -> None:
    hold = Hold(stage, "before", armed=False)
    async with MemoryNode(tmp_path, trace=hold, warm=4) as sim:
        async with sim.connected() as session:
            first = await created(session)
            await until(lambda: len(baked(sim)) == 1)
            hold.armed = True
            asking = asyncio.ensure_future(last(session, "create", spec()))
            await hold.reached.wait()
            sim.crash()
            await asyncio.gather(asking, return_exceptions=True)
        hold.armed = False
        await sim.start()
        async with sim.connected() as session:
            listed = msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList).sandboxes
            assert len(listed) == 2
            for each in listed:
                await session.call("delete", api.Target(each.sandbox))
            await quiet(sim)
            assert {each.split()[0] for each in sim.host.leftovers()} == {"snapshot", "memory"}
            assert first in {each.sandbox for each in listed}


async def _with_one_ahead(sim: MemoryNode, session: Session) -> str:
    """A warm size of which clones are made ahead, with a sandbox that lives."""
    await session.call("bake", life_api.Bake(tenant="acme", template="base", cpus=1, memory_mib=512, disk_mib=2048))
    first = await last(session, "create", spec())
    assert first.start == "warm"
    await until(lambda: sim.node.warm.pool.ready == 1)
    return first.sandbox


async def test_a_clone_that_was_made_ahead_is_claimed_and_lives_as_any_other(tmp_path: Path) -> None:
    async with node(tmp_path, warm=4) as (sim, session):
        first = await _with_one_ahead(sim, session)
        starts = sim.host.calls.count("start_vmm")
        state = await last(session, "create", spec())
        assert (state.phase, state.start) == ("running", "pool"), state.reason
        assert sim.host.calls.count("start_vmm") <= starts + 1  # of the next one
        name = found(sim, state.sandbox).record.host
        guest = guest_of(sim, name)
        assert guest.configured is not None
        assert (guest.configured.hostname, guest.configured.env) == (state.sandbox, [(b"GREETING", b"hi")])
        await session.call("noop", api.Target(state.sandbox))
        await session.call("metrics", api.Target(state.sandbox))
        await last(session, "stop", api.Target(state.sandbox))
        assert (await last(session, "wake", wake(state.sandbox, 2))).start == "cold"
        await last(session, "suspend", api.Target(state.sandbox))
        assert (await last(session, "wake", wake(state.sandbox, 3))).start == "restore"
        assert name not in sim.host.sandboxes
        for sandbox in (first, state.sandbox):
            await session.call("delete", api.Target(sandbox))
        await sim.node.stop(5)
        assert {each.split()[0] for each in sim.host.leftovers()} == {"snapshot", "memory"}


async def test_a_clone_ahead_was_claimed_under_names_as_long_as_the_one_that_it_gets(tmp_path: Path) -> None:
    """A file that is to be shorter than it was takes a way in the guest's kernel that nothing has translated: 5 ms of an emulated one."""
    async with node(tmp_path, warm=4) as (sim, session):
        await _with_one_ahead(sim, session)
        [ahead] = set(sim.host.sandboxes) - {one.sandbox for one in await listed(session)}
        told = guest_of(sim, ahead).configured
        assert told is not None
        assert told.hostname != ahead
        assert len(told.hostname) == len(spec().sandbox)


async def test_a_node_that_is_killed_with_clones_ahead_is_followed_by_one_that_undoes_them_and_keeps_the_claimed(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path, warm=4) as sim:
        async with sim.connected() as session:
            first = await _with_one_ahead(sim, session)
            claimed = await last(session, "create", spec())
            assert claimed.start == "pool"
            await until(lambda: sim.node.warm.pool.ready == 2)
        sim.crash()
        await sim.start()
        async with sim.connected() as session:
            await session.call("noop", api.Target(claimed.sandbox))
            await until(lambda: len(sim.host.sandboxes) == 2 and len(sim.host.slots) == 2)
            for sandbox in (first, claimed.sandbox):
                await session.call("delete", api.Target(sandbox))
            await quiet(sim)
            assert {each.split()[0] for each in sim.host.leftovers()} == {"snapshot", "memory"}
            assert sim.node.around.ledger.holdings() == []


async def test_a_clone_ahead_that_has_died_is_not_missed(tmp_path: Path) -> None:
    async with node(tmp_path, warm=4) as (sim, session):
        await _with_one_ahead(sim, session)
        for name in [each for each in sim.host.sandboxes if each not in {one.sandbox for one in await listed(session)}]:
            vmm = sim.host.vmm(name)
            assert vmm is not None
            vmm.die("it crashed")
        assert (await last(session, "create", spec())).phase == "running"


async def test_a_clone_ahead_is_a_sandbox_only_once_its_egress_is_bound_however_soon_its_guest_is_claimed(tmp_path: Path) -> None:
    async with node(tmp_path, warm=4) as (sim, session):
        await _with_one_ahead(sim, session)
        asked = spec()
        [ahead] = set(sim.host.sandboxes) - {one.sandbox for one in await listed(session)}
        with sim.services.gone("audit"):
            making = asyncio.create_task(last(session, "create", asked))
            await until(lambda: (told := guest_of(sim, ahead).configured) is not None and told.hostname == asked.sandbox)
            assert not making.done()
        state = await making
        assert (state.phase, state.start) == ("running", "pool")
        assert sim.services.whole(asked.sandbox)


async def test_clones_ahead_give_way_to_a_sandbox(tmp_path: Path) -> None:
    room = Capacity(memory_mib=2 * (512 + VMM_OVERHEAD_MIB) + 64, sandboxes=10, boots=10, queue=10)
    async with node(tmp_path, warm=4, capacity=room) as (sim, session):
        await _with_one_ahead(sim, session)
        assert (await last(session, "create", spec(memory_mib=256))).phase == "running"


async def listed(session: Session) -> list[api.SandboxState]:
    return msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList).sandboxes
