"""The book of sandboxes: every live record in memory, its row in the store, and the events that tell of it.

    set    in memory only            move   and stored, with the event of a new phase
    end    decided at once; those who wait are told when it is committed

Rows that have ended are in the store alone, and are pruned after an hour or when the tenant has too many.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from sqlalchemy import Connection

from space.control import limits, records
from space.control.entry import Entry
from space.control.events import EventLog, News
from space.control.records import UNWANTED, Record, Repeat
from space.control.store.store import Store
from space.control.timers import Timers
from space.model.errors import NotFound, SpaceError
from space.model.sandbox import MIB, Phase
from space.model.tenants import Usage

log = logging.getLogger("space.control.sandboxes")
_PREPARING_SECONDS = 0.05


class Book:
    """The records, on the event loop. on_change: called after every change of a live record; short, does not raise."""

    def __init__(self, store: Store, timers: Timers, events: EventLog, *, retention: float = limits.RETENTION_SECONDS) -> None:
        self.store = store
        self.timers = timers
        self.retention = retention
        self.live: dict[str, Entry] = {}
        self.on_change: list[Callable[[Entry], None]] = []
        self._events = events
        self._ended: dict[str, deque[str]] = {}  # by tenant, the oldest first: what the store keeps
        self._repeats: dict[tuple[str, str], Repeat] = {}
        self.beside: Callable[[str], Usage] = lambda tenant: Usage()
        self._burying = 0  # ended, and not committed yet
        self._tasks: set[asyncio.Task[Any]] = set()

    async def load(self) -> None:
        """Take up what the store holds."""
        found, repeats = await self.store.read(records.everything)
        used = {repeat.sandbox: repeat for repeat in repeats}
        for record in sorted(found, key=lambda record: record.ended_us or 0):
            if record.ended:
                self._prune_later(record)
            else:
                entry = self.live[record.id] = Entry(record, used.get(record.id))
                self._changed(entry)
        for repeat in repeats:
            self._remember(repeat)

    async def stop(self) -> None:
        """Let go; what is promised is in the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- reading --------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many sandboxes have not ended."""
        return len(self.live) - self._burying

    @property
    def phases(self) -> Counter[tuple[str, str]]:
        """How many live sandboxes are in each (tenant, phase)."""
        return Counter((entry.record.tenant, entry.record.phase.value) for entry in self.live.values())

    def usage(self, tenant: str) -> Usage:
        """What a tenant's sandboxes take that have not ended, and what is beside them: counted anew, so nothing is freed twice or never."""
        there = [entry.record for entry in self.live.values() if entry.record.tenant == tenant and not entry.record.ended]
        computing = [record.spec for record in there if record.computes]
        more = self.beside(tenant)
        return Usage(
            len(there) + more.sandboxes,
            sum(spec.cpus for spec in computing) + more.cpus,
            sum(spec.memory_mib for spec in computing) + more.memory_mib,
            sum(record.spec.disk_mib for record in there) + more.disk_mib,
            -(-sum(record.snapshot_bytes for record in there) // MIB),
            sum(record.checkpoints for record in there),
        )

    def mine(self, tenant: str, sandbox: str) -> Entry | None:
        """A tenant's live sandbox."""
        entry = self.live.get(sandbox)
        return entry if entry is not None and entry.record.tenant == tenant else None

    async def find(self, tenant: str, sandbox: str) -> Record:
        """A tenant's sandbox, live or ended. NotFound."""
        entry = self.mine(tenant, sandbox)
        if entry is not None:
            return entry.record
        found = await self.store.read(lambda connection: records.find(connection, tenant, sandbox))
        if found is None:
            raise NotFound(f"there is no sandbox {sandbox[:64]!r}", hint="GET /v1/sandboxes lists those of this key's tenant")
        return found

    # -- changes ----------------------------------------------------------------------------------------------------------

    def add(self, record: Record, repeat: Repeat | None, also: Callable[[Connection], Any] = lambda connection: None) -> Entry:
        """A new sandbox. Its place is taken, its row is handed over: `Entry.committed` tells what became of that, and a store that fails
        gives the place back. also: in its transaction.
        """
        entry = self.live[record.id] = Entry(record, repeat)
        entry.creating = True
        if repeat is not None:
            self._remember(repeat)

        def change(connection: Connection) -> None:
            also(connection)
            records.add(connection, record, repeat)

        entry.kept = asyncio.wrap_future(self._hand_over(record.tenant, change, [News("created", record)]))
        entry.kept.add_done_callback(partial(self._kept, entry))
        self._changed(entry)
        return entry

    def _kept(self, entry: Entry, kept: asyncio.Future[Any]) -> None:
        error = None if kept.cancelled() else kept.exception()
        if isinstance(error, SpaceError):
            self.drop(entry, error)

    async def add_all(
        self, made: Sequence[Record], repeat: Repeat | None, also: Callable[[Connection], Any], news: Sequence[News]
    ) -> list[Entry]:
        """New sandboxes, all of them in one transaction or none. Their places are taken before anything is waited for. repeat: names the
        first, and stands for all.
        """
        entries = [Entry(record, repeat if record is made[0] else None) for record in made]
        if repeat is not None:
            self._remember(repeat)
        for entry in entries:
            entry.creating = True
            self.live[entry.record.id] = entry

        def change(connection: Connection) -> None:
            also(connection)
            for entry in entries:
                records.add(connection, entry.record, entry.repeat)

        try:
            await self.write(made[0].tenant, change, [*news, *(News("created", record) for record in made)])
        except SpaceError as error:
            for entry in entries:
                self.drop(entry, error)
            raise
        for entry in entries:
            self._changed(entry)
        return entries

    def set(self, entry: Entry, **fields: Any) -> None:
        """The next revision, in memory."""
        entry.move(entry.record.changed(**fields))
        self._changed(entry)

    def move(self, entry: Entry, *news: News, **fields: Any) -> None:
        """The next revision, stored soon, told with `news` and a new phase."""
        self.set(entry, **fields)
        entry.ran = entry.ran or entry.record.phase is Phase.RUNNING
        if entry.record.phase is not Phase.PREPARING or news:
            self._save(entry, news)
        else:
            # A start from a warm pool is over before this is due: one commit less for it. GET knows at once, the list a little later.
            asyncio.get_running_loop().call_later(_PREPARING_SECONDS, self._save_preparing, entry)

    async def change(self, entry: Entry, fields: Sequence[str], **values: Any) -> Record:
        """What the caller asked for, stored when this returns, and told as `fields`."""
        self.set(entry, **values)
        record = entry.record
        news = [*self._news(entry), News("changed", record, fields=fields)]
        await self.write(record.tenant, lambda connection: records.change(connection, record), news)
        return record

    async def save(self, entry: Entry, also: Callable[[Connection], Any], news: Sequence[News]) -> None:
        """What `set` has changed, with something else in one transaction, on the disk when this returns."""
        record = entry.record

        def change(connection: Connection) -> None:
            also(connection)
            records.save(connection, record)

        await self.write(record.tenant, change, [*self._news(entry), *news], durable=True)

    async def promise(self, entry: Entry, **fields: Any) -> None:
        """The next revision, on the disk when this returns."""
        if fields:
            self.set(entry, **fields)
        record = entry.record
        await self.write(record.tenant, lambda connection: records.save(connection, record), self._news(entry), durable=True)

    def end(self, entry: Entry, phase: Phase, reason: str | None) -> None:
        """It is over: decided now; those who wait are told when it is committed."""
        if entry.record.ended:
            return
        entry.record = record = entry.record.changed(phase=phase, reason=reason, desired=UNWANTED, ended_us=time.time_ns() // 1000)
        self._burying += 1
        entry.burying = True
        self._changed(entry)
        log.info("sandbox %s of tenant %s is %s: %s", record.id, record.tenant, phase, reason, extra={"sandbox": record.id})
        self.spawn(self._bury(entry), f"end {record.id}")

    async def remove(self, entry: Entry, fault: SpaceError) -> None:
        """It never began: nothing is kept of it but its events."""
        record = entry.record
        refused = record.changed(phase=Phase.FAILED, reason=fault.message)
        news = [News("deleted", refused, from_phase=entry.told)]
        await self.write(record.tenant, lambda connection: records.remove(connection, record.id), news)
        self.drop(entry, fault)

    def drop(self, entry: Entry, fault: SpaceError) -> None:
        """Nothing was kept: the caller's answer says why."""
        self.release(entry)
        entry.fault = fault
        self.live.pop(entry.record.id, None)
        entry.move(entry.record.changed(phase=Phase.FAILED, reason=fault.message, ended_us=time.time_ns() // 1000))
        self._changed(entry)

    async def _bury(self, entry: Entry) -> None:
        record = entry.record
        try:
            await self.write(record.tenant, lambda connection: records.save(connection, record), self._news(entry))
        finally:
            if record.phase is Phase.FAILED and not entry.ran:
                self.release(entry)
            self.live.pop(record.id, None)
            self._burying -= 1
            entry.burying = False
            entry.move(record)
            self._prune_later(record)

    def _save_preparing(self, entry: Entry) -> None:
        if entry.record.phase is Phase.PREPARING:
            self._save(entry, ())

    def _save(self, entry: Entry, news: Sequence[News]) -> None:
        record, before = entry.record, entry.told
        told = [*self._news(entry), *news]
        future = self._hand_over(record.tenant, lambda connection: records.save(connection, record), told)
        future.add_done_callback(partial(self._stored, asyncio.get_running_loop(), entry, before if before is not record.phase else None))

    def _stored(self, loop: asyncio.AbstractEventLoop, entry: Entry, before: Phase | None, future: Future[Any]) -> None:
        """On the writing thread. What was not stored was not told either: the next change tells of it. before: None where no phase was."""
        if future.exception() is not None:
            _log_failure(future)
            if before is not None and not loop.is_closed():
                loop.call_soon_threadsafe(setattr, entry, "told", before)

    def _news(self, entry: Entry) -> list[News]:
        """The phase, if nobody was told of it."""
        record = entry.record
        if record.phase is entry.told:
            return []
        before, entry.told = entry.told, record.phase
        return [News("deleted" if record.phase is Phase.GONE else "phase", record, from_phase=before)]

    def _changed(self, entry: Entry) -> None:
        for heed in self.on_change:
            heed(entry)

    # -- idempotency keys and what has ended ------------------------------------------------------------------------------

    def repeated(self, tenant: str, key: str) -> Repeat | None:
        """What an idempotency key was used for."""
        return self._repeats.get((tenant, key))

    def _remember(self, repeat: Repeat) -> None:
        self._repeats[(repeat.tenant, repeat.key)] = repeat
        self.timers.at(repeat.created_us / 1e6 + limits.IDEMPOTENCY_SECONDS, lambda: self._unremember(repeat))

    def release(self, entry: Entry) -> None:
        """The sandbox never came to be, so its idempotency key is free for another attempt."""
        if entry.repeat is not None:
            self._unremember(entry.repeat)

    def _unremember(self, repeat: Repeat) -> None:
        if self._repeats.get((repeat.tenant, repeat.key)) == repeat:
            del self._repeats[(repeat.tenant, repeat.key)]
        self._post(lambda connection: records.release(connection, repeat))

    def _prune_later(self, record: Record) -> None:
        ended = (record.ended_us or record.created_us) / 1e6
        kept = self._ended.setdefault(record.tenant, deque())
        kept.append(record.id)
        self.timers.at(ended + self.retention, partial(self._prune, record.tenant, record.id))
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

    # -- store and tasks --------------------------------------------------------------------------------------------------

    async def write(self, tenant: str, change: Callable[[Connection], Any], news: Sequence[News] = (), *, durable: bool = False) -> None:
        """A change with its events in one transaction; returns once it is committed. A cancelled caller's happens all the same."""
        await asyncio.shield(asyncio.wrap_future(self._hand_over(tenant, change, news, durable=durable)))

    def _post(self, change: Callable[[Connection], Any]) -> None:
        self.store.post(change).add_done_callback(_log_failure)

    def _hand_over(self, tenant: str, change: Callable[[Connection], Any], news: Sequence[News], *, durable: bool = False) -> Future[Any]:
        future = self.store.post(self._events.with_news(change, news), durable=durable)
        if news:
            self._events.announce(tenant, len(news), future)
        return future

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A task that belongs to no request; its fault is logged."""
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
