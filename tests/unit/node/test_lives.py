"""Suspended, woken, stopped, started, rolled back, forked: on a simulated node that is killed at every step of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from space.core.lifecycle.admission import Capacity
from space.core.plan.machine import VMM_OVERHEAD_MIB
from space.core.wire import guest as wire
from space.model.errors import Conflict, Gone, Internal, NoCapacity, NotFound, SandboxDied, SpaceError
from space.model.ids import new_checkpoint_id, new_sandbox_id
from space.node.sandbox import Sandbox
from space.node.stages import COLD, RESTORED, STOP, SUSPENSION, Stage
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Message, Session
from space.testing.guest import FakeGuest
from space.testing.memoryhost import MemoryHost
from space.testing.memorynode import MemoryNode


def spec(sandbox: str | None = None, memory_mib: int = 512) -> api.Create:
    return api.Create(sandbox or new_sandbox_id(), "acme", 1, "base", 1, memory_mib, 2048, {"GREETING": "hi"})


async def states(session: Session, verb: str, asked: msgspec.Struct) -> list[api.SandboxState]:
    async with await session.open(verb, asked, finish=True) as stream:
        found = [event.payload async for event in stream if isinstance(event, Message)]
    return [msgspec.msgpack.decode(each, type=api.SandboxState) for each in found if b"stopped_ms" not in each]


async def last(session: Session, verb: str, asked: msgspec.Struct) -> api.SandboxState:
    return (await states(session, verb, asked))[-1]


async def created(session: Session, asked: api.Create | None = None) -> str:
    asked = asked or spec()
    assert (await last(session, "create", asked)).phase == "running"
    return asked.sandbox


def wake(sandbox: str, generation: int, *, cold: bool = False) -> life_api.Wake:
    return life_api.Wake(sandbox=sandbox, generation=generation, cold=cold)


def guest_of(sim: MemoryNode, sandbox: str) -> FakeGuest:
    vmm = sim.host.vmm(sandbox)
    assert vmm is not None
    assert isinstance(vmm.guest, FakeGuest)
    return vmm.guest


def found(sim: MemoryNode, sandbox: str) -> Sandbox:
    return sim.node.find(api.Target(sandbox))


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 10
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true within 10 s"
        await asyncio.sleep(0.005)


async def quiet(sim: MemoryNode) -> None:
    """Until nothing is released in the background any more."""
    await until(lambda: not sim.node.around.releases.busy)


async def gone(sim: MemoryNode, session: Session, *sandboxes: str) -> None:
    """Everything of these is undone, and the host is empty."""
    for sandbox in sandboxes:
        assert (await last(session, "delete", api.Target(sandbox))).phase == "gone"
    await quiet(sim)
    await until(lambda: not sim.host.snapshots)  # of a fork, once its children are there
    assert sim.host.leftovers() == []
    assert sim.node.around.ledger.records() == []
    assert sim.node.around.ledger.holdings() == []
    assert sim.node.around.gate.memory_mib == 0


@pytest.fixture(autouse=True, params=[False, True], ids=["pipes-stay", "pipes-end"])
def _drivers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU's snapshots leave the pipes of their machine as they are, Firecracker's end them."""
    monkeypatch.setattr(MemoryNode, "ends_pipes", request.param)


@asynccontextmanager
async def node(path: Path, **more: object) -> AsyncIterator[tuple[MemoryNode, Session]]:
    async with MemoryNode(path, **more) as sim, sim.connected() as session:  # type: ignore[arg-type]
        yield sim, session


# -- the plain ways ----------------------------------------------------------------------------------------------------------


async def test_a_suspended_sandbox_takes_nothing_but_its_snapshot_and_is_woken_in_another_life(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox = await created(session)
        guest_of(sim, sandbox).trees[b"/tmp/x"] = b"here"
        seen = await states(session, "suspend", api.Target(sandbox))
        assert seen[-1].phase == "suspended"
        assert {"suspending", "suspended"} <= {each.phase for each in [*seen]} | {"suspending"}
        assert seen[-1].snapshot_bytes > 0
        assert [each.split()[0] for each in sim.host.leftovers()] == ["snapshot"]
        assert sim.node.around.gate.memory_mib == 0
        assert sim.node.around.ledger.holdings() == []
        assert (await last(session, "suspend", api.Target(sandbox))).phase == "suspended"
        with pytest.raises(Conflict, match="is suspended"):
            await session.call("noop", api.Target(sandbox))
        woken = await last(session, "wake", wake(sandbox, 2))
        assert (woken.phase, woken.generation, woken.start, woken.snapshot_bytes) == ("running", 2, "restore", 0)
        assert [each for each in woken.stages_ms if each != Stage.LOAD] == [stage.value for stage in RESTORED]
        again = guest_of(sim, sandbox)
        assert again.trees == {b"/tmp/x": b"here"}
        assert again.imprinted is not None
        assert again.imprinted.hostname == sandbox
        assert again.claimed is not None
        assert again.claimed.generation == wire.life(sandbox, 2)
        await quiet(sim)
        assert not sim.host.snapshots, "its memory is its own now"
        assert (await last(session, "wake", wake(sandbox, 3))).generation == 2  # running already
        await gone(sim, session, sandbox)


async def test_a_paused_one_is_suspended_and_woken_too_and_wake_resumes_a_paused_one(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox = await created(session)
        await session.call("pause", api.Target(sandbox))
        assert (await last(session, "wake", wake(sandbox, 2))).generation == 1  # it was only resumed
        await session.call("pause", api.Target(sandbox))
        assert (await last(session, "suspend", api.Target(sandbox))).phase == "suspended"
        assert (await last(session, "wake", wake(sandbox, 2))).phase == "running"
        await gone(sim, session, sandbox)


async def test_a_stopped_sandbox_keeps_its_disk_and_is_booted_from_it(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox = await created(session)
        stopped = await last(session, "stop", api.Target(sandbox))
        assert stopped.phase == "stopped"
        assert sim.host.leftovers() == [f"files of {sandbox}"]
        assert sim.node.around.gate.memory_mib == 0
        started = await last(session, "wake", wake(sandbox, 2))
        assert (started.phase, started.generation, started.start) == ("running", 2, "cold")
        assert list(started.stages_ms) == [stage.value for stage in COLD]
        assert sim.host.sandboxes[sandbox].record.generation == 2
        assert guest_of(sim, sandbox).configured is not None
        await gone(sim, session, sandbox)


async def test_a_stop_whose_vmm_dies_before_its_guest_has_shut_down_is_a_failure_that_keeps_the_disk(tmp_path: Path) -> None:
    hold = Hold(Stage.HALT, "before")
    async with node(tmp_path, trace=hold) as (sim, session):
        sandbox = await created(session)
        stopping = asyncio.create_task(last(session, "stop", api.Target(sandbox)))
        await hold.reached.wait()
        vmm = sim.host.vmm(sandbox)
        assert vmm is not None
        vmm.die("the VMM was killed or crashed")
        hold.go.set()
        with pytest.raises(SandboxDied, match="the VMM was killed or crashed before its guest had shut down"):
            await stopping
        await until(lambda: found(sim, sandbox).phase == "failed")
        assert "before its guest had shut down" in (found(sim, sandbox).record.reason or "")
        await quiet(sim)
        assert f"files of {sandbox}" in sim.host.leftovers()
        assert (await last(session, "wake", wake(sandbox, 2))).start == "cold"
        await gone(sim, session, sandbox)


async def test_a_suspended_one_is_stopped_without_a_boot_and_starts_from_its_disk(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox = await created(session)
        await last(session, "suspend", api.Target(sandbox))
        boots = sim.host.calls.count("start_vmm")
        assert (await last(session, "stop", api.Target(sandbox))).phase == "stopped"
        await quiet(sim)
        assert sim.host.calls.count("start_vmm") == boots
        assert sim.host.leftovers() == [f"files of {sandbox}"]
        assert (await last(session, "wake", wake(sandbox, 2))).start == "cold"
        await gone(sim, session, sandbox)


async def test_a_cold_wake_boots_from_the_disk_of_the_snapshot(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox = await created(session)
        await last(session, "suspend", api.Target(sandbox))
        started = await last(session, "wake", wake(sandbox, 2, cold=True))
        assert (started.phase, started.start) == ("running", "cold")
        await quiet(sim)
        assert not sim.host.snapshots
        await gone(sim, session, sandbox)


async def test_one_that_has_failed_is_started_from_its_disk_and_one_without_a_disk_is_not(tmp_path: Path) -> None:
    host = MemoryHost()
    async with node(tmp_path, host=host) as (sim, session):
        sandbox = await created(session)
        vmm = host.vmm(sandbox)
        assert vmm is not None
        vmm.die("the guest's kernel panicked")
        await until(lambda: found(sim, sandbox).phase == "failed" and not sim.host.slots)
        started = await last(session, "wake", wake(sandbox, 2))
        assert (started.phase, started.reason) == ("running", None)
        host.fail_next("start_vmm", NoCapacity("full"))
        other = spec()
        assert (await last(session, "create", other)).phase == "failed"
        with pytest.raises(Gone, match="left no disk"):
            await last(session, "wake", wake(other.sandbox, 2))
        await gone(sim, session, sandbox, other.sandbox)


async def test_a_checkpoint_is_gone_back_to_and_stays(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox, checkpoint = await created(session), new_checkpoint_id()
        guest_of(sim, sandbox).trees[b"/x"] = b"before"
        asked = life_api.Checkpoint(sandbox=sandbox, checkpoint=checkpoint)
        made = msgspec.msgpack.decode(await session.call("checkpoint", asked), type=life_api.Checkpointed)
        assert made.stopped_ms > 0
        assert msgspec.msgpack.decode(await session.call("checkpoint", asked), type=life_api.Checkpointed) == made
        for generation in (2, 3):
            guest_of(sim, sandbox).trees[b"/x"] = b"after"
            back = await last(session, "rollback", life_api.Rollback(sandbox=sandbox, checkpoint=checkpoint, generation=generation))
            assert (back.phase, back.generation, back.checkpoints) == ("running", generation, 1)
            assert guest_of(sim, sandbox).trees == {b"/x": b"before"}
        await last(session, "suspend", api.Target(sandbox))
        await last(session, "wake", wake(sandbox, 4))
        listed = await session.call("checkpoints", api.Target(sandbox))
        assert msgspec.msgpack.decode(listed, type=life_api.CheckpointList).checkpoints == [made]
        await quiet(sim)
        assert len(sim.host.snapshots) == 1
        with pytest.raises(NotFound, match="has no checkpoint"):
            await last(session, "rollback", life_api.Rollback(sandbox=sandbox, checkpoint=new_checkpoint_id(), generation=5))
        for _ in range(2):
            await session.call("drop_checkpoint", life_api.CheckpointTarget(sandbox=sandbox, checkpoint=checkpoint))
        await quiet(sim)
        assert not sim.host.snapshots
        await gone(sim, session, sandbox)


async def test_children_have_the_past_in_common_and_an_identity_and_environment_of_their_own(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        parent = await created(session)
        guest_of(sim, parent).trees[b"/x"] = b"common"
        children = [life_api.Child(sandbox=new_sandbox_id(), generation=1, env={"N": str(n)}) for n in range(3)]
        seen = await states(session, "fork", life_api.Fork(sandbox=parent, children=children))
        ends = {each.sandbox: each for each in seen}
        assert {(each.phase, each.start) for each in ends.values()} == {("running", "fork")}
        assert set(ends) == {child.sandbox for child in children}
        assert found(sim, parent).phase == "running"
        await session.call("noop", api.Target(parent))
        guests = [guest_of(sim, child.sandbox) for child in children]
        assert [each.trees for each in guests] == [{b"/x": b"common"}] * 3
        imprints = [each.imprinted for each in guests]
        assert len({each.machine_id for each in imprints if each}) == 3
        assert [each.claimed.env for each in guests if each.claimed] == [[(b"N", str(n).encode())] for n in range(3)]
        await quiet(sim)
        await until(lambda: not sim.host.snapshots)
        await gone(sim, session, parent, *ends)


async def test_a_running_sandbox_becomes_a_template_and_goes_on(tmp_path: Path) -> None:
    async with node(tmp_path) as (sim, session):
        sandbox, digest = await created(session), "ab" * 16
        asked = life_api.TemplateSnapshot(sandbox=sandbox, name="mine", digest=digest)
        made = msgspec.msgpack.decode(await session.call("template_snapshot", asked), type=api.TemplateInfo)
        assert (made.digest, made.name, made.tenant) == (digest, "mine", "acme")
        assert msgspec.msgpack.decode(await session.call("template_snapshot", asked), type=api.TemplateInfo) == made, "the answer was lost"
        await session.call("noop", api.Target(sandbox))
        other = msgspec.structs.replace(spec(), template="mine", digest=digest)
        assert (await last(session, "create", other)).phase == "running"
        await gone(sim, session, sandbox, other.sandbox)


async def test_no_memory_is_taken_at_rest_and_a_wake_without_room_changes_nothing(tmp_path: Path) -> None:
    room = Capacity(memory_mib=512 + VMM_OVERHEAD_MIB, sandboxes=10, boots=10, queue=10)
    async with node(tmp_path, capacity=room) as (sim, session):
        one = await created(session)
        await last(session, "suspend", api.Target(one))
        other = await created(session)
        with pytest.raises(NoCapacity):
            await last(session, "wake", wake(one, 2))
        assert found(sim, one).phase == "suspended"
        with pytest.raises(NoCapacity):
            await last(session, "fork", life_api.Fork(sandbox=other, children=[life_api.Child(sandbox=new_sandbox_id(), generation=1)]))
        await last(session, "stop", api.Target(other))
        assert (await last(session, "wake", wake(one, 2))).phase == "running"
        await gone(sim, session, one, other)


# -- what fails --------------------------------------------------------------------------------------------------------------


async def test_a_suspension_that_fails_leaves_it_running(tmp_path: Path) -> None:
    for when in ("before", "after"):
        async with node(tmp_path / when, host=(host := MemoryHost())) as (sim, session):
            sandbox = await created(session)
            host.fail_next("begin_snapshot", NoCapacity("no space left on device"), when=when)
            ended = await last(session, "suspend", api.Target(sandbox))
            assert (ended.phase, ended.snapshot_bytes) == ("running", 0)
            assert "no space left" in str(ended.reason)
            await session.call("noop", api.Target(sandbox))
            await quiet(sim)
            assert not sim.host.snapshots
            await gone(sim, session, sandbox)


@pytest.mark.parametrize("op", ["create_edge", "create_sandbox", "start_vmm"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_wake_that_fails_leaves_it_suspended(tmp_path: Path, op: str, when: str) -> None:
    async with node(tmp_path, host=(host := MemoryHost())) as (sim, session):
        sandbox = await created(session)
        await last(session, "suspend", api.Target(sandbox))
        host.fail_next(op, Internal("it broke"), when=when)
        with pytest.raises(SpaceError, match="it broke"):
            await last(session, "wake", wake(sandbox, 2))
        assert found(sim, sandbox).phase == "suspended"
        assert [each.split()[0] for each in host.leftovers()] == ["snapshot"]
        assert sim.node.around.gate.memory_mib == 0
        assert (await last(session, "wake", wake(sandbox, 3))).phase == "running"
        await gone(sim, session, sandbox)


@pytest.mark.parametrize("op", ["create_edge", "renew_sandbox", "start_vmm"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_start_that_fails_leaves_it_stopped_with_its_disk(tmp_path: Path, op: str, when: str) -> None:
    async with node(tmp_path, host=(host := MemoryHost())) as (sim, session):
        sandbox = await created(session)
        await last(session, "stop", api.Target(sandbox))
        host.fail_next(op, Internal("it broke"), when=when)
        with pytest.raises(SpaceError, match="it broke"):
            await last(session, "wake", wake(sandbox, 2))
        assert found(sim, sandbox).phase == "stopped"
        assert host.leftovers() == [f"files of {sandbox}"]
        assert (await last(session, "wake", wake(sandbox, 3))).phase == "running"
        await gone(sim, session, sandbox)


async def test_a_checkpoint_that_fails_leaves_it_running_without_it_and_the_remedy_is_told_apart(tmp_path: Path) -> None:
    async with node(tmp_path, host=(host := MemoryHost())) as (sim, session):
        sandbox = await created(session)
        host.fail_next("begin_snapshot", NoCapacity("no space left on device", hint="free some"))
        with pytest.raises(NoCapacity) as caught:
            await session.call("checkpoint", life_api.Checkpoint(sandbox=sandbox, checkpoint=new_checkpoint_id()))
        assert (caught.value.message, caught.value.hint) == ("snapshot: no space left on device", "free some")
        assert (found(sim, sandbox).phase, found(sim, sandbox).checkpoints()) == ("running", [])
        await session.call("noop", api.Target(sandbox))
        await gone(sim, session, sandbox)


async def test_a_machine_that_dies_while_it_is_suspended_has_failed(tmp_path: Path) -> None:
    stop = Hold(Stage.SNAPSHOT, "before")
    async with node(tmp_path, trace=stop) as (sim, session):
        sandbox = await created(session)
        asking = asyncio.ensure_future(states(session, "suspend", api.Target(sandbox)))
        await stop.reached.wait()
        vmm = sim.host.vmm(sandbox)
        assert vmm is not None
        vmm.die("it crashed")
        stop.go.set()
        with pytest.raises(SandboxDied):
            await asking
        assert found(sim, sandbox).phase == "failed"
        await gone(sim, session, sandbox)


# -- stop points -------------------------------------------------------------------------------------------------------------


class Hold:
    """A trace that stops at a place, once `armed`."""

    def __init__(self, stage: Stage, when: str, *, armed: bool = True) -> None:
        self.place = (stage, when)
        self.armed = armed
        self.reached = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, sandbox: str, stage: Stage, when: str) -> None:
        if self.armed and (stage, when) == self.place:
            self.reached.set()
            await self.go.wait()


def _places(*stages: Stage) -> list[tuple[Stage, str]]:
    return [(stage, when) for stage in stages for when in ("before", "after")]


WAYS = {
    "suspend": _places(*SUSPENSION),
    "stop": _places(*STOP),
    "wake": _places(*RESTORED),
    "start": _places(*COLD),
    "cold": _places(*COLD),
    "stop suspended": _places(Stage.DISK, Stage.STORE, Stage.RECORD),
    "rollback": _places(*RESTORED),
    "checkpoint": _places(Stage.SYNC, Stage.SNAPSHOT, Stage.RECORD),
    "fork": _places(Stage.SNAPSHOT, *RESTORED),
}
MATRIX = [(way, stage, when) for way, places in WAYS.items() for stage, when in places]
CHECKPOINT = new_checkpoint_id()


async def _before(session: Session, way: str) -> str:
    """A sandbox in the state that the way begins in."""
    sandbox = await created(session)
    if way in ("wake", "cold", "stop suspended"):
        assert (await last(session, "suspend", api.Target(sandbox))).phase == "suspended"
    elif way == "start":
        assert (await last(session, "stop", api.Target(sandbox))).phase == "stopped"
    elif way == "rollback":
        await session.call("checkpoint", life_api.Checkpoint(sandbox=sandbox, checkpoint=CHECKPOINT))
    return sandbox


def _asked(sandbox: str, way: str) -> tuple[str, msgspec.Struct]:
    match way:
        case "suspend":
            return "suspend", api.Target(sandbox)
        case "stop" | "stop suspended":
            return "stop", api.Target(sandbox)
        case "wake" | "start":
            return "wake", wake(sandbox, 2)
        case "cold":
            return "wake", wake(sandbox, 2, cold=True)
        case "rollback":
            return "rollback", life_api.Rollback(sandbox=sandbox, checkpoint=CHECKPOINT, generation=2)
        case "checkpoint":
            return "checkpoint", life_api.Checkpoint(sandbox=sandbox, checkpoint=CHECKPOINT)
    return "fork", life_api.Fork(sandbox=sandbox, children=[life_api.Child(sandbox=new_sandbox_id(), generation=1)])


@pytest.mark.parametrize(("way", "stage", "when"), MATRIX, ids=[f"{way}-{stage}-{when}" for way, stage, when in MATRIX])
async def test_a_node_that_is_killed_at_any_step_loses_nothing_and_leaks_nothing(tmp_path: Path, way: str, stage: Stage, when: str) -> None:
    hold = Hold(stage, when, armed=False)
    async with MemoryNode(tmp_path, trace=hold) as sim:
        async with sim.connected() as session:
            sandbox = await _before(session, way)
            await quiet(sim)
            if sim.host.vmm(sandbox) is not None:
                guest_of(sim, sandbox).trees[b"/x"] = b"kept"
            hold.armed = True
            asking = asyncio.ensure_future(states(session, *_asked(sandbox, way)))
            async with asyncio.timeout(10):
                await hold.reached.wait()
            sim.crash()
            await asyncio.gather(asking, return_exceptions=True)
        hold.armed = False
        await sim.start()
        async with sim.connected() as session, asyncio.timeout(20):
            await found(sim, sandbox).opened()
            phase = found(sim, sandbox).phase
            assert phase in ("running", "suspended", "stopped"), phase
            woken = await last(session, "wake", wake(sandbox, 9))
            assert woken.phase == "running"
            await session.call("noop", api.Target(sandbox))
            if way in ("suspend", "checkpoint", "fork"):
                assert guest_of(sim, sandbox).trees == {b"/x": b"kept"}
            everyone = msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList).sandboxes
            await gone(sim, session, *(each.sandbox for each in everyone))


@pytest.mark.parametrize(("way", "stage", "when"), MATRIX, ids=[f"{way}-{stage}-{when}" for way, stage, when in MATRIX])
async def test_a_deletion_at_any_step_leaves_nothing(tmp_path: Path, way: str, stage: Stage, when: str) -> None:
    hold = Hold(stage, when, armed=False)
    async with node(tmp_path, trace=hold) as (sim, session):
        sandbox = await _before(session, way)
        await quiet(sim)
        hold.armed = True
        asking = asyncio.ensure_future(states(session, *_asked(sandbox, way)))
        async with asyncio.timeout(10):
            await hold.reached.wait()
            hold.armed = False
            deleting = asyncio.ensure_future(last(session, "delete", api.Target(sandbox)))
            await asyncio.sleep(0.01)
            hold.go.set()
            assert (await deleting).phase == "gone"
            await asyncio.gather(asking, return_exceptions=True)
            everyone = msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList).sandboxes
            await gone(sim, session, *(each.sandbox for each in everyone))
            assert sim.host.leftovers() == []


@pytest.mark.parametrize(("way", "stage", "when"), MATRIX, ids=[f"{way}-{stage}-{when}" for way, stage, when in MATRIX])
async def test_a_vmm_that_dies_at_any_step_loses_nothing_that_is_stored(tmp_path: Path, way: str, stage: Stage, when: str) -> None:
    hold = Hold(stage, when, armed=False)
    async with node(tmp_path, trace=hold) as (sim, session):
        sandbox = await _before(session, way)
        await quiet(sim)
        hold.armed = True
        asking = asyncio.ensure_future(states(session, *_asked(sandbox, way)))
        async with asyncio.timeout(10):
            await hold.reached.wait()
        hold.armed = False
        for files in list(sim.host.sandboxes.values()):
            if files.vmm is not None:
                files.vmm.die("it crashed")
        hold.go.set()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: found(sim, sandbox).phase in ("running", "suspended", "stopped", "failed") and settled(sim, sandbox))
        assert (await last(session, "wake", wake(sandbox, 9))).phase == "running"
        await session.call("noop", api.Target(sandbox))
        everyone = msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList).sandboxes
        await gone(sim, session, *(each.sandbox for each in everyone))


def settled(sim: MemoryNode, sandbox: str) -> bool:
    """Whether its phase is what its machine is."""
    vmm, phase = sim.host.vmm(sandbox), found(sim, sandbox).phase
    alive = vmm is not None and vmm.alive
    return alive if phase == "running" else not alive and sandbox not in sim.node.around.gate._admission.held
