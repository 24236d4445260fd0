"""The one owner of the database: a thread that commits what has gathered, and one that reads.

Ordinary changes commit in groups without fsync (WAL, synchronous=NORMAL: a power cut may lose the last ones, never the
file). A group that holds a durable change (delete, key) commits with synchronous=FULL, so one fsync serves all that
gathered. Checkpoints, which fsync too, run on the reading thread and hold no writer up; but the log begins anew only where one has
caught up with the writer, which under steady load none does: beyond a size the writer takes the last one itself. Changes are applied in
the order in which they were given.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from space.control.store import migrations
from space.model.errors import Unavailable

log = logging.getLogger("space.control.store")
T = TypeVar("T")
_GROUP = 256
_CHECKPOINT_EVERY = 512  # changes; about 2 MiB of log
_LONG = 4096  # frames of the log, of a page each: 16 MiB


@dataclass(frozen=True, slots=True)
class _Job:
    change: Callable[[Connection], Any]
    durable: bool
    result: Future[Any]


class Store:
    """An open database. `write` and `read` take functions of a connection; Unavailable when the disk fails."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        fresh = not path.exists()
        # SQLite gives its log the mode of the database.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._writing = _engine(path)
        with self._writing.connect() as connection:
            for number in migrations.pending(connection):
                migrations.take(connection, number)
                connection.commit()
                log.info("the state store took step %d", number)
        if fresh:
            _sync_directory(path.parent)
        self._reading = _engine(path)
        self._reader = ThreadPoolExecutor(1, "store-reader")
        self._writer = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._writer.start()
        self.commits = 0
        self._long = False  # the log is

    async def write(self, change: Callable[[Connection], T], *, durable: bool = False) -> T:
        """Apply a change; returns once it is committed, and on the disk if `durable`. A cancelled caller's change happens all the same."""
        return cast("T", await asyncio.shield(asyncio.wrap_future(self.post(change, durable=durable))))

    def post(self, change: Callable[[Connection], T], *, durable: bool = False) -> Future[T]:
        """Hand a change over without waiting for it."""
        job = _Job(change, durable, Future())
        self._jobs.put(job)
        return job.result

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Ask what is committed."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._ask, query)

    def close(self) -> None:
        """Commit what was handed over, then let go of the file."""
        self._jobs.put(None)
        self._writer.join()
        self._reader.shutdown()
        self._reading.dispose()
        self._writing.dispose()

    def _ask(self, query: Callable[[Connection], T]) -> T:
        try:
            with self._reading.connect() as connection:
                return query(connection)
        except DBAPIError as error:
            raise _translated(error) from error

    def _run(self) -> None:
        since_checkpoint = 0
        with self._writing.connect() as connection:
            while (group := self._gather()) is not None:
                self._commit(connection, group)
                since_checkpoint += len(group)
                if self._long:  # a checkpoint has just ended: little is left
                    self._long, since_checkpoint = False, 0
                    _checkpoint(connection)
                if since_checkpoint >= _CHECKPOINT_EVERY:
                    since_checkpoint = 0
                    self._reader.submit(self._checkpoint)

    def _gather(self) -> list[_Job] | None:
        first = self._jobs.get()
        if first is None:
            return None
        group = [first]
        while len(group) < _GROUP:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                self._jobs.put(None)
                break
            group.append(job)
        return group

    def _commit(self, connection: Connection, group: list[_Job]) -> None:
        try:
            results = self._transact(connection, group)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            if len(group) == 1:
                group[0].result.set_exception(_translated(error) if isinstance(error, DBAPIError) else error)
                return
            # One bad change must not fail its neighbours: each again, alone.
            for job in group:
                self._commit(connection, [job])
            return
        for job, result in zip(group, results, strict=True):
            job.result.set_result(result)

    def _transact(self, connection: Connection, group: list[_Job]) -> list[Any]:
        raw = cast("sqlite3.Connection", connection.connection.driver_connection)
        raw.execute("PRAGMA synchronous=" + ("FULL" if any(job.durable for job in group) else "NORMAL"))
        with connection.begin():
            results = [job.change(connection) for job in group]
        self.commits += 1
        return results

    def _checkpoint(self) -> None:
        with self._reading.connect() as connection:
            self._long = _checkpoint(connection) > _LONG


def _checkpoint(connection: Connection) -> int:
    """What of the log no reader needs goes into the database; frames that the log has. On a disk that fails nothing moves: what is
    committed is in the log, and the next one tries again.
    """
    raw = cast("sqlite3.Connection", connection.connection.driver_connection)
    try:
        _, frames, _ = raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:
        log.warning("the state store's log was not taken into its database: %s", error)
        return 0
    return int(frames)


def _engine(path: Path) -> Engine:
    engine = create_engine(f"sqlite:///{path}", poolclass=StaticPool, connect_args={"check_same_thread": False, "isolation_level": None})

    @event.listens_for(engine, "connect")
    def _connected(raw: sqlite3.Connection, _record: object) -> None:
        raw.execute("PRAGMA journal_mode=WAL").fetchall()
        raw.execute("PRAGMA synchronous=NORMAL")
        raw.execute("PRAGMA wal_autocheckpoint=0")
        raw.execute(f"PRAGMA journal_size_limit={2 * _LONG * 4096}").fetchall()
        raw.execute("PRAGMA busy_timeout=5000")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        # The driver would begin only before the first write, and DDL outside of any transaction.
        connection.exec_driver_sql("BEGIN")

    return engine


def _translated(error: DBAPIError) -> Unavailable:
    log.error("the state store failed: %s", error.orig)
    return Unavailable("the state store could not be read or written", hint="the server's log has the cause; is the disk full?")


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
