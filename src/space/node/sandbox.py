"""One sandbox of this node: a single task owns its transitions, and everything it must undo is on one exit stack.

    ledger row -> turn -> slot -> files, cgroup, egress -> VMM -> channel -> configured         (`_prepare`; unwound in reverse)

A create that fails undoes all of it and keeps only the row. A VMM that dies later frees its compute (VMM, egress, namespace, memory) and
keeps its disk and so its slot's number, whose uid owns the disk. `failed` is shown at once, its releases follow. Only a deletion ends
the task.

Other tasks ask (`pause`, `resume`, `delete`) and look (`state`, `guest`); they change nothing themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal, TypeVar

import msgspec

from space.config import logs
from space.core.lifecycle import recovery
from space.core.lifecycle.table import Accept, Ignore, Refuse, Request, answer
from space.model.errors import Conflict, DeadlineExceeded, Gone, Internal, SandboxDied, SpaceError, Unavailable
from space.model.rootd import SandboxOp
from space.model.sandbox import Phase
from space.node import limits, steps
from space.node.binding import Binding, Held
from space.node.edge import Edge
from space.node.egress import Told, Traffic
from space.node.guest import Guest
from space.node.ledger import Holding, Kind, Record
from space.node.shield import ended
from space.node.stages import DEADLINES, Stage, timed
from space.node.surroundings import Surroundings
from space.node.vmm.seam import Machine
from space.rpc.node_api import Exec, Metrics, SandboxState

log = logging.getLogger(__name__)
T = TypeVar("T")
# A create that the ledger does not know is given up. Every other transition has happened already, whatever the ledger can take.
_WRITTEN_FIRST = (Request.BEGIN, Request.READY)


class Sandbox:
    """Make it with `create` or `recover`, within the event loop."""

    def __init__(self, record: Record, around: Surroundings) -> None:
        self.record = record
        self.op = SandboxOp(record.sandbox, record.generation)
        self._around = around
        self._undo = AsyncExitStack()
        self._machine: Machine | None = None
        self._guest: Guest | None = None
        self.processes = around.archive.of(record.sandbox)
        self.processes.watch_levels(self._publish)
        self.fault: SpaceError | None = None  # what it failed of, where that is no mistake of ours
        self._slot: int | None = None
        self._binding: Binding | None = None
        self._was_running = False
        self._adopting = False
        loop = asyncio.get_running_loop()
        self._delete_asked: asyncio.Future[None] = loop.create_future()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._over: asyncio.Future[None] = loop.create_future()  # set when it fails, or its deletion begins
        self._gone: asyncio.Future[SandboxState] = loop.create_future()
        self._letters: asyncio.Queue[tuple[Request, asyncio.Future[SandboxState]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    # -- making one ----------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, record: Record, around: Surroundings) -> Sandbox:
        """A new one. Its memory has been taken at the gate, and goes back when this raises (the ledger cannot be written)."""
        try:
            around.ledger.put(record)
        except BaseException:
            around.gate.leave(record.sandbox)
            raise
        sandbox = cls(record, around)
        sandbox._publish()
        sandbox._begin(sandbox._prepare())
        return sandbox

    @classmethod
    def recover(
        cls, record: Record, around: Surroundings, step: recovery.Adopt | recovery.Fail | recovery.Keep | recovery.Destroy
    ) -> Sandbox:
        """One that an earlier node process left, with the step that the recovery plan has for it."""
        sandbox = cls(record, around)
        sandbox._owe_everything()
        match step:
            case recovery.Adopt():
                around.gate.adopt(record.sandbox, record.memory_mib)
                sandbox._was_running = sandbox._adopting = True
                sandbox._bind()
                opening = sandbox._adopt()
            case recovery.Fail(reason=reason):
                sandbox._was_running = True
                opening = sandbox._found_dead(reason)
            case recovery.Keep():
                sandbox._was_running = True
                opening = sandbox._found_dead(record.reason or recovery.VMM_DIED)
            case recovery.Destroy(reason=None):
                sandbox._delete_asked.set_result(None)
                opening = sandbox._found_dead(recovery.VMM_DIED)
            case recovery.Destroy(reason=reason):
                opening = sandbox._found_dead(reason or recovery.RESTARTED)
        sandbox._publish()
        sandbox._begin(opening)
        return sandbox

    # -- what others see and ask ---------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        return self.record.phase

    @property
    def state(self) -> SandboxState:
        """The latest state, as the board has it (and the last one once it is gone)."""
        return self._last

    def guest(self) -> Guest:
        """The channel, for one call; refused in the table's words when the sandbox does not run."""
        self._verdict(Request.USE)
        self.taken_over()
        if self._guest is None:
            raise SandboxDied(f"sandbox {self.record.sandbox} has just lost its channel")
        return self._guest

    def as_its_template_has_it(self, asked: Exec) -> Exec:
        """A command with the user and the directory of its template, where it names none."""
        user, cwd = asked.user or self.record.user or None, asked.cwd
        if cwd is None and asked.user in (None, self.record.user):
            cwd = self.record.cwd or None
        return msgspec.structs.replace(asked, user=user, cwd=cwd)

    def taken_over(self) -> None:
        """Unavailable while it runs, and this node, which was restarted, is not through with its adoption."""
        if self._adopting and self.record.phase in (Phase.RUNNING, Phase.PAUSED):
            raise Unavailable(f"sandbox {self.record.sandbox} is being taken over after the node's restart", hint="repeat in a few seconds")

    async def pause(self) -> SandboxState:
        """Stop its processors; idempotent."""
        return await self._ask(Request.PAUSE)

    async def resume(self) -> SandboxState:
        """Let them run, with the right time; idempotent."""
        return await self._ask(Request.RESUME)

    async def set_policy(self, policy: Held) -> None:
        """That policy holds, whether it runs or is paused; an older one than it has is ignored. See `Binding.change`."""
        self._verdict(Request.POLICY)
        if policy.generation < self.record.policy_generation:
            return
        self._keep(msgspec.structs.replace(self.record, policy=policy.digest, policy_generation=policy.generation))
        if self._binding is not None:
            await self._binding.change(policy)
        self._publish()

    def ask_delete(self) -> None:
        """Begin its deletion; idempotent, legal in every phase."""
        if not self._delete_asked.done():
            self._delete_asked.set_result(None)

    async def delete(self) -> SandboxState:
        """Undo everything; the last state. DeadlineExceeded when the host takes too long: the deletion goes on."""
        self.ask_delete()
        try:
            async with asyncio.timeout(limits.DELETE_ANSWER):
                return await asyncio.shield(self._gone)
        except TimeoutError:
            raise DeadlineExceeded(
                f"sandbox {self.record.sandbox} is not gone after {limits.DELETE_ANSWER:.0f} s; its deletion goes on", hint="ask again"
            ) from None

    async def opened(self) -> None:
        """Until its opening is over, well or not: prepared, adopted, failed or given up for its deletion."""
        await asyncio.shield(self._opened)

    async def explain(self, error: SpaceError) -> SpaceError:
        """What a caller is told of an error on its channel: of a channel that broke, what the owner finds out (bounded)."""
        if isinstance(error, SandboxDied):
            await asyncio.wait({self._over}, timeout=2 * limits.DEATH_AFTER_BREAK)
            return steps.end_during_call(self.record)
        return error

    async def metrics(self) -> Metrics:
        """Its figures: the guest's, and what its VMM uses of the host."""
        said = await self.guest().metrics()
        usage = await self._around.rootd.usage(self.op.sandbox, self.op.generation)
        fields = msgspec.structs.asdict(said)
        return Metrics(**fields, host_memory_bytes=usage.memory_bytes, host_cpu_ms=usage.cpu_usec // 1000)

    def when(self, what: Literal["opened", "over", "gone"], call: Callable[[], object]) -> None:
        """Call it (soon) after its opening is over; it failed, or its deletion began; its end."""
        futures: dict[str, asyncio.Future[Any]] = {"opened": self._opened, "over": self._over, "gone": self._gone}
        futures[what].add_done_callback(lambda _: call())

    # -- the owner -----------------------------------------------------------------------------------------------

    def _begin(self, opening: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(self._life(opening), name=f"sandbox {self.record.sandbox}")

    async def _life(self, opening: Coroutine[Any, Any, None]) -> None:
        logs.sandbox.set(self.record.sandbox)
        try:
            await self._unless_deleted(opening)
            steps.settle(self._opened)
            await self._reign()
        except Exception as error:  # noqa: BLE001 (whatever it is, the sandbox has failed of it)
            self._fail(error)
            await self._free_compute()
            if not self._was_running:
                await self._undo_all()
            steps.settle(self._opened)
        self._refuse_letters()
        await asyncio.wait({self._delete_asked})
        self._become(Request.DELETE)
        self.processes.lose("the sandbox was deleted")
        steps.settle(self._opened)
        steps.settle(self._over)
        self._refuse_letters()
        await self._undo_all()
        await self._around.releases.forget(self.record.sandbox)
        self._around.history.forget(self.record.sandbox)
        self._around.archive.retire(self.record.sandbox)
        self._become(Request.ENDED)
        self._gone.set_result(self._last)

    async def _prepare(self) -> None:
        record, around = self.record, self._around
        self._undo.callback(around.gate.leave, record.sandbox)
        try:
            async with self._stage(Stage.QUEUE):
                await around.gate.turn(record.sandbox, DEADLINES[Stage.QUEUE])
            self._become(Request.BEGIN)
            async with self._stage(Stage.SLOT):
                literal = await around.egress.policies.literals(self.record.policy)
                slot, edge = around.slots.take(record.sandbox, record.generation, record.tenant)
                self._slot = slot
                self._undo.push_async_callback(around.releases.slot, slot)
                binding = self._bind(edge or await around.slots.make(slot, literal=literal))
                self._undo.push_async_callback(around.releases.egress, self.op)
            async with steps.beside(binding.begin(), f"{record.sandbox}: egress") as bound:
                async with self._stage(Stage.DISK):
                    self._hold(Kind.FILES)
                    self._undo.push_async_callback(around.releases.files, self.op)
                    await around.rootd.create_sandbox(steps.files_of(self.record, slot))
                async with self._stage(Stage.EGRESS):
                    await bound  # before anything of the guest runs
            async with self._stage(Stage.SPAWN):
                self._hold(Kind.VMM)
                self._undo.push_async_callback(around.releases.vmm, self.op)
                machine = await around.vmm.boot(steps.plan_of(self.record))
                self._undo.push_async_callback(self._let_go_of, machine)
                self._machine = machine
            async with self._stage(Stage.BOOT):
                await self._while_alive(self._open_channel(reconnect=False))
            async with self._stage(Stage.CONFIGURE):
                if not await self._configured(limits.CONFIGURE):
                    raise DeadlineExceeded(f"the guest did not take clock, name and environment within {limits.CONFIGURE:g} s")
            self._become(Request.READY)
            self._was_running = True
        finally:
            around.gate.booted(record.sandbox)

    async def _adopt(self) -> None:
        machine = await self._around.vmm.adopt(self.record.sandbox, self.record.generation)
        if machine is None:
            raise SandboxDied(recovery.VMM_DIED)
        self._undo.push_async_callback(self._let_go_of, machine)
        self._machine = machine
        async with asyncio.timeout(limits.RECONNECT):
            # A node that died in the middle of a pause or a resume left either state; for hello the guest must run.
            await machine.resume()
            await self._while_alive(self._open_channel(reconnect=True))
            await self._while_alive(self.processes.reattach())
            if self.record.phase is Phase.PAUSED and self._guest is not None:
                self._guest.hold()
                await machine.pause()
        if self.record.phase is Phase.RUNNING:
            await self._set_clock("the node's restart")
        self._adopting = False

    async def _found_dead(self, reason: str) -> None:
        raise SandboxDied(reason)

    async def _reign(self) -> None:
        """While it runs or is paused: serve the letters. Returns when its deletion is asked for; raises the reason of its end."""
        if self._delete_asked.done():
            return
        assert self._machine is not None and self._guest is not None, "the opening made them"  # noqa: PT018
        died = asyncio.create_task(self._machine.wait(), name="VMM's end")
        broke = asyncio.create_task(self._guest.broken(), name="channel's end")
        letter = asyncio.create_task(self._letters.get(), name="letter")
        try:
            while True:
                ends: set[asyncio.Future[Any]] = {died, broke, letter, self._delete_asked}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if self._delete_asked.done():
                    return
                if died.done() or broke.done():
                    raise await steps.end_of(died, broke)
                request, reply = letter.result()
                await self._unless_deleted(self._answer(request, reply))
                letter = asyncio.create_task(self._letters.get(), name="letter")
        finally:
            if letter.done() and not letter.cancelled():
                self._letters.put_nowait(letter.result())  # refused by whoever comes next
            await ended(died, broke, letter)

    async def _answer(self, request: Request, reply: asyncio.Future[SandboxState]) -> None:
        try:
            if isinstance(self._verdict(request), Accept):
                await self._switch(request)
            steps.answer_letter(reply, self._last)
        except (Conflict, Gone) as error:  # the table's refusal: the sandbox is as it was
            steps.answer_letter(reply, error)
        except SpaceError as error:
            # Whether its processors run is not known now: it has failed.
            kind = DeadlineExceeded if isinstance(error, DeadlineExceeded) else SandboxDied
            fault = kind(f"cannot {request.value} it: {error}")
            steps.answer_letter(reply, fault)
            raise fault from error
        except asyncio.CancelledError:  # a deletion has cut in
            steps.answer_letter(reply, Gone(f"sandbox {self.record.sandbox} is being deleted"))
            raise
        except Exception:
            steps.answer_letter(reply, Internal(f"cannot {request.value} it: a fault of the node", hint="its log says which"))
            raise

    async def _switch(self, request: Request) -> None:
        assert self._machine is not None and self._guest is not None, "only a running or paused sandbox gets here"  # noqa: PT018
        if request is Request.PAUSE:
            self._guest.hold()
            await self._machine.pause()
        else:
            await self._machine.resume()
            self._guest.release()
            await self._set_clock("its resume")  # it stood still
        self._become(request)

    # -- steps ---------------------------------------------------------------------------------------------------

    async def _open_channel(self, *, reconnect: bool) -> None:
        assert self._machine is not None, "the VMM comes before the channel"
        control, bulk = await self._machine.connect()
        self._guest = await Guest.open(control, bulk, self.op, reconnect=reconnect)
        self._undo.push_async_callback(self._guest.aclose)
        self.processes.connected(self._guest)

    async def _configured(self, seconds: float) -> bool:
        assert self._guest is not None, "the channel comes before its use"
        record, guest = self.record, self._guest
        try:
            async with asyncio.timeout(seconds):
                await self._while_alive(guest.configure(hostname=record.sandbox, env=record.env))
        except TimeoutError:
            return False
        return True

    async def _set_clock(self, after: str) -> None:
        """By configuring it again. It has entropy and name from its boot: one that only stays silent (its files are frozen) runs on."""
        if not await self._configured(limits.RECONFIGURE):
            words = "%s: after %s the guest did not take its clock within %g s; it runs on, its clock may be wrong"
            log.warning(words, self.record.sandbox, after, limits.RECONFIGURE)

    @asynccontextmanager
    async def _stage(self, stage: Stage) -> AsyncIterator[None]:
        name = self.record.sandbox
        await self._around.trace(name, stage, "before")
        async with timed(stage) as took:
            yield
        self.record = msgspec.structs.replace(self.record, stages_ms={**self.record.stages_ms, stage.value: took()})
        await self._around.trace(name, stage, "after")

    async def _unless_deleted(self, work: Coroutine[Any, Any, None]) -> None:
        await steps.unless_asked(work, self._delete_asked, self.record.sandbox)

    async def _while_alive(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._machine is not None, "there is a VMM"
        return await steps.while_alive(self._machine, work, self.record.sandbox)

    # -- undoing -------------------------------------------------------------------------------------------------

    def _owe_everything(self) -> None:
        """What a node before this one may have made, in the order of `_prepare`."""
        around = self._around
        self._undo.callback(around.gate.leave, self.record.sandbox)
        slot = self._slot = around.ledger.slot_of(self.record.sandbox)
        if slot is not None:
            self._undo.push_async_callback(around.releases.slot, slot)
        self._undo.push_async_callback(around.releases.egress, self.op)
        self._undo.push_async_callback(around.releases.files, self.op)
        self._undo.push_async_callback(around.releases.vmm, self.op)

    async def _free_compute(self) -> None:
        """VMM, channel, egress, namespace, memory; the disk and the slot's number stay. The stack's own releases find nothing left then."""
        around = self._around
        if self._guest is not None:
            await self._guest.aclose()
        if self._machine is not None:
            await self._let_go_of(self._machine)
        await around.releases.vmm(self.op)
        await around.releases.egress(self.op)
        if self._slot is not None:
            await around.releases.namespace(self._slot)
        around.gate.leave(self.record.sandbox)

    async def _undo_all(self) -> None:
        try:
            await self._undo.aclose()
        except Exception:
            # Releases repeat until they succeed, so this is a mistake of ours in an undo; the others have been done nevertheless.
            log.exception("%s: an undo failed", self.record.sandbox)
        self._guest = self._machine = None

    async def _let_go_of(self, machine: Machine) -> None:
        await machine.aclose()
        self._machine = None

    # -- words ---------------------------------------------------------------------------------------------------

    def _become(self, request: Request, reason: str | None = None) -> None:
        verdict = answer(self.record.phase, request)
        if isinstance(verdict, Accept):
            record = msgspec.structs.replace(self.record, phase=verdict.phase, reason=reason or self.record.reason)
            if request in _WRITTEN_FIRST:
                self._around.ledger.put(record)
            elif verdict.phase is not Phase.GONE:
                self._keep(record)
            self.record = record
            self._publish()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            error = DeadlineExceeded("it was not usable in time after the node's restart")
        self.fault = error if isinstance(error, SpaceError) else None
        reason = str(error) if isinstance(error, SpaceError) else f"a fault of the node: {type(error).__name__}"
        steps.log_failure(self.record, self._machine, reason, error)
        self._become(Request.FAULT, reason)
        self.processes.lose(reason)
        steps.settle(self._over)

    def _verdict(self, request: Request) -> Accept | Ignore:
        verdict = answer(self.record.phase, request)
        if isinstance(verdict, Refuse):
            raise verdict.fault(self.record.sandbox, self.record.reason if self.record.phase is Phase.FAILED else None)
        return verdict

    async def _ask(self, request: Request) -> SandboxState:
        self._verdict(request)  # refused at once where it is refused; the owner looks again when its turn comes
        self.taken_over()
        reply: asyncio.Future[SandboxState] = asyncio.get_running_loop().create_future()
        self._letters.put_nowait((request, reply))
        return await asyncio.shield(reply)

    def _refuse_letters(self) -> None:
        while not self._letters.empty():
            request, reply = self._letters.get_nowait()
            try:
                self._verdict(request)
            except SpaceError as error:
                steps.answer_letter(reply, error)

    def _bind(self, edge: Edge | None = None) -> Binding:
        """Egress knows it from now on. edge: of the slot that was made for it; none where an earlier node did."""
        assert self._slot is not None, "the slot comes before what is bound to it"
        self._binding = self._around.egress.found(self.record, self._slot, Told(self._publish, self._keep_traffic), edge)
        return self._binding

    def _keep_traffic(self, traffic: Traffic) -> None:
        self._keep(msgspec.structs.replace(self.record, traffic=traffic.kept(), last_crash=traffic.last_crash))

    def _keep(self, record: Record) -> None:
        """Written, or owed on a full disk."""
        self._around.releases.record(record)
        self.record = record

    def _hold(self, kind: Kind) -> None:
        record = self.record
        self._around.ledger.hold(Holding(kind, record.sandbox, record.sandbox, record.generation, record.tenant))

    def _publish(self) -> None:
        record, levels = self.record, self.processes.levels
        if record.phase is Phase.RUNNING:
            self._around.history.follow(record.sandbox, self.metrics)
        else:
            self._around.history.leave(record.sandbox)
        self._last = self._around.board.publish(steps.state_of(record, levels, *self._around.egress.state(record)))
