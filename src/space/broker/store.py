"""What the broker keeps: sealed secrets with their public halves, and how far each audit chain has been vouched for. One SQLite file.

A secret is on the disk when `put` returns (synchronous=FULL), and stays through kill -9 and a power cut. A head is in the file, not yet on
the disk: a power cut may take the last ones back, which makes the broker remember less, never sign less.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from space.broker.keyring import Keyring
from space.model.errors import Conflict, Internal, NoCapacity, SpaceError
from space.model.secret import Secret

log = logging.getLogger("space.broker")

_SCHEMA_VERSION = 3
_SCHEMA_1 = """
CREATE TABLE sealed (kind TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, public BLOB NOT NULL, envelope BLOB NOT NULL,
                     PRIMARY KEY (kind, name, version)) WITHOUT ROWID;
CREATE TABLE head (writer TEXT NOT NULL, what TEXT NOT NULL, count INTEGER NOT NULL, last BLOB NOT NULL,
                   PRIMARY KEY (writer, what)) WITHOUT ROWID;
"""
# reach: by what of a sandbox a grant may be found (`broker.grants`); whether it is that sandbox's, the grant itself says.
_SCHEMA_2 = """
CREATE TABLE granted (tenant TEXT NOT NULL, name TEXT NOT NULL, secret TEXT NOT NULL, document BLOB NOT NULL, created TEXT NOT NULL,
                      revoked TEXT NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (tenant, name)) WITHOUT ROWID;
CREATE INDEX granted_secret ON granted (tenant, secret);
CREATE TABLE reach (tenant TEXT NOT NULL, kind TEXT NOT NULL, value TEXT NOT NULL, name TEXT NOT NULL,
                    PRIMARY KEY (tenant, kind, value, name)) WITHOUT ROWID;
CREATE INDEX reach_name ON reach (tenant, name);
CREATE TABLE attached (sandbox TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (sandbox, tenant, name)) WITHOUT ROWID;
CREATE INDEX attached_name ON attached (tenant, name);
"""
# spent: tokens of a rate that were left at a time (seconds since 1970), and when all of them are there again.
_SCHEMA_3 = """
CREATE TABLE spent (tenant TEXT NOT NULL, secret TEXT NOT NULL, rate TEXT NOT NULL, left REAL NOT NULL, at REAL NOT NULL,
                    full REAL NOT NULL, PRIMARY KEY (tenant, secret, rate)) WITHOUT ROWID;
"""
_SCHEMAS = (_SCHEMA_1, _SCHEMA_2, _SCHEMA_3)


@dataclass(frozen=True, slots=True)
class Entry:
    """A sealed secret, opened. public: what may be told of it, such as a certificate."""

    public: bytes
    secret: Secret


class Store:
    """Open for one process at a time (`space.config.hold`). NoCapacity when the disk is full, Internal when it fails otherwise."""

    def __init__(self, path: Path, keyring: Keyring) -> None:
        self._path = path
        self._keyring = keyring
        fresh = not path.exists()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        self._database = _open(path)
        if fresh:
            descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            os.fsync(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def put(self, kind: str, name: str, version: int, entry: Entry) -> None:
        """Keep a new secret, on the disk when this returns. Conflict when that version is there."""
        envelope = self._keyring.seal(_purpose(kind, name, version), entry.secret)
        try:
            self._execute("INSERT INTO sealed VALUES (?, ?, ?, ?, ?)", (kind, name, version, entry.public, envelope), durable=True)
        except sqlite3.IntegrityError:
            raise Conflict(f"{kind} {name} {version} is there already") from None

    def get(self, kind: str, name: str, version: int) -> Entry | None:
        """A secret, if it is there. `Sealed` when the ring does not open it."""
        rows = self._execute("SELECT public, envelope FROM sealed WHERE kind = ? AND name = ? AND version = ?", (kind, name, version))
        return Entry(rows[0][0], self._keyring.open(_purpose(kind, name, version), rows[0][1])) if rows else None

    def seal(self, kind: str, name: str, version: int, secret: Secret) -> bytes:
        """The envelope of a row of `sealed` that the caller writes itself (`change`)."""
        return self._keyring.seal(_purpose(kind, name, version), secret)

    def read(self, statement: str, values: tuple[object, ...] = ()) -> list[Any]:
        """Rows."""
        return self._execute(statement, values)

    def change(self, *statements: tuple[str, tuple[object, ...]]) -> int:
        """All of these or none, on the disk when this returns; how many rows the last one changed."""
        try:
            self._durable(True)
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")
                changed = 0
                for statement, values in statements:
                    changed = self._database.execute(statement, values).rowcount
        except sqlite3.Error as error:
            raise self._fault(error) from error
        return changed

    def note(self, statement: str, values: tuple[object, ...] = ()) -> None:
        """One change that outlives the broker, though not a power cut."""
        self._execute(statement, values)

    def scrub(self) -> None:
        """What was changed before is in the log no longer (and the file's free pages are zeros)."""
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def remove(self, kind: str, name: str, version: int) -> bool:
        """Forget a secret, on the disk when this returns; whether it was there."""
        statement = "DELETE FROM sealed WHERE kind = ? AND name = ? AND version = ? RETURNING 1"
        return bool(self._execute(statement, (kind, name, version), durable=True))

    def names(self, kind: str) -> list[tuple[str, int]]:
        """Every (name, version)."""
        return [(name, version) for name, version in self._execute("SELECT name, version FROM sealed WHERE kind = ?", (kind,))]

    def turn(self, keyring: Keyring) -> int:
        """Wrap everything under that ring's first key, all or nothing, and use the ring from now on; how many were wrapped anew.

        `Sealed`: that ring does not open everything, and nothing has changed.
        """
        rows = self._execute("SELECT kind, name, version, envelope FROM sealed")
        changes = []
        for *key, envelope in rows:
            purpose = _purpose(*key)
            secret = keyring.open(purpose, envelope)  # also of those that stay as they are: a ring that opens less is refused
            if not keyring.is_current(envelope):
                changes.append((keyring.seal(purpose, secret), *key))
        if changes:
            self._durable(True)
            try:
                with self._database:
                    self._database.execute("BEGIN IMMEDIATE")
                    self._database.executemany("UPDATE sealed SET envelope = ? WHERE kind = ? AND name = ? AND version = ?", changes)
                # The old envelopes are still in the log's and the file's free pages: those would open with the old key.
                self._database.execute("VACUUM")
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise self._fault(error) from error
        self._keyring = keyring
        return len(changes)

    def head(self, writer: str, what: str) -> tuple[int, bytes] | None:
        """How far that chain was vouched for: (count, hash)."""
        rows = self._execute("SELECT count, last FROM head WHERE writer = ? AND what = ?", (writer, what))
        return (rows[0][0], rows[0][1]) if rows else None

    def advance(self, writer: str, what: str, count: int, last: bytes) -> None:
        """It is vouched for up to there."""
        self._execute("INSERT OR REPLACE INTO head VALUES (?, ?, ?, ?)", (writer, what, count, last))

    def forget_heads(self, writer: str) -> bool:
        """A chain of that name may begin anew; whether there was one."""
        return bool(self._execute("DELETE FROM head WHERE writer = ? RETURNING 1", (writer,), durable=True))

    def _durable(self, durable: bool) -> None:
        self._database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")

    def _execute(self, statement: str, values: tuple[object, ...] = (), *, durable: bool = False) -> list[Any]:
        try:
            self._durable(durable)
            return self._database.execute(statement, values).fetchall()
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise self._fault(error) from error

    def _fault(self, error: sqlite3.Error) -> SpaceError:
        if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_WRITE):
            return NoCapacity("the disk is full: the broker cannot write its store", hint=f"free space below {self._path.parent}")
        return Internal(f"the broker's store cannot be used: {error}", hint=f"look at {self._path}")


def _purpose(kind: str, name: str, version: int) -> str:
    return f"{kind}\0{name}\0{version}"


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA secure_delete = ON")
        database.execute("PRAGMA synchronous = FULL")
        with closing(database.execute("PRAGMA user_version")) as cursor:
            (version,) = cursor.fetchone()
        if version < _SCHEMA_VERSION:
            database.executescript(f"BEGIN; {''.join(_SCHEMAS[version:])} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")
        elif version != _SCHEMA_VERSION:
            raise Conflict(
                f"the broker's store {path} has schema {version}, and this version knows {_SCHEMA_VERSION}",
                hint="run the version that wrote it",
            )
    except sqlite3.DatabaseError as error:
        database.close()
        # Nothing is begun anew: the roots in it are in templates, and a lost one is lost.
        raise Internal(f"the broker's store {path} cannot be read: {error}", hint="restore it from a backup") from error
    except BaseException:
        database.close()
        raise
    return database
