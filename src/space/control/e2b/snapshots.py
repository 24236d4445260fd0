"""E2B's snapshots: what a sandbox is at an instant, under a name, from which any number of sandboxes begin.

    disk alone     a template of ours, made of the sandbox's disk
    with memory    a fork of it that is suspended at once and never seen as a sandbox: whoever begins from it wakes it, forks it and puts
                   it back to rest, one after the other

A name may have many versions; an id, `name:version`, is one. Each holder counts towards its tenant's quota as the sandbox that it is.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from space.control.e2b.building import Building
from space.control.e2b.sizes import ours as plain
from space.control.e2b.store import Extras, ExtrasStore
from space.control.lives import Wish
from space.control.records import Record
from space.control.wire_lives import ForkRequest
from space.control.wire_tenants import ChangeRequest
from space.core.lifecycle.table import Request
from space.core.template.recipe import reference
from space.model.errors import InvalidArgument, NotFound
from space.model.sandbox import Phase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from space.control.e2b.views import Snapshot
    from space.control.services import Services

LABEL: Final = "e2b.snapshot"
_HOLDER_SECONDS: Final = 3600  # of one that is awake; then its rule puts it back to rest
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")


class Snapshots:
    """Every tenant's."""

    def __init__(self, extras: ExtrasStore, building: Building) -> None:
        self._extras = extras
        self._building = building
        self._turns: dict[str, asyncio.Lock] = {}

    async def make(self, services: Services, record: Record, name: str | None, *, memory: bool) -> Snapshot:
        """One of this instant. The sandbox goes on. InvalidArgument, and what a fork or a template refuses."""
        named = plain(name).partition(":")[0] if name else f"snapshot-{secrets.token_hex(5)}"
        if not _NAME.match(named):
            raise InvalidArgument(f"name: {named[:64]!r} is none: 1 to 63 of a-z, 0-9, '.', '_' and '-'")
        version = f"v{secrets.token_hex(6)}"
        if memory:
            await self._hold(services, record, f"{named}:{version}")
        else:
            await self._keep_disk(services, record, named, version)
        return f"{named}:{version}", [named]

    async def _hold(self, services: Services, record: Record, held: str) -> None:
        known = self._extras.of(record.id)
        asked = ForkRequest(count=1, ttl_seconds=min(_HOLDER_SECONDS, services.settings.max_ttl_seconds), metadata={LABEL: held[:512]})
        [child] = await services.sandboxes.fork(record.tenant, record.id, asked)
        await self._extras.put(
            child.id,
            Extras(holds=held, source=record.id, template=known.template or record.spec.template, user=known.user,
                   workdir=known.workdir, env=dict(record.spec.env) | (known.env or {})),
        )  # fmt: skip
        # A control that dies between puts it to rest by its rule, and loses nothing.
        await services.sandboxes.change(record.tenant, child.id, ChangeRequest(on_timeout="suspend", wake_on_call=False))
        await services.sandboxes.live(record.tenant, child.id, Wish(Request.SUSPEND))

    async def _keep_disk(self, services: Services, record: Record, name: str, version: str) -> None:
        entry = await services.sandboxes.wanted(record.tenant, record.id)
        digest = secrets.token_hex(16)

        async def take() -> None:
            await services.templates.of_sandbox(record.tenant, record.id, name, version, digest)

        await services.sandboxes.lives.instant(entry, take, f"snapshot of {record.id}")
        await services.templates.tag(record.tenant, name, "latest", digest)
        await self._building.kept(record.tenant, name, version, digest, record)

    def holder(self, services: Services, tenant: str, named: str) -> Record | None:
        """Who holds a snapshot: that version, or the last one of a name. None: no snapshot with memory is called so."""
        name, _, version = plain(named).partition(":")
        found = [one for one in self._holders(services, tenant) if self._extras.of(one.id).holds.partition(":")[0] == name]
        if version and version != "default":
            found = [one for one in found if self._extras.of(one.id).holds == f"{name}:{version}"]
        return max(found, key=lambda one: one.created_us, default=None)

    @asynccontextmanager
    async def awake(self, services: Services, holder: Record) -> AsyncIterator[None]:
        """It runs while the block does, for one at a time."""
        turn = self._turns.setdefault(holder.id, asyncio.Lock())
        try:
            async with turn:
                if holder.phase is not Phase.RUNNING:
                    await services.sandboxes.live(holder.tenant, holder.id, Wish(Request.WAKE))
                try:
                    yield
                finally:
                    await services.sandboxes.live(holder.tenant, holder.id, Wish(Request.SUSPEND))
        finally:
            if not turn.locked():
                self._turns.pop(holder.id, None)

    def listed(self, services: Services, tenant: str, sandbox: str | None, name: str | None) -> list[tuple[int, Snapshot]]:
        """All of them with their moments, newest first. sandbox: only those of it. name: only those of that name, or that one."""
        found: list[tuple[int, str, str]] = []
        for one in self._holders(services, tenant):
            known = self._extras.of(one.id)
            found.append((one.created_us, known.holds, known.source))
        for named in self._building.names(tenant):
            builds = self._building.doc(tenant, named).builds
            found += [(one.created_us, f"{named}:{one.tags[0]}", one.source) for one in builds if one.source]
        wanted = None if name is None else plain(name)
        return [
            (at, (held, [held.partition(":")[0]]))
            for at, held, source in sorted(found, reverse=True)
            if (sandbox is None or source == sandbox) and (wanted is None or wanted in (held, held.partition(":")[0]))
        ]

    async def delete(self, services: Services, tenant: str, named: str) -> bool:
        """Forget that version. False: there is no such snapshot."""
        held = plain(named)
        for one in self._holders(services, tenant):
            if self._extras.of(one.id).holds == held:
                await services.sandboxes.delete(tenant, one.id)
                return True
        name, _, version = held.partition(":")
        for build in self._building.doc(tenant, name).builds:
            if build.source and build.tags == [version]:
                await self._drop_disk(services, tenant, name, version, build.digest)
                return True
        return False

    async def _drop_disk(self, services: Services, tenant: str, name: str, version: str, digest: str) -> None:
        try:
            reference(f"{name}:latest")
            if services.templates.resolve(tenant, f"{name}:latest")[1] == digest:
                await services.templates.delete(tenant, f"{name}:latest", force=False)
        except NotFound:
            pass
        await services.templates.delete(tenant, f"{name}:{version}", force=False)
        await self._building.dropped(tenant, name, version)

    def _holders(self, services: Services, tenant: str) -> list[Record]:
        return [one for one in services.sandboxes.of_tenant(tenant) if self._extras.of(one.id).holds and one.phase is not Phase.FAILED]
