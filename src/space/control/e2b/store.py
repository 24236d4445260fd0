"""What E2B's model knows of a sandbox and ours does not: one document a sandbox, kept with it, gone with it.

A sandbox that our own API made has none, and `Extras()` says what holds for it: nothing of it is open that nobody asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, delete, insert, select, update

from space.control.entry import Entry
from space.control.store.schema import e2b_sandboxes, sandboxes
from space.control.store.store import Store

log = logging.getLogger("space.control.e2b")


class Extras(Struct, frozen=True, omit_defaults=True):
    """made: through this face. template: what was asked for, as answers repeat it; alias: its name, where that was no name.

    metadata: what our own metadata has no form for. user, workdir: defaults of processes. secure: the in-sandbox API wants the access
    token. public: ports are open to who knows their address. mask_host, https_ports: as E2B's network object says.
    auto_resume: traffic wakes it. pause_memory: what the end of its time keeps. timeout: seconds, as asked at creation.
    network: as given last, for answers. internet: `allow_internet_access` as it holds; policy: how it was mapped, in words.
    exposed: ports that were exposed one by one, in digits, and whether to everybody; also of sandboxes that our own API made.
    env: instead of what our own model has, of one that was made of a snapshot. grants: names of those that were made for it alone.
    holds: it is no sandbox to anybody, but keeps a snapshot's memory and disk, under this id; source: of which sandbox.
    """

    made: bool = False
    template: str = ""
    alias: str | None = None
    metadata: dict[str, str] = {}
    user: str | None = None
    workdir: str | None = None
    secure: bool = True
    public: bool = False
    mask_host: str | None = None
    https_ports: list[int] = []
    auto_resume: bool = False
    pause_memory: bool = True
    timeout: int = 300
    network: dict[str, Any] | None = None
    internet: bool | None = None
    policy: str = ""
    env: dict[str, str] | None = None
    grants: list[str] = []
    holds: str = ""
    source: str = ""
    exposed: dict[str, bool] = {}

    def changed(self, **fields: Any) -> Extras:
        """The next one."""
        return msgspec.structs.replace(self, **fields)


NONE = Extras()


class ExtrasStore:
    """Everybody's, in memory, which this process alone changes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Extras] = {}
        self.on_put: list[Callable[[str], None]] = []
        self._over: dict[str, Extras] = {}
        self._ended = asyncio.Event()

    async def load(self) -> None:
        """Read what is stored. What belongs to no sandbox any more is `over`."""
        rows, there = await self._store.read(_load)
        for row in rows:
            (self._known if row.sandbox in there else self._over)[row.sandbox] = msgspec.convert(row.extras, Extras)

    async def over(self) -> dict[str, Extras]:
        """Those of sandboxes that have ended and left something that `forget` has not been told of; waits until there are some."""
        while not self._over:
            self._ended.clear()
            await self._ended.wait()
        return dict(self._over)

    async def forget(self, sandbox: str) -> None:
        """Nothing of an ended one is left."""
        await self._store.write(lambda connection: _remove(connection, sandbox))
        self._over.pop(sandbox, None)

    def of(self, sandbox: str) -> Extras:
        """A sandbox's, by our id."""
        return self._known.get(sandbox, NONE)

    def adding(self, sandbox: str, extras: Extras) -> Callable[[Connection], None]:
        """What stores a new sandbox's, in the transaction of its row."""
        self._known[sandbox] = extras
        return lambda connection: _add(connection, sandbox, extras)

    async def put(self, sandbox: str, extras: Extras) -> None:
        """Another one from now on; stored when this returns."""
        self._known[sandbox] = extras
        for told in self.on_put:
            told(sandbox)
        await self._store.write(lambda connection: _put(connection, sandbox, extras))

    def heed(self, entry: Entry) -> None:
        """Told of every change of a live sandbox: with its end this goes too."""
        record = entry.record
        if record.ended and (extras := self._known.pop(record.id, None)) is not None:
            if extras.grants:
                self._over[record.id] = extras
                self._ended.set()
            else:
                self._store.post(lambda connection: _remove(connection, record.id))

    @property
    def all(self) -> Mapping[str, Extras]:
        """By our id."""
        return self._known


def _load(connection: Connection) -> tuple[list[Any], set[str]]:
    there = connection.execute(select(sandboxes.c.id).where(sandboxes.c.ended_us.is_(None))).scalars()
    return list(connection.execute(select(e2b_sandboxes)).all()), set(there)


def _add(connection: Connection, sandbox: str, extras: Extras) -> None:
    connection.execute(insert(e2b_sandboxes).values(sandbox=sandbox, extras=msgspec.to_builtins(extras)))


def _put(connection: Connection, sandbox: str, extras: Extras) -> None:
    changed = update(e2b_sandboxes).where(e2b_sandboxes.c.sandbox == sandbox).values(extras=msgspec.to_builtins(extras))
    if not connection.execute(changed).rowcount:
        _add(connection, sandbox, extras)


def _remove(connection: Connection, sandbox: str) -> None:
    connection.execute(delete(e2b_sandboxes).where(e2b_sandboxes.c.sandbox == sandbox))
