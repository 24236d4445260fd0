"""Secrets of tenants: each version sealed by a key of its own, which the ring's first key wraps. What may be told lies beside it.

    put (version 1) -> rotate (2, the former is gone) -> ... -> revoked: the value is gone, the name stays | deleted

A value is opened for the one lease that asks for it, and kept nowhere. No function here but `open` and `parts` gives one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from space.broker.store import Store
from space.core.credentials import secret as parts_of
from space.core.credentials.grant import GrantRefused, Kind, expiry
from space.model.errors import Conflict, Internal, InvalidArgument, NotFound
from space.model.secret import Secret

_KIND = "secret"
_NONCE = 12
_SELECT = "SELECT version, public, envelope FROM sealed WHERE kind = 'secret' AND name = ?"


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What lies beside the wrapped key. body: nonce and ciphertext, empty once it is revoked."""

    kind: Kind
    public: dict[str, str]
    labels: dict[str, str]
    description: str
    created: str
    rotated: str
    expires: str
    revoked: str
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Known:
    """A secret, without its value."""

    tenant: str
    name: str
    version: int
    facts: Facts

    def why_not(self, now: float) -> Literal["grant_revoked", "grant_expired"] | None:
        """Why it may not be used. now: seconds since 1970."""
        if self.facts.revoked:
            return "grant_revoked"
        end = expiry(self.facts.expires) if self.facts.expires else None
        return "grant_expired" if self.facts.expires and (end is None or now >= end) else None


_FACTS = msgspec.msgpack.Decoder(Facts)


class Secrets:
    """In the store. now: the time with its zone."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(
        self,
        tenant: str,
        name: str,
        kind: Kind,
        value: Secret,
        *,
        public: Mapping[str, str],
        labels: Mapping[str, str],
        description: str,
        expires: str,
        mode: Literal["new", "rotate", "either"],
        now: datetime,
    ) -> Known:
        """Keep it. Conflict, NotFound by mode; Conflict as well where a rotation changes the kind; InvalidArgument."""
        try:
            given = parts_of.unpacked(value.reveal())
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise InvalidArgument("the value is no set of parts") from None
        try:
            parts_of.check(kind, public, given)
        except GrantRefused as refused:
            raise InvalidArgument(str(refused)) from None
        if expires and expiry(expires) is None:
            raise InvalidArgument(f"expires: {expires!r} is no time with its zone", hint="such as 2027-01-01T00:00:00Z")
        before = self.find(tenant, name)
        if before is not None and mode == "new":
            raise Conflict(f"there is a secret {name}", hint="rotate it, or take another name")
        if before is None and mode == "rotate":
            raise NotFound(f"there is no secret {name}", hint="put it first")
        if before is not None and before.facts.kind != kind:
            raise Conflict(f"secret {name} is of kind {before.facts.kind}, not {kind}", hint="delete it first, or take another name")
        stamp = _stamp(now)
        created = stamp if before is None else before.facts.created
        facts = Facts(kind, dict(public), dict(labels), description, created, stamp if before is not None else "", expires, "")
        return self._write(tenant, name, 1 if before is None else before.version + 1, facts, value)

    def rotate_parts(self, known: Known, parts: Mapping[str, bytes], now: datetime) -> Known:
        """Other secret parts from now on, on the disk when this returns. Conflict when it has changed meanwhile."""
        current = self.get(known.tenant, known.name)
        if current.version != known.version:
            raise Conflict(f"secret {known.name} was changed meanwhile")
        value = Secret(parts_of.packed(parts))
        return self._write(known.tenant, known.name, known.version + 1, msgspec.structs.replace(known.facts, rotated=_stamp(now)), value)

    def find(self, tenant: str, name: str) -> Known | None:
        """Without its value."""
        rows = self._store.read(_SELECT, (_row(tenant, name),))
        return Known(tenant, name, rows[0][0], _FACTS.decode(rows[0][1])) if rows else None

    def get(self, tenant: str, name: str) -> Known:
        """NotFound."""
        found = self.find(tenant, name)
        if found is None:
            raise NotFound(f"there is no secret {name}")
        return found

    def page(self, tenant: str, after: str, limit: int) -> tuple[list[Known], bool]:
        """Those behind that name, in order; whether there are more."""
        statement = "SELECT name, version, public FROM sealed WHERE kind = 'secret' AND name > ? AND name < ? ORDER BY name LIMIT ?"
        prefix = _row(tenant, "")
        rows = self._store.read(statement, (prefix + after, f"{tenant}0", limit + 1))  # `0` is what comes behind `/`
        found = [Known(tenant, name[len(prefix) :], version, _FACTS.decode(public)) for name, version, public in rows[:limit]]
        return found, len(rows) > limit

    def count(self, tenant: str) -> int:
        """How many a tenant has."""
        statement = "SELECT count(*) FROM sealed WHERE kind = 'secret' AND name > ? AND name < ?"
        return int(self._store.read(statement, (_row(tenant, ""), f"{tenant}0"))[0][0])

    def revoke(self, tenant: str, name: str, now: datetime) -> Known:
        """Its value is gone. NotFound."""
        known = self.get(tenant, name)
        if known.facts.revoked:
            return known
        gone = msgspec.structs.replace(known.facts, revoked=_stamp(now), body=b"")
        # A key that nothing was ever sealed with: the row keeps its shape, and turning the ring finds what it can open.
        envelope = self._store.seal(_KIND, _row(tenant, name), known.version, Secret(secrets.token_bytes(32)))
        self._replace(_row(tenant, name), known.version, gone, envelope)
        return Known(tenant, name, known.version, gone)

    def delete(self, tenant: str, name: str) -> bool:
        """Whether it was there."""
        changed = self._store.change(("DELETE FROM sealed WHERE kind = 'secret' AND name = ?", (_row(tenant, name),)))
        self._store.scrub()
        return bool(changed)

    def parts(self, known: Known) -> dict[str, Secret]:
        """Its secret parts. Internal, and `Sealed`, when they cannot be opened."""
        row = _row(known.tenant, known.name)
        entry = self._store.get(_KIND, row, known.version)
        if entry is None:
            raise NotFound(f"secret {known.name} was changed meanwhile")
        body = _FACTS.decode(entry.public).body
        try:
            data = AESGCM(entry.secret.reveal()).decrypt(body[:_NONCE], body[_NONCE:], _bound(row, known.version))
        except (InvalidTag, ValueError):
            raise Internal(f"secret {known.name} of {known.tenant} is not what was written") from None
        return {name: Secret(value) for name, value in parts_of.unpacked(data).items()}

    def _write(self, tenant: str, name: str, version: int, facts: Facts, value: Secret) -> Known:
        row, key, nonce = _row(tenant, name), secrets.token_bytes(32), secrets.token_bytes(_NONCE)
        body = nonce + AESGCM(key).encrypt(nonce, value.reveal(), _bound(row, version))
        sealed = msgspec.structs.replace(facts, body=body)
        self._replace(row, version, sealed, self._store.seal(_KIND, row, version, Secret(key)))
        return Known(tenant, name, version, sealed)

    def _replace(self, row: str, version: int, facts: Facts, envelope: bytes) -> None:
        self._store.change(
            ("DELETE FROM sealed WHERE kind = 'secret' AND name = ?", (row,)),
            ("INSERT INTO sealed VALUES ('secret', ?, ?, ?, ?)", (row, version, msgspec.msgpack.encode(facts), envelope)),
        )
        self._store.scrub()


def _row(tenant: str, name: str) -> str:
    return f"{tenant}/{name}"


def _bound(row: str, version: int) -> bytes:
    return f"space secret\0{row}\0{version}".encode()


def _stamp(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
