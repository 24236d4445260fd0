"""Vouching for chains of records: a signature of (writer, count, hash), and never of less than the last one.

The key is Ed25519, so that whoever has the public half can verify a copy of the records anywhere, and nobody there can sign.
"""

from __future__ import annotations

import logging

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from space.audit.chain import START, base_statement, statement
from space.broker.store import Entry, Store
from space.model.errors import Conflict, PermissionDenied
from space.model.secret import Secret

log = logging.getLogger("space.broker")

_KIND, _NAME = "audit", "heads"


class Heads:
    """The key, made on first use, and how far each chain was vouched for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        entry = store.get(_KIND, _NAME, 1)
        if entry is None:
            key = Ed25519PrivateKey.generate()
            entry = Entry(key.public_key().public_bytes_raw(), Secret(key.private_bytes_raw()))
            store.put(_KIND, _NAME, 1, entry)
        self.public = entry.public
        self._key = Ed25519PrivateKey.from_private_bytes(entry.secret.reveal())

    def at(self, writer: str, what: str = "head") -> tuple[int, bytes]:
        """(count, hash); of nothing yet (0, zeros)."""
        return self._store.head(writer, what) or (0, START)

    def vouch(self, writer: str, what: str, count: int, last: bytes) -> bytes:
        """The signature. Conflict (and a line in the log) when the chain would go back or be another one at the same count."""
        before, known = self.at(writer, what)
        if count < before or (count == before and last != known):
            log.error("%s: its %s would go back from record %d to %d, or is another chain: refused", writer, what, before, count)
            raise Conflict(
                f"the {what} of {writer} is at record {before}: {count} with another past is refused",
                hint="the records were cut off, put back or changed: verify them",
            )
        if what == "base" and count > self.at(writer)[0]:
            raise PermissionDenied(f"{writer}: records up to {count} cannot be removed, {self.at(writer)[0]} are vouched for")
        if (count, last) != (before, known):
            self._store.advance(writer, what, count, last)
        return self._key.sign((statement if what == "head" else base_statement)(writer, count, last))

    def begin_anew(self, writer: str) -> None:
        """A chain of that name may begin at nothing."""
        log.warning("%s: its chain begins anew after record %d, on request", writer, self.at(writer)[0])
        self._store.forget_heads(writer)
