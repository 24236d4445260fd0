"""From any schema there ever was to the one of `schema`: numbered steps, each in one transaction with its number.

A step describes its tables itself and never imports `schema`, which moves on. Why this and not alembic:
docs/adr/0004-control-migrations.md. A step is never edited once it has been released; a change is a new one at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import JSON, BigInteger, Column, Connection, Index, Integer, LargeBinary, MetaData, String, Table, insert, inspect, select

from space.model.errors import Conflict

_version = Table("schema_version", MetaData(), Column("version", Integer, primary_key=True))


def _first(connection: Connection) -> None:
    tables = MetaData()
    Table(
        "sandboxes",
        tables,
        Column("id", String(23), primary_key=True),
        Column("tenant", String(39), nullable=False),
        Column("spec", JSON, nullable=False),
        Column("template", String(63), nullable=False),
        Column("metadata", JSON, nullable=False),
        Column("desired", String(16), nullable=False),
        Column("phase", String(16), nullable=False),
        Column("reason", String, nullable=True),
        Column("isolation", String(64), nullable=False),
        Column("generation", BigInteger, nullable=False),
        Column("revision", BigInteger, nullable=False),
        Column("created_us", BigInteger, nullable=False),
        Column("expires_us", BigInteger, nullable=False),
        Column("ended_us", BigInteger, nullable=True),
        Index("sandboxes_by_tenant", "tenant", "created_us", "id"),
        Index("sandboxes_by_end", "ended_us"),
    )
    Table(
        "keys",
        tables,
        Column("id", String(16), primary_key=True),
        Column("tenant", String(39), nullable=False),
        Column("scope", String(16), nullable=False),
        Column("name", String(64), nullable=False),
        Column("digest", LargeBinary(32), nullable=False),
        Column("created_us", BigInteger, nullable=False),
        Column("revoked_us", BigInteger, nullable=True),
    )
    Table(
        "idempotency",
        tables,
        Column("tenant", String(39), primary_key=True),
        Column("key", String(128), primary_key=True),
        Column("digest", LargeBinary(32), nullable=False),
        Column("sandbox", String(23), nullable=False),
        Column("created_us", BigInteger, nullable=False),
        Index("idempotency_by_age", "created_us"),
    )
    tables.create_all(connection)


STEPS: tuple[Callable[[Connection], None], ...] = (_first,)


def version(connection: Connection) -> int:
    """How many steps this database has taken; 0 for an empty one."""
    if not inspect(connection).has_table(_version.name):
        return 0
    return max(connection.execute(select(_version.c.version)).scalars(), default=0)


def pending(connection: Connection, steps: tuple[Callable[[Connection], None], ...] = STEPS) -> range:
    """The numbers of the steps that are due. Conflict: a newer `space` has written this database."""
    found = version(connection)
    if found > len(steps):
        raise Conflict(
            f"the state store has schema {found}, and this version of space knows {len(steps)}",
            hint="start the newer version, or restore the copy that was made before the upgrade",
        )
    return range(found + 1, len(steps) + 1)


def take(connection: Connection, number: int, steps: tuple[Callable[[Connection], None], ...] = STEPS) -> None:
    """Take one step, in the caller's transaction."""
    if number == 1:
        _version.create(connection)
    steps[number - 1](connection)
    connection.execute(insert(_version).values(version=number))
