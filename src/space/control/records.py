"""A sandbox as control remembers it: one frozen row; every change is a new one with the next revision."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, delete, insert, select, update

from space.control.store.schema import idempotency, sandboxes
from space.model.sandbox import Phase, SandboxInfo, SandboxSpec

ENDED = frozenset({Phase.GONE, Phase.FAILED})
WANTED = "running"
UNWANTED = "gone"


@dataclass(frozen=True, slots=True)
class Record:
    """desired: `running` or `gone`. phase: as last seen. Times: microseconds since the epoch."""

    id: str
    tenant: str
    spec: SandboxSpec
    desired: str
    phase: Phase
    isolation: str
    created_us: int
    expires_us: int
    generation: int = 1
    revision: int = 1
    reason: str | None = None
    ended_us: int | None = None

    @property
    def ended(self) -> bool:
        return self.phase in ENDED

    def changed(self, **fields: Any) -> Record:
        """The next revision."""
        return dataclasses.replace(self, revision=self.revision + 1, **fields)

    def info(self) -> SandboxInfo:
        """As the API shows it."""
        return SandboxInfo(
            id=self.id,
            phase=self.phase,
            spec=self.spec,
            created_at=self.created_us / 1e6,
            expires_at=self.expires_us / 1e6,
            revision=self.revision,
            isolation=self.isolation,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True)
class Repeat:
    """An idempotency key that was used: for which body (its digest), and what came of it."""

    tenant: str
    key: str
    digest: bytes
    sandbox: str
    created_us: int


def from_row(row: Row[Any]) -> Record:
    """The record of a row of `sandboxes`."""
    return Record(
        id=row.id,
        tenant=row.tenant,
        spec=msgspec.convert(row.spec, SandboxSpec),
        desired=row.desired,
        phase=Phase(row.phase),
        isolation=row.isolation,
        created_us=row.created_us,
        expires_us=row.expires_us,
        generation=row.generation,
        revision=row.revision,
        reason=row.reason,
        ended_us=row.ended_us,
    )


def add(connection: Connection, record: Record, repeat: Repeat | None) -> None:
    """A new sandbox, with the idempotency key that asked for it, in one transaction."""
    connection.execute(
        insert(sandboxes).values(
            id=record.id,
            tenant=record.tenant,
            spec=msgspec.to_builtins(record.spec),
            template=record.spec.template,
            metadata=dict(record.spec.metadata),
            created_us=record.created_us,
            expires_us=record.expires_us,
            generation=record.generation,
            **_moving(record),
        )
    )
    if repeat is not None:
        connection.execute(insert(idempotency).values(**dataclasses.asdict(repeat)))


def save(connection: Connection, record: Record) -> None:
    """What changed; a row of an older revision only."""
    connection.execute(
        update(sandboxes).where(sandboxes.c.id == record.id, sandboxes.c.revision < record.revision).values(**_moving(record))
    )


def remove(connection: Connection, sandbox: str) -> None:
    """Forget a sandbox and the idempotency keys that made it."""
    connection.execute(delete(sandboxes).where(sandboxes.c.id == sandbox))
    connection.execute(delete(idempotency).where(idempotency.c.sandbox == sandbox))


def prune(connection: Connection, sandbox: str) -> None:
    """Forget a sandbox that has ended."""
    connection.execute(delete(sandboxes).where(sandboxes.c.id == sandbox, sandboxes.c.ended_us.is_not(None)))


def release(connection: Connection, repeat: Repeat) -> None:
    """Forget an idempotency key."""
    connection.execute(
        delete(idempotency).where(
            idempotency.c.tenant == repeat.tenant, idempotency.c.key == repeat.key, idempotency.c.sandbox == repeat.sandbox
        )
    )


def find(connection: Connection, tenant: str, sandbox: str) -> Record | None:
    """A tenant's sandbox."""
    row = connection.execute(select(sandboxes).where(sandboxes.c.id == sandbox, sandboxes.c.tenant == tenant)).one_or_none()
    return None if row is None else from_row(row)


def everything(connection: Connection) -> tuple[list[Record], list[Repeat]]:
    """All that a starting control must know: every sandbox and every used idempotency key."""
    repeats = [Repeat(row.tenant, row.key, row.digest, row.sandbox, row.created_us) for row in connection.execute(select(idempotency))]
    return [from_row(row) for row in connection.execute(select(sandboxes))], repeats


def _moving(record: Record) -> dict[str, Any]:
    return {
        "desired": record.desired,
        "phase": record.phase.value,
        "reason": record.reason,
        "isolation": record.isolation,
        "revision": record.revision,
        "ended_us": record.ended_us,
    }
