"""The tables as they are now; `migrations` leads every older database here. Times are microseconds since the epoch."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Index, LargeBinary, MetaData, String, Table

metadata = MetaData()

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String(23), primary_key=True),
    Column("tenant", String(39), nullable=False),
    Column("spec", JSON, nullable=False),
    # Copied out of `spec`, because lists filter on them.
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

keys = Table(
    "keys",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("tenant", String(39), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("name", String(64), nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("revoked_us", BigInteger, nullable=True),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("tenant", String(39), primary_key=True),
    Column("key", String(128), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False),
    Column("sandbox", String(23), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Index("idempotency_by_age", "created_us"),
)
