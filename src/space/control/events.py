"""The log of events: written in the transaction of the change that they tell, read in pages, pruned by age and number.

One thread commits, so ids are committed in their order and a reader that remembers the last one misses nothing and sees nothing twice.
Nothing is queued in memory: a reader that is behind reads the store; one that has read all waits for `Waiter.news`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from sqlalchemy import Connection, delete, func, insert, select, update

from space.control import limits
from space.control.records import Record
from space.control.store.schema import event_floors, events
from space.control.store.store import Store
from space.control.timers import Timers
from space.model.credentials import CredentialAlarm
from space.model.egress import Ask, PolicyStatus
from space.model.events import Event, EventKind
from space.model.sandbox import Phase

# Ids leap at each start: those that a power cut took from the store, and that a reader may have seen, are not given again.
_LEAP = 1_000_000
_ADD = insert(events)


@dataclass(frozen=True, slots=True)
class News:
    """An event on its way into the store."""

    kind: EventKind
    record: Record
    from_phase: Phase | None = None
    fields: Sequence[str] | None = None
    count: int | None = None
    process: str | None = None
    ask: Ask | None = None
    policy: PolicyStatus | None = None
    detail: str | None = None
    checkpoint: str | None = None
    children: Sequence[str] | None = None
    alarm: CredentialAlarm | None = None

    def row(self) -> dict[str, Any]:
        """As it is stored."""
        more: dict[str, Any] = {"from_phase": self.from_phase, "fields": self.fields, "count": self.count, "process": self.process}
        more |= {"ask": self.ask, "policy": self.policy, "detail": self.detail, "checkpoint": self.checkpoint, "children": self.children}
        more |= {"alarm": self.alarm}
        payload = {"phase": self.record.phase.value, "reason": self.record.reason, **more}
        return {
            "tenant": self.record.tenant,
            "sandbox": self.record.id,
            "kind": self.kind,
            "at_us": time.time_ns() // 1000,
            "revision": self.record.revision,
            "payload": msgspec.to_builtins({name: value for name, value in payload.items() if value is not None}),
        }


@dataclass(frozen=True, slots=True)
class Page:
    """Events after a place, oldest first. last: the place behind them; more: whether there may be others behind it.

    gap: what was asked for is kept no longer in part; oldest: the first id that is kept, or will be given next.
    """

    events: list[Event]
    last: int
    more: bool
    gap: bool
    oldest: int


class Telling(Protocol):
    """What becomes an event."""

    @property
    def kind(self) -> str:
        """Of the event."""

    def row(self) -> dict[str, Any]:
        """As it is stored."""


class Waiter:
    """Who follows a tenant's events. Register, then read, then wait: nothing falls between."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self.closed = False

    def wake(self, *, closed: bool = False) -> None:
        """There may be more."""
        self.closed = self.closed or closed
        self._news.set()

    async def news(self, seconds: float | None) -> bool:
        """Whether there may be more, within `seconds` (None: however long it takes)."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True


class EventLog:
    """The log of every tenant."""

    def __init__(self, store: Store, timers: Timers, *, keep_seconds: float, keep_per_tenant: int) -> None:
        self._store = store
        self._timers = timers
        self._keep_seconds = keep_seconds
        self._keep = keep_per_tenant
        self._waiters: dict[str, set[Waiter]] = {}
        self._since_prune: dict[str, int] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.observe: Callable[[str], None] = lambda kind: None
        self.alarmed: Callable[[CredentialAlarm], None] = lambda alarm: None

    async def start(self) -> None:
        """Leap, and prune what is too old now and every hour."""
        self._loop = asyncio.get_running_loop()
        await self._store.write(_leap, durable=True)
        self._sweep()

    def close(self) -> None:
        """Those who follow end."""
        self._closed = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.wake(closed=True)

    def with_news(self, change: Callable[[Connection], Any], news: Sequence[Telling]) -> Callable[[Connection], Any]:
        """`change` and what it tells, for one transaction; hand the future of it to `announce`."""
        rows = [one.row() for one in news]
        for one in news:
            self.observe(one.kind)
            if isinstance(one, News) and one.alarm is not None:
                self.alarmed(one.alarm)

        def both(connection: Connection) -> Any:
            result = change(connection)
            for row in rows:
                connection.execute(_ADD, row)
            return result

        return both if rows else change

    def announce(self, tenant: str, count: int, future: Future[Any]) -> None:
        """Wake the tenant's readers when the change is committed."""
        future.add_done_callback(lambda _: self._committed(tenant))
        written = self._since_prune.get(tenant, 0) + count
        self._since_prune[tenant] = written
        if written >= min(limits.EVENTS_PRUNE_EVERY, self._keep):
            self._prune(tenant)

    @contextmanager
    def waiting(self, tenant: str) -> Iterator[Waiter]:
        """Be woken."""
        waiter = Waiter()
        waiter.closed = self._closed
        waiters = self._waiters.setdefault(tenant, set())
        waiters.add(waiter)
        try:
            yield waiter
        finally:
            waiters.discard(waiter)
            if not waiters and self._waiters.get(tenant) is waiters:
                del self._waiters[tenant]

    async def page(self, tenant: str, after: int, limit: int = limits.EVENTS_PAGE) -> Page:
        """What comes after a place."""
        return await self._store.read(lambda connection: _page(connection, tenant, after, limit))

    async def of_sandbox(self, tenant: str, sandbox: str, limit: int) -> list[Event]:
        """The last ones of a sandbox, oldest first."""
        return await self._store.read(lambda connection: _of_sandbox(connection, tenant, sandbox, limit))

    async def newest(self) -> int:
        """The place behind everything that is committed."""
        return await self._store.read(_newest)

    def _committed(self, tenant: str) -> None:
        # On the writing thread. A reader registers before it reads: if it is not here yet, it will read what was committed.
        if tenant in self._waiters and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, tenant)

    def _wake(self, tenant: str) -> None:
        for waiter in self._waiters.get(tenant, ()):
            waiter.wake()

    def _sweep(self) -> None:
        self._store.post(self._prune_all)
        self._timers.after(limits.SWEEP_SECONDS, self._sweep)

    def _prune_all(self, connection: Connection) -> None:
        for tenant in connection.execute(select(events.c.tenant).distinct()).scalars().all():
            prune(connection, tenant, self._keep_seconds, self._keep)

    def _prune(self, tenant: str) -> None:
        self._since_prune[tenant] = 0
        self._store.post(lambda connection: prune(connection, tenant, self._keep_seconds, self._keep))


def prune(connection: Connection, tenant: str, keep_seconds: float, keep: int) -> None:
    """Forget a tenant's events that are too old or too many, and remember up to where."""
    mine = events.c.tenant == tenant
    cutoff = time.time_ns() // 1000 - int(keep_seconds * 1e6)
    first_young = connection.execute(select(events.c.id).where(mine, events.c.at_us >= cutoff).order_by(events.c.id).limit(1)).scalar()
    last_over = connection.execute(select(events.c.id).where(mine).order_by(events.c.id.desc()).offset(keep).limit(1)).scalar() or 0
    last_old = (first_young - 1) if first_young is not None else _newest(connection)
    found = connection.execute(select(func.max(events.c.id)).where(mine, events.c.id <= max(last_old, last_over))).scalar()
    if found is None:
        return
    connection.execute(delete(events).where(mine, events.c.id <= found))
    _set_floor(connection, tenant, found)


def _set_floor(connection: Connection, tenant: str, pruned: int) -> None:
    if not connection.execute(update(event_floors).where(event_floors.c.tenant == tenant).values(pruned=pruned)).rowcount:
        connection.execute(insert(event_floors).values(tenant=tenant, pruned=pruned))


def _newest(connection: Connection) -> int:
    stored = connection.execute(select(func.max(events.c.id))).scalar() or 0
    return max(stored, connection.execute(select(func.max(event_floors.c.pruned))).scalar() or 0)


def _leap(connection: Connection) -> None:
    place = _newest(connection) + _LEAP
    connection.execute(_ADD, {"id": place, "tenant": "", "sandbox": "", "kind": "", "at_us": 0, "revision": 0, "payload": {}})
    connection.execute(delete(events).where(events.c.id == place))
    _set_floor(connection, "", place)


def _page(connection: Connection, tenant: str, after: int, limit: int) -> Page:
    floor = connection.execute(select(event_floors.c.pruned).where(event_floors.c.tenant == tenant)).scalar() or 0
    newest = _newest(connection)
    # A place that was never given is one of a store that was lost: what lay behind it is not known, and nothing old is told as if new.
    gap = after < floor or after > newest
    start = min(max(after, floor), newest)
    query = select(events).where(events.c.tenant == tenant, events.c.id > start).order_by(events.c.id).limit(limit)
    found = [_event(row) for row in connection.execute(query)]
    more = len(found) == limit
    return Page(found, found[-1].id if more else max(newest, start), more, gap, found[0].id if found else max(start, newest) + 1)


def _of_sandbox(connection: Connection, tenant: str, sandbox: str, limit: int) -> list[Event]:
    query = select(events).where(events.c.tenant == tenant, events.c.sandbox == sandbox).order_by(events.c.id.desc()).limit(limit)
    return [_event(row) for row in connection.execute(query)][::-1]


def _event(row: Any) -> Event:
    known = {"id": row.id, "at": row.at_us / 1e6, "kind": row.kind, "sandbox": row.sandbox, "revision": row.revision}
    return msgspec.convert(known | row.payload, Event)
