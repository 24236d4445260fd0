"""The tables as they are now; `migrations` leads every older database here. Times are microseconds since the epoch."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table

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
    Column("expires_us", BigInteger, nullable=True),
    Column("ended_us", BigInteger, nullable=True),
    Column("oom_kills", BigInteger, nullable=False),
    Column("policy_name", String(63), nullable=True),
    Column("policy_source", String(32), nullable=False),
    Column("policy_bytes", BigInteger, nullable=False),
    Column("policy_digest", String(32), nullable=False),
    Column("policy_generation", BigInteger, nullable=False),
    Column("policy_open", Boolean, nullable=False),
    Column("policy_applied", BigInteger, nullable=False),
    Column("policy_state", String(16), nullable=False),
    Column("policy_reason", String, nullable=True),
    Column("wish", String(64), nullable=False),
    Column("rest", String(16), nullable=False),
    Column("rest_reason", String, nullable=True),
    Column("start", String(16), nullable=False),
    Column("parent", String(23), nullable=True),
    Column("snapshot_bytes", BigInteger, nullable=False),
    Column("checkpoints", BigInteger, nullable=False),
    Index("sandboxes_by_tenant", "tenant", "created_us", "id"),
    Index("sandboxes_by_end", "ended_us"),
)

# Whose a sandbox was, when its row is gone: its records of egress are kept longer.
former = Table(
    "former",
    metadata,
    Column("sandbox", String(23), primary_key=True),
    Column("tenant", String(39), nullable=False),
    Column("ended_us", BigInteger, nullable=False),
    Index("former_by_end", "ended_us"),
)

# What policies say, and the documents that they make, by digest: one row however many sandboxes have it.
policy_texts = Table("policy_texts", metadata, Column("digest", String(32), primary_key=True), Column("data", LargeBinary, nullable=False))

policies = Table(
    "policies",
    metadata,
    Column("tenant", String(39), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("source", String(32), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("rules", BigInteger, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
)

# A tenant's layer; the operator's has no tenant's name. source: empty where it does not narrow.
policy_layers = Table(
    "policy_layers",
    metadata,
    Column("tenant", String(39), primary_key=True),
    Column("source", String(32), nullable=False),
    Column("default_name", String(63), nullable=True),
    Column("permits", JSON, nullable=False),
    Column("revision", BigInteger, nullable=False),
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

# Made once, and never shown: what this server derives tokens from, by name. The database's mode is 0600.
control_secrets = Table(
    "control_secrets", metadata, Column("name", String(32), primary_key=True), Column("value", LargeBinary(32), nullable=False)
)

# What E2B's model knows of a sandbox and ours does not (`e2b/store.py`).
e2b_sandboxes = Table("e2b_sandboxes", metadata, Column("sandbox", String(23), primary_key=True), Column("extras", JSON, nullable=False))

# Likewise of a tenant's template: how it was asked for, and its builds.
e2b_templates = Table(
    "e2b_templates",
    metadata,
    Column("tenant", String(39), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("doc", JSON, nullable=False),
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

# Ids are never used twice, also not those of the newest rows that were pruned: a reader's place stays right.
events = Table(
    "events",
    metadata,
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

# Up to which id a tenant's events were pruned: whoever asks from before that has a gap.
event_floors = Table(
    "event_floors",
    metadata,
    Column("tenant", String(39), primary_key=True),
    Column("pruned", BigInteger, nullable=False),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", String(23), primary_key=True),
    Column("tenant", String(39), nullable=False),
    Column("url", String(2048), nullable=False),
    Column("kinds", JSON, nullable=True),
    # As it is: signing needs it. The database's mode is 0600.
    Column("secret", String(128), nullable=False),
    Column("cursor", BigInteger, nullable=False),
    Column("delivered", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("failing_us", BigInteger, nullable=True),
    Column("last_error", String, nullable=True),
)

audit = Table(
    "audit",
    metadata,
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

quotas = Table(
    "quotas",
    metadata,
    Column("tenant", String(39), primary_key=True),
    Column("quota", JSON, nullable=False),
)

template_names = Table(
    "template_names",
    metadata,
    Column("tenant", String(39), primary_key=True),
    Column("name", String(63), primary_key=True),
    Column("tag", String(63), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

# Who has a template's disk, which its quota counts; also of one that no tag leads to any more.
template_disks = Table(
    "template_disks",
    metadata,
    Column("tenant", String(39), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("used_mib", BigInteger, nullable=False),
)

# One that is `waiting` or `building` when control begins was cut off by the end of the one before.
builds = Table(
    "builds",
    metadata,
    Column("id", String(23), primary_key=True),
    Column("tenant", String(39), nullable=False),
    Column("name", String(63), nullable=False),
    Column("tag", String(63), nullable=False),
    Column("state", String(16), nullable=False),
    Column("digest", String(64), nullable=True),
    Column("reason", String, nullable=True),
    Column("created_us", BigInteger, nullable=False),
)
