"""What a guest that tries out KVM can teach, and what it cannot."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from space.config.artefacts import Store
from space.core.lifecycle.admission import Capacity
from space.model.errors import NoCapacity, SpaceError, Unavailable, Unsupported
from space.node import limits
from space.node.probe import probe_kvm
from space.node.stages import Stage
from space.testing.memoryhost import MemoryHost
from space.testing.memorynode import ROOMY, MemoryNode

KERNEL = "0123456789abcdef"


class Mute:
    """A guest that never says hello."""

    async def serve(self, control: object, bulk: object) -> None:
        self.pipes = [control, bulk]

    def kill(self) -> None:
        self.pipes = []


async def _probe(sim: MemoryNode, directory: Path) -> str | None:
    try:
        return await probe_kvm(sim.node.around, Store(directory / "artefacts"), KERNEL)
    finally:
        assert sim.host.leftovers() == []
        assert sim.node.around.ledger.records() == []
        assert sim.node.around.gate.memory_mib == 0


async def test_a_guest_that_says_hello_is_enough(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim:
        assert await _probe(sim, tmp_path) is None
        assert sim.host.calls.count("start_vmm") == 1


async def test_a_guest_that_was_started_and_says_nothing_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KVM_PROBE", 0.05)
    async with MemoryNode(tmp_path, guests=Mute) as sim:
        assert await _probe(sim, tmp_path) == "no hello within 0.05 s"


async def test_the_time_until_it_was_started_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KVM_PROBE", 0.2)

    async def slow(sandbox: str, stage: Stage, when: str) -> None:
        if (stage, when) == (Stage.SLOT, "before"):
            await asyncio.sleep(0.5)

    async with MemoryNode(tmp_path, trace=slow) as sim:
        assert await _probe(sim, tmp_path) is None


@pytest.mark.parametrize(
    ("op", "fault", "finding"),
    [
        ("start_vmm", Unsupported("this machine has no /dev/kvm"), True),
        ("start_vmm", Unavailable("rootd is away"), False),
        ("create_sandbox", NoCapacity("the disk is full"), False),
    ],
)
async def test_only_what_is_said_of_kvm_is_a_finding(tmp_path: Path, op: str, fault: SpaceError, finding: bool) -> None:
    host = MemoryHost()
    host.fail_next(op, fault)
    async with MemoryNode(tmp_path, host=host) as sim:
        if finding:
            assert "no /dev/kvm" in (await _probe(sim, tmp_path) or "")
        else:
            with pytest.raises(type(fault), match=fault.message):
                await _probe(sim, tmp_path)


async def test_a_machine_without_room_for_the_guest_learns_nothing(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path, capacity=replace(ROOMY, memory_mib=100)) as sim:
        assert isinstance(sim.node.around.gate.capacity, Capacity)
        with pytest.raises(NoCapacity):
            await _probe(sim, tmp_path)
