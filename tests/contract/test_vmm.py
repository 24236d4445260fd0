"""One contract for every driver of the VMM seam: the fake, and QEMU with real guests where set-up has been run (marker `machine`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from space.config.artefacts import Store
from space.config.instance import DATA_ROOT
from space.core.wire import guest
from space.model.errors import SandboxDied, SpaceError
from space.model.ids import new_sandbox_id
from space.model.rootd import CreateSandbox, SandboxOp
from space.node.egress import Egress
from space.node.ledger import Ledger
from space.node.ops import Rootd
from space.node.policies import Policies
from space.node.release import Releases
from space.node.vmm.qemu import QemuVmm
from space.node.vmm.seam import Machine, MachinePlan, Vmm
from space.rpc.rootd_client import RootdClient
from space.rpc.session import Session
from space.testing.bareinstance import bare_instance
from space.testing.fakevmm import FakeVmm
from space.testing.memoryhost import MemoryHost
from space.testing.memoryservices import MemoryServices

BOOT = 90.0

SYNTHETIC = "198.18.0.0/15"


class Subject:
    """A driver, the host below it, and how a sandbox is prepared there."""

    def __init__(self, rootd: Rootd, make: Callable[[], Vmm], template: str, disk_mib: int, ledger: Path) -> None:
        self.rootd = rootd
        self.make = make
        self.vmm = make()
        self._template = template
        self._disk_mib = disk_mib
        self._ledger = Ledger(ledger)
        egress = Egress(MemoryServices(MemoryHost()).links, rootd, Policies(ledger.with_name("policies")), SYNTHETIC)
        self.releases = Releases(rootd, self._ledger, egress)

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[MachinePlan]:
        """Slot and files of a sandbox, undone at the end; then nothing is left."""
        name = new_sandbox_id()
        op = SandboxOp(name, 1)
        try:
            (await self.rootd.create_edge(0, SYNTHETIC, literal=False)).close()
            await self.rootd.create_sandbox(CreateSandbox(name, 1, 0, self._template, self._disk_mib, 256, 1))
            yield MachinePlan(name, 1, 1, 256, "tcg")
        finally:
            await self.releases.vmm(op)
            await self.releases.files(op)
            await self.releases.slot(0)
            left = await self.rootd.describe()
            assert (left.slots, left.sandboxes) == ((), ())

    @asynccontextmanager
    async def booted(self) -> AsyncIterator[tuple[MachinePlan, Machine]]:
        """A machine."""
        async with self.prepared() as plan:
            machine = await self.vmm.boot(plan)
            try:
                yield plan, machine
            finally:
                await machine.aclose()

    async def alive(self, plan: MachinePlan) -> bool:
        found = (await self.rootd.describe()).sandboxes
        return any(each.sandbox == plan.sandbox and each.alive for each in found)


async def hello(machine: Machine, *, reconnect: bool = False) -> Session:
    control, bulk = await machine.connect()
    async with asyncio.timeout(BOOT):
        return await Session.open_guest(control, bulk, 1, reconnect=reconnect)


async def noop(session: Session, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        guest.expect(guest.Done, await session.call("noop", guest.Empty()))


Scenario = Callable[[Subject], Awaitable[None]]


def on_fake(scenario: Scenario, directory: Path) -> None:
    async def run() -> None:
        host = MemoryHost()
        await scenario(Subject(host, lambda: FakeVmm(host), "0123456789abcdef", 1024, directory / "ledger.db"))
        assert host.leftovers() == []

    asyncio.run(run())


def on_qemu(scenario: Scenario, directory: Path) -> None:
    import uvloop  # the loop of the product

    manifest = Store(DATA_ROOT / "artefacts").template("base")
    with bare_instance("rootd") as bare:
        instance = bare.instance

        async def run() -> None:
            rootd = RootdClient(instance.rootd_socket)
            disk = -(-manifest.disk_bytes // (1 << 20))
            try:
                await scenario(Subject(rootd, lambda: QemuVmm(rootd, instance), manifest.digest, disk, directory / "ledger.db"))
            finally:
                await rootd.aclose()

        uvloop.run(run())


async def boots_connects_and_says_hello(subject: Subject) -> None:
    async with subject.booted() as (_, machine):
        session = await hello(machine)
        await noop(session)
        await session.aclose()


async def a_new_connection_kills_the_earlier_pipes(subject: Subject) -> None:
    async with subject.booted() as (_, machine):
        first = await hello(machine)
        second = await hello(machine, reconnect=True)
        async with asyncio.timeout(10):
            assert isinstance(await first.closed, SandboxDied)
        await noop(second)
        await second.aclose()


async def nothing_is_answered_between_pause_and_resume(subject: Subject) -> None:
    async with subject.booted() as (_, machine):
        session = await hello(machine)
        await noop(session)
        for _ in range(2):
            await machine.pause()
        asked = asyncio.create_task(noop(session))
        done, _ = await asyncio.wait({asked}, timeout=1.0)
        assert not done, "a paused guest answered"
        for _ in range(2):
            await machine.resume()
        await asked
        await session.aclose()


async def any_number_wait_for_its_end_and_kill_is_idempotent(subject: Subject) -> None:
    async with subject.booted() as (plan, machine):
        waiters = [asyncio.create_task(machine.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(waiter.done() for waiter in waiters)
        await machine.kill()
        await machine.kill()
        reasons = await asyncio.gather(*waiters)
        assert reasons == ["the VMM was killed or crashed"] * 3
        assert not await subject.alive(plan)
        with pytest.raises(SandboxDied):
            await machine.connect()
        with pytest.raises(SandboxDied):
            await machine.pause()
        assert await subject.vmm.adopt(plan.sandbox, plan.generation) is None


async def a_machine_is_adopted_by_another_driver(subject: Subject) -> None:
    async with subject.booted() as (plan, machine):
        session = await hello(machine)
        await session.aclose()
        await machine.aclose()
        again = await subject.make().adopt(plan.sandbox, plan.generation)
        assert again is not None
        try:
            session = await hello(again, reconnect=True)
            await noop(session)
            await session.aclose()
            assert await subject.vmm.adopt(plan.sandbox, plan.generation + 1) is None
        finally:
            await again.aclose()


async def a_guest_that_shuts_down_is_told(subject: Subject) -> None:
    async with subject.booted() as (_, machine):
        session = await hello(machine)
        await session.call("shutdown", guest.Empty())
        async with asyncio.timeout(60):
            assert await machine.wait() == "the guest shut itself down"
        await session.aclose()


async def a_boot_that_fails_or_is_cancelled_leaves_nothing(subject: Subject) -> None:
    async with subject.prepared() as plan:
        await subject.rootd.destroy_slot(0)  # what it needs is not there
        with pytest.raises(SpaceError):
            await subject.vmm.boot(plan)
        assert not await subject.alive(plan)
    async with subject.prepared() as plan:
        booting = asyncio.create_task(subject.vmm.boot(plan))
        await asyncio.sleep(0)
        booting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await booting
        machine = await subject.vmm.adopt(plan.sandbox, plan.generation)  # sent SIGKILL, perhaps not dead yet
        if machine is not None:
            async with asyncio.timeout(10):
                await machine.wait()
            await machine.aclose()
        assert not await subject.alive(plan)


CONTRACT = [
    boots_connects_and_says_hello,
    a_new_connection_kills_the_earlier_pipes,
    nothing_is_answered_between_pause_and_resume,
    any_number_wait_for_its_end_and_kill_is_idempotent,
    a_machine_is_adopted_by_another_driver,
    a_guest_that_shuts_down_is_told,
    a_boot_that_fails_or_is_cancelled_leaves_nothing,
]


@pytest.mark.parametrize("scenario", CONTRACT, ids=lambda scenario: scenario.__name__)
def test_the_fake_keeps_the_contract(scenario: Scenario, tmp_path: Path) -> None:
    on_fake(scenario, tmp_path)


@pytest.mark.machine
@pytest.mark.parametrize("scenario", CONTRACT, ids=lambda scenario: scenario.__name__)
def test_qemu_keeps_the_contract(scenario: Scenario, tmp_path: Path) -> None:
    on_qemu(scenario, tmp_path)
