"""One life of a sandbox: what it has on the host in one generation, and how that is undone.

    turn -> slot -> files, cgroup, egress -> VMM -> channel -> configured, or imprinted and claimed            (unwound in reverse)

A life begins from a template's disk, from a snapshot (its memory or its disk alone), or from the disk of the life before. The sandbox's
task owns it; this decides nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from space.model.errors import DeadlineExceeded, SandboxDied, SpaceError
from space.model.rootd import SandboxOp
from space.node import limits, steps
from space.node.binding import Binding
from space.node.edge import Edge
from space.node.egress import Told
from space.node.guest import Guest, greeted
from space.node.ledger import Holding, Kind, Record, host_name
from space.node.shield import ended
from space.node.stages import DEADLINES, Stage
from space.node.surroundings import Surroundings
from space.node.vmm.seam import Machine

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class Ahead:
    """A clone of a warm template that is nobody's yet: restored, imprinted, its processors stopped. name: rootd's, of generation 1."""

    name: str
    slot: int
    edge: Edge
    machine: Machine
    guest: Guest


@dataclass(frozen=True, slots=True)
class Origin:
    """What a life begins from. snapshot: its files come from there; restore: its memory too. Neither: from the template's disk.

    disk: from the disk that the sandbox has, of that generation. ahead: from a clone that was made before anybody asked.
    """

    snapshot: str = ""
    restore: bool = False
    disk: int = 0
    ahead: Ahead | None = None


class Owner(Protocol):
    """What a life needs of its sandbox."""

    record: Record

    def stage(self, stage: Stage) -> AbstractAsyncContextManager[None]:
        """A step, timed and named."""

    def lap(self, stage: Stage, milliseconds: float, *, within: Stage | None = None) -> None:
        """What a step took that was measured elsewhere; no part any more of the one within which it was."""

    def told(self) -> Told:
        """Who hears of its egress."""

    def connected(self, guest: Guest) -> None:
        """There is a channel."""

    def joined(self) -> None:
        """The guest that there was is talked to over another channel."""

    def stalled(self, stands: bool) -> None:
        """Its guest stands still, as the host has no room for what it writes; or goes on."""


class Life:
    """One a generation. Make it within the event loop. What is undone is undone by the generation that `op` has then."""

    def __init__(self, owner: Owner, around: Surroundings) -> None:
        self._owner = owner
        self._around = around
        self.name = owner.record.sandbox
        self.op = SandboxOp(host_name(owner.record), owner.record.generation)
        self.machine: Machine | None = None
        self.guest: Guest | None = None
        self.binding: Binding | None = None
        self.slot: int | None = None
        self.has_place = False  # slot, files and egress were made
        self.stalled = asyncio.Event()  # the host has no room for what its guest writes
        self._parted = False  # its pipes end, or have ended, with a snapshot
        self._stands = False  # because it was asked to
        self._keeping: asyncio.Task[None] | None = None
        self._unsure = False  # by which number the host knows its disk
        self._undo = AsyncExitStack()

    # -- its begin -----------------------------------------------------------------------------------------------

    async def prepare(self, origin: Origin, turned: Callable[[], None] = lambda: None) -> None:
        """A guest that can be used, whose memory was taken at the gate. turned: called once it is its turn. Whatever was made when this
        raises is undone by `undo_all`, or by `free_compute` where its disk was there before.
        """
        gate, name = self._around.gate, self.name
        self._undo.callback(gate.leave, name)
        if origin.disk:
            self._owe_disk()
            self._unsure = origin.disk != self.op.generation
        try:
            async with self._owner.stage(Stage.QUEUE):
                await gate.turn(name, DEADLINES[Stage.QUEUE])
            turned()
            if origin.ahead is not None:
                await self._take_over(origin.ahead)
                return
            await self._make(origin)
            if origin.restore:
                await self._wake_up()
            else:
                await self._boot()
        finally:
            gate.booted(name)

    async def _make(self, origin: Origin) -> None:
        """Slot, files, egress, VMM."""
        record, around = self._owner.record, self._around
        async with self._owner.stage(Stage.SLOT):
            literal = await around.egress.policies.literals(record.policy)
            edge = await self._take_slot(record, literal=literal)
        binding = self.bind(edge)
        self._undo.push_async_callback(self._end_egress)
        async with steps.beside(binding.begin(), f"{record.sandbox}: egress") as bound:
            async with self._owner.stage(Stage.CLONE if origin.restore else Stage.DISK):
                await self._make_files(record, origin)
            async with self._owner.stage(Stage.EGRESS):
                await bound  # before anything of the guest runs
        self.has_place = True
        await self._spawn(origin)

    async def _take_over(self, ahead: Ahead) -> None:
        """A clone that was made ahead, imprinted, and stands still: its slot, files, VMM and channel are this life's from now on."""
        record, around = self._owner.record, self._around
        async with self._owner.stage(Stage.SLOT):
            around.ledger.hold(Holding(Kind.SLOT, str(ahead.slot), record.sandbox, record.generation, record.tenant))
            self.slot = ahead.slot
            self._undo.push_async_callback(around.releases.slot, ahead.slot)
            for kind, release in ((Kind.FILES, self._remove_files), (Kind.VMM, self._end_vmm)):
                self._hold(kind)
                self._undo.push_async_callback(release)
            self.take(ahead.machine)
            self.guest = ahead.guest
            self._undo.push_async_callback(self.guest.aclose)
        binding = self.bind(ahead.edge)
        self._undo.push_async_callback(self._end_egress)
        # What the template left running may send something before the policy holds: until then that waits in the slot's listeners, which
        # nobody reads. Before anything of a caller's runs, all is there.
        async with steps.beside(binding.begin(), f"{record.sandbox}: egress") as bound:
            fault = await self._claim(ahead)
            async with self._owner.stage(Stage.EGRESS):
                await bound
        self.has_place = True
        if fault is not None:
            raise fault

    async def _claim(self, ahead: Ahead) -> SpaceError | None:
        """It runs and is this sandbox's; or why not."""
        record = self._owner.record
        try:
            self._owner.connected(ahead.guest)
            # The claim lies in its channel when its processors begin, or nearly.
            async with steps.beside(self._claimed(ahead.guest, record), f"{record.sandbox}: claim") as claimed:
                async with self._owner.stage(Stage.RESUME):
                    await ahead.machine.resume()
                    ahead.guest.release()
                async with self._owner.stage(Stage.CLAIM):
                    await claimed
        except SpaceError as error:
            return error
        return None

    async def _claimed(self, guest: Guest, record: Record) -> None:
        await self.while_alive(guest.claim(record.env, hostname=record.sandbox))

    async def _spawn(self, origin: Origin) -> None:
        vmm = self._around.vmm
        async with self._owner.stage(Stage.SPAWN):
            self._hold(Kind.VMM)
            self._undo.push_async_callback(self._end_vmm)
            plan = steps.plan_of(self._owner.record)
            self.take(await (vmm.restore(plan) if origin.restore else vmm.boot(plan)))
        if self.machine is not None and origin.restore:
            self._owner.lap(Stage.LOAD, self.machine.load_ms, within=Stage.SPAWN)

    async def boot_instead(self) -> None:
        """A clone that did not come up: boot from its template's disk, in the same slot, with the egress that it has."""
        if self.guest is not None:
            await self.guest.aclose()
        if self.machine is not None:
            await self._let_go_of(self.machine)
        await self._end_vmm()
        await self._remove_files()
        async with self._owner.stage(Stage.DISK):
            await self._make_files(self._owner.record, Origin())
        await self._spawn(Origin())
        await self._boot()

    async def _take_slot(self, record: Record, *, literal: bool) -> Edge:
        around = self._around
        if self.slot is not None:  # that of its disk
            return await around.slots.make(self.slot, literal=literal)
        slot, edge = around.slots.take(record.sandbox, record.generation, record.tenant)
        self.slot = slot
        self._undo.push_async_callback(around.releases.slot, slot)
        return edge or await around.slots.make(slot, literal=literal)

    async def _make_files(self, record: Record, origin: Origin) -> None:
        assert self.slot is not None, "the slot comes before its files"
        rootd = self._around.rootd
        if origin.disk:
            self._unsure = origin.disk != record.generation
            await rootd.renew_sandbox(self.op.sandbox, origin.disk, record.generation)
            self._unsure = False
            return
        self._hold(Kind.FILES)
        self._undo.push_async_callback(self._remove_files)
        await rootd.create_sandbox(steps.files_of(record, self.slot, origin.snapshot))

    async def _boot(self) -> None:
        async with self._owner.stage(Stage.BOOT):
            await self.while_alive(self.open_channel(reconnect=False))
        async with self._owner.stage(Stage.CONFIGURE):
            if not await self.configured(limits.CONFIGURE):
                raise DeadlineExceeded(f"the guest did not take clock, name and environment within {limits.CONFIGURE:g} s")

    async def _wake_up(self) -> None:
        """A guest that was restored: it stands still, and answers nothing before it is another one."""
        machine, record = self.machine, self._owner.record
        assert machine is not None, "it was spawned"
        async with self._owner.stage(Stage.RESUME):
            await machine.resume()
        async with self._owner.stage(Stage.HELLO):
            await self.while_alive(self.open_channel(reconnect=True))
        async with self._owner.stage(Stage.IMPRINT):
            await self.while_alive(self._guest().imprint(record.sandbox))
        async with self._owner.stage(Stage.CLAIM):
            await self.while_alive(self._guest().claim(record.env))

    async def take_disk_out(self, snapshot: str) -> None:
        """Its disk as the snapshot has it, and nothing else: no VMM, no egress, no memory. The slot's number stays, as the disk's uid."""
        record, around = self._owner.record, self._around
        slot, edge = around.slots.take(record.sandbox, record.generation, record.tenant)
        self.slot = slot
        self._undo.push_async_callback(around.releases.slot, slot)
        (edge or await around.slots.make(slot, literal=False)).close()
        await self._make_files(record, Origin(snapshot))
        await around.rootd.renew_sandbox(self.op.sandbox, record.generation, record.generation)
        await around.releases.namespace(slot)

    # -- parts that others use -----------------------------------------------------------------------------------

    def take(self, machine: Machine) -> None:
        """This is its machine."""
        self._undo.push_async_callback(self._let_go_of, machine)
        self.machine = machine
        self._keeping = asyncio.create_task(machine.keep_going(self._stalled), name=f"{self.name}: room on its disk")
        self._keeping.add_done_callback(_kept)

    def bind(self, edge: Edge | None = None) -> Binding:
        """Egress knows it from now on. edge: of the slot that was made for it; none where an earlier node did."""
        assert self.slot is not None, "the slot comes before what is bound to it"
        self.binding = self._around.egress.found(self._owner.record, self.slot, self._owner.told(), edge)
        return self.binding

    async def open_channel(self, *, reconnect: bool) -> None:
        """A session with the guest."""
        assert self.machine is not None, "the VMM comes before the channel"
        self.guest = await greeted(self.machine, functools.partial(Guest.open, op=self.op, reconnect=reconnect))
        self._undo.push_async_callback(self.guest.aclose)
        self._owner.connected(self.guest)

    async def stand(self) -> None:
        """Stop its processors. Its silence means nothing then, and nothing that it was sent is on the way."""
        assert self.machine is not None, "there is a VMM"
        guest = self._guest()
        if self.machine.ends_pipes:  # it may be stored while it stands
            await self.while_alive(guest.settle())
        guest.hold()
        self._stands = True
        await self.machine.pause()

    async def go_on(self) -> None:
        """Let them run, with the channel that there was, or another where a snapshot has ended that."""
        assert self.machine is not None, "there is a VMM"
        await self.machine.resume()
        self._stands = False
        if self._parted:
            await self.join()
        else:
            self._guest().release()
            self._guest().go_on()

    async def part(self) -> None:
        """See `seam.Channel`. Of one that stands still everything was said before."""
        if not self._parted and self.guest is not None:
            if not self._stands:
                await self.guest.settle()
            self.guest.part()
            self._parted = True

    async def join(self) -> None:
        """See `seam.Channel`. SpaceError when its guest does not answer: then it has lost its channel."""
        try:
            async with asyncio.timeout(limits.RECONNECT):
                await self.while_alive(self._take_up())
        except BaseException as error:
            await self._guest().aclose()
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(f"its guest did not answer within {limits.RECONNECT:g} s after a snapshot") from None
            raise
        self._parted = False
        self._owner.joined()

    async def _take_up(self) -> None:
        assert self.machine is not None, "it runs"
        await greeted(self.machine, self._guest().take_up)

    async def configured(self, seconds: float) -> bool:
        """Whether the guest took clock, name and environment in that time."""
        record, guest = self._owner.record, self._guest()
        try:
            async with asyncio.timeout(seconds):
                await self.while_alive(guest.configure(hostname=record.sandbox, env=record.env))
        except TimeoutError:
            return False
        return True

    async def set_clock(self, after: str) -> None:
        """By claiming it again, which writes no file. It has entropy and name from its boot: one that only stays silent runs on."""
        guest = self._guest()
        try:
            async with asyncio.timeout(limits.RECONFIGURE):
                await self.while_alive(guest.claim(self._owner.record.env))
        except TimeoutError:
            words = "%s: after %s the guest did not take its clock within %g s; it runs on, its clock may be wrong"
            log.warning(words, self.op.sandbox, after, limits.RECONFIGURE)

    async def while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it; SandboxDied as soon as the VMM ends."""
        assert self.machine is not None, "there is a VMM"
        return await steps.while_alive(self.machine, work, self.op.sandbox)

    def _guest(self) -> Guest:
        if self.guest is None:
            raise SandboxDied(f"sandbox {self.op.sandbox} has just lost its channel")
        return self.guest

    # -- its end -------------------------------------------------------------------------------------------------

    def owe_everything(self) -> None:
        """What a node before this one may have made, in the order of `prepare`."""
        self._undo.callback(self._around.gate.leave, self.name)
        self._owe_disk()
        self._undo.push_async_callback(self._end_egress)
        self._undo.push_async_callback(self._end_vmm)

    def _owe_disk(self) -> None:
        self.slot = self._around.ledger.slot_of(self.name)
        if self.slot is not None:
            self._undo.push_async_callback(self._around.releases.slot, self.slot)
        self._undo.push_async_callback(self._remove_files)

    async def free_compute(self) -> None:
        """VMM, channel, egress, namespace, memory; the disk and the slot's number stay. The stack's own releases find nothing left then."""
        if self.guest is not None:
            await self.guest.aclose()
        if self.machine is not None:
            await self._let_go_of(self.machine)
        await self._end_vmm()
        await self._end_egress()
        if self.slot is not None:
            await self._around.releases.namespace(self.slot)
        self._around.gate.leave(self.name)
        self.guest = self.machine = self.binding = None

    async def undo_all(self) -> None:
        """Everything, the disk as well."""
        await self.find_generation()
        try:
            await self._undo.aclose()
        except Exception:
            # Releases repeat until they succeed, so this is a mistake of ours in an undo; the others have been done nevertheless.
            log.exception("%s: an undo failed", self.op.sandbox)
        self.guest = self.machine = self.binding = self.slot = None

    async def find_generation(self) -> int:
        """By which number the host knows its disk, which was to get another: that of whatever is undone from now on."""
        found = await self._around.releases.generation(self.op.sandbox) if self._unsure else None
        if found is not None:
            self.op = SandboxOp(self.op.sandbox, found)
        self._unsure = False
        return self.op.generation

    async def _end_vmm(self) -> None:
        await self._around.releases.vmm(self.op)

    async def _end_egress(self) -> None:
        await self._around.releases.egress(SandboxOp(self.name, self.op.generation))

    async def _remove_files(self) -> None:
        await self._around.releases.files(self.op)

    def _stalled(self, stands: bool) -> None:
        (self.stalled.set if stands else self.stalled.clear)()
        if self.guest is not None:  # its silence means nothing
            (self.guest.hold if stands else self.guest.release)()
        self._owner.stalled(stands)

    async def _let_go_of(self, machine: Machine) -> None:
        await ended(*([self._keeping] if self._keeping else []))
        self._keeping = None
        await machine.aclose()
        self.machine = None

    def _hold(self, kind: Kind) -> None:
        record = self._owner.record
        self._around.ledger.hold(Holding(kind, self.op.sandbox, record.sandbox, record.generation, record.tenant))


def _kept(task: asyncio.Task[None]) -> None:
    """A monitor that broke is told by the VMM's end, or by whoever uses it next."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, SpaceError):
        log.error("%s: %s", task.get_name(), error, exc_info=error)
