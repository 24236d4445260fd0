"""The roots: one for each generation of a template, on the disk before its certificate is told to anybody."""

from __future__ import annotations

import logging
from datetime import datetime

from space.broker.certificates import Authority, load_authority, make_root, private_pem
from space.broker.provided import GENERATION, Provided
from space.broker.store import Entry, Store
from space.model.errors import Conflict, Internal, NotFound
from space.model.secret import Secret

log = logging.getLogger("space.broker")

_KIND = "root"


class Roots:
    """Roots in the store. A key is in memory only while something is signed with it. provided: where set-up's come from."""

    def __init__(self, store: Store, provided: Provided | None = None) -> None:
        self._store = store
        self._provided = provided

    def make(self, template: str, generation: int, now: datetime) -> bytes:
        """The certificate (PEM) of a root, made if it is not there."""
        found = self._store.get(_KIND, template, generation)
        if found is not None:
            return found.public
        root = make_root(f"{template} {generation}", now)
        self._store.put(_KIND, template, generation, Entry(root.pem, Secret(private_pem(root.key))))
        return root.pem

    def certificate(self, template: str, generation: int) -> bytes:
        """The certificate of one that is there, or was provided, which is adopted. NotFound; Conflict: what was provided does not fit."""
        if self._provided is not None and generation == GENERATION:
            self._adopt(self._provided, template)
        return self._entry(template, generation).public

    def authority(self, template: str, generation: int) -> Authority:
        """To sign with. NotFound, Sealed."""
        entry = self._entry(template, generation)
        try:
            return load_authority(entry.public, entry.secret.reveal())
        except ValueError:  # its words may quote what was read
            raise Internal(f"the root of {template} {generation} in the store is no authority") from None

    def forget(self, template: str, generation: int) -> None:
        """NotFound when there is none."""
        if not self._store.remove(_KIND, template, generation):
            raise _missing(template, generation)

    def _adopt(self, provided: Provided, template: str) -> None:
        try:
            if self._store.get(_KIND, template, GENERATION) is None and (root := provided.take(template)) is not None:
                self._store.put(_KIND, template, GENERATION, Entry(root.pem, Secret(private_pem(root.key))))
                log.info("adopted the root of template %s", template)
        except Conflict:
            provided.forget(template)
            raise
        provided.forget(template)  # sealed, on the disk

    def _entry(self, template: str, generation: int) -> Entry:
        found = self._store.get(_KIND, template, generation)
        if found is None:
            raise _missing(template, generation)
        return found


def _missing(template: str, generation: int) -> NotFound:
    return NotFound(f"there is no root of template {template}, generation {generation}", hint="set-up makes it with the template")
