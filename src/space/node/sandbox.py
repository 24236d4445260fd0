"""One sandbox of this node: a single task owns its transitions, and everything it must undo is on one exit stack of its present life.

    an opening (a first life, an adoption, what an earlier node left) -> reign: while it lives, serve the letters
                                                                      -> rest: suspended, stopped or failed, until a letter begins a life

A create that fails undoes all of it and keeps only the row. A VMM that dies later frees its compute (VMM, egress, namespace, memory) and
keeps its disk and so its slot's number, whose uid owns the disk. `failed` is shown at once, its releases follow. Only a deletion ends
the task. How lives begin and end is in `lives`, what one has on the host in `life`.

Other tasks ask (`pause`, `suspend`, `wake`, `delete`) and look (`state`, `guest`); they change nothing themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from space.config import logs
from space.core.lifecycle import recovery
from space.core.lifecycle.table import Accept, Request
from space.model.errors import Conflict, DeadlineExceeded, Gone, Internal, NoCapacity, NotFound, SandboxDied, SpaceError, Unavailable
from space.model.rootd import KeepTemplate
from space.model.sandbox import Phase
from space.node import limits, steps
from space.node.binding import Held
from space.node.guest import Guest
from space.node.ledger import Kept, Record
from space.node.life import Origin
from space.node.lives import Lives
from space.node.shield import ended
from space.node.stages import Stage
from space.node.surroundings import Surroundings
from space.node.vmm.seam import SnapshotPlan, Taken
from space.rpc import life_api
from space.rpc.node_api import Exec, Metrics, SandboxState

log = logging.getLogger(__name__)
_LIVING = (Phase.RUNNING, Phase.PAUSED)
_AT_REST = (Phase.SUSPENDED, Phase.STOPPED, Phase.FAILED)
# What was asked for and not begun; the sandbox is as it was.
_REFUSALS = (Conflict, Gone, NoCapacity, NotFound)
Found = recovery.Adopt | recovery.Fail | recovery.Keep | recovery.Rest | recovery.Destroy


@dataclass(slots=True)
class Letter:
    """What somebody asks of the owner. about: the request, where the word alone does not say it all."""

    request: Request
    reply: asyncio.Future[SandboxState]
    about: Any = None


@dataclass(frozen=True, slots=True)
class Instant:
    """What children are made of: a snapshot that is to be discarded, and the processes that ran."""

    snapshot: str
    taken: Taken
    kept: list[Kept]


class Sandbox(Lives):
    """Make it with `create` or `recover`, within the event loop."""

    def __init__(self, record: Record, around: Surroundings) -> None:
        super().__init__(record, around)
        self.processes = around.archive.of(record.sandbox)
        self.processes.watch_levels(self._publish)
        self.fault: SpaceError | None = None  # what it failed of, where that is no mistake of ours
        loop = asyncio.get_running_loop()
        self._delete_asked: asyncio.Future[None] = loop.create_future()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._over: asyncio.Future[None] = loop.create_future()  # set when it fails, comes to rest, or its deletion begins
        self._gone: asyncio.Future[SandboxState] = loop.create_future()
        self._letters: asyncio.Queue[Letter] = asyncio.Queue()
        self._calls: dict[str, list[Callable[[], object]]] = {"opened": [], "over": [], "gone": []}
        self._task: asyncio.Task[None] | None = None

    # -- making one ----------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, record: Record, around: Surroundings, origin: Origin = Origin()) -> Sandbox:  # noqa: B008 (frozen)
        """A new one. Its memory has been taken at the gate, and goes back when this raises (the ledger cannot be written)."""
        try:
            around.ledger.put(record)
        except BaseException:
            around.gate.leave(record.sandbox)
            raise
        sandbox = cls(record, around)
        sandbox._publish()
        sandbox._begin(sandbox._prepare(origin))
        return sandbox

    @classmethod
    def at_rest(cls, record: Record, around: Surroundings) -> Sandbox:
        """One that is suspended in a snapshot which was not taken of it here."""
        around.ledger.put(record)
        sandbox = cls(record, around)
        sandbox._was_running = True
        sandbox._publish()
        sandbox._begin(sandbox._found_at_rest(Phase.SUSPENDED))
        return sandbox

    @classmethod
    def recover(cls, record: Record, around: Surroundings, step: Found) -> Sandbox:
        """One that an earlier node process left, with the step that the recovery plan has for it."""
        sandbox = cls(record, around)
        sandbox._life.owe_everything()
        sandbox._was_running = True
        match step:
            case recovery.Adopt():
                around.gate.adopt(record.sandbox, record.memory_mib)
                sandbox._adopting = True
                sandbox._life.bind()
                opening = sandbox._adopt()
            case recovery.Rest(phase=phase):
                opening = sandbox._found_at_rest(phase)
            case recovery.Fail(reason=reason):
                sandbox.record = msgspec.structs.replace(record, snapshot="", snapshot_bytes=0)
                opening = sandbox._found_dead(reason)
            case recovery.Keep():
                opening = sandbox._found_dead(record.reason or recovery.VMM_DIED)
            case recovery.Destroy(reason=reason):
                sandbox._was_running = False
                if reason is None:
                    sandbox._delete_asked.set_result(None)
                opening = sandbox._found_dead(reason or recovery.VMM_DIED)
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
        if self._life.guest is None:
            raise SandboxDied(f"sandbox {self.record.sandbox} has just lost its channel")
        return self._life.guest

    def as_its_template_has_it(self, asked: Exec) -> Exec:
        """A command with the user and the directory of its template, where it names none."""
        user, cwd = asked.user or self.record.user or None, asked.cwd
        if cwd is None and asked.user in (None, self.record.user):
            cwd = self.record.cwd or None
        return msgspec.structs.replace(asked, user=user, cwd=cwd)

    def has_run(self, milliseconds: float) -> None:
        """A command that somebody asked for has begun so long after that. The first of a life is a stage of it."""
        if Stage.FIRST_EXEC.value not in self.record.stages_ms and self.record.phase is Phase.RUNNING:
            self.lap(Stage.FIRST_EXEC, milliseconds)
            self._publish()

    def taken_over(self) -> None:
        """Unavailable while it runs, and this node, which was restarted, is not through with its adoption."""
        if self._adopting and self.record.phase in (*_LIVING, Phase.SUSPENDING):
            raise Unavailable(f"sandbox {self.record.sandbox} is being taken over after the node's restart", hint="repeat in a few seconds")

    async def pause(self) -> SandboxState:
        """Stop its processors; idempotent."""
        return await self._ask(Request.PAUSE)

    async def resume(self) -> SandboxState:
        """Let them run, with the right time; idempotent."""
        return await self._ask(Request.RESUME)

    async def suspend(self) -> SandboxState:
        """Store memory and disk, then free them; idempotent."""
        return await self._ask(Request.SUSPEND)

    async def stop(self) -> SandboxState:
        """Shut it down and keep its disk; idempotent."""
        return await self._ask(Request.STOP)

    async def wake(self, asked: life_api.Wake) -> SandboxState:
        """Whatever it takes until it runs; what it fell back to where it does not."""
        if self.record.phase is Phase.PAUSED:
            return await self._ask(Request.RESUME)
        if asked.generation == self.record.generation and self.record.phase in _LIVING:
            return self._last
        return await self._ask(Request.START if asked.cold else Request.WAKE, asked)

    async def rollback(self, asked: life_api.Rollback) -> SandboxState:
        """It becomes what it was at a checkpoint."""
        if asked.generation == self.record.generation:
            return self._last
        return await self._ask(Request.ROLLBACK, asked)

    async def checkpoint(self, asked: life_api.Checkpoint) -> life_api.Checkpointed:
        """Keep its present instant; idempotent by its name."""
        await self._ask(Request.CHECKPOINT, asked)
        return next(each for each in self.checkpoints() if each.checkpoint == asked.checkpoint)

    def checkpoints(self) -> list[life_api.Checkpointed]:
        """Oldest first."""
        return [life_api.Checkpointed(each.name, each.stopped_ms, each.bytes, each.taken_us) for each in self.record.checkpoints]

    async def instant(self, plan: SnapshotPlan) -> Instant:
        """A snapshot for others, which the caller discards."""
        found: list[Instant] = []
        await self._ask(Request.FORK, (plan, found))
        return found[0]

    async def keep_disk(self, digest: str, settings: str) -> None:
        """Its disk of this instant is a template of that digest; it stands still for that, and goes on."""
        await self._ask(Request.CHECKPOINT, KeepTemplate(self._life.op.sandbox, self._life.op.generation, digest, settings))

    async def set_policy(self, policy: Held) -> None:
        """That policy holds, whether it runs or is paused; an older one than it has is ignored. See `Binding.change`."""
        self._verdict(Request.POLICY)
        if policy.generation < self.record.policy_generation:
            return
        self.keep(msgspec.structs.replace(self.record, policy=policy.digest, policy_generation=policy.generation))
        if self._life.binding is not None:
            await self._life.binding.change(policy)
        self._publish()

    def set_labels(self, labels: dict[str, str]) -> None:
        """Grants that select by labels see these, soon."""
        if labels == self.record.labels:
            return
        self.keep(msgspec.structs.replace(self.record, labels=labels))
        if self._life.binding is not None:
            self._life.binding.label(labels)

    async def environment(self) -> dict[str, str]:
        """Placeholders of its grants, but for variables that it has a value of its own for."""
        binding = self._life.binding
        if binding is not None:
            await binding.environment()
        return self.placeholders()

    def placeholders(self) -> dict[str, str]:
        """The same as far as they are known."""
        binding = self._life.binding
        found = {} if binding is None else binding.placeholders
        return {name: value for name, value in found.items() if name not in self.record.env} if found else found

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
        """Until its opening is over, well or not: prepared, adopted, at rest, failed or given up for its deletion."""
        await asyncio.shield(self._opened)

    async def explain(self, error: SpaceError) -> SpaceError:
        """What a caller is told of an error on its channel: of a channel that broke, what the owner finds out (bounded)."""
        if not isinstance(error, SandboxDied):
            return error
        if self.record.phase in _LIVING:
            await asyncio.wait({self._over}, timeout=2 * limits.DEATH_AFTER_BREAK)
        if self.record.phase in (*_LIVING, Phase.FAILED, Phase.DELETING, Phase.GONE):
            return steps.end_during_call(self.record)
        return Conflict(
            f"sandbox {self.record.sandbox} is {self.record.phase.value}: the call was ended by that", hint="wake it, then again"
        )

    async def metrics(self) -> Metrics:
        """Its figures: the guest's, and what its VMM uses of the host."""
        said = await self.guest().metrics()
        usage = await self._around.rootd.usage(self._life.op.sandbox, self._life.op.generation)
        fields = msgspec.structs.asdict(said)
        return Metrics(**fields, host_memory_bytes=usage.memory_bytes, host_cpu_ms=usage.cpu_usec // 1000)

    def when(self, what: Literal["opened", "over", "gone"], call: Callable[[], object]) -> None:
        """Call it (soon) after each opening is over; each time it fails, comes to rest or its deletion begins; its end."""
        self._calls[what].append(call)
        if self._gone.done() or (what == "opened" and self._opened.done()):
            asyncio.get_running_loop().call_soon(call)

    # -- the owner -----------------------------------------------------------------------------------------------

    def _begin(self, opening: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(self._live(opening), name=f"sandbox {self.record.sandbox}")

    async def _live(self, opening: Coroutine[Any, Any, None]) -> None:
        logs.sandbox.set(self.record.sandbox)
        await self._reign_after(self._unless_deleted(opening))
        while not self._delete_asked.done():
            if (letter := await self._next_letter()) is not None:
                await self._reign_after(self._unless_deleted(self._answer(letter)))
        self._become(Request.DELETE)
        self.processes.lose("the sandbox was deleted")
        self._happened("opened")
        self._happened("over")
        self._refuse_letters()
        await self._life.undo_all()
        for snapshot in {self.record.snapshot, *(each.snapshot for each in self.record.checkpoints)} - {""}:
            await self._around.releases.snapshot(snapshot)
        self._around.releases.later(self._around.releases.grants(self.record.sandbox))  # not waited for: nobody else gets that id
        await self._around.releases.forget(self.record.sandbox)
        self._around.history.forget(self.record.sandbox)
        self._around.archive.retire(self.record.sandbox)
        self._become(Request.ENDED)
        self._gone.set_result(self._last)
        self._happened("gone")

    async def _reign_after(self, opening: Coroutine[Any, Any, None]) -> None:
        """A life from its opening to its end, or an opening that leads to none."""
        if self._over.done():
            self._over = asyncio.get_running_loop().create_future()
        try:
            await opening
            self._happened("opened")
            await self._reign()
        except Exception as error:  # noqa: BLE001 (whatever it is, the sandbox has failed of it)
            self._fail(error)
            await self._life.free_compute()
            if not self._was_running:
                await self._life.undo_all()
            self._happened("opened")
        self._happened("over")
        if self.record.phase is Phase.FAILED:
            self._refuse_letters()

    async def _reign(self) -> None:
        """While it runs or is paused: serve the letters. Returns when it is at rest or to be deleted; raises the reason of its end."""
        while self.record.phase in _LIVING and (letter := await self._next_letter()) is not None:
            await self._unless_deleted(self._answer(letter))

    async def _next_letter(self) -> Letter | None:
        """None: it is to be deleted. Raises the reason of its end, where it lives."""
        life, letter = self._life, asyncio.create_task(self._letters.get(), name="letter")
        ends: set[asyncio.Task[Any]] = set()
        died: asyncio.Task[str] | None = None
        if self.record.phase in _LIVING:
            assert life.machine is not None and life.guest is not None, "the opening made them"  # noqa: PT018
            died = asyncio.create_task(life.machine.wait(), name="VMM's end")
            broke = asyncio.create_task(life.guest.broken(), name="channel's end")
            ends = {died, broke}
        try:
            await asyncio.wait({*ends, letter, self._delete_asked}, return_when=asyncio.FIRST_COMPLETED)
            if self._delete_asked.done():
                return None
            if died is not None and (died.done() or broke.done()):
                raise await steps.end_of(died, broke)
            return letter.result()
        finally:
            if not letter.done() or self._delete_asked.done() or any(each.done() for each in ends):
                await ended(letter, *ends)
                if not letter.cancelled():
                    self._letters.put_nowait(letter.result())  # served, or refused, by whoever comes next
            else:
                await ended(*ends)

    async def _answer(self, letter: Letter) -> None:
        reply, words = letter.reply, letter.request.value
        try:
            if isinstance(self._verdict(letter.request), Accept):
                await self._do(letter)
            steps.answer_letter(reply, self._last)
        except SpaceError as error:
            if self._is_as_it_was(letter.request, error):
                steps.answer_letter(reply, error)
                return
            # Whether its processors run is not known now: it has failed.
            kind = DeadlineExceeded if isinstance(error, DeadlineExceeded) else SandboxDied
            fault = kind(f"cannot {words} it: {error}")
            steps.answer_letter(reply, fault)
            raise fault from error
        except asyncio.CancelledError:  # a deletion has cut in
            steps.answer_letter(reply, Gone(f"sandbox {self.record.sandbox} is being deleted"))
            raise
        except Exception:
            steps.answer_letter(reply, Internal(f"cannot {words} it: a fault of the node", hint="its log says which"))
            raise

    def _is_as_it_was(self, request: Request, error: SpaceError) -> bool:
        """The table's refusal, a life that did not begin, an instant that could not be taken."""
        if self.record.phase in _LIVING:
            return isinstance(error, _REFUSALS) or request in (Request.CHECKPOINT, Request.FORK)
        return self.record.phase in _AT_REST

    async def _do(self, letter: Letter) -> None:
        match letter.request:
            case Request.PAUSE | Request.RESUME:
                await self._switch(letter.request)
            case Request.SUSPEND:
                await self._suspend()
            case Request.STOP:
                await self._stop()
            case Request.WAKE | Request.START if self.record.phase is Phase.PAUSED:
                await self._switch(Request.RESUME)
            case Request.WAKE | Request.START | Request.ROLLBACK:
                await self._wake(letter.about)
            case Request.CHECKPOINT if isinstance(letter.about, KeepTemplate):
                await self._keep_disk(letter.about)
            case Request.CHECKPOINT:
                await self._checkpoint(letter.about)
            case Request.FORK:
                plan, found = letter.about
                found.append(Instant(plan.snapshot, *await self._instant(plan)))

    async def _unless_deleted(self, work: Coroutine[Any, Any, None]) -> None:
        await steps.unless_asked(work, self._delete_asked, self.record.sandbox)

    # -- words ---------------------------------------------------------------------------------------------------

    def _happened(self, what: str) -> None:
        """Tell whoever wanted to know."""
        future = {"opened": self._opened, "over": self._over}.get(what)
        if future is not None and not future.done():
            future.set_result(None)
        for call in self._calls[what]:
            asyncio.get_running_loop().call_soon(call)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            error = DeadlineExceeded("it was not usable in time after the node's restart")
        self.fault = error if isinstance(error, SpaceError) else None
        reason = str(error) if isinstance(error, SpaceError) else f"a fault of the node: {type(error).__name__}"
        steps.log_failure(self.record, self._life.machine, reason, error)
        self._become(Request.FAULT, reason)
        self.processes.lose(reason)
        self._happened("over")

    async def _ask(self, request: Request, about: Any = None) -> SandboxState:
        self._verdict(request)  # refused at once where it is refused; the owner looks again when its turn comes
        self.taken_over()
        reply: asyncio.Future[SandboxState] = asyncio.get_running_loop().create_future()
        self._letters.put_nowait(Letter(request, reply, about))
        return await asyncio.shield(reply)

    def _refuse_letters(self) -> None:
        while not self._letters.empty():
            letter = self._letters.get_nowait()
            try:
                self._verdict(letter.request)
            except SpaceError as error:
                steps.answer_letter(letter.reply, error)
            else:
                self._letters.put_nowait(letter)
                return

    def _publish(self) -> None:
        record, levels = self.record, self.processes.levels
        if record.phase is Phase.RUNNING:
            self._around.history.follow(record.sandbox, self.metrics)
        else:
            self._around.history.leave(record.sandbox)
        self._last = self._around.board.publish(steps.state_of(record, levels, *self._around.egress.state(record)))
