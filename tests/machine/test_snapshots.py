"""Snapshots of real guests: what a restored guest keeps, what must differ, and nothing lost over many cycles of suspend and restore."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uvloop

from space.config.artefacts import Store
from space.config.instance import DATA_ROOT, Instance
from space.core.wire import guest
from space.core.wire.events import Data
from space.host import process
from space.model.errors import GuestError
from space.model.ids import new_sandbox_id, new_snapshot_id
from space.model.rootd import CreateSandbox
from space.node.vmm.qemu import QemuMachine, QemuVmm
from space.node.vmm.seam import MachinePlan, SnapshotPlan
from space.rpc.rootd_client import RootdClient
from space.rpc.session import Session
from space.testing.bareinstance import bare_instance
from space.testing.fakevmm import NO_CHANNEL

pytestmark = pytest.mark.machine
SYNTHETIC = "198.18.0.0/15"


@dataclass
class Life:
    """A machine of this test, with its session."""

    plan: MachinePlan
    machine: QemuMachine
    session: Session

    async def run(self, script: str) -> str:
        """What a shell as root writes; it must succeed."""
        request = guest.Exec([b"sh", b"-ec", script.encode()], None, [], "root", 120_000, stdin=False)
        out = b""
        async with await self.session.open("exec", request, finish=True) as stream:
            async for event in stream:
                if isinstance(event, Data):
                    out += event.payload
                    continue
                message = guest.decode(event.payload)
                assert not isinstance(message, guest.Exited) or message.code == 0, (script, out, message)
        return out.decode().strip()


class Lab:
    """An instance with rootd alone."""

    def __init__(self, rootd: RootdClient, vmm: QemuVmm, instance: Instance) -> None:
        self.rootd, self.vmm, self.instance = rootd, vmm, instance
        self.template = Store(DATA_ROOT / "artefacts").template("base")
        self._slots, self._taken = iter(range(100)), 0

    async def _prepare(self, sandbox: str, generation: int, snapshot: str, disk_mib: int = 0) -> MachinePlan:
        slot, disk = next(self._slots), disk_mib or -(-self.template.disk_bytes >> 20)
        self._taken = slot
        (await self.rootd.create_edge(slot, SYNTHETIC, literal=False)).close()
        await self.rootd.create_sandbox(CreateSandbox(sandbox, generation, slot, self.template.digest, disk, 256, 1, snapshot))
        return MachinePlan(sandbox, generation, 1, 256, "tcg", disk_mib)

    async def boot(self) -> Life:
        plan = await self._prepare(new_sandbox_id(), 1, "")
        machine = await self.vmm.boot(plan)
        life = guest.life(plan.sandbox, 1)
        session = await asyncio.wait_for(Session.open_guest(*await machine.connect(), life, reconnect=False), 90)
        request = guest.Configure(time.time_ns(), os.urandom(64), plan.sandbox, [], life)
        guest.expect(guest.Configured, await session.call("configure", request))
        return Life(plan, machine, session)

    async def restore(
        self,
        snapshot: str,
        sandbox: str | None = None,
        generation: int = 1,
        *,
        disk_mib: int = 0,
        shown: bool = True,
        asked: Callable[[Path], bytes] | None = None,
    ) -> Life:
        """shown: its VMM has a larger disk at once.

        asked: what is asked of it in its network, and answered, before anything is done in it.
        """
        plan = await self._prepare(sandbox or new_sandbox_id(), generation, snapshot, disk_mib)
        plan = plan if shown else replace(plan, disk_mib=0)
        machine = await self.vmm.restore(plan)
        await machine.resume()
        if asked is not None:
            netns = self.instance.netns(self._taken)
            assert process.forked(lambda: asked(netns))
        life = guest.life(plan.sandbox, generation)
        session = await asyncio.wait_for(Session.open_guest(*await machine.connect(), life, reconnect=True), 90)
        imprint = guest.Imprint(os.urandom(64), plan.sandbox, secrets.token_hex(16), str(uuid.uuid4()))
        guest.expect(guest.Imprinted, await session.call("imprint", imprint))
        guest.expect(guest.Configured, await session.call("claim", guest.Claim(time.time_ns(), life, [], None)))
        if disk_mib and shown:
            guest.expect(guest.Configured, await session.call("grow", guest.Grow(disk_mib << 20)))
        return Life(plan, machine, session)

    async def end(self, life: Life) -> None:
        await life.session.aclose()
        await life.machine.kill()
        await life.machine.aclose()
        await self.rootd.destroy_sandbox(life.plan.sandbox, life.plan.generation)


@asynccontextmanager
async def _lab(rootd: RootdClient, vmm: QemuVmm, instance: Instance) -> AsyncIterator[Lab]:
    try:
        yield Lab(rootd, vmm, instance)
    finally:
        await rootd.aclose()


def _in_lab(work: Callable[[Lab], Awaitable[None]]) -> None:
    with bare_instance("rootd") as bare:

        async def run() -> None:
            rootd = RootdClient(bare.instance.rootd_socket)
            async with _lab(rootd, QemuVmm(rootd, bare.instance), bare.instance) as lab:
                await work(lab)

        uvloop.run(run())


def test_twenty_cycles_of_write_suspend_and_restore_lose_nothing() -> None:
    async def work(lab: Lab) -> None:
        life = await lab.boot()
        await life.run("mkdir /tmp/c /dev/shm/c; echo start > /tmp/c/0; cp /tmp/c/0 /dev/shm/c/0")
        sandbox, last = life.plan.sandbox, ""
        for cycle in range(1, 21):
            # on the disk and in memory, the newest of both not synced by anybody
            await life.run(f"head -c 300000 /dev/urandom > /tmp/c/{cycle}; cp /tmp/c/{cycle} /dev/shm/c/{cycle}")
            sums = await life.run("cat /tmp/c/* | sha256sum; cat /dev/shm/c/* | sha256sum; uptime -s > /dev/null; ls /tmp/c | wc -l")
            name = new_snapshot_id()
            await life.machine.snapshot(SnapshotPlan(name, durable=True, resume=False), NO_CHANNEL)
            await lab.end(life)
            if last:
                await lab.rootd.discard_snapshot(last)
            last = name
            life = await lab.restore(name, sandbox, cycle + 1)
            assert await life.run("cat /tmp/c/* | sha256sum; cat /dev/shm/c/* | sha256sum; ls /tmp/c | wc -l") == sums
            assert abs(int(await life.run("date +%s")) - time.time()) < 5
        assert sums.endswith("21")
        await lab.end(life)
        await lab.rootd.discard_snapshot(last)

    _in_lab(work)


WHO = """hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id /proc/sys/kernel/random/uuid
head -c 16 /dev/urandom | od -An -tx1"""


async def hook(life: Life, name: str, line: str) -> None:
    """Put a restore hook into the guest."""
    path = f"/etc/space/restore.d/{name}"
    await life.run(f"mkdir -p /etc/space/restore.d; printf '#!/bin/sh\n{line}\n' > {path}; chmod 755 {path}")


def test_a_tree_of_forks_shares_the_past_and_differs_in_files_and_identity() -> None:
    async def work(lab: Lab) -> None:
        root = await lab.boot()
        await hook(root, "10-note", "hostname >> /tmp/hooked")
        kept = guest.Exec([b"sh", b"-c", b"while :; do sleep 1; done"], None, [], "root", None, stdin=False, keep="pr-kept")
        await root.session.open("exec", kept, finish=False)
        lives, snapshots, level = [root], [], [root]
        for depth in range(3):
            following = []
            for parent in level:
                name = new_snapshot_id()
                taken = await parent.machine.snapshot(SnapshotPlan(name), NO_CHANNEL)
                assert taken.stopped_ms < 1000, taken
                snapshots.append(name)
                for _ in range(2 if depth == 0 else 1):
                    child = await lab.restore(name)
                    await child.run(f"echo {child.plan.sandbox} > /tmp/{child.plan.sandbox}")
                    following.append(child)
            lives += following
            level = following
        identities = [(await each.run(WHO)).splitlines() for each in lives]
        for column in zip(*identities, strict=True):
            assert len(set(column)) == len(lives), column
        seen = [set((await each.run("cd /tmp; ls -d sb-* 2>/dev/null || true")).split()) for each in lives]
        assert [len(each) for each in seen] == [0, 1, 1, 2, 2, 3, 3]
        assert len(set().union(*seen)) == 6
        assert [len((await each.run("cat /tmp/hooked 2>/dev/null || true")).split()) for each in lives] == [0, 1, 1, 2, 2, 3, 3]
        for each in lives:
            answer = guest.expect(guest.Processes, await each.session.call("processes", guest.Empty()))
            assert [(found.process, found.ended) for found in answer.processes] == [("pr-kept", False)]
        for each in lives:
            await lab.end(each)
        for name in snapshots:
            await lab.rootd.discard_snapshot(name)

    _in_lab(work)


def test_a_restore_hook_that_fails_fails_the_imprint_and_the_guest_stays_shut() -> None:
    async def work(lab: Lab) -> None:
        life = await lab.boot()
        await hook(life, "50-bad", "exit 3")
        name = new_snapshot_id()
        await life.machine.snapshot(SnapshotPlan(name), NO_CHANNEL)
        with pytest.raises(GuestError, match=r"50-bad failed: exit status: 3"):
            await lab.restore(name)
        found = await lab.rootd.describe()
        for each in found.sandboxes:
            await lab.rootd.kill_vmm(each.sandbox, each.generation)

    _in_lab(work)
