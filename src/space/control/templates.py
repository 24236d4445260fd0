"""Templates of tenants: their names and tags, and what their disks count for. `builds` makes them.

The disks are the node's; a name is a row here. One space of names a tenant, and shipped names are nobody's: `base` means the same to all.
What a template's disk holds counts towards its tenant's quota, from its making to its end; so does a builder while it is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from space.control import limits
from space.control import template_rows as rows_of
from space.control.builds import Builds
from space.control.events import EventLog
from space.control.link import NodeLink, decoded
from space.control.quotas import Quotas
from space.control.records import USED, USED_HINT
from space.control.store.store import Store
from space.control.template_rows import TemplateNews
from space.control.wire_templates import TemplateInfo
from space.core.template.recipe import MOST_DISK_MIB, reference
from space.core.wire.events import Message
from space.model.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from space.model.ids import template_name
from space.model.sandbox import DEFAULT_TEMPLATE
from space.model.tenants import Usage
from space.rpc import node_api as api
from space.rpc.life_api import TemplateSnapshot

LATEST = "latest"


class Templates:
    """Every tenant's."""

    def __init__(self, store: Store, events: EventLog, quotas: Quotas) -> None:
        self._store = store
        self._events = events
        self._quotas = quotas
        self._names: dict[tuple[str, str, str], str] = {}  # (tenant, name, tag) -> digest
        self._disks: dict[str, dict[str, int]] = {}  # tenant -> digest -> MiB
        self._link: NodeLink
        self.builds: Builds

    async def start(self, link: NodeLink, had: Callable[[str], Usage]) -> None:
        """Take up what the store holds. had: what a tenant has of everything."""
        self._link = link
        self._had = had
        self._names, self._disks, rows = await self._store.read(rows_of.everything)
        self.builds = Builds(self, link, self._quotas)
        await self.builds.load(rows)

    async def stop(self) -> None:
        """End the builds; the node removes their builders."""
        await self.builds.stop()

    def usage(self, tenant: str) -> Usage:
        """What a tenant's templates and builders take."""
        return self.builds.usage(tenant, sum(self._disks.get(tenant, {}).values()))

    def had(self, tenant: str) -> Usage:
        """What it has of everything."""
        return self._had(tenant)

    @property
    def sizes(self) -> dict[str, int]:
        """MiB that the templates of each tenant hold."""
        return {tenant: sum(disks.values()) for tenant, disks in self._disks.items() if disks}

    # -- names ---------------------------------------------------------------------------------------------------

    def resolve(self, tenant: str, named: str) -> tuple[str, str]:
        """Name and digest of a reference; the digest is empty for a name that is no tenant's: the node knows the shipped ones."""
        try:
            name, tag = reference(named)
        except ValueError as error:
            raise InvalidArgument(f"template: {error}", hint="GET /v1/templates lists them") from None
        digest = self._names.get((tenant, name, tag), "")
        if not digest and (tag != LATEST or self.tags(tenant, name)):
            raise NotFound(f"template {name} has no tag {tag}", hint=f"it has {', '.join(self.tags(tenant, name)) or 'none'}")
        return name, digest

    async def everything(self, tenant: str) -> list[TemplateInfo]:
        """The shipped ones, then the tenant's with their tags."""
        return [self._info(tenant, each) for each in await self.there(tenant)]

    async def find(self, tenant: str, named: str) -> TemplateInfo:
        """One by its reference. NotFound."""
        name, digest = self.resolve(tenant, named)
        for each in await self.there(tenant):
            if each.digest == digest or (not digest and not each.tenant and each.name == name):
                return self._info(tenant, each)
        raise NotFound(f"there is no template {named!r}", hint="GET /v1/templates lists them")

    @staticmethod
    def checked(name: str, tag: str) -> None:
        """InvalidArgument when they are no name and tag."""
        try:
            reference(f"{name}:{tag}")
        except ValueError as error:
            raise InvalidArgument(str(error), hint="1 to 63 of a-z, 0-9, '.', '_' and '-'") from None

    async def tag(self, tenant: str, name: str, tag: str, digest: str) -> TemplateInfo:
        """Let a tag lead to one of the tenant's templates."""
        await self.check_name(name)
        there = await self.there(tenant)
        found = next((each for each in there if each.digest == digest and each.tenant), None)
        if found is None:
            if shipped := next((each for each in there if each.digest == digest), None):
                raise Conflict(f"template {shipped.name} is shipped, and has no tags", hint="a recipe that stands on it is yours to tag")
            raise NotFound(f"there is no template with digest {digest[:64]}", hint="GET /v1/templates lists them")
        await self._point(tenant, name, tag, digest)
        return self._info(tenant, found)

    async def delete(self, tenant: str, named: str, *, force: bool) -> None:
        """Take a tag away, and with a template's last one its disk. Conflict while sandboxes of it are there."""
        name, tag = reference(named)
        digest = self._names.get((tenant, name, tag))
        if digest is None:
            if await self.is_shipped(name):
                raise Conflict(f"template {name} was made by set-up, and is not deleted")
            raise NotFound(f"there is no template {named!r}", hint="GET /v1/templates lists them")
        others = [key for key, other in self._names.items() if other == digest and key != (tenant, name, tag)]
        change, news = rows_of.forget(tenant, name, tag), []
        if not others:
            await self._link.call("template_drop", api.TemplateTarget(tenant, digest, force), api.Done)
            change = rows_of.all_of(change, rows_of.disk(tenant, digest, None))
            news = [TemplateNews("template_deleted", tenant, f"{name}:{tag}", digest)]
            self._disks.get(tenant, {}).pop(digest, None)
        await self.write(tenant, change, news)
        self._names.pop((tenant, name, tag), None)

    async def rebake(self, tenant: str, named: str) -> TemplateInfo:
        """The same disk for the kernel, initramfs and VMM of this machine; its tag leads there."""
        name, tag = reference(named)
        digest = self._names.get((tenant, name, tag))
        if digest is None:
            raise NotFound(f"there is no template {named!r} of this tenant's", hint="`space setup` makes the shipped ones")
        made = await self._link.call("template_rebake", api.TemplateTarget(tenant, digest), api.TemplateInfo)
        await self.made(tenant, name, tag, made)
        return self._info(tenant, made)

    async def prune(self, keep_seconds: int, *, dry_run: bool) -> api.Pruned:
        """Drop what builds keep."""
        return await self._link.call("prune", api.Prune(keep_seconds, dry_run), api.Pruned, seconds=600.0)

    async def room(self, tenant: str, name: str) -> int:
        """MiB that the disk of one more template of that name may have. PermissionDenied for a shipped name, QuotaPassed for no room."""
        await self.check_name(name)
        return self._quotas.room(tenant, lambda: self._had(tenant), most=MOST_DISK_MIB)

    async def arrived(self, tenant: str, name: str, tag: str, made: api.TemplateInfo) -> TemplateInfo:
        """A template that came as a file has a name."""
        await self.made(tenant, name, tag, made)
        return self._info(tenant, made)

    async def of_sandbox(self, tenant: str, sandbox: str, name: str, tag: str, digest: str) -> TemplateInfo:
        """A sandbox's disk of this instant as a template with that digest, which a repeat of the request finds. Conflict for another name
        than the first request's; PermissionDenied, QuotaPassed.
        """
        known = [(named, of) for (owner, named, of), made in self._names.items() if owner == tenant and made == digest]
        if known and (name, tag) not in known:
            raise Conflict(USED, hint=USED_HINT)
        if not known:
            await self.room(tenant, name)
        asked = TemplateSnapshot(sandbox, name, digest)
        made = await self._link.call("template_snapshot", asked, api.TemplateInfo, seconds=limits.LIFE_SECONDS)
        if not known:
            await self.made(tenant, name, tag, made)
        return self._info(tenant, made)

    async def made(self, tenant: str, name: str, tag: str, made: api.TemplateInfo, also: rows_of.Change = lambda _: None) -> None:
        """A template is there, and a tag leads to it. also: in the same transaction."""
        change = rows_of.all_of(rows_of.name(tenant, name, tag, made.digest), rows_of.disk(tenant, made.digest, made.used_mib), also)
        await self.write(tenant, change, [TemplateNews("template_built", tenant, f"{name}:{tag}", made.digest)])
        self._names[(tenant, name, tag)] = made.digest
        self._disks.setdefault(tenant, {})[made.digest] = made.used_mib

    async def write(self, tenant: str, change: rows_of.Change, news: Sequence[TemplateNews] = ()) -> None:
        """Change and events in one transaction; a cancelled caller's happens all the same."""
        await asyncio.shield(asyncio.wrap_future(self.post(tenant, change, news)))

    def post(self, tenant: str, change: rows_of.Change, news: Sequence[TemplateNews] = ()) -> Future[Any]:
        """`write`, for callers that cannot wait."""
        future = self._store.post(self._events.with_news(change, news), durable=True)
        if news:
            self._events.announce(tenant, len(news), future)
        return future

    # -- below ---------------------------------------------------------------------------------------------------

    async def there(self, tenant: str) -> list[api.TemplateInfo]:
        """The shipped ones and the tenant's, as the node has them."""
        found: list[api.TemplateInfo] = []
        async with await self._link.open("templates", api.Tenant(tenant), finish=True) as stream:
            async for event in stream:
                if isinstance(event, Message):
                    found += decoded(event, api.TemplateList).templates
        if tenant:  # those from before disks were counted are counted from now on
            self._disks[tenant] = {each.digest: each.used_mib for each in found if each.tenant}
        return found

    async def is_shipped(self, name: str) -> bool:
        """Whether set-up made one of that name."""
        return any(each.name == name and not each.tenant for each in await self.there(""))

    async def check_name(self, name: str) -> None:
        """InvalidArgument for what is no name, PermissionDenied for a shipped template's."""
        try:
            template_name(name)
        except ValueError as error:
            raise InvalidArgument(f"name: {error}", hint="1 to 63 of a-z, 0-9, '.', '_' and '-'") from None
        if name == DEFAULT_TEMPLATE or await self.is_shipped(name):
            raise PermissionDenied(f"{name} is the name of a shipped template", hint="take another name")

    def tags(self, tenant: str, name: str) -> list[str]:
        """Those of a tenant's template."""
        return sorted(tag for owner, named, tag in self._names if (owner, named) == (tenant, name))

    def _info(self, tenant: str, each: api.TemplateInfo) -> TemplateInfo:
        names = sorted((name, tag) for (owner, name, tag), digest in self._names.items() if owner == tenant and digest == each.digest)
        own = bool(each.tenant)
        fields = {name: getattr(each, name) for name in _SAME}
        return TemplateInfo(
            name=names[0][0] if own and names else each.name,
            tags=[tag for name, tag in names if name == names[0][0]] if own else [],
            shipped=not own,
            created_at=each.created_us / 1e6 if each.created_us else None,
            **fields,
        )

    async def _point(self, tenant: str, name: str, tag: str, digest: str) -> None:
        await self.write(tenant, rows_of.name(tenant, name, tag, digest))
        self._names[(tenant, name, tag)] = digest


_SAME = (
    "digest", "disk_mib", "used_mib", "source", "parent", "env", "user", "cwd", "start", "ready", "hooks", "kernel_release", "problem"
)  # fmt: skip
