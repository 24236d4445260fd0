"""Slots: the lowest free number, a few made ahead, none used twice, none left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from space.model.errors import NoCapacity
from space.model.ids import new_sandbox_id
from space.node import limits
from space.node.egress import Egress
from space.node.ledger import Kind, Ledger
from space.node.policies import Policies
from space.node.release import Releases
from space.node.slots import Slots
from space.rpc import node_api as api
from space.rpc.session import Message, Session
from space.testing.memoryhost import MemoryHost
from space.testing.memorynode import MemoryNode
from space.testing.memoryservices import MemoryServices


async def _until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true within 20 s"
        await asyncio.sleep(0.005)


async def _create(session: Session) -> str:
    asked = api.Create(new_sandbox_id(), "acme", 1, "base", 1, 512, 2048, {})
    async with await session.open("create", asked, finish=True) as stream:
        seen = [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream if isinstance(event, Message)]
    assert seen[-1].phase == "running", seen[-1].reason
    return asked.sandbox


async def _delete(session: Session, sandbox: str) -> None:
    await session.call("delete", api.Target(sandbox))


async def test_slots_are_the_lowest_free_numbers_and_run_out(tmp_path: Path) -> None:
    ledger, host = Ledger(tmp_path / "ledger.db"), MemoryHost()
    egress = Egress(MemoryServices(host).links, host, Policies(tmp_path / "policies"), "198.18.0.0/15")
    slots = Slots(ledger, host, Releases(host, ledger, egress), egress.synthetic, count=3)
    assert [slots.take(f"sb-{n}", 1, "acme") for n in range(3)] == [(0, None), (1, None), (2, None)]
    with pytest.raises(NoCapacity, match="all 3 slots"):
        slots.take("sb-x", 1, "acme")
    ledger.release(Kind.SLOT, "1")
    assert slots.take("sb-y", 1, "acme") == (1, None)


async def test_the_second_create_finds_its_slot_ready_and_a_used_slot_is_made_anew(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path, ready_slots=2) as sim, sim.connected() as session:
        first = await _create(session)
        await _until(lambda: set(sim.host.slots) == {0, 1, 2})
        made = sim.host.calls.count("create_edge")
        sim.host.calls.clear()
        second = await _create(session)
        before = sim.host.calls[: sim.host.calls.index("start_vmm")]
        assert made == 3
        assert "create_edge" not in before
        assert sim.node.around.ledger.slot_of(second) == 2
        await _until(lambda: set(sim.host.slots) == {0, 1, 2, 3})
        await _delete(session, second)
        assert set(sim.host.slots) == {0, 1, 3}  # 2 was destroyed, with its VMM's end
        third = await _create(session)
        assert sim.node.around.ledger.slot_of(third) in (1, 3)
        for each in (first, third):
            await _delete(session, each)


async def test_an_idle_node_keeps_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READY_LINGER", 0.05)
    async with MemoryNode(tmp_path, ready_slots=2) as sim, sim.connected() as session:
        sandbox = await _create(session)
        await _until(lambda: len(sim.host.slots) == 3)
        await _delete(session, sandbox)
        await _until(lambda: not sim.host.leftovers())


async def test_a_node_whose_sandboxes_have_all_failed_keeps_no_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READY_LINGER", 0.05)
    async with MemoryNode(tmp_path, ready_slots=2) as sim, sim.connected() as session:
        sandbox = await _create(session)
        await _until(lambda: len(sim.host.slots) == 3)
        vmm = sim.host.vmm(sandbox)
        assert vmm is not None
        vmm.die()
        await _until(lambda: sim.host.leftovers() == [f"files of {sandbox}"])
        await _delete(session, sandbox)


async def test_a_create_within_the_linger_uses_what_is_ready(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path, ready_slots=2) as sim, sim.connected() as session:
        sandbox = await _create(session)
        await _until(lambda: len(sim.host.slots) == 3)
        await _delete(session, sandbox)
        made = sim.host.calls.count("create_edge")
        sandbox = await _create(session)
        assert sim.node.around.ledger.slot_of(sandbox) == 2
        assert sim.host.calls[: sim.host.calls.index("start_vmm", sim.host.calls.index("destroy_slot"))].count("create_edge") == made
        await _delete(session, sandbox)


async def test_a_stopping_node_and_one_that_follows_a_crash_leave_no_ready_slot(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path, ready_slots=2) as sim:
        async with sim.connected() as session:
            sandbox = await _create(session)
            await _until(lambda: len(sim.host.slots) == 3)
        sim.crash()
        await sim.start()
        async with sim.connected() as session:
            # those of the dead node are freed, and the adopted sandbox gets its node new ones
            await _until(lambda: sim.host.calls.count("destroy_slot") == 2)
            await _until(lambda: len(sim.host.slots) == 3)
            assert (await _create(session)) != sandbox
        await sim.node.stop(5)
        assert len(sim.host.slots) == 2


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_slot_that_cannot_be_made_ahead_costs_nothing_but_the_time(tmp_path: Path, when: str) -> None:
    async with MemoryNode(tmp_path, ready_slots=2) as sim, sim.connected() as session:
        sim.host.fail_next("create_edge", NoCapacity("full"), when=when)
        with pytest.raises(AssertionError, match="full"):
            await _create(session)  # its own
        await _until(lambda: not sim.host.slots)  # there is no sandbox to keep some for
        one = await _create(session)
        await _until(lambda: len(sim.host.slots) == 3)
        await sim.node.around.slots.drain()
        sim.host.fail_next("create_edge", NoCapacity("full"), when=when)
        sim.node.around.slots.refill()
        await _until(lambda: not sim.host._faults["create_edge"])
        await _until(lambda: len(sim.host.slots) == 1)
        two = await _create(session)
        await _until(lambda: len(sim.host.slots) == 4)
        for each in (one, two):
            await _delete(session, each)
        await sim.node.around.slots.drain()
        assert sim.host.leftovers() == []
