"""Lists of sandboxes: filter, order (newest first) and cursor. A cursor names the last one shown, so nothing is shown twice or skipped.

A sandbox that is made while somebody turns pages is newer than every cursor and disturbs none.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, and_, or_, select

from space.control import limits
from space.control.records import Record, from_row
from space.control.store.schema import sandboxes
from space.model.errors import InvalidArgument
from space.model.ids import sandbox_id
from space.model.sandbox import Phase


@dataclass(frozen=True, slots=True)
class Filter:
    """Which sandboxes of a tenant. after: (created_us, id) of the last one shown."""

    phase: Phase | None = None
    template: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    limit: int = limits.LIST_DEFAULT
    after: tuple[int, str] | None = None


def parse(query: list[tuple[str, str]]) -> Filter:
    """A filter from the query's pairs. InvalidArgument names the parameter."""
    values = dict(query)
    metadata = {name.removeprefix("metadata."): value for name, value in values.items() if name.startswith("metadata.")}
    phase = values.get("phase")
    if phase is not None and phase not in set(Phase):
        raise InvalidArgument(f"phase: {phase[:32]!r} is no phase", hint="one of " + ", ".join(Phase))
    limit = values.get("limit", str(limits.LIST_DEFAULT))
    if not limit.isascii() or not limit.isdigit() or len(limit) > 6 or not 1 <= int(limit) <= limits.LIST_MAX:
        raise InvalidArgument(f"limit: 1 to {limits.LIST_MAX}, not {limit[:32]!r}", hint="ask for the rest with next_cursor")
    cursor = values.get("cursor")
    return Filter(
        phase=None if phase is None else Phase(phase),
        template=values.get("template"),
        metadata=metadata,
        limit=int(limit),
        after=None if cursor is None else from_cursor(cursor),
    )


def page(connection: Connection, tenant: str, wanted: Filter) -> tuple[list[Record], str | None]:
    """One page and the cursor for the next one."""
    table = sandboxes.c
    query = select(sandboxes).where(table.tenant == tenant)
    if wanted.phase is not None:
        query = query.where(table.phase == wanted.phase.value)
    if wanted.template is not None:
        query = query.where(table.template == wanted.template)
    for name, value in wanted.metadata.items():
        query = query.where(table.metadata[name].as_string() == value)
    if wanted.after is not None:
        created, last = wanted.after
        query = query.where(or_(table.created_us < created, and_(table.created_us == created, table.id < last)))
    rows = connection.execute(query.order_by(table.created_us.desc(), table.id.desc()).limit(wanted.limit + 1)).all()
    records = [from_row(row) for row in rows[: wanted.limit]]
    return records, to_cursor(records[-1]) if len(rows) > wanted.limit else None


def to_cursor(record: Record) -> str:
    """The cursor behind a record."""
    return base64.urlsafe_b64encode(f"{record.created_us}.{record.id}".encode()).decode().rstrip("=")


def from_cursor(text: str) -> tuple[int, str]:
    """What a cursor names; InvalidArgument for text that is no cursor."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode("ascii")
        created, _, last = raw.partition(".")
        if not created.isdigit() or len(created) > 18:
            raise ValueError(created)
        return int(created), sandbox_id(last)
    except (ValueError, binascii.Error):
        raise InvalidArgument("cursor: not one that this server gave", hint="take next_cursor of the page before, unchanged") from None
