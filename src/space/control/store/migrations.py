"""From any schema there ever was to the one of `schema`: numbered steps, each in one transaction with its number.

A step describes its tables itself and never imports `schema`, which moves on. Why this and not alembic:
docs/adr/0004-control-migrations.md. A step is never edited once it has been released; a change is a new one at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    insert,
    inspect,
    literal,
    select,
    text,
)

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


def _second(connection: Connection) -> None:
    """Idle rules and lives without an end, events, webhooks, audit, quotas."""
    tables = MetaData()
    sandboxes = Table(
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
        Column("expires_us", BigInteger, nullable=True),
        Column("ended_us", BigInteger, nullable=True),
        Column("oom_kills", BigInteger, nullable=False),
        Index("sandboxes_by_tenant", "tenant", "created_us", "id"),
        Index("sandboxes_by_end", "ended_us"),
    )
    Table(
        "events",
        tables,
        Column("id", Integer, primary_key=True),
        Column("tenant", String(39), nullable=False),
        Column("sandbox", String(23), nullable=False),
        Column("kind", String(16), nullable=False),
        Column("at_us", BigInteger, nullable=False),
        Column("revision", BigInteger, nullable=False),
        Column("payload", JSON, nullable=False),
        Index("events_by_tenant", "tenant", "id"),
        sqlite_autoincrement=True,
    )
    Table(
        "event_floors",
        tables,
        Column("tenant", String(39), primary_key=True),
        Column("pruned", BigInteger, nullable=False),
    )
    Table(
        "webhooks",
        tables,
        Column("id", String(23), primary_key=True),
        Column("tenant", String(39), nullable=False),
        Column("url", String(2048), nullable=False),
        Column("kinds", JSON, nullable=True),
        Column("secret", String(128), nullable=False),
        Column("cursor", BigInteger, nullable=False),
        Column("delivered", BigInteger, nullable=False),
        Column("created_us", BigInteger, nullable=False),
        Column("failing_us", BigInteger, nullable=True),
        Column("last_error", String, nullable=True),
    )
    Table(
        "audit",
        tables,
        Column("id", Integer, primary_key=True),
        Column("at_us", BigInteger, nullable=False),
        Column("request_id", String(64), nullable=False),
        Column("key_id", String(16), nullable=False),
        Column("tenant", String(39), nullable=False),
        Column("peer", String(64), nullable=False),
        Column("route", String(64), nullable=False),
        Column("sandbox", String(64), nullable=True),
        Column("status", Integer, nullable=False),
        Index("audit_by_tenant", "tenant", "id"),
        sqlite_autoincrement=True,
    )
    Table(
        "quotas",
        tables,
        Column("tenant", String(39), primary_key=True),
        Column("quota", JSON, nullable=False),
    )
    # SQLite cannot make a column nullable in place: a new table, a copy, and the old one goes.
    for index in ("sandboxes_by_tenant", "sandboxes_by_end"):
        connection.execute(text(f"DROP INDEX {index}"))
    connection.execute(text("ALTER TABLE sandboxes RENAME TO sandboxes_1"))
    tables.create_all(connection)
    kept = [column.name for column in sandboxes.columns if column.name != "oom_kills"]
    old = Table("sandboxes_1", MetaData(), *(Column(name) for name in kept))
    connection.execute(insert(sandboxes).from_select([*kept, "oom_kills"], select(*old.columns, literal(0))))
    connection.execute(text("DROP TABLE sandboxes_1"))


def _third(connection: Connection) -> None:
    """Whose sandboxes were that are forgotten."""
    tables = MetaData()
    Table(
        "former",
        tables,
        Column("sandbox", String(23), primary_key=True),
        Column("tenant", String(39), nullable=False),
        Column("ended_us", BigInteger, nullable=False),
        Index("former_by_end", "ended_us"),
    )
    tables.create_all(connection)


def _fourth(connection: Connection) -> None:
    """Names of templates."""
    tables = MetaData()
    Table(
        "template_names",
        tables,
        Column("tenant", String(39), primary_key=True),
        Column("name", String(63), primary_key=True),
        Column("tag", String(63), primary_key=True),
        Column("digest", String(64), nullable=False),
        Column("created_us", BigInteger, nullable=False),
    )
    tables.create_all(connection)


_POLICY_COLUMNS = (
    "policy_name VARCHAR(63)",
    "policy_source VARCHAR(32) NOT NULL DEFAULT ''",
    "policy_bytes BIGINT NOT NULL DEFAULT 0",
    "policy_digest VARCHAR(32) NOT NULL DEFAULT ''",
    "policy_generation BIGINT NOT NULL DEFAULT 0",
    "policy_open BOOLEAN NOT NULL DEFAULT 0",
    "policy_applied BIGINT NOT NULL DEFAULT 0",
    "policy_state VARCHAR(16) NOT NULL DEFAULT 'applied'",
    "policy_reason VARCHAR",
)


def _fifth(connection: Connection) -> None:
    """Policies: what they say by digest, those with names, layers, and which a sandbox has."""
    tables = MetaData()
    Table("policy_texts", tables, Column("digest", String(32), primary_key=True), Column("data", LargeBinary, nullable=False))
    Table(
        "policies",
        tables,
        Column("tenant", String(39), primary_key=True),
        Column("name", String(63), primary_key=True),
        Column("source", String(32), nullable=False),
        Column("revision", BigInteger, nullable=False),
        Column("bytes", BigInteger, nullable=False),
        Column("rules", BigInteger, nullable=False),
        Column("open", Boolean, nullable=False),
        Column("updated_us", BigInteger, nullable=False),
    )
    Table(
        "policy_layers",
        tables,
        Column("tenant", String(39), primary_key=True),
        Column("source", String(32), nullable=False),
        Column("default_name", String(63), nullable=True),
        Column("permits", JSON, nullable=False),
        Column("revision", BigInteger, nullable=False),
    )
    tables.create_all(connection)
    for column in _POLICY_COLUMNS:
        connection.execute(text(f"ALTER TABLE sandboxes ADD COLUMN {column}"))


def _templates_of_tenants(connection: Connection) -> None:
    """What templates' disks hold, and builds."""
    tables = MetaData()
    Table(
        "template_disks",
        tables,
        Column("tenant", String(39), primary_key=True),
        Column("digest", String(64), primary_key=True),
        Column("used_mib", BigInteger, nullable=False),
    )
    Table(
        "builds",
        tables,
        Column("id", String(23), primary_key=True),
        Column("tenant", String(39), nullable=False),
        Column("name", String(63), nullable=False),
        Column("tag", String(63), nullable=False),
        Column("state", String(16), nullable=False),
        Column("digest", String(64), nullable=True),
        Column("reason", String, nullable=True),
        Column("created_us", BigInteger, nullable=False),
    )
    tables.create_all(connection)


_LIFE_COLUMNS = (
    "wish VARCHAR(64) NOT NULL DEFAULT ''",
    "rest VARCHAR(16) NOT NULL DEFAULT ''",
    "rest_reason VARCHAR",
    "start VARCHAR(16) NOT NULL DEFAULT ''",
    "parent VARCHAR(23)",
    "snapshot_bytes BIGINT NOT NULL DEFAULT 0",
    "checkpoints BIGINT NOT NULL DEFAULT 0",
)


def _seventh(connection: Connection) -> None:
    """What is asked of a life and not done yet, who put it to rest, how it began, whose child it is, what is stored of it."""
    for column in _LIFE_COLUMNS:
        connection.execute(text(f"ALTER TABLE sandboxes ADD COLUMN {column}"))


def _eighth(connection: Connection) -> None:
    """What tokens are derived from, and what the E2B face knows of sandboxes."""
    tables = MetaData()
    Table("control_secrets", tables, Column("name", String(32), primary_key=True), Column("value", LargeBinary(32), nullable=False))
    Table("e2b_sandboxes", tables, Column("sandbox", String(23), primary_key=True), Column("extras", JSON, nullable=False))
    tables.create_all(connection)


def _ninth(connection: Connection) -> None:
    """What the E2B face knows of templates."""
    tables = MetaData()
    Table(
        "e2b_templates",
        tables,
        Column("tenant", String(39), primary_key=True),
        Column("name", String(63), primary_key=True),
        Column("doc", JSON, nullable=False),
    )
    tables.create_all(connection)


STEPS: tuple[Callable[[Connection], None], ...] = (
    _first, _second, _third, _fourth, _fifth, _templates_of_tenants, _seventh, _eighth, _ninth,
)  # fmt: skip


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
