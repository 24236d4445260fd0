"""A ledger that cannot be written (the host's disk is full) fails what asked for it, and keeps nothing: no memory, no turn, no deletion."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from space.core.lifecycle.admission import Capacity
from space.model.errors import Internal, NoCapacity, SpaceError
from space.model.ids import new_sandbox_id
from space.model.sandbox import Phase
from space.node.ledger import Ledger, Record
from space.rpc import node_api as api
from space.rpc.session import Message, Session
from space.testing.memorynode import MemoryNode

RECORD = Record("sb-a", "acme", 1, "base", "ab" * 8, 1, 512, 2048, {}, Phase.RUNNING)
_CALLS = (
    15  # of a whole life: its row and five phases, four for what it holds (one reads), three that let go, a look for grants, a forgetting
)


class Faulty:
    """SQLite of one ledger, of which the calls in `bad` (counted from 0) find the disk full."""

    def __init__(self, ledger: Ledger, bad: range) -> None:
        self._database = ledger._database
        self.bad, self.calls = bad, 0
        ledger._database = self  # type: ignore[assignment]

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self.calls += 1
        if self.calls - 1 in self.bad:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._database.execute(*arguments)

    def close(self) -> None:
        self._database.close()


async def _until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true within 20 s"
        await asyncio.sleep(0.005)


async def _create(session: Session, sandbox: str) -> api.SandboxState:
    asked = api.Create(sandbox, "acme", 1, "base", 1, 512, 2048, {})
    async with await session.open("create", asked, finish=True) as stream:
        return [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream if isinstance(event, Message)][-1]


async def _phase(session: Session, verb: str, sandbox: str) -> str:
    return msgspec.msgpack.decode(await session.call(verb, api.Target(sandbox)), type=api.SandboxState).phase


@pytest.mark.parametrize("call", range(_CALLS))
@pytest.mark.parametrize("how_long", [1, 5])
async def test_a_fault_at_any_call_of_the_ledger_keeps_nothing(tmp_path: Path, call: int, how_long: int) -> None:
    async with MemoryNode(tmp_path, capacity=Capacity(1000, 9, 1, 9)) as sim, sim.connected() as session:
        faulty, sandbox, around = Faulty(sim.node.around.ledger, range(call, call + how_long)), new_sandbox_id(), sim.node.around
        try:
            if (state := await _create(session, sandbox)).phase == "running":
                assert await _phase(session, "pause", sandbox) == "paused"
                assert await _phase(session, "resume", sandbox) == "running"
            else:
                assert state.phase == "failed"
                assert "the host's disk is full" in (state.reason or "")
                await _until(lambda: not sim.host.leftovers())
                await _until(lambda: around.gate.memory_mib == 0)
        except NoCapacity:
            assert call == 0, "only the first write is before the sandbox"
            assert around.gate.memory_mib == 0
        assert await _phase(session, "delete", sandbox) == "gone"
        assert sim.host.leftovers() == []
        assert around.gate.memory_mib == 0
        assert faulty.calls > call, "the fault was there"
        faulty.bad = range(0)
        await _until(lambda: around.ledger.records() == [] and around.ledger.holdings() == [])
        # its memory and its turn to boot are free: both fit only one at a time
        other = new_sandbox_id()
        assert (await _create(session, other)).phase == "running"
        assert await _phase(session, "delete", other) == "gone"


async def test_a_whole_life_has_no_more_calls_than_are_tried(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        faulty, sandbox = Faulty(sim.node.around.ledger, range(0)), new_sandbox_id()
        assert (await _create(session, sandbox)).phase == "running"
        assert await _phase(session, "pause", sandbox) == "paused"
        assert await _phase(session, "resume", sandbox) == "running"
        assert await _phase(session, "delete", sandbox) == "gone"
        assert faulty.calls == _CALLS


async def test_a_deletion_on_a_full_disk_frees_the_host_before_it_waits_for_the_ledger(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        sandbox = new_sandbox_id()
        assert (await _create(session, sandbox)).phase == "running"
        faulty = Faulty(sim.node.around.ledger, range(1 << 30))
        deleting = asyncio.create_task(_phase(session, "delete", sandbox))
        await _until(lambda: not sim.host.leftovers())
        assert not deleting.done()
        faulty.bad = range(0)
        assert await deleting == "gone"
        await _until(lambda: sim.node.around.ledger.records() == [] and sim.node.around.ledger.holdings() == [])


async def test_a_vmm_that_dies_on_a_full_disk_has_failed_and_its_row_follows(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        sandbox = new_sandbox_id()
        assert (await _create(session, sandbox)).phase == "running"
        faulty = Faulty(sim.node.around.ledger, range(1 << 30))
        vmm = sim.host.vmm(sandbox)
        assert vmm is not None
        vmm.die("the guest powered off")
        await _until(lambda: sim.node.around.gate.memory_mib == 0)
        assert sim.host.leftovers() == [f"files of {sandbox}"]
        faulty.bad = range(0)
        await _until(lambda: sim.node.around.ledger.records()[0].reason == "the guest powered off")


def test_a_full_disk_and_another_fault_are_told_apart(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger._database.execute("PRAGMA max_page_count = 8")
    with pytest.raises(NoCapacity, match="the host's disk is full"):
        ledger.put(msgspec.structs.replace(RECORD, env={"A": "b" * 100_000}))
    ledger.close()
    calls: list[Callable[[], object]] = [ledger.records, ledger.holdings, lambda: ledger.put(RECORD), lambda: ledger.slot_of("sb-a")]
    for call in calls:
        with pytest.raises(Internal, match="cannot be used") as caught:
            call()
        assert isinstance(caught.value, SpaceError)
