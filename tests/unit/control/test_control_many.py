"""Many sandboxes: a control that comes to a node of thousands follows it at once; the log of its store stays short under load."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import Connection, text

from space.control.store.store import Store
from space.core.wire.inbox import MAX_MESSAGES
from space.model.ids import new_sandbox_id
from space.rpc.node_api import Create
from space.testing.simcontrol import World, controlled, dialogue
from space.testing.simegress import SimTraffic
from space.testing.simnode import SimSandbox


@dialogue(start=False)
async def test_a_node_of_more_sandboxes_than_messages_may_lie_unread_is_followed_at_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(MAX_MESSAGES + 500):
        asked = Create(new_sandbox_id(), "default", 1, "base", 1, 256, 1024, {})
        world.node.sandboxes[asked.sandbox] = SimSandbox(asked, traffic=SimTraffic())
    async with controlled(world):
        assert world.services is not None
        await asyncio.wait_for(world.services.link.wait_up(), 60)
        await asyncio.sleep(0.2)  # the rest of the watch
        assert world.services.link.last_info is not None
    assert not [record for record in caplog.records if "the session to the node ended" in record.message and "unread" in record.message]


def test_the_log_of_the_store_begins_anew_under_steady_load(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")

    def row(number: int) -> Callable[[Connection], object]:
        return lambda connection: connection.execute(
            text("INSERT INTO loaded VALUES (:id, :body)"), {"id": str(number), "body": "x" * 3000}
        )

    async def load() -> int:
        """The writer always has something to do."""
        pending: deque[Future[object]] = deque()
        largest = 0
        for number in range(12_000):
            pending.append(store.post(row(number)))
            if len(pending) > 3:
                await asyncio.wrap_future(pending.popleft())
            if not number % 100:
                largest = max(largest, (tmp_path / "s.db-wal").stat().st_size)
        return largest

    try:
        asyncio.run(
            store.write(lambda connection: connection.execute(text("CREATE TABLE loaded (id TEXT PRIMARY KEY, body TEXT)")) and None)
        )
        assert asyncio.run(load()) < 48 << 20
    finally:
        store.close()


def test_a_log_that_cannot_be_taken_into_the_database_ends_no_writer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / "s.db")

    def refuse(action: int, what: str | None, *_: object) -> int:
        return sqlite3.SQLITE_DENY if what == "wal_checkpoint" else sqlite3.SQLITE_OK

    async def load() -> int:
        await store.write(lambda connection: connection.execute(text("CREATE TABLE loaded (id INTEGER PRIMARY KEY)")).close())
        for engine in (store._writing, store._reading):
            with engine.connect() as connection:
                cast("sqlite3.Connection", connection.connection.driver_connection).set_authorizer(refuse)
        for number in range(1200):  # a checkpoint of the reader's, and one of the writer's
            store._long = store._long or number == 900
            row = text(f"INSERT INTO loaded VALUES ({number})")
            await store.write(lambda connection, row=row: connection.execute(row).close())  # type: ignore[misc]
        return int(await store.read(lambda connection: connection.execute(text("SELECT count(*) FROM loaded")).scalar_one()))

    try:
        assert asyncio.run(asyncio.wait_for(load(), 30)) == 1200
    finally:
        store.close()
    assert len([record for record in caplog.records if "was not taken into its database" in record.message]) >= 2
