"""Egress of a sandbox: everybody holds it before the guest runs, whoever dies holds it again, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from space.core.policy import document
from space.core.wire import workertalk
from space.model.errors import Conflict, DeadlineExceeded, Gone, Internal, InvalidArgument, NoCapacity, NotFound, SpaceError
from space.model.ids import new_sandbox_id
from space.node import limits, stages
from space.node.stages import Stage
from space.rpc import node_api as api
from space.rpc.session import Message, Session
from space.testing.memorynode import MemoryNode
from space.testing.memoryservices import NAMES, MemoryServices

T = TypeVar("T", bound=msgspec.Struct)
ONE = document.compose({"sandbox": {"version": 1, "rule": [{"host": "one.example.com"}]}})
TWO = document.compose({"sandbox": {"version": 1, "rule": [{"host": "two.example.com"}]}})
BLOCK = document.compose({"sandbox": {"version": 1, "cidr": ["192.0.2.0/24"]}})
ASK = workertalk.Ask(ask=41, host="one.example.com", port=443, scheme="https", method="GET", path="/x", rule="rule 1")


def of(policy: bytes) -> str:
    return document.digest(policy)


async def put(session: Session, policy: bytes, digest: str | None = None, size: int | None = None) -> None:
    asked = api.PolicyPut(digest or of(policy), len(policy) if size is None else size)
    async with await session.open("policy_put", asked) as stream:
        await stream.send(policy)
        await stream.close()
        answers = [event.payload async for event in stream if isinstance(event, Message)]
    assert answers == [msgspec.msgpack.encode(api.Done())]


async def create(session: Session, policy: str = "", sandbox: str | None = None, generation: int = 1) -> api.SandboxState:
    asked = api.Create(sandbox or new_sandbox_id(), "acme", 1, "base", 1, 512, 2048, {}, policy=policy, policy_generation=generation)
    async with await session.open("create", asked, finish=True) as stream:
        return [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream if isinstance(event, Message)][-1]


async def ask(session: Session, verb: str, request: msgspec.Struct, kind: type[T]) -> T:
    return msgspec.msgpack.decode(await session.call(verb, request), type=kind)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (of fakes in the same loop)
            await asyncio.sleep(0.005)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names only)


@asynccontextmanager
async def running(tmp_path: Path, policy: bytes = ONE) -> AsyncIterator[tuple[MemoryNode, Session, str]]:
    """A node with one sandbox under that policy; at the end it is deleted, and nobody holds anything."""
    before = descriptors()
    async with MemoryNode(tmp_path) as sim:
        async with sim.connected() as session:
            await put(session, policy)
            state = await create(session, of(policy))
            assert state.phase == "running", state.reason
            assert sim.services.whole(state.sandbox)
            yield sim, session, state.sandbox
        async with sim.connected() as session:
            await session.call("delete", api.Target(state.sandbox))
            assert sim.services.holds(state.sandbox) == []
            assert sim.host.leftovers() == []
        await sim.node.stop(5)
    await until(lambda: descriptors() <= before + 3)  # the loop's own, and a ledger's index


async def test_everybody_holds_a_sandbox_with_its_policy_before_its_guest_runs(tmp_path: Path) -> None:
    held: list[bool] = []
    sandbox = new_sandbox_id()

    async def trace(name: str, stage: Stage, when: str) -> None:
        if (stage, when) == (Stage.SPAWN, "before"):
            held.append(sim.services.whole(name))

    async with MemoryNode(tmp_path, trace=trace) as sim, sim.connected() as session:
        await put(session, ONE)
        state = await create(session, of(ONE), sandbox, generation=7)
        assert held == [True]
        assert state.egress == api.EgressState(of(ONE), 7)
        bound = sim.services.gateway.bound[sandbox, 1]
        assert (bound.slot, bound.synthetic, bound.policy_generation, bound.document) == (0, "198.18.0.0/15", 7, ONE)
        assert sim.services.broker.bound[sandbox][:2] == (1, "0123456789abcdef")
        assert sim.services.dialer.bound[sandbox].digest == of(ONE)
        assert sim.host.calls.count("provide_root") == 1
        assert "egress" in state.stages_ms
        ends = (sim.services.broker.bound[sandbox][2], sim.services.audit.sources["gateway", sandbox, 1])
        for worker, service in zip(bound.held[3:5], ends, strict=True):
            with socket.socket(fileno=os.dup(worker)) as mine:
                mine.send(str(worker).encode())
            assert service.recv(64) == str(worker).encode()
        other = await create(session)
        assert sim.services.gateway.bound[other.sandbox, 1].document == document.compose({})  # no policy: nothing is allowed
        assert sim.services.dialer.bound[other.sandbox].digest == ""
        assert sim.host.calls.count("provide_root") == 1  # the broker has it


async def test_a_policy_that_the_node_lacks_is_not_found_and_one_that_is_none_is_refused(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        with pytest.raises(NotFound, match="no policy"):
            await create(session, of(ONE))
        assert sim.host.leftovers() == []
        with pytest.raises(InvalidArgument, match="digest"):
            await put(session, ONE, of(TWO))
        with pytest.raises(InvalidArgument, match="announced"):
            await put(session, ONE, size=len(ONE) + 1)
        with pytest.raises(InvalidArgument, match="no policy"):
            await put(session, b"{}")
        await put(session, ONE)
        state = await create(session, of(ONE))
        with pytest.raises(NotFound, match="no policy"):
            await session.call("set_policy", api.SetPolicy(state.sandbox, of(TWO), 2))


async def test_policies_that_no_sandbox_has_go_when_they_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as (sim, session, _):
        monkeypatch.setattr(limits, "SPARE_POLICIES", len(TWO))
        await put(session, TWO)
        await put(session, BLOCK)
        sim.node.around.egress.policies.check(of(ONE))  # it is used
        sim.node.around.egress.policies.check(of(BLOCK))
        await put(session, TWO)
        assert {path.name for path in (tmp_path / "policies").iterdir()} >= {of(ONE), of(TWO)}


@pytest.mark.parametrize("paused", [False, True])
async def test_another_policy_holds_live_and_an_overtaken_one_is_ignored(tmp_path: Path, paused: bool) -> None:
    async with running(tmp_path) as (sim, session, sandbox):
        await put(session, TWO)
        if paused:
            await session.call("pause", api.Target(sandbox))
        await session.call("set_policy", api.SetPolicy(sandbox, of(TWO), 5))
        bound = sim.services.gateway.bound[sandbox, 1]
        assert (bound.document, bound.policy_generation) == (TWO, 5)
        assert (sim.services.dialer.bound[sandbox].digest, sim.services.dialer.bound[sandbox].policy_generation) == (of(TWO), 5)
        await session.call("set_policy", api.SetPolicy(sandbox, of(ONE), 4))
        assert sim.services.gateway.bound[sandbox, 1].document == TWO
        await session.call("set_policy", api.SetPolicy(sandbox, "", 6))
        assert sim.services.dialer.bound[sandbox].digest == ""
        assert (await ask(session, "list", api.Empty(), api.SandboxList)).sandboxes[0].egress.policy_generation == 6
        if paused:
            await session.call("resume", api.Target(sandbox))


async def test_the_filter_lets_literal_addresses_in_only_under_a_policy_that_has_some(tmp_path: Path) -> None:
    async with running(tmp_path, BLOCK) as (sim, session, sandbox):
        assert sim.host.slots == {0: True}
        await put(session, ONE)
        await session.call("set_policy", api.SetPolicy(sandbox, of(ONE), 2))
        assert sim.host.slots == {0: False}
        await session.call("set_policy", api.SetPolicy(sandbox, of(BLOCK), 3))
        assert sim.host.slots == {0: True}


STEPS = [
    ("gateway", "bind"),
    ("gateway", "set_policy"),
    ("broker", "bind_sandbox"),
    ("audit", "bind_source"),
    ("dialer", "put_policy"),
    ("dialer", "bind"),
]


@pytest.mark.parametrize(("name", "method"), STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_create_during_which_a_service_dies_goes_on_when_it_is_back(tmp_path: Path, name: str, method: str, when: str) -> None:
    before = descriptors()
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        await put(session, ONE)
        sim.services.kill_at(name, method, when=when)
        state = await create(session, of(ONE))
        assert state.phase == "running", state.reason
        await until(lambda: sim.services.whole(state.sandbox))
        await session.call("delete", api.Target(state.sandbox))
        assert sim.services.holds(state.sandbox) == []
        await sim.node.stop(5)
    await until(lambda: descriptors() <= before + 3)


@pytest.mark.parametrize(("name", "method"), STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_create_that_a_service_refuses_fails_with_its_reason_and_leaves_nothing(
    tmp_path: Path, name: str, method: str, when: str
) -> None:
    before = descriptors()
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        await put(session, ONE)
        sim.services.fail_next(name, method, NoCapacity("there is no room"), when=when)
        state = await create(session, of(ONE))
        assert state.phase == "failed"
        assert "egress: " in (state.reason or "")
        assert "there is no room" in (state.reason or "")
        await until(lambda: not sim.host.leftovers())
        assert sim.services.holds(state.sandbox) == []
        assert "start_vmm" not in sim.host.calls
        again = await create(session, of(ONE))
        assert again.phase == "running"
        await session.call("delete", api.Target(again.sandbox))
        await sim.node.stop(5)
    await until(lambda: descriptors() <= before + 3)


@pytest.mark.parametrize("op", ["create_edge", "worker_cgroup", "provide_root", "create_sandbox"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_create_that_rootd_refuses_leaves_no_descriptor_and_no_binding(tmp_path: Path, op: str, when: str) -> None:
    before = descriptors()
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        await put(session, ONE)
        sim.host.fail_next(op, NoCapacity("there is no room"), when=when)
        state = await create(session, of(ONE))
        assert state.phase == "failed"
        await until(lambda: not sim.host.leftovers())
        assert sim.services.holds(state.sandbox) == []
        await sim.node.stop(5)
    await until(lambda: descriptors() <= before + 3)


@pytest.mark.parametrize("name", NAMES)
async def test_a_create_waits_for_a_service_that_is_away_no_longer_than_its_deadline(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stages.DEADLINES, Stage.EGRESS, 0.2)
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        with sim.services.gone(name):
            asked = new_sandbox_id()
            making = asyncio.create_task(create(session, "", asked))
            if name == "gateway":  # whether its worker is dead, only it can say: so the slot stays until it is back
                await until(lambda: (state := sim.node.around.board.get(asked)) is not None and state.phase == "failed")
                assert sim.host.slots
            else:
                await making
        state = await making
        assert state.phase == "failed"
        assert "egress: not done" in (state.reason or "")
        await until(lambda: not sim.host.leftovers())


@pytest.mark.parametrize("name", NAMES)
async def test_a_service_that_was_killed_holds_every_sandbox_again_and_no_sandbox_notices(tmp_path: Path, name: str) -> None:
    async with running(tmp_path) as (sim, session, sandbox):
        other = (await create(session)).sandbox
        vmm = sim.host.vmm(sandbox)
        for _ in range(3):
            sim.services.kill(name)
            assert not sim.services.whole(sandbox)
            await until(lambda: sim.services.whole(sandbox) and sim.services.whole(other))
        await until(lambda: (state := sim.node.around.board.get(sandbox)) is not None and state.egress.waiting_for == [])
        assert vmm is sim.host.vmm(sandbox)
        assert vmm is not None
        assert vmm.alive
        await session.call("delete", api.Target(other))


@pytest.mark.parametrize("name", NAMES)
async def test_what_is_away_stands_in_every_level_until_it_is_back(tmp_path: Path, name: str) -> None:
    async with running(tmp_path) as (sim, _, sandbox):
        board = sim.node.around.board
        with sim.services.gone(name):
            await until(lambda: (state := board.get(sandbox)) is not None and state.egress.waiting_for == [name])
        await until(lambda: (state := board.get(sandbox)) is not None and state.egress.waiting_for == [])
        await until(lambda: sim.services.whole(sandbox))


UPDATES = [("gateway", "set_policy"), ("dialer", "put_policy"), ("dialer", "set_policy")]


@pytest.mark.parametrize(("name", "method"), UPDATES)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_update_during_which_a_service_dies_holds_when_it_is_answered(tmp_path: Path, name: str, method: str, when: str) -> None:
    async with running(tmp_path) as (sim, session, sandbox):
        await put(session, TWO)
        sim.services.kill_at(name, method, when=when)
        await session.call("set_policy", api.SetPolicy(sandbox, of(TWO), 2))
        assert sim.services.gateway.bound[sandbox, 1].document == TWO
        assert sim.services.dialer.bound[sandbox].digest == of(TWO)
        await until(lambda: sim.services.whole(sandbox))


@pytest.mark.parametrize("name", ["gateway", "dialer"])
async def test_an_update_that_cannot_hold_yet_says_so_and_is_made_later(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SET_POLICY", 0.1)
    async with running(tmp_path) as (sim, session, sandbox):
        await put(session, TWO)
        with sim.services.gone(name), pytest.raises(DeadlineExceeded, match=f"{name} is away"):
            await session.call("set_policy", api.SetPolicy(sandbox, of(TWO), 2))
        await until(lambda: sim.services.whole(sandbox) and sim.services.gateway.bound[sandbox, 1].document == TWO)
        assert sim.services.dialer.bound[sandbox].digest == of(TWO)


@pytest.mark.parametrize("name", NAMES)
async def test_a_service_that_refuses_to_hold_a_sandbox_again_is_told_and_tried_again(tmp_path: Path, name: str) -> None:
    method = {"gateway": "bind", "broker": "bind_sandbox", "audit": "bind_source", "dialer": "bind"}[name]
    async with running(tmp_path) as (sim, _, sandbox):
        sim.services.fail_next(name, method, Internal("a fault"))
        sim.services.kill(name)
        await until(lambda: sim.services.whole(sandbox))
        await until(lambda: (state := sim.node.around.board.get(sandbox)) is not None and state.egress.waiting_for == [])


ENDS = [("gateway", "end"), ("broker", "end_sandbox"), ("audit", "end_source"), ("dialer", "end")]


@pytest.mark.parametrize(("name", "method"), ENDS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fault", ["dies", "refuses"])
async def test_a_deletion_ends_its_worker_before_the_slot_goes_whatever_happens_to_a_service(
    tmp_path: Path, name: str, method: str, when: str, fault: str
) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        state = await create(session)
        sim.services.gateway.came(state.sandbox)
        if fault == "dies":
            sim.services.kill_at(name, method, when=when)
        else:
            sim.services.fail_next(name, method, Internal("a fault"), when=when)
        ended: list[int] = []
        sim.host.on_destroy = lambda: ended.append(len(sim.services.gateway.bound))
        await session.call("delete", api.Target(state.sandbox))
        assert ended == [0]
        assert sim.host.leftovers() == []
        assert not [one for one in sim.services.holds(state.sandbox) if one.startswith("gateway")]


async def test_a_failed_sandbox_has_no_worker_and_keeps_its_slots_number(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        state = await create(session)
        vmm = sim.host.vmm(state.sandbox)
        assert vmm is not None
        vmm.die()
        await until(lambda: sim.host.leftovers() == [f"files of {state.sandbox}"])
        assert sim.services.holds(state.sandbox) == []
        assert sim.node.around.ledger.slot_of(state.sandbox) == 0
        with pytest.raises(Gone):
            await session.call("set_policy", api.SetPolicy(state.sandbox, "", 2))


# -- workers ----------------------------------------------------------------------------------------------------------


async def test_what_workers_count_adds_up_over_them_and_over_nodes(tmp_path: Path) -> None:
    async with running(tmp_path) as (sim, session, sandbox):
        gateway = sim.services.gateway
        gateway.came(sandbox)
        gateway.says(sandbox, workertalk.encode(workertalk.Counted(connections=1, requests=3, denied=1, names=2, sent=10, received=100)))
        gateway.says(sandbox, workertalk.encode(workertalk.Counted(connections=2, requests=4, denied=1, names=2, sent=20, received=200)))
        counters = await ask(session, "egress_counters", api.Target(sandbox), api.EgressCounters)
        assert counters == api.EgressCounters({"guest_udp": 2, "admitted_tcp": 5}, 2, 4, 1, 2, 20, 200, worker=True, worker_restarts=0)
        gateway.crash(sandbox, "ended by SIGSEGV")
        gateway.came(sandbox)
        gateway.says(sandbox, workertalk.encode(workertalk.Counted(requests=1, sent=5)))
        gateway.crash(sandbox, "idle", crashed=False)
        sim.crash()
        await sim.start()
        async with sim.connected() as after:
            await until(lambda: sim.services.whole(sandbox))
            counters = await ask(after, "egress_counters", api.Target(sandbox), api.EgressCounters)
            assert (counters.requests, counters.sent_bytes, counters.worker, counters.worker_restarts) == (5, 25, False, 1)
            state = (await ask(after, "list", api.Empty(), api.SandboxList)).sandboxes[0]
            assert (state.egress.worker_crashes, state.egress.last_crash) == (1, "ended by SIGSEGV")


async def test_a_request_that_waits_is_a_level_until_it_is_answered_or_over(tmp_path: Path) -> None:
    async with running(tmp_path) as (sim, session, sandbox):
        gateway, board = sim.services.gateway, sim.node.around.board
        gateway.came(sandbox)

        def asks() -> list[str]:
            state = board.get(sandbox)
            assert state is not None
            return [each.ask for each in state.asks]

        gateway.says(sandbox, workertalk.encode(ASK))
        gateway.says(sandbox, workertalk.encode(msgspec.structs.replace(ASK, ask=42)))
        assert asks() == ["ask-41", "ask-42"]
        await session.call("egress_answer", api.EgressAnswer(sandbox, "ask-41", allow=True))
        assert gateway.bound[sandbox, 1].said == [workertalk.encode(workertalk.Answer(41, allow=True))]
        assert asks() == ["ask-42"]
        gateway.says(sandbox, workertalk.encode(workertalk.AskOver(42)))
        assert asks() == []
        for nobody in ("ask-41", "ask-42", "ask-x", "x"):
            with pytest.raises(NotFound, match="no request"):
                await session.call("egress_answer", api.EgressAnswer(sandbox, nobody, allow=True))
        gateway.says(sandbox, workertalk.encode(ASK))
        gateway.crash(sandbox)
        assert asks() == []


async def test_a_worker_that_asks_without_end_or_says_nonsense_fills_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as (sim, _, sandbox):
        gateway = sim.services.gateway
        gateway.came(sandbox)
        for number in range(1, 2 * limits.ASKS):
            gateway.says(sandbox, workertalk.encode(msgspec.structs.replace(ASK, ask=number)))
        gateway.says(sandbox, b"\xff nonsense")
        state = sim.node.around.board.get(sandbox)
        assert state is not None
        assert len(state.asks) == limits.ASKS
        await until(lambda: len(gateway.bound[sandbox, 1].said) == limits.ASKS - 1)  # those beyond are refused at once


# -- the node's own end ------------------------------------------------------------------------------------------------


async def test_the_next_node_finds_what_is_bound_binds_what_is_not_and_ends_what_nobody_knows(tmp_path: Path) -> None:
    async with running(tmp_path) as (sim, session, sandbox):
        services = sim.services
        services.gateway.came(sandbox)
        pid = services.gateway.bound[sandbox, 1].pid
        gone = (await create(session)).sandbox
        bindings = services.calls.count("gateway.bind")
        sim.crash()
        await sim.start()
        async with sim.connected() as after:
            await until(lambda: services.whole(sandbox) and services.whole(gone))
            assert services.gateway.bound[sandbox, 1].pid == pid  # its worker went on
            assert services.calls.count("gateway.bind") == bindings
            await after.call("delete", api.Target(gone))


async def test_a_node_that_crashed_while_everything_else_died_heals_all_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (sim, _, sandbox):
        sim.crash()
        for name in NAMES:
            sim.services.kill(name)
        await sim.start()
        await until(lambda: sim.services.whole(sandbox))


async def test_bindings_that_no_sandbox_has_are_ended_when_the_node_comes(tmp_path: Path) -> None:
    services: MemoryServices
    async with running(tmp_path) as (sim, _, sandbox):
        services = sim.services
        sim.crash()
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        await sim.start()
        await until(lambda: not [one for one in services.holds(sandbox) if one.startswith(("gateway", "dialer"))])
        await until(lambda: not sim.host.leftovers())


# -- templates without a root ------------------------------------------------------------------------------------------


async def test_a_template_without_a_root_can_be_allowed_nothing_and_says_so(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        sim.host.rootless.add("0123456789abcdef")
        await put(session, ONE)
        refused = await create(session, of(ONE))
        assert refused.phase == "failed"
        assert "root certificate" in (refused.reason or "")
        state = await create(session)
        assert state.phase == "running"
        assert state.egress.waiting_for == ["signer"]
        with pytest.raises(NotFound, match="root certificate"):
            await session.call("set_policy", api.SetPolicy(state.sandbox, of(ONE), 2))


def test_the_faults_that_are_tried_here_are_faults_of_this_product() -> None:
    assert all(issubclass(one, SpaceError) for one in (Conflict, Internal, NoCapacity))
