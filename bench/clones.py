"""Clones of one warm snapshot beside a cold boot, over rootd and the VMM driver alone: the stages of each, and what one costs in memory.

python bench/clones.py [N]      as root, on a machine that is set up; N clones, one after the other (20)
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import statistics
import sys
import time
import uuid
from collections import defaultdict
from pathlib import Path

import uvloop

from space.config.artefacts import Store
from space.config.instance import DATA_ROOT, Instance
from space.core.wire import guest
from space.model.ids import new_sandbox_id, new_snapshot_id
from space.model.rootd import CreateSandbox
from space.node.vmm.qemu import QemuMachine, QemuVmm
from space.node.vmm.seam import MachinePlan, SnapshotPlan
from space.rpc.rootd_client import RootdClient
from space.rpc.session import Session
from space.testing.bareinstance import bare_instance

MEMORY_MIB, SYNTHETIC = 256, "198.18.0.0/15"


class Bench:
    """An instance with rootd alone."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.rootd = RootdClient(instance.rootd_socket)
        self.vmm = QemuVmm(self.rootd, instance)
        self.template = Store(DATA_ROOT / "artefacts").template("base")
        self.laps: dict[str, list[float]] = defaultdict(list)
        self._slot = 0

    async def prepare(self, snapshot: str = "") -> MachinePlan:
        """Slot and files."""
        name, disk = new_sandbox_id(), -(-self.template.disk_bytes >> 20)
        (await self.rootd.create_edge(self._slot, SYNTHETIC, literal=False)).close()
        began = time.perf_counter()
        await self.rootd.create_sandbox(CreateSandbox(name, 1, self._slot, self.template.digest, disk, MEMORY_MIB, 1, snapshot))
        if snapshot:
            self.lap("clone", began)
        self._slot += 1
        return MachinePlan(name, 1, 1, MEMORY_MIB, "tcg")

    def lap(self, stage: str, began: float) -> float:
        """Note a stage that has just ended; now."""
        now = time.perf_counter()
        self.laps[stage].append((now - began) * 1000)
        return now

    async def cold(self) -> tuple[QemuMachine, Session]:
        """A boot, to its configured guest and first command."""
        plan = await self.prepare()
        began = time.perf_counter()
        machine = await self.vmm.boot(plan)
        life = guest.life(plan.sandbox, 1)
        session = await Session.open_guest(*await machine.connect(), life, reconnect=False)
        self.lap("cold: hello", began)
        await session.call("configure", guest.Configure(time.time_ns(), os.urandom(64), plan.sandbox, [], life))
        await run(session, "true")
        self.lap("cold: first exec", began)
        await run(session, "python3", "-c", "pass")
        await run(session, "bash", "-c", ":")
        return machine, session

    async def clone(self, snapshot: str) -> None:
        """A clone, to its first command."""
        plan = await self.prepare(snapshot)
        began = at = time.perf_counter()
        machine = await self.vmm.restore(plan)
        at = self.lap("spawn and load", at)
        await machine.resume()
        at = self.lap("resume", at)
        life = guest.life(plan.sandbox, 1)
        session = await Session.open_guest(*await machine.connect(), life, reconnect=True)
        at = self.lap("hello", at)
        self.lap("warm: hello", began)
        own, guests = _memory(self._pid(plan.sandbox))
        self.laps["MiB private with VMM"].append(own)
        self.laps["MiB private of the guest"].append(guests)
        at = time.perf_counter()
        await session.call("imprint", guest.Imprint(os.urandom(64), plan.sandbox, secrets.token_hex(16), str(uuid.uuid4())))
        at = self.lap("imprint", at)
        await session.call("claim", guest.Claim(time.time_ns(), life, [], None))
        at = self.lap("claim", at)
        await run(session, "true")
        self.lap("first exec", at)
        self.lap("warm: first exec", began)
        taken = await machine.snapshot(SnapshotPlan(fork := new_snapshot_id()))
        self.laps["fork: parent stopped"].append(taken.stopped_ms)
        await self.rootd.discard_snapshot(fork)
        await session.aclose()
        await machine.kill()
        await machine.aclose()
        await self.rootd.destroy_sandbox(plan.sandbox, 1)

    def _pid(self, sandbox: str) -> int:
        return int(json.loads((self.instance.sandboxes / sandbox / "sandbox.json").read_text())["pid"])


async def run(session: Session, *argv: str) -> None:
    """A command of root's, to its end."""
    request = guest.Exec([word.encode() for word in argv], None, [], "root", 60_000, stdin=False)
    async with await session.open("exec", request, finish=True) as stream:
        async for _ in stream:
            pass


def _memory(pid: int) -> tuple[float, float]:
    """MiB that are private and dirty: all of the VMM's, and of its guest's memory."""
    total = guests = size = 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if words[0] == "Size:":
            size = int(words[1])
        elif words[0] == "Private_Dirty:":
            total += int(words[1])
            guests += int(words[1]) if size == MEMORY_MIB << 10 else 0
    return total / 1024, guests / 1024


async def measure(instance: Instance, count: int) -> None:
    """Print medians."""
    bench = Bench(instance)
    machine, session = await bench.cold()
    await session.call("prepare_snapshot", guest.PrepareSnapshot(drop_caches=False))
    name = new_snapshot_id()
    taken = await machine.snapshot(SnapshotPlan(name, shared=True, durable=True))
    await session.aclose()
    await machine.kill()
    await machine.aclose()
    await bench.rootd.hold_memory(name)
    for _ in range(count):
        await bench.clone(name)
        await asyncio.sleep(0)
    for stage, samples in bench.laps.items():
        print(f"{stage:28} {statistics.median(samples):9.1f}  ({min(samples):.1f} to {max(samples):.1f}, {len(samples)})")
    print(f"{'booted: stopped for template':28} {taken.stopped_ms:9.1f}")
    for point in ("hello", "first exec"):
        ratio = bench.laps[f"cold: {point}"][0] / statistics.median(bench.laps[f"warm: {point}"])
        print(f"cold over warm, to {point}: {ratio:.1f}")
    await bench.rootd.aclose()


if __name__ == "__main__":
    with bare_instance("rootd") as bare:
        uvloop.run(measure(bare.instance, int(sys.argv[1]) if len(sys.argv) > 1 else 20))
