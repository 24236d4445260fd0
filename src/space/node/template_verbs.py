"""What control may ask of templates (`rpc.node_api`): build, list, drop, rebake, export, import, prune."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from space.config.manifest import TemplateManifest
from space.model.errors import SpaceError
from space.model.sandbox import DEFAULT_CPUS, DEFAULT_MEMORY_MIB, DEFAULT_TEMPLATE
from space.node.node import Node
from space.node.process_verbs import decode, pages
from space.rpc import node_api as api
from space.rpc.life_api import Bake
from space.rpc.session import Stream

_NO_HOOK = (
    b"warning: the template has a start command and no restore hook: where it is kept warm, its processes are copied as they are, "
    b"random numbers that they have drawn included ([hooks] in the recipe; see docs/howto/templates.md)\n"
)


class TemplateVerbs:
    """Part of the table of `verbs`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.table: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "template_build": self._build,
            "templates": self._list,
            "template_drop": self._drop,
            "template_rebake": self._rebake,
            "template_export": self._export,
            "template_import": self._import,
            "prune": self._prune,
        }

    async def _build(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.TemplateBuild, request)
        manifest = await self._node.builds.build(stream, asked)
        await self._warmed(stream, asked.tenant, manifest)
        await stream.send_message(self._node.templates.info(manifest), last=True)

    async def _warmed(self, stream: Stream, tenant: str, manifest: TemplateManifest) -> None:
        """Its guest that is up and ready, in the usual size, where this node keeps templates warm. It is there also where that fails."""
        if manifest.start and not manifest.hooks:
            await stream.send(_NO_HOOK, 1)
        if not self._node.around.warm_templates:
            return
        try:
            await self._node.bake(
                Bake(tenant=tenant, template=DEFAULT_TEMPLATE, digest=manifest.digest, cpus=DEFAULT_CPUS, memory_mib=DEFAULT_MEMORY_MIB)
            )
        except SpaceError as error:
            await stream.send(f"its sandboxes boot, for it cannot be kept warm: {error}\n".encode(), 1)

    async def _list(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Tenant, request)
        for page in pages(self._node.templates.list(asked.tenant)):
            await stream.send_message(api.TemplateList(page))

    async def _drop(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.TemplateTarget, request)
        # Guests that are kept warm are nobody's sandboxes: they go with it.
        mine = not self._node.has_sandboxes_of(asked.digest)
        await self._node.templates.drop(asked.tenant, asked.digest, force=asked.force or mine)
        await self._node.warm.drop(asked.digest)
        await stream.send_message(api.Done(), last=True)

    async def _rebake(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.TemplateTarget, request)
        manifest = await self._node.templates.rebake(asked.tenant, asked.digest)
        await stream.send_message(self._node.templates.info(manifest), last=True)

    async def _export(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.TemplateTarget, request)
        await stream.send_message(await self._node.bundles.export(stream, asked.tenant, asked.digest), last=True)

    async def _import(self, stream: Stream, request: bytes) -> None:
        manifest = await self._node.bundles.take(stream, decode(api.TemplateImport, request))
        await stream.send_message(self._node.templates.info(manifest), last=True)

    async def _prune(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Prune, request)
        await stream.send_message(await self._node.templates.prune(asked.keep_seconds, dry_run=asked.dry_run), last=True)
