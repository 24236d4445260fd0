"""The event log alone: every change once, in order; what is too old is a gap, and said so."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from space.control.events import EventLog, News
from space.control.records import Record
from space.control.store.store import Store
from space.control.timers import Timers
from space.model.ids import new_sandbox_id
from space.model.sandbox import Phase, SandboxSpec


def news(tenant: str = "t", number: int = 1) -> News:
    now = time.time_ns() // 1000
    record = Record(new_sandbox_id(), tenant, SandboxSpec(), "running", Phase.RUNNING, "x", now, now + 10**9, revision=number)
    return News("phase", record, from_phase=Phase.PREPARING)


@contextlib.asynccontextmanager
async def a_log(path: Path, *, keep_seconds: float = 1000, keep: int = 1000) -> AsyncIterator[EventLog]:
    store = Store(path)
    timers = Timers()
    log = EventLog(store, timers, keep_seconds=keep_seconds, keep_per_tenant=keep)
    await log.start()
    try:
        yield log
    finally:
        timers.close()
        store.close()


async def write(log: EventLog, count: int, tenant: str = "t") -> None:
    for number in range(count):
        future = log._store.post(log.with_news(lambda _: None, [news(tenant, number)]))
        log.announce(tenant, 1, future)
    await log._store.write(lambda _: None)


async def read(log: EventLog, tenant: str = "t", after: int = 0, page: int = 7) -> list[int]:
    found: list[int] = []
    more = True
    while more:
        part = await log.page(tenant, after, page)
        found += [event.revision for event in part.events]
        after, more = part.last, part.more
    return found


def test_pages_hold_every_event_of_the_tenant_once_in_order(tmp_path: Path) -> None:
    async def talk() -> None:
        async with a_log(tmp_path / "s.db") as log:
            await asyncio.gather(write(log, 50), write(log, 50, "other"))
            assert await read(log) == list(range(50))
            assert await read(log, "other", page=1) == list(range(50))
            assert await read(log, "nobody") == []

    asyncio.run(talk())


def test_a_change_and_its_event_are_stored_together_or_not_at_all(tmp_path: Path) -> None:
    async def talk() -> None:
        async with a_log(tmp_path / "s.db") as log:

            def fails(_: Any) -> None:
                raise RuntimeError("no")

            with pytest.raises(RuntimeError):
                await log._store.write(log.with_news(fails, [news()]))
            assert await read(log) == []

    asyncio.run(talk())


def test_what_is_too_many_or_too_old_is_pruned_and_whoever_asks_from_before_learns_it(tmp_path: Path) -> None:
    async def talk() -> None:
        async with a_log(tmp_path / "s.db", keep=10) as log:
            await write(log, 100)
            await write(log, 1, "other")
            kept = await read(log, after=0)
            assert kept == list(range(90, 100))
            page = await log.page("t", 5)
            assert page.gap
            assert page.oldest == page.events[0].id
            assert not (await log.page("t", page.oldest - 1)).gap
            assert not (await log.page("other", 0)).gap
        async with a_log(tmp_path / "s.db", keep_seconds=-1) as log:
            await log._store.write(lambda _: None)
            page = await log.page("t", 5)
            assert (page.events, page.gap) == ([], True)
            await write(log, 1)
            assert (await log.page("t", page.oldest - 1)).gap is False

    asyncio.run(talk())


def test_ids_leap_at_each_start_so_that_none_is_given_twice_even_if_the_last_were_lost(tmp_path: Path) -> None:
    async def talk() -> None:
        seen: list[int] = []
        for _ in range(3):
            async with a_log(tmp_path / "s.db") as log:
                await write(log, 3)
                page = await log.page("t", 0)
                seen.append(page.events[-1].id)
                last = page.last
            with sqlite3.connect(tmp_path / "s.db") as base:  # a power cut takes what was not synced
                base.execute("DELETE FROM events")
                base.execute("DELETE FROM sqlite_sequence WHERE name = 'events'")
            base.close()
        assert seen[0] < seen[1] < seen[2]
        async with a_log(tmp_path / "s.db") as log:
            assert (await log.newest()) > last

    asyncio.run(talk())


def test_a_place_beyond_the_newest_event_is_a_gap_and_nothing_old_is_told_again(tmp_path: Path) -> None:
    async def talk() -> None:
        async with a_log(tmp_path / "s.db") as log:
            await write(log, 3)
            page = await log.page("t", 2**52)
            assert (page.gap, page.events, page.last, page.oldest) == (True, [], await log.newest(), page.last + 1)
            await write(log, 1)
            page = await log.page("t", page.last)
            assert (page.gap, len(page.events)) == (False, 1)

    asyncio.run(talk())
