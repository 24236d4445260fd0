"""One contract for every driver of the VMM seam: the fake, and QEMU with real guests where set-up has been run (marker `machine`)."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from space.config.artefacts import Store
from space.config.instance import DATA_ROOT, Instance
from space.core.wire import files, guest
from space.model.errors import Conflict, NotFound, SandboxDied, SpaceError
from space.model.ids import new_sandbox_id, new_snapshot_id
from space.model.rootd import CreateSandbox, SandboxOp
from space.node.egress import Egress
from space.node.guest import greeted
from space.node.ledger import Ledger
from space.node.ops import Rootd
from space.node.policies import Policies
from space.node.release import Releases
from space.node.vmm.firecracker import FirecrackerVmm
from space.node.vmm.qemu import QemuVmm
from space.node.vmm.seam import Machine, MachinePlan, SnapshotPlan, Vmm
from space.rpc.rootd_client import RootdClient
from space.rpc.session import Session
from space.testing.bareinstance import bare_instance
from space.testing.fakevmm import NO_CHANNEL, FakeVmm
from space.testing.memoryhost import MemoryHost
from space.testing.memoryservices import MemoryServices

BOOT = 90.0

SYNTHETIC = "198.18.0.0/15"


class Subject:
    """A driver, the host below it, and how a sandbox is prepared there."""

    def __init__(
        self, rootd: Rootd | RootdClient, make: Callable[[], Vmm], template: str, disk_mib: int, ledger: Path, accelerator: str = "tcg"
    ) -> None:
        self.rootd = rootd
        self.accelerator = accelerator
        self.make = make
        self.vmm = make()
        self._template = template
        self._disk_mib = disk_mib
        self._ledger = Ledger(ledger)
        egress = Egress(MemoryServices(MemoryHost()).links, rootd, Policies(ledger.with_name("policies")), SYNTHETIC)
        self.releases = Releases(rootd, self._ledger, egress)

    @asynccontextmanager
    async def prepared(self, slot: int = 0, snapshot: str = "", memory_mib: int = 256) -> AsyncIterator[MachinePlan]:
        """Slot and files of a sandbox, undone at the end; then nothing of it is left."""
        name = new_sandbox_id()
        op = SandboxOp(name, 1)
        try:
            await self._make_slot(slot)
            await self.rootd.create_sandbox(CreateSandbox(name, 1, slot, self._template, self._disk_mib, memory_mib, 1, snapshot))
            yield MachinePlan(name, 1, 1, memory_mib, self.accelerator)
        finally:
            await self.releases.vmm(op)
            await self.releases.files(op)
            await self.releases.slot(slot)
            left = await self.rootd.describe()
            assert slot not in left.slots
            assert name not in {each.sandbox for each in left.sandboxes}

    async def _make_slot(self, slot: int) -> None:
        if (
            isinstance(self.rootd, RootdClient) and self.accelerator == "firecracker"
        ):  # the lab's kernel, as Debian builds it, has no `reject` where the rules of an edge want one
            await self.rootd.create_slot(slot)
        else:
            (await self.rootd.create_edge(slot, SYNTHETIC, literal=False)).close()

    @asynccontextmanager
    async def booted(self) -> AsyncIterator[tuple[MachinePlan, Machine]]:
        """A machine."""
        async with self.prepared() as plan:
            machine = await self.vmm.boot(plan)
            try:
                yield plan, machine
            finally:
                await machine.aclose()

    @asynccontextmanager
    async def warm(self, *, shared: bool) -> AsyncIterator[tuple[str, Talker]]:
        """A snapshot of a machine that is configured and runs on, with who talks to it."""
        name = new_snapshot_id()
        async with self.booted() as (plan, machine):
            session = await hello(machine, life=guest.life(plan.sandbox, 1))
            await configure(session, plan)
            guest.expect(guest.Done, await session.call("prepare_snapshot", guest.PrepareSnapshot(drop_caches=False)))
            talker = Talker(machine, plan, session)
            try:
                taken = await machine.snapshot(SnapshotPlan(name, shared=shared), talker)
                assert taken.snapshot == name
                assert 0 < taken.stopped_ms < (60_000 if self.accelerator == "firecracker" else 10_000)  # nested: 10.3 s
                if shared:
                    await self.rootd.hold_memory(name)
                await talker.answered()
                yield name, talker
            finally:
                await talker.session.aclose()
                await self.rootd.discard_snapshot(name)
                assert await self.rootd.list_snapshots() == ()

    @asynccontextmanager
    async def clone(self, snapshot: str, slot: int) -> AsyncIterator[tuple[MachinePlan, Machine, Session]]:
        """A sandbox made of a snapshot, greeted, and neither imprinted nor claimed."""
        async with self.prepared(slot, snapshot) as plan:
            machine = await self.vmm.restore(plan)
            try:
                await machine.resume()
                session = await hello(machine, reconnect=True, life=guest.life(plan.sandbox, 1))
                yield plan, machine, session
                await session.aclose()
            finally:
                await machine.aclose()

    async def alive(self, plan: MachinePlan) -> bool:
        found = (await self.rootd.describe()).sandboxes
        return any(each.sandbox == plan.sandbox and each.alive for each in found)


async def hello(machine: Machine, *, reconnect: bool = False, life: int = 1) -> Session:
    async with asyncio.timeout(BOOT):
        return await greeted(machine, functools.partial(Session.open_guest, generation=life, reconnect=reconnect))


async def configure(session: Session, plan: MachinePlan) -> guest.Configured:
    request = guest.Configure(time.time_ns(), os.urandom(64), plan.sandbox, [], guest.life(plan.sandbox, plan.generation))
    return guest.expect(guest.Configured, await session.call("configure", request))


def imprint(plan: MachinePlan) -> guest.Imprint:
    return guest.Imprint(os.urandom(64), plan.sandbox, secrets.token_hex(16), str(uuid.uuid4()))


async def take_over(session: Session, plan: MachinePlan) -> guest.Configured:
    guest.expect(guest.Imprinted, await session.call("imprint", imprint(plan)))
    claim = guest.Claim(time.time_ns(), guest.life(plan.sandbox, plan.generation), [(b"A", b"1")], None)
    return guest.expect(guest.Configured, await session.call("claim", claim))


async def make(session: Session, name: str) -> None:
    request = files.FileMkdir(f"/tmp/{name}".encode(), "root", None, parents=False)
    guest.expect(files.FileAnswer, await session.call("file_mkdir", request))


async def has(session: Session, name: str) -> bool:
    try:
        await session.call("file_stat", files.FileStat(f"/tmp/{name}".encode(), "root", follow=False))
    except NotFound:
        return False
    return True


async def noop(session: Session, seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        guest.expect(guest.Done, await session.call("noop", guest.Empty()))


class Talker:
    """Who talks to a guest, over another session where a snapshot has ended its machine's pipes."""

    def __init__(self, machine: Machine, plan: MachinePlan, session: Session) -> None:
        self.session = session
        self.machine, self._plan = machine, plan
        self._parted = False

    async def part(self) -> None:
        self._parted = True
        await self.session.aclose()

    async def join(self) -> None:
        self._parted = False
        self.session = await hello(self.machine, reconnect=True, life=guest.life(self._plan.sandbox, 1))

    async def answered(self) -> Session:
        """The session, once the guest has answered over it."""
        if self._parted:
            await self.join()
        await noop(self.session)
        return self.session


Scenario = Callable[[Subject], Awaitable[None]]


def on_fake(scenario: Scenario, directory: Path) -> None:
    async def run() -> None:
        host = MemoryHost()
        await scenario(Subject(host, lambda: FakeVmm(host), "0123456789abcdef", 1024, directory / "ledger.db"))
        assert host.leftovers() == []

    asyncio.run(run())


def on_fake_whose_pipes_end(scenario: Scenario, directory: Path) -> None:
    async def run() -> None:
        host = MemoryHost()
        await scenario(Subject(host, lambda: FakeVmm(host, ends_pipes=True), "0123456789abcdef", 1024, directory / "ledger.db"))
        assert host.leftovers() == []

    asyncio.run(run())


def on_qemu(scenario: Scenario, directory: Path) -> None:
    on_host(scenario, directory, QemuVmm, "tcg")


def on_firecracker(scenario: Scenario, directory: Path) -> None:
    on_host(scenario, directory, FirecrackerVmm, "firecracker")


def on_host(scenario: Scenario, directory: Path, driver: Callable[[RootdClient, Instance], Vmm], accelerator: str) -> None:
    import uvloop  # the loop of the product

    manifest = Store(DATA_ROOT / "artefacts").template("base")
    with bare_instance("rootd") as bare:
        instance = bare.instance

        async def run() -> None:
            rootd = RootdClient(instance.rootd_socket)
            disk = -(-manifest.disk_bytes // (1 << 20))
            try:
                make = functools.partial(driver, rootd, instance)
                await scenario(Subject(rootd, make, manifest.digest, disk, directory / "ledger.db", accelerator))
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


async def clones_of_one_snapshot_go_on_by_themselves(subject: Subject) -> None:
    async with (
        subject.warm(shared=True) as (name, first),
        subject.clone(name, 1) as (one, _, ours),
        subject.clone(name, 2) as (two, _, theirs),
    ):
        identities = {(await take_over(session, plan)).boot_id for plan, session in ((one, ours), (two, theirs))}
        assert len(identities) == 2
        await make(ours, "one")
        await make(theirs, "two")
        await make(first.session, "first")
        seen = [[await has(session, each) for each in ("one", "two", "first")] for session in (ours, theirs, first.session)]
        assert seen == [[True, False, False], [False, True, False], [False, False, True]]


async def a_restored_guest_answers_nothing_before_it_is_imprinted_and_claimed(subject: Subject) -> None:
    async with subject.warm(shared=True) as (name, _), subject.clone(name, 1) as (plan, machine, session):
        stat = files.FileStat(b"/tmp", "root", follow=False)
        await noop(session)
        claim = guest.Claim(time.time_ns(), guest.life(plan.sandbox, 1), [], None)
        wrong_first: list[tuple[str, msgspec.Struct]] = [("file_stat", stat), ("claim", claim), ("processes", guest.Empty())]
        for verb, request in wrong_first:
            with pytest.raises(Conflict, match="not imprinted yet"):
                await session.call(verb, request)
        with pytest.raises(Conflict, match="not imprinted yet"):
            await configure(session, plan)
        guest.expect(guest.Imprinted, await session.call("imprint", imprint(plan)))
        with pytest.raises(Conflict, match="not claimed yet"):
            await session.call("file_stat", stat)
        guest.expect(guest.Configured, await session.call("claim", claim))
        guest.expect(files.FileAnswer, await session.call("file_stat", stat))
        again = await hello(machine, reconnect=True, life=guest.life(plan.sandbox, 1))  # as an adoption does
        guest.expect(files.FileAnswer, await again.call("file_stat", stat))
        await again.aclose()


async def a_restored_machine_stands_still_until_it_is_resumed(subject: Subject) -> None:
    async with subject.warm(shared=True) as (name, _), subject.prepared(1, name) as plan:
        machine = await subject.vmm.restore(plan)
        try:
            greeting = asyncio.create_task(hello(machine, reconnect=True, life=guest.life(plan.sandbox, 1)))
            done, _ = await asyncio.wait({greeting}, timeout=0.5)
            assert not done, "a machine that stands still answered"
            await machine.resume()
            session = await greeting
            await noop(session)
            await session.aclose()
        finally:
            await machine.aclose()


async def a_clone_is_snapshot_and_restored_with_what_it_wrote(subject: Subject) -> None:
    second = new_snapshot_id()
    async with subject.warm(shared=True) as (name, _):
        try:
            async with subject.clone(name, 1) as (plan, machine, session):
                await take_over(session, plan)
                await make(session, "before")
                await machine.pause()
                talker = Talker(machine, plan, session)
                taken = await machine.snapshot(SnapshotPlan(second, durable=True), talker)
                assert taken.private_bytes > 0
                asked = asyncio.create_task(talker.answered())
                assert not (await asyncio.wait({asked}, timeout=0.5))[0], "it was paused before the snapshot, and is not after it"
                await machine.resume()
                session = await asked
                await make(session, "after")
                async with subject.clone(second, 2) as (other, _, theirs):
                    await take_over(theirs, other)
                    assert [await has(theirs, each) for each in ("before", "after")] == [True, False]
            (told,) = [each for each in await subject.rootd.list_snapshots() if each.snapshot == second]
            assert (told.parent, told.shared, told.durable, told.memory_mib) == (name, False, True, 256)
        finally:
            await subject.rootd.discard_snapshot(second)


async def a_snapshot_that_is_refused_leaves_a_machine_that_runs(subject: Subject) -> None:
    async with subject.warm(shared=True) as (name, talker):
        with pytest.raises(Conflict, match="is there already"):
            await talker.machine.snapshot(SnapshotPlan(name), talker)
        await talker.answered()
        with pytest.raises(Conflict):  # of another shape
            async with subject.prepared(1, name, 128):
                pass
        with pytest.raises(NotFound):
            async with subject.prepared(1, new_snapshot_id()):
                pass
        await subject.rootd.release_memory(name)
        async with subject.prepared(1, name) as plan:
            if subject.accelerator != "firecracker":  # which opens the file itself, for reading: nothing has to be held
                with pytest.raises(Conflict, match="is not held"):
                    await subject.vmm.restore(plan)
            with pytest.raises(Conflict, match="made of"):
                await subject.rootd.discard_snapshot(name)
            await subject.rootd.hold_memory(name)
            machine = await subject.vmm.restore(plan)
            await machine.aclose()


async def a_machine_that_was_suspended_runs_no_more(subject: Subject) -> None:
    async with subject.warm(shared=True) as (_, talker):
        machine, session, last = talker.machine, talker.session, new_snapshot_id()
        taken = await machine.snapshot(SnapshotPlan(last, durable=True, resume=False), NO_CHANNEL)
        try:
            assert "resume" not in taken.stages_ms
            asked = asyncio.create_task(noop(session))
            done, _ = await asyncio.wait({asked}, timeout=0.5)
            assert not done or asked.exception() is not None, "a guest that was suspended answered"
            await machine.kill()
            with pytest.raises(SandboxDied):
                await asked
        finally:
            await subject.rootd.discard_snapshot(last)


CONTRACT = [
    boots_connects_and_says_hello,
    a_new_connection_kills_the_earlier_pipes,
    nothing_is_answered_between_pause_and_resume,
    any_number_wait_for_its_end_and_kill_is_idempotent,
    a_machine_is_adopted_by_another_driver,
    a_guest_that_shuts_down_is_told,
    a_boot_that_fails_or_is_cancelled_leaves_nothing,
    clones_of_one_snapshot_go_on_by_themselves,
    a_restored_guest_answers_nothing_before_it_is_imprinted_and_claimed,
    a_restored_machine_stands_still_until_it_is_resumed,
    a_clone_is_snapshot_and_restored_with_what_it_wrote,
    a_snapshot_that_is_refused_leaves_a_machine_that_runs,
    a_machine_that_was_suspended_runs_no_more,
]


@pytest.mark.parametrize("scenario", CONTRACT, ids=lambda scenario: scenario.__name__)
def test_the_fake_keeps_the_contract(scenario: Scenario, tmp_path: Path) -> None:
    on_fake(scenario, tmp_path)


@pytest.mark.parametrize("scenario", CONTRACT, ids=lambda scenario: scenario.__name__)
def test_the_fake_whose_snapshots_end_pipes_keeps_the_contract(scenario: Scenario, tmp_path: Path) -> None:
    on_fake_whose_pipes_end(scenario, tmp_path)


@pytest.mark.machine
@pytest.mark.parametrize("scenario", CONTRACT, ids=lambda scenario: scenario.__name__)
def test_qemu_keeps_the_contract(scenario: Scenario, tmp_path: Path) -> None:
    on_qemu(scenario, tmp_path)


@pytest.mark.lab
@pytest.mark.parametrize("scenario", CONTRACT, ids=lambda scenario: scenario.__name__)
def test_firecracker_keeps_the_contract(scenario: Scenario, tmp_path: Path) -> None:
    on_firecracker(scenario, tmp_path)
