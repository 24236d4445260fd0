"""The sandboxes: what tenants asked for, what the node says, and the steps that bring the two together.

    create: row (committed) -> node.create -> running, or failed(reason)
    delete: desired = gone (on the disk) -> node.delete -> gone;   also at the end of its time to live
    node up: every row is compared with the node's list (`decide`); what is wanted and absent failed, what is there and unwanted is deleted

This object owns every live record, on the event loop; rows that have ended are in the store alone, and are pruned after an
hour or when the tenant has too many. Every public call takes the tenant first: what belongs to another one is not found, by construction.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

from space.control import decide, limits, listing, records
from space.control.link import LinkLost, NodeLink
from space.control.records import UNWANTED, WANTED, Record, Repeat
from space.control.store.store import Store
from space.control.timers import Timer, Timers
from space.model.errors import (
    Conflict,
    DeadlineExceeded,
    Gone,
    InvalidArgument,
    NoCapacity,
    NotFound,
    SandboxDied,
    SpaceError,
    TooLarge,
    Unavailable,
)
from space.model.ids import new_sandbox_id
from space.model.sandbox import Phase, SandboxInfo, SandboxSpec
from space.rpc.node_api import Create, Empty, NodeInfo, SandboxList, SandboxState, Target

log = logging.getLogger("space.control.sandboxes")
_SETTLED = frozenset({Phase.RUNNING, Phase.PAUSED, Phase.GONE, Phase.FAILED})
_DELETE_AGAIN_SECONDS = 5.0
_PREPARING_SECONDS = 0.05
_NEVER_BEGUN = (InvalidArgument, NotFound, TooLarge)  # of these a node's words before `preparing` mean that it made nothing


class Entry:
    """A live sandbox: its record, and who waits for it."""

    def __init__(self, record: Record, repeat: Repeat | None = None) -> None:
        self.record = record
        self.repeat = repeat
        self.creating = False
        self.ran = record.phase not in (Phase.REQUESTED, Phase.PREPARING)
        self.fault: SpaceError | None = None
        self.lost = False  # the session ended while it was made: the next one's list decides
        self.seen = -1  # the node's revision of the last level, within this session
        self.promised: asyncio.Task[None] | None = None
        self.expiry: Timer | None = None
        self._moved = asyncio.Event()

    def move(self, record: Record) -> None:
        """The next revision; everybody who waits looks again."""
        self.record = record
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def until(self, claim: Callable[[Record], bool], seconds: float) -> bool:
        """Whether `claim` came true in time."""
        try:
            async with asyncio.timeout(seconds):
                while not claim(self.record):
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True


class Sandboxes:
    """The service behind the routes. It is the node link's listener."""

    def __init__(
        self,
        store: Store,
        timers: Timers,
        *,
        max_sandboxes: int,
        retention: float = limits.RETENTION_SECONDS,
    ) -> None:
        self._store = store
        self._timers = timers
        self._max = max_sandboxes
        self._observe_stages: Callable[[dict[str, float]], None] = lambda stages: None
        self._retention = retention
        self._live: dict[str, Entry] = {}
        self._ended: dict[str, deque[str]] = {}  # by tenant, the oldest first: what the store keeps
        self._repeats: dict[tuple[str, str], Repeat] = {}
        self._deleting: set[str] = set()
        self._burying = 0  # ended, and not committed yet
        self._tasks: set[asyncio.Task[Any]] = set()
        self._link: NodeLink | None = None
        self._isolation = "unknown"

    async def start(self, link: NodeLink, observe_stages: Callable[[dict[str, float]], None]) -> None:
        """Take up what the store holds. Before the link runs."""
        self._link = link
        self._observe_stages = observe_stages
        found, repeats = await self._store.read(records.everything)
        used = {repeat.sandbox: repeat for repeat in repeats}
        for record in sorted(found, key=lambda record: record.ended_us or 0):
            if record.ended:
                self._prune_later(record)
            else:
                entry = self._live[record.id] = Entry(record, used.get(record.id))
                self._expire_later(entry)
        for repeat in repeats:
            self._remember(repeat)

    async def stop(self) -> None:
        """Let go; what is promised is in the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def phases(self) -> Counter[tuple[str, str]]:
        """How many live sandboxes are in each (tenant, phase)."""
        return Counter((entry.record.tenant, entry.record.phase.value) for entry in self._live.values())

    # -- what tenants ask -----------------------------------------------------------------------------------------------

    async def create(self, tenant: str, spec: SandboxSpec, *, wait: bool, repeat: tuple[str, bytes] | None = None) -> SandboxInfo:
        """A sandbox; running when this returns, if `wait`. repeat: idempotency key and digest of the body.

        Unavailable without a node, NoCapacity when there is no room; nothing is kept then. A caller that goes away changes nothing.
        """
        if repeat is not None and (earlier := self._repeats.get((tenant, repeat[0]))) is not None:
            joined = await self._join(tenant, earlier, repeat[1], wait=wait)
            if joined is not None:
                return joined
        link = self._the_link()
        if not link.is_up:
            raise Unavailable("the node is not connected", hint="repeat in a few seconds; `space doctor` says what is missing")
        if len(self._live) - self._burying >= self._max:
            raise NoCapacity(f"all {self._max} sandboxes of this server are taken", hint="delete one, or raise max_sandboxes")
        now = time.time_ns() // 1000
        record = Record(
            id=new_sandbox_id(),
            tenant=tenant,
            spec=spec,
            desired=WANTED,
            phase=Phase.REQUESTED,
            isolation=self._isolation,
            created_us=now,
            expires_us=now + spec.ttl_seconds * 1_000_000,
        )
        used = None if repeat is None else Repeat(tenant, repeat[0], repeat[1], record.id, now)
        entry = self._live[record.id] = Entry(record, used)
        entry.creating = True
        if used is not None:
            self._remember(used)
        try:
            await self._store.write(lambda connection: records.add(connection, record, used))
        except SpaceError as error:
            self._forget(entry, error)
            raise
        self._expire_later(entry)
        self._spawn(self._drive(entry, keep_refused=not wait), f"create {record.id}")
        return await self._running(entry) if wait else entry.record.info()

    async def get(self, tenant: str, sandbox: str) -> SandboxInfo:
        """One, also after its end for as long as it is kept. NotFound."""
        return (await self._find(tenant, sandbox)).info()

    async def page(self, tenant: str, wanted: listing.Filter) -> tuple[list[SandboxInfo], str | None]:
        """A page, and the next cursor."""
        found, cursor = await self._store.read(lambda connection: listing.page(connection, tenant, wanted))
        return [record.info() for record in found], cursor

    async def delete(self, tenant: str, sandbox: str) -> bool:
        """End it; idempotent. True when it is gone; False when it is promised (on the disk) and the node has not said so yet."""
        entry = self._mine(tenant, sandbox)
        if entry is None:
            await self._find(tenant, sandbox)
            return True
        await self._unwant(entry, "deleted by request")
        if not self._the_link().is_up:
            return entry.record.ended
        return await entry.until(lambda record: record.ended, limits.DELETE_SECONDS)

    async def usable(self, tenant: str, sandbox: str, *, paused: bool = False) -> Entry:
        """A running sandbox (or a paused one). NotFound, Gone, Conflict."""
        entry = self._mine(tenant, sandbox)
        record = entry.record if entry is not None else await self._find(tenant, sandbox)
        if entry is None or record.ended or record.phase is Phase.DELETING or record.desired == UNWANTED:
            raise Gone(f"sandbox {sandbox} has ended: {record.reason or record.phase}", hint="create a new one")
        if record.phase is Phase.PAUSED and not paused:
            raise Conflict(f"sandbox {sandbox} is paused", hint=f"resume it with POST /v1/sandboxes/{sandbox}/resume")
        if record.phase not in (Phase.RUNNING, Phase.PAUSED):
            raise Conflict(f"sandbox {sandbox} is {record.phase}", hint="wait until it is running: GET it, or create it without wait=false")
        return entry

    async def switch(self, tenant: str, sandbox: str, verb: str) -> SandboxInfo:
        """pause or resume; idempotent."""
        entry = await self.usable(tenant, sandbox, paused=True)
        self.node_level(await self._the_link().call(verb, Target(sandbox), SandboxState))
        return entry.record.info()

    # -- what the node says ---------------------------------------------------------------------------------------------

    def node_up(self, info: NodeInfo, levels: list[SandboxState]) -> None:
        """Compare everything. No create of this process is in hand on a session that has just begun."""
        self._isolation = info.isolation
        there = {level.sandbox: level for level in levels}
        for level in levels:
            entry = self._live.get(level.sandbox)
            if entry is not None:
                entry.seen = -1
            self.node_level(level)
        for entry in [entry for entry in self._live.values() if entry.record.id not in there]:
            entry.seen = -1
            self._take(entry, entry.record.id, decide.decide(entry.record, None, creating=entry.creating))

    def node_level(self, level: SandboxState) -> None:
        """A sandbox is now like this on the node; older news are dropped by the node's revision."""
        entry = self._live.get(level.sandbox)
        if entry is not None:
            if level.revision <= entry.seen:
                return
            entry.seen = level.revision
            if level.phase == Phase.RUNNING and entry.record.phase is not Phase.RUNNING and level.stages_ms and entry.creating:
                self._observe_stages(level.stages_ms)
        record = None if entry is None else entry.record
        self._take(entry, level.sandbox, decide.decide(record, level, creating=entry is not None and entry.creating))

    def node_down(self) -> None:
        """Levels of the next session count from the start."""
        for entry in self._live.values():
            entry.seen = -1

    def _take(self, entry: Entry | None, sandbox: str, step: decide.Step) -> None:
        match step:
            case decide.Wait():
                pass
            case decide.DeleteThere():
                self._delete_there(sandbox)
            case decide.Note(phase, isolation):
                assert entry is not None
                self._move(entry, phase=phase, isolation=isolation)
            case decide.End(phase, reason):
                assert entry is not None
                if phase is Phase.FAILED:
                    self._delete_there(sandbox)
                self._end(entry, phase, reason)

    # -- steps ------------------------------------------------------------------------------------------------------------

    async def _drive(self, entry: Entry, *, keep_refused: bool) -> None:
        """A create, from its row to running or failed. It belongs to no request: the caller may leave."""
        record, spec = entry.record, entry.record.spec
        request = Create(
            record.id, record.tenant, record.generation, spec.template, spec.cpus, spec.memory_mib, spec.disk_mib, dict(spec.env)
        )
        try:
            if record.desired == UNWANTED:
                return
            async with asyncio.timeout(limits.CREATE_SECONDS):
                async for level in self._the_link().create(request):
                    self.node_level(level)
            if entry.record.phase not in _SETTLED:
                self._fail(entry, SandboxDied("the node ended the creation without a result"))
        except LinkLost as error:
            entry.fault = Unavailable(error.message, hint="the list shows what became of it")
            entry.creating = False
            await self._settle(entry)
            entry.lost = True
            entry.move(entry.record)
        except TimeoutError:
            self._fail(entry, DeadlineExceeded(f"the sandbox was not running after {limits.CREATE_SECONDS:g} s"))
        except SpaceError as error:
            refused = isinstance(error, NoCapacity | Unavailable) or (
                isinstance(error, _NEVER_BEGUN) and entry.record.phase is Phase.REQUESTED
            )
            if refused and not keep_refused and entry.record.desired == WANTED:
                await self._store.write(lambda connection: records.remove(connection, record.id))
                self._forget(entry, error)
            else:
                self._fail(entry, error)
        finally:
            entry.creating = False

    async def _settle(self, entry: Entry) -> None:
        """After a lost create: the next session's list decides; if that session is there already, ask it."""
        link = self._the_link()
        if not link.is_up or entry.record.phase in _SETTLED:
            return
        try:
            there = await link.call("list", Empty(), SandboxList)
        except SpaceError:
            return  # and the session after that decides
        level = next((one for one in there.sandboxes if one.sandbox == entry.record.id), None)
        if level is not None:
            self.node_level(level)
        else:
            self._take(entry, entry.record.id, decide.decide(entry.record, None))

    def _fail(self, entry: Entry, fault: SpaceError) -> None:
        if entry.record.ended:
            return
        entry.fault = fault
        self._delete_there(entry.record.id)
        if entry.record.desired == WANTED:
            self._end(entry, Phase.FAILED, fault.message)

    def _forget(self, entry: Entry, fault: SpaceError) -> None:
        """Nothing was kept: the caller's answer says why."""
        self._release(entry)
        self._settled(entry)
        entry.fault = fault
        self._live.pop(entry.record.id, None)
        entry.move(entry.record.changed(phase=Phase.FAILED, reason=fault.message))

    async def _unwant(self, entry: Entry, reason: str) -> None:
        """Promise the end, on the disk, and set it going. Repeats join the first."""
        if entry.record.ended:
            return
        if entry.promised is None:
            entry.promised = self._spawn(self._promise(entry, reason), f"delete {entry.record.id}")
        await asyncio.shield(entry.promised)

    async def _promise(self, entry: Entry, reason: str) -> None:
        if entry.record.desired == WANTED:
            self._set(entry, desired=UNWANTED, phase=Phase.DELETING, reason=reason)
        record = entry.record
        try:
            await self._store.write(lambda connection: records.save(connection, record), durable=True)
        finally:
            self._delete_there(record.id)

    def _delete_there(self, sandbox: str) -> None:
        """Have the node delete it, once at a time; without a session the next one's list brings it back here."""
        if sandbox not in self._deleting:
            self._deleting.add(sandbox)
            self._spawn(self._delete_on_node(sandbox), f"delete {sandbox} on the node")

    async def _delete_on_node(self, sandbox: str) -> None:
        link = self._the_link()
        try:
            await link.call("delete", Target(sandbox), SandboxState, seconds=limits.DELETE_SECONDS)
        except SpaceError as error:
            log.warning("cannot delete %s on the node yet: %s", sandbox, error, extra={"sandbox": sandbox})
            if link.is_up:
                self._timers.at(time.time() + _DELETE_AGAIN_SECONDS, lambda: self._delete_there(sandbox))
            return
        finally:
            self._deleting.discard(sandbox)
        entry = self._live.get(sandbox)
        if entry is not None and not entry.record.ended and entry.record.desired == UNWANTED:
            self._end(entry, Phase.GONE, entry.record.reason)

    def _end(self, entry: Entry, phase: Phase, reason: str | None) -> asyncio.Task[None] | None:
        """It is over: decided now; those who wait are told when it is committed."""
        if entry.record.ended:
            return None
        entry.record = record = entry.record.changed(phase=phase, reason=reason, desired=UNWANTED, ended_us=time.time_ns() // 1000)
        self._burying += 1
        log.info("sandbox %s of tenant %s is %s: %s", record.id, record.tenant, phase, reason, extra={"sandbox": record.id})
        return self._spawn(self._bury(entry), f"end {record.id}")

    async def _bury(self, entry: Entry) -> None:
        record = entry.record
        try:
            await self._store.write(lambda connection: records.save(connection, record))
        finally:
            if record.phase is Phase.FAILED and not entry.ran:
                self._release(entry)
            self._live.pop(record.id, None)
            self._burying -= 1
            self._settled(entry)
            entry.move(record)
            self._prune_later(record)

    # -- small things -----------------------------------------------------------------------------------------------------

    async def _join(self, tenant: str, earlier: Repeat, digest: bytes, *, wait: bool) -> SandboxInfo | None:
        """What the first request with this key got; None when its sandbox never ran, so that the key is free again."""
        if earlier.digest != digest:
            raise Conflict(
                "this Idempotency-Key was used with another body", hint="a new request needs a new key; a repeat sends the same body"
            )
        entry = self._live.get(earlier.sandbox)
        if entry is not None and not entry.record.ended:
            return await self._running(entry) if wait else entry.record.info()
        try:
            return (await self._find(tenant, earlier.sandbox)).info()
        except NotFound:
            raise Gone(f"sandbox {earlier.sandbox} of this Idempotency-Key has ended", hint="use a new key for a new sandbox") from None

    async def _running(self, entry: Entry) -> SandboxInfo:
        settled = await entry.until(lambda record: record.phase in _SETTLED or entry.lost, limits.CREATE_SECONDS)
        if entry.lost and entry.record.phase not in _SETTLED:
            settled = await entry.until(lambda record: record.phase in _SETTLED, limits.NODE_BACK_SECONDS)
            if not settled and self._the_link().is_up:  # it is being made there
                settled = await entry.until(lambda record: record.phase in _SETTLED, limits.CREATE_SECONDS)
        record = entry.record
        if record.phase in (Phase.RUNNING, Phase.PAUSED):
            return record.info()
        if entry.fault is not None:
            raise entry.fault
        if not settled:
            raise DeadlineExceeded(
                f"sandbox {record.id} is still {record.phase} after {limits.CREATE_SECONDS:g} s", hint="GET shows its phase"
            )
        if record.phase is Phase.GONE:
            raise Gone(f"sandbox {record.id} was ended while it was made: {record.reason}")
        raise SandboxDied(f"sandbox {record.id} failed: {record.reason}", hint="the server's log has the stages")

    async def _find(self, tenant: str, sandbox: str) -> Record:
        entry = self._mine(tenant, sandbox)
        if entry is not None:
            return entry.record
        found = await self._store.read(lambda connection: records.find(connection, tenant, sandbox))
        if found is None:
            raise NotFound(f"there is no sandbox {sandbox[:64]!r}", hint="GET /v1/sandboxes lists those of this key's tenant")
        return found

    def _mine(self, tenant: str, sandbox: str) -> Entry | None:
        entry = self._live.get(sandbox)
        return entry if entry is not None and entry.record.tenant == tenant else None

    def _set(self, entry: Entry, **fields: Any) -> None:
        entry.move(entry.record.changed(**fields))

    def _move(self, entry: Entry, **fields: Any) -> None:
        self._set(entry, **fields)
        entry.ran = entry.ran or entry.record.phase is Phase.RUNNING
        if entry.record.phase is not Phase.PREPARING:
            self._save(entry)
        else:
            # A start from a warm pool is over before this is due: one commit less for it. GET knows at once, the list a little later.
            asyncio.get_running_loop().call_later(_PREPARING_SECONDS, self._save_preparing, entry)

    def _save_preparing(self, entry: Entry) -> None:
        if entry.record.phase is Phase.PREPARING:
            self._save(entry)

    def _save(self, entry: Entry) -> None:
        record = entry.record
        self._post(lambda connection: records.save(connection, record))

    def _expire_later(self, entry: Entry) -> None:
        # By its id: an action that held the record would keep it, environment and all, for a day after its end.
        entry.expiry = self._timers.at(entry.record.expires_us / 1e6, partial(self._expire, entry.record.id))

    def _settled(self, entry: Entry) -> None:
        if entry.expiry is not None:
            self._timers.cancel(entry.expiry)
            entry.expiry = None

    def _expire(self, sandbox: str) -> None:
        entry = self._live.get(sandbox)
        if entry is not None and entry.record.desired == WANTED:
            reason = f"its time to live of {entry.record.spec.ttl_seconds} s was over"
            self._spawn(self._unwant(entry, reason), f"expire {sandbox}")

    def _prune_later(self, record: Record) -> None:
        ended = (record.ended_us or record.created_us) / 1e6
        kept = self._ended.setdefault(record.tenant, deque())
        kept.append(record.id)
        self._timers.at(ended + self._retention, partial(self._prune, record.tenant, record.id))
        if len(kept) > limits.ENDED_PER_TENANT:
            self._prune(record.tenant, kept[0])

    def _prune(self, tenant: str, sandbox: str) -> None:
        kept = self._ended.get(tenant, ())
        if sandbox not in kept:
            return  # there were too many, and it went before its time
        self._ended[tenant].remove(sandbox)
        if not self._ended[tenant]:
            del self._ended[tenant]
        self._post(lambda connection: records.prune(connection, sandbox))

    def _remember(self, repeat: Repeat) -> None:
        self._repeats[(repeat.tenant, repeat.key)] = repeat
        self._timers.at(repeat.created_us / 1e6 + limits.IDEMPOTENCY_SECONDS, lambda: self._unremember(repeat))

    def _release(self, entry: Entry) -> None:
        """The sandbox never ran, so its idempotency key is free for another attempt."""
        if entry.repeat is not None:
            self._unremember(entry.repeat)

    def _unremember(self, repeat: Repeat) -> None:
        if self._repeats.get((repeat.tenant, repeat.key)) == repeat:
            del self._repeats[(repeat.tenant, repeat.key)]
        self._post(lambda connection: records.release(connection, repeat))

    def _the_link(self) -> NodeLink:
        assert self._link is not None, "start() comes first"
        return self._link

    def _post(self, change: Callable[[Any], Any]) -> None:
        self._store.post(change).add_done_callback(_log_failure)

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %s", task.get_name(), error, exc_info=None if isinstance(error, SpaceError) else error)


def _log_failure(future: Future[Any]) -> None:
    if (error := future.exception()) is not None:
        log.error("a change was not stored: %s", error)
