"""Lives of sandboxes: put to rest, woken, taken back to an instant.

    asked -> wish (on the disk) -> node, until its level shows it -> the wish is gone
    the node refuses                 -> the wish is gone, whoever asked is told
    the node is away, or says nothing -> the wish stays, and is carried out later

A sandbox has one turn: what is asked meanwhile waits for it and is decided anew, by the same table as the node's. A life that begins has
a generation that the sandbox never had, counted up before it is asked for, and the policy of now. Pause and resume lose nothing when
they are forgotten, so their wish is in memory only.

Calls that need a running guest are held while one wakes: one wake for all, in the order in which they came, so many and for so long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from space.control import limits
from space.control.book import Book
from space.control.ends import AGAIN_SECONDS
from space.control.entry import Entry
from space.control.events import News
from space.control.link import LinkLost, NodeLink
from space.control.problems import TooMany
from space.control.quotas import Quotas
from space.control.records import UNWANTED, Record
from space.control.telling import Telling
from space.core.lifecycle.table import Ignore, Refuse, Request, answer
from space.model.errors import Conflict, DeadlineExceeded, Gone, GuestError, NotFound, ProtocolError, SandboxDied, SpaceError, Unavailable
from space.model.ids import new_checkpoint_id
from space.model.sandbox import Checkpoint, Phase
from space.rpc import life_api
from space.rpc.life_api import Checkpointed, CheckpointList, CheckpointTarget, Rollback, Wake
from space.rpc.node_api import Done, SandboxState, Target

log = logging.getLogger("space.control.sandboxes")
T = TypeVar("T")

_RESTING: Final = {
    Request.PAUSE: (Phase.PAUSED,),
    Request.SUSPEND: (Phase.SUSPENDED,),
    Request.STOP: (Phase.STOPPED,),
}
_STILL: Final = frozenset({Phase.PAUSED, Phase.SUSPENDING, Phase.SUSPENDED, Phase.STOPPING, Phase.STOPPED})
# Why a stored memory may not come back to life, of which its disk knows nothing.
_OF_ITS_MEMORY: Final = (Conflict, DeadlineExceeded, GuestError, NotFound, ProtocolError, SandboxDied)
_COMING: Final = frozenset({Phase.WAKING, Phase.STARTING})
# What begins no new life: it goes on where it stood.
_GOES_ON: Final = frozenset({Phase.RUNNING, Phase.PAUSED})


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of a life. more: the checkpoint of a rollback, or `cold` of a wake."""

    request: Request
    more: str = ""

    @classmethod
    def of(cls, record: Record) -> Wish | None:
        """A record's."""
        verb, _, more = record.wish.partition(":")
        return cls(Request(verb), more) if verb else None

    def __str__(self) -> str:
        return f"{self.request.value}:{self.more}" if self.more else self.request.value

    @property
    def rests(self) -> bool:
        return self.request in _RESTING

    @property
    def durable(self) -> bool:
        return self.request not in (Request.PAUSE, Request.RESUME)


@dataclass(frozen=True, slots=True)
class Rest:
    """Who puts it to rest: `idle`, `timeout` (a rule, for that reason) or `request`."""

    by: str
    reason: str | None = None


BY_REQUEST = Rest("request")


class Lives:
    """Who moves sandboxes between running and rest. heed: takes a level of the node."""

    def __init__(
        self,
        book: Book,
        link: NodeLink,
        quotas: Quotas,
        telling: Telling,
        heed: Callable[[SandboxState], None],
        woken: Callable[[str], None],
    ) -> None:
        """woken: told of each wake that a call caused, with its outcome."""
        self._book = book
        self._link = link
        self._quotas = quotas
        self._telling = telling
        self._heed = heed
        self._observe = woken

    # -- what is asked ----------------------------------------------------------------------------------------------------

    async def carry_out(self, entry: Entry, wish: Wish, rest: Rest = BY_REQUEST) -> None:
        """Do it, after what is in hand. It goes on when whoever asked leaves. Conflict, Gone, QuotaPassed, or the node's fault."""
        await self._in_hand(entry, self._book.spawn(self._caught(self._turn(entry, wish, rest)), f"{wish} {entry.record.id}"))

    async def checkpoint(self, entry: Entry) -> Checkpoint:
        """Keep its memory and disk of this instant; it goes on."""

        async def take() -> Checkpoint:
            record = self._allowed(entry, Request.CHECKPOINT)
            if record.checkpoints >= limits.CHECKPOINTS_PER_SANDBOX:
                raise Conflict(f"sandbox {record.id} has {record.checkpoints} checkpoints, as many as it may", hint="drop one")
            self._quotas.admit_checkpoint(record.tenant, record.spec, self._book.usage(record.tenant))
            asked = life_api.Checkpoint(record.id, new_checkpoint_id())
            made = await self._link.call("checkpoint", asked, Checkpointed, seconds=limits.LIFE_SECONDS)
            self._book.move(entry, News("checkpointed", entry.record, checkpoint=made.checkpoint))
            return told(made)

        return await self.alone(entry, take, f"checkpoint {entry.record.id}")

    async def instant(self, entry: Entry, take: Callable[[], Awaitable[T]], name: str) -> T:
        """What is made of its present instant: while it runs or is paused, with its turn."""

        async def work() -> T:
            self._allowed(entry, Request.CHECKPOINT)
            return await take()

        return await self.alone(entry, work, name)

    async def checkpoints(self, sandbox: str) -> list[Checkpoint]:
        """Those that it has, oldest first."""
        found = await self._link.call("checkpoints", Target(sandbox), CheckpointList)
        return [told(one) for one in found.checkpoints]

    async def drop(self, entry: Entry, checkpoint: str) -> None:
        """Forget one; idempotent."""

        async def forget() -> None:
            await self._link.call("drop_checkpoint", CheckpointTarget(entry.record.id, checkpoint), Done, seconds=limits.LIFE_SECONDS)

        await self.alone(entry, forget, f"drop {checkpoint}")

    async def alone(self, entry: Entry, work: Callable[[], Awaitable[T]], name: str) -> T:
        """Work with the sandbox's turn; it goes on when whoever asked leaves."""
        found: list[T] = []

        async def turn() -> None:
            async with entry.turn:
                await self._owed(entry)
                found.append(await work())

        await self._in_hand(entry, self._book.spawn(self._caught(turn()), name))
        return found[0]

    async def hold(self, entry: Entry) -> None:
        """Return at once unless it is waking, or rests by a rule and wakes on a call: then once it runs. TooMany, DeadlineExceeded."""
        if not _waits(entry):
            return
        if entry.held >= limits.HELD_CALLS:
            raise TooMany(f"{entry.held} calls wait for sandbox {entry.record.id} to wake", hint="repeat in a few seconds")
        entry.held += 1
        try:
            async with asyncio.timeout(limits.LIFE_SECONDS):
                while _waits(entry):
                    await self._woken(entry)
        except TimeoutError:
            raise DeadlineExceeded(
                f"sandbox {entry.record.id} did not wake within {limits.LIFE_SECONDS:g} s", hint="GET shows its phase"
            ) from None
        finally:
            entry.held -= 1

    # -- what the node says -------------------------------------------------------------------------------------------------

    def node_up(self) -> None:
        """A new session: carry out what is owed."""
        for entry in self._book.live.values():
            self.look(entry.record.id)

    def look(self, sandbox: str) -> None:
        """Carry out what is owed to one."""
        entry = self._book.live.get(sandbox)
        if entry is not None and entry.record.wish:
            self._book.spawn(self._caught(self._owing(entry)), f"{entry.record.wish} {sandbox}")

    # -- steps ----------------------------------------------------------------------------------------------------------------

    async def _in_hand(self, entry: Entry, task: asyncio.Task[SpaceError | None]) -> None:
        try:
            async with asyncio.timeout(limits.LIFE_SECONDS):
                fault = await asyncio.shield(task)
        except TimeoutError:
            record = entry.record
            raise DeadlineExceeded(
                f"sandbox {record.id} is still {record.phase} after {limits.LIFE_SECONDS:g} s", hint="it goes on; GET shows its phase"
            ) from None
        if fault is not None:
            raise fault

    async def _caught(self, work: Awaitable[None]) -> SpaceError | None:
        try:
            await work
        except SpaceError as fault:
            return fault
        return None

    async def _woken(self, entry: Entry) -> None:
        """One wake for all who wait."""
        task = entry.waking
        if task is None or task.done():
            task = entry.waking = self._book.spawn(self._caught(self._wake_for_call(entry)), f"wake {entry.record.id}")
        if (fault := await asyncio.shield(task)) is not None:
            raise fault

    async def _wake_for_call(self, entry: Entry) -> None:
        outcome = "failed"
        try:
            await self._turn(entry, Wish(Request.WAKE), BY_REQUEST)
            outcome = "woken"
        finally:
            self._observe(outcome)

    async def _owing(self, entry: Entry) -> None:
        async with entry.turn:
            await self._owed(entry)

    async def _owed(self, entry: Entry) -> None:
        """What was asked before and is not done. Its own fault is nobody's who asks now."""
        wish = Wish.of(entry.record)
        if wish is None:
            return
        try:
            await self._pursue(entry, wish)
        except SpaceError as fault:
            log.warning("%s of %s, which was asked before: %s", wish, entry.record.id, fault, extra={"sandbox": entry.record.id})

    async def _turn(self, entry: Entry, wish: Wish, rest: Rest) -> None:
        async with entry.turn:
            await self._owed(entry)
            record = self._there(entry)
            said = answer(record.phase, wish.request)
            if isinstance(said, Refuse):
                raise said.fault(record.id, record.reason)
            if isinstance(said, Ignore):
                if wish.rests and rest.by == "request" != record.rest:
                    # It rests by a rule, and somebody wants that it stays so.
                    self._book.move(entry, rest=rest.by, rest_reason=None)
                return
            self._up()
            fields: dict[str, Any] = {"wish": str(wish)}
            if wish.rests:
                fields |= {"rest": rest.by, "rest_reason": rest.reason}
                if wish.request is Request.SUSPEND and rest.by == "request":
                    self._quotas.admit_snapshot(record.tenant, record.spec, self._book.usage(record.tenant))
            elif wish.request is Request.ROLLBACK or record.phase not in _GOES_ON:
                if record.phase not in _GOES_ON:
                    # Counted and taken with nothing awaited between.
                    self._quotas.admit_life(record.tenant, record.spec, self._book.usage(record.tenant))
                fields["generation"] = record.generation + 1
            if wish.durable:
                await self._book.promise(entry, **fields)
            else:
                self._book.set(entry, **fields)
            await self._pursue(entry, wish)

    async def _pursue(self, entry: Entry, wish: Wish) -> None:
        """Until the node's level shows it."""
        try:
            if not self._holds(entry, wish):
                self._up()
                async with asyncio.timeout(limits.LIFE_SECONDS if wish.durable else limits.CALL_SECONDS):
                    await self._ask(entry, wish)
            self._there(entry)
            if not self._holds(entry, wish):
                raise self._fell_back(entry, wish)
        except LinkLost as fault:
            raise Unavailable(fault.message, hint="it is carried out when the node is back") from fault
        except TimeoutError:
            self._book.timers.after(AGAIN_SECONDS, partial(self.look, entry.record.id))
            raise DeadlineExceeded(
                f"the node has not carried out {wish.request.value} yet", hint="it goes on; GET shows the phase"
            ) from None
        except SpaceError as fault:
            if self._link.is_up or not isinstance(fault, Unavailable):
                self._settle(entry, wish, done=False)
            raise
        self._settle(entry, wish, done=True)

    async def _ask(self, entry: Entry, wish: Wish) -> None:
        record = entry.record
        match wish.request:
            case Request.WAKE | Request.ROLLBACK:
                await self._begin_life(entry, wish)
            case _:
                async for level in self._link.states(wish.request.value, Target(record.id)):
                    self._heed(level)

    async def _begin_life(self, entry: Entry, wish: Wish) -> None:
        record = entry.record
        if record.phase not in (*_COMING, *_GOES_ON) and entry.generation_seen >= record.generation:
            # It began with that one, and fell back: the next is another life.
            await self._book.promise(entry, generation=entry.generation_seen + 1)
        try:
            await self._telling.ensure(entry.record.policy_digest)
            await self._live(entry, wish)
        except NotFound:
            if not entry.record.policy_digest:
                raise
            await self._telling.ensure(entry.record.policy_digest, again=True)
            await self._live(entry, wish)

    async def _live(self, entry: Entry, wish: Wish) -> None:
        record = entry.record
        life: dict[str, Any] = {
            "generation": record.generation,
            "policy": record.policy_digest,
            "policy_generation": record.policy_generation,
        }
        life["labels"] = dict(record.spec.metadata)
        if wish.request is Request.ROLLBACK:
            states = self._link.states("rollback", Rollback(sandbox=record.id, checkpoint=wish.more, **life))
        else:
            states = self._link.states("wake", Wake(sandbox=record.id, cold=wish.more == "cold", **life))
        try:
            async for level in states:
                self._heed(level)
        except _OF_ITS_MEMORY as fault:
            if entry.record.phase is Phase.SUSPENDED and wish.more != "cold":
                fault.hint = fault.hint or "wake it with cold: it boots from its disk, and its stored memory is given up"
            raise

    def _holds(self, entry: Entry, wish: Wish) -> bool:
        record = entry.record
        if wish.rests:
            return record.phase in _RESTING[wish.request]
        if wish.request is Request.ROLLBACK:
            return record.phase is Phase.RUNNING and entry.generation_seen == record.generation
        return record.phase is Phase.RUNNING

    def _settle(self, entry: Entry, wish: Wish, *, done: bool) -> None:
        """The wish is gone."""
        record = entry.record
        if record.ended or record.wish != str(wish):
            return
        fields: dict[str, Any] = {"wish": ""}
        if record.phase in (Phase.RUNNING, Phase.FAILED):
            fields |= {"rest": "", "rest_reason": None}
        news = [News("rolled_back", record, checkpoint=wish.more)] if done and wish.request is Request.ROLLBACK else []
        if wish.durable:
            self._book.move(entry, *news, **fields)
        else:  # it was never stored, and the phase was, with who put it to rest
            self._book.set(entry, **fields)

    def _fell_back(self, entry: Entry, wish: Wish) -> SpaceError:
        record = entry.record
        if record.phase is Phase.FAILED:
            return SandboxDied(f"sandbox {record.id} failed: {record.reason}", hint="wake it: that starts it from its disk; or delete it")
        why = entry.said or "the node does not say why"
        hint = "wake it with cold, from its disk alone" if record.phase is Phase.SUSPENDED else "the server's log may say more"
        return GuestError(f"sandbox {record.id} is {record.phase} after {wish.request.value}: {why}", hint=hint)

    def _allowed(self, entry: Entry, request: Request) -> Record:
        record = self._there(entry)
        said = answer(record.phase, request)
        if isinstance(said, Refuse):
            raise said.fault(record.id, record.reason)
        self._up()
        return record

    def _up(self) -> None:
        if not self._link.is_up:
            raise Unavailable("the node is not connected", hint="it is being restarted if it died; repeat in a few seconds")

    def _there(self, entry: Entry) -> Record:
        record = entry.record
        if record.ended or record.desired == UNWANTED:
            raise Gone(f"sandbox {record.id} has ended: {record.reason or record.phase}", hint="create a new one")
        return record


def _waits(entry: Entry) -> bool:
    """Whether a call that needs it running is held: it is coming up, or rests by a rule and wakes on a call."""
    record = entry.record
    if record.ended or record.desired == UNWANTED:
        return False
    wish = Wish.of(record)
    rests = wish is not None and wish.rests
    if record.phase in _COMING or (wish is not None and not rests):
        return True
    return (rests or record.phase in _STILL) and record.rest in ("idle", "timeout") and record.spec.wake_on_call


def told(made: Checkpointed) -> Checkpoint:
    """As the API shows it."""
    return Checkpoint(made.checkpoint, made.taken_us / 1e6, made.bytes, made.stopped_ms)
