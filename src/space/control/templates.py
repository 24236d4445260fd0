"""Templates of tenants: their names and tags, and the builds that make them.

    waiting -> building -> done | failed          (a build; waiting: for its files, ten minutes at most)

The disks are the node's; a name is a row here. One space of names a tenant, and shipped names are nobody's: `base` means the same to all.
Builds are of this process's life: one that a restart of control cut off is gone, and what its steps made is kept by the node.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from space.control import limits
from space.control.link import NodeLink, decoded
from space.control.store import schema
from space.control.store.store import Store
from space.control.wire_templates import BuildInfo, BuildRequest, DownloadInfo, PlanInfo, TemplateInfo
from space.core.template import plan
from space.core.template.model import FromDebian, FromTemplate, Recipe
from space.core.template.recipe import MOST_DISK_MIB, RecipeRefused, parse, reference
from space.core.wire.events import Data, Message
from space.model.errors import Conflict, InvalidArgument, NoCapacity, NotFound, PermissionDenied, SpaceError, Unavailable
from space.model.ids import template_name
from space.model.sandbox import DEFAULT_TEMPLATE
from space.rpc import node_api as api
from space.rpc.stream import Stream

LATEST = "latest"
_MOST_BUILDS = 20  # of a tenant that are remembered; the oldest that has ended goes
_MOST_WAITING = 4
_WAIT_SECONDS = 600.0
_MOST_LINES = 20_000
_MOST_TEXT = 8 << 10
_ANSWERS = api.BuildStep | api.TemplateInfo | api.Gap


@dataclass(slots=True)
class Build:
    """One build and its log: dictionaries, numbered from `first` on."""

    id: str
    tenant: str
    request: BuildRequest
    recipe: Recipe
    base: str
    created_at: float = field(default_factory=time.time)
    state: Any = "waiting"
    step: int = 0
    steps: int = 0
    digest: str | None = None
    reason: str | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    first: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed")

    def info(self) -> BuildInfo:
        name = self.request.name or self.recipe.name
        count = self.first + len(self.lines)
        return BuildInfo(
            self.id, name, self.request.tag, self.state, self.step, self.steps, count, self.created_at, self.digest, self.reason
        )

    def say(self, **line: Any) -> None:
        self.lines.append({"n": self.first + len(self.lines) + 1, **line})
        if len(self.lines) > _MOST_LINES:
            del self.lines[: _MOST_LINES // 4]
            self.first += _MOST_LINES // 4
        self.woken()

    def woken(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Templates:
    """Every tenant's."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[tuple[str, str, str], str] = {}  # (tenant, name, tag) -> digest
        self._builds: dict[str, Build] = {}
        self._link: NodeLink

    async def start(self, link: NodeLink) -> None:
        """Take up what the store holds."""
        self._link = link
        rows = await self._store.read(lambda connection: connection.execute(select(schema.template_names)).all())
        self._names = {(row.tenant, row.name, row.tag): row.digest for row in rows}

    async def stop(self) -> None:
        """End the builds; the node removes their builders."""
        for build in self._builds.values():
            if build.task is not None:
                build.task.cancel()
        await asyncio.gather(*(build.task for build in self._builds.values() if build.task is not None), return_exceptions=True)

    # -- names ---------------------------------------------------------------------------------------------------

    def resolve(self, tenant: str, named: str) -> tuple[str, str]:
        """Name and digest of a reference; the digest is empty for a name that is no tenant's: the node knows the shipped ones."""
        try:
            name, tag = reference(named)
        except ValueError as error:
            raise InvalidArgument(f"template: {error}", hint="GET /v1/templates lists them") from None
        digest = self._names.get((tenant, name, tag), "")
        if not digest and (tag != LATEST or self._tags(tenant, name)):
            raise NotFound(f"template {name} has no tag {tag}", hint=f"it has {', '.join(self._tags(tenant, name)) or 'none'}")
        return name, digest

    async def everything(self, tenant: str) -> list[TemplateInfo]:
        """The shipped ones, then the tenant's with their tags."""
        return [self._info(tenant, each) for each in await self._there(tenant)]

    async def find(self, tenant: str, named: str) -> TemplateInfo:
        """One by its reference. NotFound."""
        name, digest = self.resolve(tenant, named)
        for each in await self._there(tenant):
            if each.digest == digest or (not digest and not each.tenant and each.name == name):
                return self._info(tenant, each)
        raise NotFound(f"there is no template {named!r}", hint="GET /v1/templates lists them")

    @staticmethod
    def checked(name: str, tag: str) -> None:
        """InvalidArgument when they are no name and tag."""
        try:
            reference(f"{name}:{tag}")
        except ValueError as error:
            raise InvalidArgument(str(error)) from None

    async def tag(self, tenant: str, name: str, tag: str, digest: str) -> TemplateInfo:
        """Let a tag lead to one of the tenant's templates."""
        await self._check_name(name)
        found = next((each for each in await self._there(tenant) if each.digest == digest and each.tenant), None)
        if found is None:
            raise NotFound(f"there is no template with digest {digest[:64]}", hint="GET /v1/templates lists them")
        await self._point(tenant, name, tag, digest)
        return self._info(tenant, found)

    async def delete(self, tenant: str, named: str, *, force: bool) -> None:
        """Take a tag away, and with a template's last one its disk. Conflict while sandboxes of it are there."""
        name, tag = reference(named)
        digest = self._names.get((tenant, name, tag))
        if digest is None:
            if await self._is_shipped(name):
                raise Conflict(f"template {name} was made by set-up, and is not deleted")
            raise NotFound(f"there is no template {named!r}", hint="GET /v1/templates lists them")
        others = [key for key, other in self._names.items() if other == digest and key != (tenant, name, tag)]
        if not others:
            await self._link.call("template_drop", api.TemplateTarget(tenant, digest, force), api.Done)
        await self._store.write(lambda connection: _forget(connection, tenant, name, tag), durable=True)
        self._names.pop((tenant, name, tag), None)

    async def rebake(self, tenant: str, named: str) -> TemplateInfo:
        """The same disk for the kernel, initramfs and VMM of this machine; its tag leads there."""
        name, tag = reference(named)
        digest = self._names.get((tenant, name, tag))
        if digest is None:
            raise NotFound(f"there is no template {named!r} of this tenant's", hint="`space setup` makes the shipped ones")
        made = await self._link.call("template_rebake", api.TemplateTarget(tenant, digest), api.TemplateInfo)
        await self._point(tenant, name, tag, made.digest)
        return self._info(tenant, made)

    async def prune(self, keep_seconds: int, *, dry_run: bool) -> api.Pruned:
        """Drop what builds keep."""
        return await self._link.call("prune", api.Prune(keep_seconds, dry_run), api.Pruned, seconds=600.0)

    async def room(self, tenant: str, name: str) -> int:
        """MiB that the disk of one more template of that name may have. PermissionDenied for a shipped name."""
        await self._check_name(name)
        return MOST_DISK_MIB

    async def arrived(self, tenant: str, name: str, tag: str, made: api.TemplateInfo) -> TemplateInfo:
        """A template that came as a file has a name."""
        await self._point(tenant, name, tag, made.digest)
        return self._info(tenant, made)

    # -- builds --------------------------------------------------------------------------------------------------

    @staticmethod
    def plan(text: str) -> PlanInfo:
        """What has to come along with a recipe."""
        recipe = _parsed(text)
        inputs = plan.wants(recipe)
        steps = plan.layers(recipe, "", dict.fromkeys(inputs, ""))
        downloads = [DownloadInfo(each.kind, each.what, each.sha256, each.name) for each in recipe.downloads]
        return PlanInfo(recipe.name, list(inputs), downloads, [step.title for step in steps])

    async def begin(self, tenant: str, request: BuildRequest) -> Build:
        """A build that waits for its files."""
        recipe = _parsed(request.recipe)
        name = request.name or recipe.name
        if not name:
            raise InvalidArgument("the template has no name", hint='name = "..." in the recipe, or `name` in the request')
        await self._check_name(name)
        missing = [path for path in plan.wants(recipe) if path not in request.inputs]
        if missing:
            raise InvalidArgument(f"inputs: {missing[0]!r} is missing", hint="POST /v1/builds/plan says what a recipe needs")
        mine = [each for each in self._builds.values() if each.tenant == tenant]
        if sum(not each.over for each in mine) >= _MOST_WAITING:
            raise NoCapacity(f"{_MOST_WAITING} builds of tenant {tenant} are under way", hint="wait for one, or delete it")
        for old in [each for each in mine if each.over][: max(0, len(mine) + 1 - _MOST_BUILDS)]:
            del self._builds[old.id]
        build = Build(f"bd-{secrets.token_hex(8)}", tenant, request, recipe, await self._base(tenant, recipe))
        self._builds[build.id] = build
        build.task = asyncio.create_task(self._expire(build), name=f"build {build.id}")
        return build

    def builds(self, tenant: str) -> list[Build]:
        """Those that are remembered."""
        return [each for each in self._builds.values() if each.tenant == tenant]

    def build(self, tenant: str, name: str) -> Build:
        """One. NotFound, also for another tenant's."""
        found = self._builds.get(name)
        if found is None or found.tenant != tenant:
            raise NotFound(f"there is no build {name[:40]}", hint="GET /v1/builds lists them; a restart of the server forgets them")
        return found

    async def feed(self, build: Build, pieces: AsyncIterator[bytes]) -> None:
        """Its files; the build goes on when they are there, whether or not anybody listens. The node's refusal is the build's end."""
        if build.state != "waiting":
            raise Conflict(f"build {build.id} is {build.state}", hint="each build takes its files once")
        build.state = "building"
        if build.task is not None:
            build.task.cancel()
        request = build.request
        asked = api.TemplateBuild(build.tenant, request.recipe, build.base, dict(request.inputs), request.downloads, request.name)
        try:
            stream = await self._link.open("template_build", asked, bulk=True)
        except SpaceError as error:
            self._end(build, error)
            raise
        build.task = asyncio.create_task(self._follow(build, stream), name=f"build {build.id}")
        try:
            async for piece in pieces:
                if build.over:
                    break
                async with asyncio.timeout(limits.CREATE_SECONDS):  # the builder boots first
                    await stream.send(piece)
            stream.close_now()
        except SpaceError:
            if not build.over:
                await asyncio.wait({build.task}, timeout=limits.CALL_SECONDS)
        except BaseException:
            build.task.cancel()
            raise

    def cancel(self, build: Build) -> None:
        """End it; idempotent."""
        if not build.over:
            self._end(build, Unavailable("it was deleted"))
        if build.task is not None:
            build.task.cancel()
        self._builds.pop(build.id, None)

    async def _follow(self, build: Build, stream: Stream) -> None:
        made: api.TemplateInfo | None = None
        try:
            async with stream:
                async for event in stream:
                    made = self._heard(build, event) or made
            if made is None:
                raise Unavailable("the node ended the build without a result")
            await self._point(build.tenant, build.request.name or build.recipe.name, build.request.tag, made.digest)
            build.digest, build.state = made.digest, "done"
            build.say(kind="end", state="done", digest=made.digest)
        except SpaceError as error:
            self._end(build, error)
        except asyncio.CancelledError:
            if not build.over:
                self._end(build, Unavailable("the build was ended"))
            raise

    @staticmethod
    def _heard(build: Build, event: Data | Message) -> api.TemplateInfo | None:
        if isinstance(event, Data):
            for at in range(0, len(event.payload), _MOST_TEXT):
                text = bytes(event.payload[at : at + _MOST_TEXT]).decode(errors="replace")
                build.say(kind="output", stream="stderr" if event.lane else "stdout", text=text)
            return None
        told = decoded(event, _ANSWERS)
        if isinstance(told, api.BuildStep):
            build.step, build.steps = told.number, told.of
            build.say(kind="step", step=told.number, of=told.of, title=told.title, state=told.state, took_ms=told.took_ms)
        return told if isinstance(told, api.TemplateInfo) else None

    @staticmethod
    def _end(build: Build, error: SpaceError) -> None:
        if not build.over:
            build.state, build.reason = "failed", str(error)
            build.say(kind="end", state="failed", code=error.code, reason=str(error))

    async def _expire(self, build: Build) -> None:
        await asyncio.sleep(_WAIT_SECONDS)
        self._end(build, Unavailable(f"its files did not come within {_WAIT_SECONDS:.0f} s"))

    # -- below ---------------------------------------------------------------------------------------------------

    async def _base(self, tenant: str, recipe: Recipe) -> str:
        match recipe.base:
            case FromTemplate(reference=named):
                return self.resolve(tenant, named)[1]
            case FromDebian(packages=packages):
                wanted = plan.debian_name(packages)
                if not await self._is_shipped(wanted):
                    raise NotFound(
                        f"this machine has no root disk with the Debian packages {', '.join(packages)[:200]}",
                        hint=f"the operator makes it on the server's machine: space template layer {' '.join(packages)[:1000]}",
                    )
                return next(each.digest for each in await self._there(tenant) if not each.tenant and each.name == wanted)
            case _:
                return ""

    async def _there(self, tenant: str) -> list[api.TemplateInfo]:
        found: list[api.TemplateInfo] = []
        async with await self._link.open("templates", api.Tenant(tenant), finish=True) as stream:
            async for event in stream:
                if isinstance(event, Message):
                    found += decoded(event, api.TemplateList).templates
        return found

    async def _is_shipped(self, name: str) -> bool:
        return any(each.name == name and not each.tenant for each in await self._there(""))

    async def _check_name(self, name: str) -> None:
        try:
            template_name(name)
        except ValueError as error:
            raise InvalidArgument(f"name: {error}") from None
        if name == DEFAULT_TEMPLATE or await self._is_shipped(name):
            raise PermissionDenied(f"{name} is the name of a shipped template", hint="take another name")

    def _tags(self, tenant: str, name: str) -> list[str]:
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
        await self._store.write(lambda connection: _name(connection, tenant, name, tag, digest), durable=True)
        self._names[(tenant, name, tag)] = digest


_SAME = (
    "digest", "disk_mib", "used_mib", "source", "parent", "env", "user", "cwd", "start", "ready", "hooks", "kernel_release", "problem"
)  # fmt: skip


def _parsed(text: str) -> Recipe:
    try:
        return parse(text)
    except RecipeRefused as refused:
        raise InvalidArgument(f"recipe: {refused}"[:4000], hint="docs/howto/templates.md has an example of each part") from None


def _name(connection: Connection, tenant: str, name: str, tag: str, digest: str) -> None:
    _forget(connection, tenant, name, tag)
    row = {"tenant": tenant, "name": name, "tag": tag, "digest": digest, "created_us": time.time_ns() // 1000}
    connection.execute(insert(schema.template_names).values(**row))


def _forget(connection: Connection, tenant: str, name: str, tag: str) -> None:
    table = schema.template_names
    connection.execute(delete(table).where(table.c.tenant == tenant, table.c.name == name, table.c.tag == tag))
