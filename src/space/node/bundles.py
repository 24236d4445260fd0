"""Templates as files: one goes out of the node, or comes in and is one, whole or not at all.

A file that comes is hostile (`blocks`): it is written to a disk that rootd staged, which is no template before every block came and the
digest was right; its size is bounded by what its header says, which is bounded by the tenant's quota, and by what is free.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import cast

from space.config import manifest as manifests
from space.config.artefacts import CERTIFICATE, Store, TemplateManifest
from space.config.shelf import DISK
from space.core.template import plan
from space.core.template.bundle import MAGIC, BundleRefused, Header
from space.core.template.model import FromTemplate, Recipe, Run, Write
from space.model.errors import BuildFailed, Conflict, NoCapacity, NotFound, SpaceError
from space.model.rootd import SealTemplate, StageTemplate
from space.model.sandbox import DEFAULT_TEMPLATE, MIB
from space.node import blocks
from space.node.blocks import Incoming, Part
from space.node.builder import Builds
from space.node.surroundings import Surroundings
from space.node.templates import Templates
from space.rpc import node_api as api
from space.rpc.session import Data, Stream

log = logging.getLogger(__name__)

OURS = "/usr/local/share/ca-certificates/space.crt"  # where set-up puts it (`setup.root`)
_MOST_AT_ONCE = 2
_IMPORT = ".import-"


class Bundles:
    """One a node."""

    def __init__(self, around: Surroundings, store: Store, templates: Templates, builds: Builds) -> None:
        self._around, self._store, self._templates, self._builds = around, store, templates, builds
        self._busy: set[str] = set()
        self._staged: set[str] = set()

    async def tidy(self) -> None:
        """Remove what an import of an earlier node left."""
        place = self._store.own
        if place is None or not place.is_dir():
            return
        for entry in list(place.iterdir()):
            if entry.name.startswith(_IMPORT) and not (place / entry.name.removeprefix(_IMPORT)).exists():
                with suppress(SpaceError):
                    await self._around.rootd.drop_template(entry.name.removeprefix(_IMPORT), force=True)

    async def export(self, stream: Stream, tenant: str, digest: str) -> api.Exported:
        """Send it. NotFound."""
        manifest = self._templates.own(tenant, digest)
        with self._turn(f"export {digest} {id(stream)}"):
            disk = await self._opened(manifest)
            try:
                parts = [Part(disk, 0, manifest.disk_bytes)]
                content = await blocks.digest(parts)
                header = Header(content, manifest.disk_bytes, replace(manifest, tenant="").settings(), manifest.root)
                return await blocks.send(stream, header, MAGIC, parts)
            finally:
                os.close(disk)

    async def _opened(self, manifest: TemplateManifest) -> int:
        if manifest.tenant:
            return await self._around.rootd.open_template(manifest.digest)
        return os.open(self._store.directory(manifest.digest) / DISK, os.O_RDONLY | os.O_CLOEXEC)

    async def take(self, stream: Stream, asked: api.TemplateImport) -> TemplateManifest:
        """What comes is a template of the tenant's. InvalidArgument says why it is none; NoCapacity: no room for its disk."""
        now = self._store.template(DEFAULT_TEMPLATE)
        self._store.stands(now)
        with self._turn(f"import {id(stream)}"):
            await self._templates.make_room()
            coming = _Coming(self, asked, now)
            try:
                await coming.receive(stream)
                manifest = await coming.commit()
            finally:
                await coming.end()
        return await self._trusting(asked.tenant, manifest, coming.header, now)

    async def _trusting(self, tenant: str, manifest: TemplateManifest, header: Header, now: TemplateManifest) -> TemplateManifest:
        """A disk of another machine trusts that machine's root: a step in a builder makes it trust the one of this."""
        if not header.root or not now.root or header.root == now.root:
            return manifest
        certificate = (self._store.authority(now.root) / CERTIFICATE).read_text()
        trusted = Run(("/bin/sh", "-ec", "if command -v update-ca-certificates; then update-ca-certificates; fi"))
        recipe = Recipe(base=FromTemplate(manifest.name), steps=(Write(OURS, certificate), trusted), name=manifest.name)
        try:
            made = await self._builds.over(cast("Stream", _Mute()), tenant, recipe, manifest)
        except BuildFailed as error:
            log.warning("template %s goes on trusting the root of where it was made: %s", manifest.digest, error)
            return manifest
        await self._around.rootd.drop_template(manifest.digest, force=True)
        return made

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        if len(self._busy) >= _MOST_AT_ONCE:
            raise NoCapacity(f"{len(self._busy)} templates are on their way in or out of this node", hint="wait for one to end")
        self._busy.add(name)
        try:
            yield
        finally:
            self._busy.discard(name)

    # -- what `_Coming` asks -------------------------------------------------------------------------------------

    def there(self, tenant: str, digest: str) -> TemplateManifest | None:
        """A template that is here already."""
        try:
            found = self._store.template_by_digest(digest)
        except NotFound:
            return None
        return found if found.tenant == tenant else None

    def claim(self, digest: str) -> None:
        """It is this import's to write; Conflict while another does."""
        if digest in self._staged:
            raise Conflict(f"template {digest} is being imported already", hint="wait for the other import to end")
        self._staged.add(digest)

    async def stage(self, digest: str, disk_bytes: int) -> int:
        """An empty disk of that size, to write."""
        return await self._around.rootd.stage_template(StageTemplate(digest, disk_bytes // MIB))

    async def seal(self, digest: str, onto: str, settings: str) -> TemplateManifest:
        """What was staged is a template."""
        await self._around.rootd.seal_template(SealTemplate(digest, onto, settings))
        return self._store.template_by_digest(digest)

    async def forget(self, digest: str, *, drop: bool) -> None:
        """It is staged no longer."""
        self._staged.discard(digest)
        if drop:
            with suppress(SpaceError):  # rootd is away: it removes what is staged when it begins
                await self._around.rootd.drop_template(digest, force=True)


class _Coming(Incoming):
    """One import."""

    def __init__(self, bundles: Bundles, asked: api.TemplateImport, now: TemplateManifest) -> None:
        super().__init__(MAGIC, asked.most_mib * MIB)
        self._bundles, self._asked, self._now = bundles, asked, now
        self._settings: manifests.TemplateManifest | None = None
        self._digest = ""
        self._there: TemplateManifest | None = None
        self._committed = False

    async def commit(self) -> TemplateManifest:
        """It is a template."""
        if self._there is not None:
            return self._there
        assert self._settings is not None, "they came with the header"
        await self.synced()
        made = await self._bundles.seal(self._digest, self._now.digest, self._settings.settings())
        self._committed = True
        return made

    async def end(self) -> None:
        """Nothing is left of an import that was not committed."""
        for part in self.parts:
            os.close(part.descriptor)
        if self._digest:
            await asyncio.shield(self._bundles.forget(self._digest, drop=not self._committed))

    async def begin(self, header: Header) -> None:
        """Whose it is, and its disk."""
        asked, now = self._asked, self._now
        try:
            author = manifests.settings(header.settings)
        except (ValueError, RecursionError) as error:
            raise BundleRefused(f"its settings: {str(error)[:200]}") from None
        if author["kind"] != "template":
            raise BundleRefused(f"it is a {author['kind']}")
        author |= {"tenant": asked.tenant, "name": asked.name or author["name"], "created_us": time.time_ns() // 1000}
        self._settings = replace(now, **author)
        machine = {"kernel": now.kernel, "initramfs": now.initramfs, "qemu": now.qemu, "root": now.root, "tenant": asked.tenant}
        told = {name: value for name, value in author.items() if name != "created_us"}
        digest = plan.template_digest(header.content, {"imported": header.disk_bytes, **machine, "settings": told})
        self._there = self._bundles.there(asked.tenant, digest)
        if self._there is None:
            self._bundles.claim(digest)
            self._digest = digest
            self.parts = [Part(await self._bundles.stage(digest, header.disk_bytes), 0, header.disk_bytes)]


class _Mute:
    """The stream of a build that nobody follows, and that nothing comes along with but an empty archive."""

    async def send(self, data: bytes, lane: int = 0) -> None:
        pass

    async def send_message(self, message: object, *, last: bool = False) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Data]:
        yield Data(0, bytes(1024))
