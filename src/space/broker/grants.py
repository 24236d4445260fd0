"""Grants of tenants, in the store alone: found by what they reach, decoded when they are needed, so that many cost nothing at the start.

put -> (attached to sandboxes) -> used -> revoked: nobody has it, the name stays | deleted
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from space.broker.store import Store
from space.core.credentials.grant import Grant, GrantRefused, Life, Who, decode, encode, is_for, is_over, parse
from space.model.errors import Conflict, Internal, InvalidArgument, NotFound

MOST_OF_A_SANDBOX = 128  # grants that one sandbox has at a time: what one message to its worker holds
_FIND = "SELECT name, document, created, revoked, used FROM granted WHERE tenant = ? AND name = ?"
_PAGE = "SELECT name, document, created, revoked, used FROM granted WHERE tenant = ? AND name > ? ORDER BY name LIMIT ?"
_PAGE_OF = "SELECT name, document, created, revoked, used FROM granted WHERE tenant = ? AND name > ? AND secret = ? ORDER BY name LIMIT ?"
_COUNT = "SELECT count(*) FROM granted WHERE tenant = ?"
_COUNT_OF = "SELECT count(*) FROM granted WHERE tenant = ? AND secret = ?"


@dataclass(frozen=True, slots=True)
class Held:
    """One. used: leases so far, where it counts them. revoked: when, or empty."""

    tenant: str
    grant: Grant
    created: str
    revoked: str
    used: int


class Grants:
    """In the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, tenant: str, document: bytes, *, replace: bool, now: datetime) -> Held:
        """Keep one that was checked against its secret by the caller. InvalidArgument, Conflict."""
        grant = read(document)
        name, stamp = grant.name, now.strftime("%Y-%m-%dT%H:%M:%SZ")
        before = self.find(tenant, name)
        if before is not None and not replace:
            raise Conflict(f"there is a grant {name}", hint="replace it, or take another name")
        created = stamp if before is None else before.created
        used = 0 if before is None else before.used  # what was used is used: who wants another count deletes it first
        self._store.change(*_rows(tenant, grant, created, used))
        return Held(tenant, grant, created, "", used)

    def find(self, tenant: str, name: str) -> Held | None:
        """One, also a revoked one."""
        rows = self._store.read(_FIND, (tenant, name))
        return _held(tenant, rows[0]) if rows else None

    def get(self, tenant: str, name: str) -> Held:
        """NotFound."""
        found = self.find(tenant, name)
        if found is None:
            raise NotFound(f"there is no grant {name}")
        return found

    def page(self, tenant: str, after: str, limit: int, secret: str = "") -> tuple[list[Held], bool]:
        """Those behind that name, in order; whether there are more."""
        if secret:
            rows = self._store.read(_PAGE_OF, (tenant, after, secret, limit + 1))
        else:
            rows = self._store.read(_PAGE, (tenant, after, limit + 1))
        return [_held(tenant, row) for row in rows[:limit]], len(rows) > limit

    def count(self, tenant: str, secret: str = "") -> int:
        """How many a tenant has, of one secret if that is named."""
        rows = self._store.read(_COUNT_OF, (tenant, secret)) if secret else self._store.read(_COUNT, (tenant,))
        return int(rows[0][0])

    def revoke(self, tenant: str, name: str, now: datetime) -> Held:
        """Nobody has it any more. NotFound."""
        held = self.get(tenant, name)
        if not held.revoked:
            stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
            self._store.change(("UPDATE granted SET revoked = ? WHERE tenant = ? AND name = ?", (stamp, tenant, name)))
        return self.get(tenant, name)

    def delete(self, tenant: str, name: str) -> bool:
        """Whether it was there."""
        return bool(
            self._store.change(
                ("DELETE FROM attached WHERE tenant = ? AND name = ?", (tenant, name)),
                ("DELETE FROM reach WHERE tenant = ? AND name = ?", (tenant, name)),
                ("DELETE FROM granted WHERE tenant = ? AND name = ?", (tenant, name)),
            )
        )

    def use(self, held: Held) -> bool:
        """Take one of its uses, on the disk when this returns; False when there is none left."""
        statement = "UPDATE granted SET used = used + 1 WHERE tenant = ? AND name = ? AND used < ? AND revoked = ''"
        return bool(self._store.change((statement, (held.tenant, held.grant.name, held.grant.uses or 0))))

    # -- sandboxes -----------------------------------------------------------------------------------------------
    def attach(self, tenant: str, sandbox: str, names: Sequence[str]) -> None:
        """All or none. NotFound: there is no such grant, or it was revoked. InvalidArgument: too many."""
        for name in names:
            held = self.find(tenant, name)
            if held is None or held.revoked:
                raise NotFound(f"there is no grant {name}" if held is None else f"grant {name} was revoked", hint="space grant list")
        if len({*self.attached(tenant, sandbox), *names}) > MOST_OF_A_SANDBOX:
            raise InvalidArgument(f"a sandbox has at most {MOST_OF_A_SANDBOX} grants")
        self._store.change(*(("INSERT OR IGNORE INTO attached VALUES (?, ?, ?)", (sandbox, tenant, name)) for name in names))

    def detach(self, tenant: str, sandbox: str, name: str) -> None:
        """Idempotent."""
        self._store.change(("DELETE FROM attached WHERE sandbox = ? AND tenant = ? AND name = ?", (sandbox, tenant, name)))

    def attached(self, tenant: str, sandbox: str) -> list[str]:
        """Names, in order."""
        rows = self._store.read("SELECT name FROM attached WHERE sandbox = ? AND tenant = ? ORDER BY name", (sandbox, tenant))
        return [name for (name,) in rows]

    def attachments(self, tenant: str, name: str) -> int:
        """To how many sandboxes it was attached."""
        return int(self._store.read("SELECT count(*) FROM attached WHERE tenant = ? AND name = ?", (tenant, name))[0][0])

    def forget(self, sandbox: str) -> None:
        """It is gone for good."""
        if self._store.read("SELECT 1 FROM attached WHERE sandbox = ? LIMIT 1", (sandbox,)):
            self._store.change(("DELETE FROM attached WHERE sandbox = ?", (sandbox,)))

    def of(self, life: Life, now: float) -> list[Grant]:
        """What a life has now, in order of names. life.attached is what `attached` says. now: seconds since 1970."""
        names = {*life.attached}
        keys: list[tuple[str, str]] = [("sandbox", life.sandbox), ("template", life.template), ("all", "")]
        keys += [("label", _label(name, value)) for name, value in life.labels.items()]
        for kind, value in keys:
            rows = self._store.read("SELECT name FROM reach WHERE tenant = ? AND kind = ? AND value = ?", (life.tenant, kind, value))
            names.update(name for (name,) in rows)
        found = [self.find(life.tenant, name) for name in sorted(names)]
        return [
            held.grant
            for held in found
            if held is not None and not held.revoked and is_for(held.grant, held.tenant, life) and not is_over(held.grant, now)
        ]


def read(document: bytes) -> Grant:
    """InvalidArgument with the place of the mistake."""
    try:
        return parse(document)
    except GrantRefused as refused:
        raise InvalidArgument(f"{refused.path}: {refused.message}", hint=refused.hint or None) from None


def rows(tenant: str, document: bytes, created: str) -> list[tuple[str, tuple[object, ...]]]:
    """The statements that keep a grant, for who fills a store at once."""
    return _rows(tenant, read(document), created, 0)


def _rows(tenant: str, grant: Grant, created: str, used: int) -> list[tuple[str, tuple[object, ...]]]:
    name = grant.name
    return [
        ("DELETE FROM reach WHERE tenant = ? AND name = ?", (tenant, name)),
        ("INSERT OR REPLACE INTO granted VALUES (?, ?, ?, ?, ?, '', ?)", (tenant, name, grant.secret, encode(grant), created, used)),
        *(("INSERT INTO reach VALUES (?, ?, ?, ?)", (tenant, kind, value, name)) for kind, value in _reach(grant.who)),
    ]


def _reach(who: Who) -> Iterable[tuple[str, str]]:
    """By what a sandbox may find it. Of several labels one is enough to find it, all of them to have it."""
    yield from {("sandbox", sandbox) for sandbox in who.sandboxes}
    yield from {("template", template) for template in who.templates}
    if who.labels:
        yield ("label", _label(*min(who.labels.items())))
    if who.all:
        yield ("all", "")


def _label(name: str, value: str) -> str:
    return f"{name}\0{value}"


def _held(tenant: str, row: tuple[str, bytes, str, str, int]) -> Held:
    name, document, created, revoked, used = row
    try:
        return Held(tenant, decode(document), created, revoked, used)
    except GrantRefused:
        raise Internal(f"grant {name} of {tenant} in the store is none") from None
