"""Rows of templates in the store: names and tags, how much each template's disk holds, and builds. Changes for one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from space.control.store import schema

Change = Callable[[Connection], Any]
_NAMES, _DISKS, _BUILDS = schema.template_names, schema.template_disks, schema.builds


@dataclass(frozen=True, slots=True)
class TemplateNews:
    """An event about a template. template: `name:tag`. detail: the digest, or the reason."""

    kind: Any
    tenant: str
    template: str
    detail: str | None = None

    def row(self) -> dict[str, Any]:
        """As it is stored."""
        payload = {"phase": "", "template": self.template, "detail": self.detail}
        known = {"tenant": self.tenant, "sandbox": "", "kind": self.kind, "at_us": time.time_ns() // 1000, "revision": 0}
        return known | {"payload": {name: value for name, value in payload.items() if value is not None}}


def name(tenant: str, named: str, tag: str, digest: str) -> Change:
    """A tag leads there."""

    def change(connection: Connection) -> None:
        forget(tenant, named, tag)(connection)
        row = {"tenant": tenant, "name": named, "tag": tag, "digest": digest, "created_us": time.time_ns() // 1000}
        connection.execute(insert(_NAMES).values(**row))

    return change


def forget(tenant: str, named: str, tag: str) -> Change:
    """A tag is no more."""
    return lambda connection: connection.execute(
        delete(_NAMES).where(_NAMES.c.tenant == tenant, _NAMES.c.name == named, _NAMES.c.tag == tag)
    )


def disk(tenant: str, digest: str, used_mib: int | None) -> Change:
    """How much a template's disk holds; None: it is gone."""

    def change(connection: Connection) -> None:
        connection.execute(delete(_DISKS).where(_DISKS.c.tenant == tenant, _DISKS.c.digest == digest))
        if used_mib is not None:
            connection.execute(insert(_DISKS).values(tenant=tenant, digest=digest, used_mib=used_mib))

    return change


def build(row: Mapping[str, Any]) -> Change:
    """A new build."""
    return lambda connection: connection.execute(insert(_BUILDS).values(**row))


def ended(which: str, state: str, *, digest: str | None = None, reason: str | None = None) -> Change:
    """A build is over."""
    return lambda connection: connection.execute(
        update(_BUILDS).where(_BUILDS.c.id == which).values(state=state, digest=digest, reason=reason)
    )


def drop(which: str) -> Change:
    """A build is forgotten."""
    return lambda connection: connection.execute(delete(_BUILDS).where(_BUILDS.c.id == which))


def all_of(*changes: Change) -> Change:
    """One after the other."""

    def change(connection: Connection) -> None:
        for each in changes:
            each(connection)

    return change


def everything(connection: Connection) -> tuple[dict[tuple[str, str, str], str], dict[str, dict[str, int]], list[Any]]:
    """Names to digests, tenants to their disks, and builds, oldest first."""
    names = {(row.tenant, row.name, row.tag): row.digest for row in connection.execute(select(_NAMES))}
    disks: dict[str, dict[str, int]] = {}
    for row in connection.execute(select(_DISKS)):
        disks.setdefault(row.tenant, {})[row.digest] = row.used_mib
    return names, disks, list(connection.execute(select(_BUILDS).order_by(_BUILDS.c.created_us, _BUILDS.c.id)))
