"""Templates of this node: the shipped ones, and those of tenants, which see their own and the shipped ones."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from space.config.artefacts import Store, TemplateManifest
from space.config.shelf import DISK
from space.core.template import plan
from space.model.errors import Conflict, NotFound, SpaceError
from space.model.rootd import RebaseTemplate
from space.model.sandbox import DEFAULT_TEMPLATE, MIB
from space.node.surroundings import Surroundings
from space.rpc import node_api as api

log = logging.getLogger(__name__)

# Below this much, or this part of the file system if that is less, caches go.
ROOM_BYTES = 2 << 30
ROOM_SHARE = 10


class Templates:
    """One a node."""

    def __init__(self, around: Surroundings, store: Store) -> None:
        self._around = around
        self._store = store
        self._making_room = False
        self.needed: Counter[str] = Counter()  # what builds that run were told is kept

    def named(self, tenant: str, name: str, digest: str) -> TemplateManifest:
        """What a sandbox is made of: a tenant's by digest, or a shipped one by name. NotFound; Conflict when it cannot be used."""
        manifest = self.own(tenant, digest) if digest else self._store.template(name)
        if digest:
            self._store.stands(manifest)
        return manifest

    def own(self, tenant: str, digest: str) -> TemplateManifest:
        """A tenant's template, or a shipped one, by digest."""
        manifest = self._store.template_by_digest(digest)
        if manifest.tenant not in ("", tenant) or manifest.kind != "template":
            raise NotFound(f"template {digest} is not on this machine")
        return manifest

    def list(self, tenant: str) -> Iterator[api.TemplateInfo]:
        """The shipped ones, then the tenant's, oldest first."""
        for manifest in self._store.templates():
            yield self.info(manifest)
        own = [each for each in self._store.own_templates() if (each.tenant, each.kind) == (tenant, "template")]
        for manifest in sorted(own, key=lambda each: each.created_us):
            yield self.info(manifest)
        for broken, error in self._store.unusable_templates():
            if (broken.tenant, broken.kind) == (tenant, "template"):
                yield self.info(broken, str(error))

    def info(self, manifest: TemplateManifest, problem: str = "") -> api.TemplateInfo:
        """As control sees it."""
        try:
            if not problem:
                self._store.stands(manifest)
        except Conflict as error:
            problem = str(error)
        return api.TemplateInfo(
            digest=manifest.digest,
            name=manifest.name,
            tenant=manifest.tenant,
            disk_mib=-(-manifest.disk_bytes // MIB),
            used_mib=self._used(manifest.digest) // MIB,
            created_us=manifest.created_us,
            source=manifest.source,
            parent=manifest.parent,
            env=dict(manifest.env),
            user=manifest.user,
            cwd=manifest.cwd,
            start=list(manifest.start),
            ready=list(manifest.ready),
            hooks=list(manifest.hooks),
            kernel_release=manifest.kernel_release,
            problem=problem,
        )

    async def drop(self, tenant: str, digest: str, *, force: bool) -> None:
        """Take a tenant's template away; one that is not there is gone already. Conflict: it has sandboxes, or is shipped."""
        try:
            manifest = self.own(tenant, digest)
        except NotFound:
            return
        except Conflict:  # it cannot be used, and whose it is cannot be read: only whom it belongs to knows its digest
            await self._around.rootd.drop_template(digest, force=force)
            return
        if not manifest.tenant:
            raise Conflict(f"template {manifest.name} was made by set-up, and is not deleted", hint="only templates that were built are")
        await self._around.rootd.drop_template(digest, force=force)

    async def rebake(self, tenant: str, digest: str) -> TemplateManifest:
        """The same disk and settings with the kernel, initramfs and VMM that this machine has now; also of one that cannot be used."""
        old, now = self._store.salvaged(digest), self._store.template(DEFAULT_TEMPLATE)
        if old.tenant != tenant or old.kind != "template":
            raise NotFound(f"template {digest} is not on this machine")
        self._store.stands(now)
        machine = {"kernel": now.kernel, "initramfs": now.initramfs, "qemu": now.qemu, "root": now.root}
        fresh = plan.template_digest(digest, {**machine, "rebaked": True})
        wanted = replace(old, tenant=tenant, created_us=time.time_ns() // 1000)
        await self._around.rootd.rebase_template(RebaseTemplate(digest, now.digest, fresh, wanted.settings()))
        return self._store.template_by_digest(fresh)

    # -- caches --------------------------------------------------------------------------------------------------

    async def prune(self, keep_seconds: int, *, dry_run: bool, enough: Callable[[], bool] = lambda: False) -> api.Pruned:
        """Drop steps that builds keep, least recently used first, until there is enough. A step that a builder or a build needs stays."""
        steps = [each for each in self._store.own_templates() if each.kind == "step" and not self.needed[each.digest]]
        steps += [each for each, _ in self._store.unusable_templates() if each.kind == "step"]
        gone, freed = [], 0
        for used_at, digest in sorted((self._used_at(each.digest), each.digest) for each in steps):
            if (keep_seconds and used_at > time.time() - keep_seconds) or enough():
                break
            size = self._used(digest)
            if not dry_run:
                try:
                    await self._around.rootd.drop_template(digest)
                except SpaceError:  # a builder has it
                    continue
            gone.append(digest)
            freed += size
        return api.Pruned(gone, freed)

    async def make_room(self) -> None:
        """Where the file system is nearly full, kept steps go until it is not: they are caches, and nothing else is touched."""
        if not self.is_low or self._making_room:
            return
        self._making_room = True
        try:
            done = await self.prune(0, dry_run=False, enough=lambda: not self.is_low)
            log.warning(
                "the data's file system is nearly full: %d kept steps of builds went, %d MiB", len(done.steps), done.freed_bytes // MIB
            )
        finally:
            self._making_room = False

    @property
    def is_low(self) -> bool:
        """Whether the file system has so little free that caches go."""
        place = self._store.own
        if place is None or not place.is_dir():
            return False
        facts = os.statvfs(place)
        return facts.f_bavail * facts.f_frsize < min(ROOM_BYTES, facts.f_blocks * facts.f_frsize // ROOM_SHARE)

    def _used(self, digest: str) -> int:
        with suppress(OSError):
            return (self._store.directory(digest) / DISK).stat().st_blocks * 512
        return 0

    def _used_at(self, digest: str) -> float:
        with suppress(OSError):
            return os.stat(self._store.directory(digest)).st_mtime  # noqa: PTH116
        return 0.0
