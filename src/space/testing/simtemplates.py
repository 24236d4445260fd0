"""Templates of a `SimNode`: builds that do nothing, of recipes that are read for real."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from space.core.template import plan
from space.core.template.recipe import parse
from space.model.errors import Conflict, NotFound, SpaceError
from space.rpc import node_api as api
from space.rpc.session import Data, Stream


class SimTemplates:
    """fail_build: the next builds fail of it, after their first step. files: what came with the last build."""

    def __init__(self, shipped: tuple[str, ...]) -> None:
        self.shipped = [self._info(name, "", hashlib.sha256(name.encode()).hexdigest()[:32]) for name in shipped]
        self.own: dict[str, api.TemplateInfo] = {}
        self.in_use: set[str] = set()
        self.fail_build: SpaceError | None = None
        self.files = b""
        self.verbs: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "templates": self._list,
            "template_build": self._build,
            "template_drop": self._drop,
            "template_rebake": self._rebake,
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
        """A sandbox becomes one."""
        made = self.own[digest] = self._info(name, tenant, digest)
        return made

    async def _list(self, stream: Stream, request: bytes) -> None:
        tenant = msgspec.msgpack.decode(request, type=api.Tenant).tenant
        await stream.send_message(api.TemplateList([*self.shipped, *(each for each in self.own.values() if each.tenant == tenant)]))

    async def _build(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.TemplateBuild)
        recipe = parse(asked.recipe)
        layers = plan.layers(recipe, asked.base, asked.inputs, asked.downloads, salt=asked.tenant)
        self.files = b"".join([bytes(event.payload) async for event in stream if isinstance(event, Data)])
        for number, layer in enumerate(layers, 1):
            await stream.send_message(api.BuildStep(number, len(layers), layer.title, "begun"))
            await stream.send(f"{layer.title}\n".encode())
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

    async def _prune(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(api.Pruned(["a" * 32], 1 << 20), last=True)
