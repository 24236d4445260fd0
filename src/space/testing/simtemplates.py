"""Templates of a `SimNode`: builds that do nothing, of recipes that are read for real."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Awaitable, Callable

import msgspec
import zstandard

from space.core.template import bundle, plan
from space.core.template.recipe import parse
from space.model.errors import Conflict, InvalidArgument, NotFound, SpaceError
from space.rpc import node_api as api
from space.rpc.session import Data, Stream


class SimTemplates:
    """fail_build: the next builds fail of it, after their first step. files: what came with the last build.
    lost: bytes that exports lose on their way.
    """

    def __init__(self, shipped: tuple[str, ...]) -> None:
        self.shipped = [self._info(name, "", hashlib.sha256(name.encode()).hexdigest()[:32]) for name in shipped]
        self.own: dict[str, api.TemplateInfo] = {}
        self.in_use: set[str] = set()
        self.fail_build: SpaceError | None = None
        self.files = b""
        self.lost = 0
        self.asked: list[api.TemplateBuild] = []
        self.hold_build: asyncio.Event | None = None
        self.verbs: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "templates": self._list,
            "template_build": self._build,
            "template_drop": self._drop,
            "template_rebake": self._rebake,
            "template_export": self._export,
            "template_import": self._import,
            "prune": self._prune,
        }

    @staticmethod
    def _info(name: str, tenant: str, digest: str) -> api.TemplateInfo:
        return api.TemplateInfo(digest, name, tenant, 2048, 300, 1, "sim", "", {}, "", "", [], [], [], "sim")

    def of(self, tenant: str, digest: str) -> api.TemplateInfo:
        """A tenant's. NotFound."""
        found = self.own.get(digest)
        if found is None or found.tenant != tenant:
            raise NotFound(f"template {digest} is not on this machine")
        return found

    def keep(self, tenant: str, name: str, digest: str) -> api.TemplateInfo:
        """A sandbox becomes one; the one that it is already where the request is repeated."""
        if digest in self.own:
            return self.own[digest]
        made = self.own[digest] = self._info(name, tenant, digest)
        return made

    async def _list(self, stream: Stream, request: bytes) -> None:
        tenant = msgspec.msgpack.decode(request, type=api.Tenant).tenant
        await stream.send_message(api.TemplateList([*self.shipped, *(each for each in self.own.values() if each.tenant == tenant)]))

    async def _build(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.TemplateBuild)
        recipe = parse(asked.recipe)
        self.asked.append(asked)
        layers = plan.layers(recipe, asked.base, asked.inputs, asked.downloads, salt=asked.tenant, policies=asked.policies)
        self.files = b"".join([bytes(event.payload) async for event in stream if isinstance(event, Data)])
        for number, layer in enumerate(layers, 1):
            await stream.send_message(api.BuildStep(number, len(layers), layer.title, "begun"))
            await stream.send(f"{layer.title}\n".encode())
            if self.hold_build is not None:
                await self.hold_build.wait()
            if self.fail_build is not None:
                raise self.fail_build
            await stream.send_message(api.BuildStep(number, len(layers), layer.title, "done", 1))
        digest = plan.template_digest(layers[-1].digest if layers else asked.base, {"name": asked.name, "tenant": asked.tenant})
        made = self.own[digest] = self._info(asked.name or recipe.name, asked.tenant, digest)
        await stream.send_message(made, last=True)

    async def _drop(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.TemplateTarget)
        if asked.digest in self.in_use and not asked.force:
            raise Conflict(f"template {asked.digest} has 1 sandboxes", hint="delete them first")
        self.own.pop(asked.digest, None)
        await stream.send_message(api.Done(), last=True)

    async def _rebake(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.TemplateTarget)
        old = self.of(asked.tenant, asked.digest)
        digest = plan.template_digest(old.digest, {"rebaked": True})
        made = self.own[digest] = msgspec.structs.replace(old, digest=digest, parent=old.digest)
        await stream.send_message(made, last=True)

    async def _export(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.TemplateTarget)
        found = next((each for each in self.shipped if each.digest == asked.digest), None) or self.of(asked.tenant, asked.digest)
        block, content = bundle.Block(0, found.name.encode().ljust(bundle.BLOCK)), bundle.Content()
        content.add(block)
        header = bundle.Header(content.digest(), found.disk_mib << 20, "{}")
        data = zstandard.compress(bundle.head(header) + bundle.pack(block) + bundle.END)
        await stream.send(data)
        await stream.send_message(api.Exported(header.content, len(data) + self.lost, zlib.crc32(data)), last=True)

    async def _import(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.TemplateImport)
        data = b"".join([bytes(event.payload) async for event in stream if isinstance(event, Data)])
        reader = bundle.Reader(asked.most_mib << 20)
        try:
            reader.receive(zstandard.ZstdDecompressor().decompressobj().decompress(data))
            header = reader.close()
        except (bundle.BundleRefused, zstandard.ZstdError) as error:
            raise InvalidArgument(f"this is no template that can be imported: {error}") from None
        digest = plan.template_digest(header.content, {"name": asked.name, "tenant": asked.tenant})
        made = self.own[digest] = msgspec.structs.replace(self._info(asked.name, asked.tenant, digest), disk_mib=header.disk_bytes >> 20)
        await stream.send_message(made, last=True)

    async def _prune(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(api.Pruned(["a" * 32], 1 << 20), last=True)
