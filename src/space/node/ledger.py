"""The ledger: what this node has put on the host and what it must know to take its sandboxes over after a crash.

A row is written before the thing is made and removed after it is confirmed gone, so that at any instant every thing has a row.
Calls are synchronous on the event loop: a write is a page in the page cache (tens of microseconds), less than handing it to a thread.
Each raises NoCapacity when the host's disk is full, and Internal for any other fault of the file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from space.core.wire.spool import Head
from space.model.errors import Internal, NoCapacity
from space.model.sandbox import Phase

log = logging.getLogger(__name__)

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE sandbox (sandbox TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE holding (
    kind TEXT NOT NULL, name TEXT NOT NULL, sandbox TEXT NOT NULL, generation INTEGER NOT NULL, tenant TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
"""


class Kind(StrEnum):
    """What can be held. The name of a slot is its number, that of the others the sandbox's id."""

    SLOT = "slot"
    FILES = "files"
    VMM = "vmm"
    GRANTS = "grants"  # attached to it, in the broker's store


@dataclass(frozen=True, slots=True)
class Holding:
    """One thing on the host that must be undone."""

    kind: Kind
    name: str
    sandbox: str
    generation: int
    tenant: str


class Kept(msgspec.Struct, frozen=True):
    """A process at an instant, and how much of its output was stored here then."""

    process: str
    stdout: int
    stderr: int


class Checkpoint(msgspec.Struct, frozen=True):
    """An instant that a sandbox can go back to. processes: those that ran."""

    name: str
    snapshot: str
    bytes: int
    stopped_ms: float
    taken_us: int
    processes: list[Kept]


class Size(msgspec.Struct, frozen=True):
    """What a machine must be to be a clone of a warm template. digest: the template's."""

    digest: str
    cpus: int
    memory_mib: int
    disk_mib: int
    accelerator: str


class Baked(msgspec.Struct, frozen=True):
    """A warm template's snapshot. bytes: of memory. heads: of the processes that run in it. retired: nothing is cloned of it any more."""

    snapshot: str
    size: Size
    bytes: int
    heads: list[Head]
    retired: bool = False


class Record(msgspec.Struct, frozen=True):
    """A sandbox. template is the name, digest the build it boots from; env is repeated to the guest with each configure.

    user, cwd: of commands that name none, as the template has it; empty for the daemon's own.
    """

    sandbox: str
    tenant: str
    generation: int
    template: str
    digest: str
    cpus: int
    memory_mib: int
    disk_mib: int
    env: dict[str, str]
    phase: Phase
    accelerator: str = ""
    reason: str | None = None
    stages_ms: dict[str, float] = {}
    user: str = ""
    cwd: str = ""
    # egress: what it may reach, and what was counted of its workers that have ended
    policy: str = ""
    policy_generation: int = 0
    traffic: dict[str, int] = {}
    last_crash: str | None = None
    # lives: how the present one began, what it is (or is being) suspended in, and its checkpoints, oldest first
    start: str = ""
    snapshot: str = ""
    snapshot_bytes: int = 0
    checkpoints: list[Checkpoint] = []
    origin: str = ""  # the warm snapshot whose memory it maps
    # what grants look at besides its template: labels, and whether it began as a copy of another's memory
    labels: dict[str, str] = {}
    forked: bool = False
    host: str = ""  # the name that rootd knows it by, where that is not its own: a clone that was made ahead has its name from then


def host_name(record: Record) -> str:
    """What rootd calls it."""
    return record.host or record.sandbox


class Ledger:
    """One SQLite file. The node's uid alone reads it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._database = _open(path)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise _fault(path, error) from error  # a full disk, another node: what it holds is whole
            # Without fsync a power cut may tear the file. Then no VMM lives either, and rootd's description finds every file.
            log.warning("ledger %s is torn (%s): it is set aside and begun anew", path, error)
            path.replace(path.with_suffix(".torn"))
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._database = _open(path)

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def put(self, record: Record) -> None:
        """Insert or replace the sandbox's row."""
        self._execute("INSERT OR REPLACE INTO sandbox VALUES (?, ?)", (record.sandbox, msgspec.msgpack.encode(record)))

    async def durable(self) -> None:
        """Until everything that was written is on stable storage. NoCapacity or Internal when it does not get there."""
        try:
            await asyncio.to_thread(_sync, self._path.with_name(self._path.name + "-wal"))
        except OSError as error:
            raise Internal(f"the node's ledger cannot be made durable: {error.strerror}", hint=f"look at {self._path}") from error

    def forget(self, sandbox: str) -> None:
        """Remove the sandbox's row; idempotent."""
        self._execute("DELETE FROM sandbox WHERE sandbox = ?", (sandbox,))

    def records(self) -> list[Record]:
        """Every sandbox."""
        rows = self._execute("SELECT record FROM sandbox ORDER BY sandbox")
        return [msgspec.msgpack.decode(record, type=Record) for (record,) in rows]

    def put_baked(self, row: Baked) -> None:
        """Insert or replace a warm template's row."""
        self._execute("INSERT OR REPLACE INTO baked VALUES (?, ?)", (row.snapshot, msgspec.msgpack.encode(row)))

    def forget_baked(self, snapshot: str) -> None:
        """Remove it; idempotent."""
        self._execute("DELETE FROM baked WHERE snapshot = ?", (snapshot,))

    def baked(self) -> list[Baked]:
        """Every warm template."""
        return [msgspec.msgpack.decode(row, type=Baked) for (row,) in self._execute("SELECT row FROM baked ORDER BY snapshot")]

    def hold(self, holding: Holding) -> None:
        """Write that the thing may be there from now on."""
        self._execute(
            "INSERT OR REPLACE INTO holding VALUES (?, ?, ?, ?, ?)",
            (holding.kind.value, holding.name, holding.sandbox, holding.generation, holding.tenant),
        )

    def release(self, kind: Kind, name: str) -> None:
        """Write that it is gone; idempotent."""
        self._execute("DELETE FROM holding WHERE kind = ? AND name = ?", (kind.value, name))

    def holdings(self) -> list[Holding]:
        """Everything held."""
        rows = self._execute("SELECT kind, name, sandbox, generation, tenant FROM holding ORDER BY kind, name")
        return [Holding(Kind(kind), name, sandbox, generation, tenant) for kind, name, sandbox, generation, tenant in rows]

    def slot_of(self, sandbox: str) -> int | None:
        """The slot that the sandbox holds."""
        row = self._execute("SELECT name FROM holding WHERE kind = 'slot' AND sandbox = ?", (sandbox,))
        return int(row[0][0]) if row else None

    def holds(self, kind: Kind, name: str) -> bool:
        """Whether that may be there."""
        return bool(self._execute("SELECT 1 FROM holding WHERE kind = ? AND name = ?", (kind.value, name)))

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> list[Any]:
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _fault(self._path, error) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fault(path: Path, error: sqlite3.Error) -> NoCapacity | Internal:
    code = getattr(error, "sqlite_errorcode", None)  # a misuse of ours has none
    # the second: the index of the log could not grow
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
        return NoCapacity("the host's disk is full: the node cannot write its ledger", hint=f"free space below {path.parent}")
    return Internal(f"the node's ledger cannot be used: {error}", hint=f"look at {path}")


def _open(path: Path) -> sqlite3.Connection:
    # autocommit: each statement is a step of its own, made true before the next thing happens on the host
    database = sqlite3.connect(path, isolation_level=None)
    try:
        path.chmod(0o600)
        # Nobody else reads it, so the index of the log is kept in our own memory. In a file that is mapped, a write to a page for which a
        # full disk has no block is not an error but the death of the process (SIGBUS; btrfs has to find a new block for every one).
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing that it wrote; only a power cut could, and that ends what runs too.
        # What is to outlive that (what is suspended, stopped, kept) is made durable by name; NORMAL keeps the file whole then, at no fsync
        # of a commit.
        database.execute("PRAGMA synchronous = NORMAL")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")
        elif version != _SCHEMA_VERSION:
            raise RuntimeError(f"ledger {path} has schema {version}, this version knows {_SCHEMA_VERSION} (run the version that wrote it)")
        database.execute("CREATE TABLE IF NOT EXISTS baked (snapshot TEXT PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID")
        database.execute("SELECT count(*) FROM sandbox").fetchone()
        database.execute("SELECT count(*) FROM holding").fetchone()
    except BaseException:
        with suppress(sqlite3.Error):
            database.close()
        raise
    return database
