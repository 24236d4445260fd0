"""Builds of templates: a recipe, its files, and a log that can be followed while the node works.

    waiting -> building -> done | failed          (waiting: for its files, ten minutes at most)

A build is a row from its begin on, so that one which the end of control cut off is told as failed, with the reason; its log is of this
process's life. What its steps made is kept by the node. A builder counts towards its tenant's quota until the build is over.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from space.control import limits
from space.control import template_rows as rows_of
from space.control.link import NodeLink, decoded
from space.control.quotas import Quotas
from space.control.template_rows import TemplateNews
from space.control.wire_templates import BuildInfo, BuildRequest, DownloadInfo, PlanInfo
from space.core.template import plan
from space.core.template.model import FromDebian, FromTemplate, Recipe
from space.core.template.recipe import RecipeRefused, parse
from space.core.wire.events import Data, Message
from space.model.errors import Conflict, InvalidArgument, NoCapacity, NotFound, SpaceError, Unavailable
from space.model.sandbox import SandboxSpec
from space.model.tenants import Usage
from space.rpc import node_api as api
from space.rpc.stream import Stream

if TYPE_CHECKING:
    from space.control.policies import Policies
    from space.control.templates import Templates

log = logging.getLogger(__name__)

_MOST_BUILDS = 20  # of a tenant that are remembered; the oldest that has ended goes
_MOST_WAITING = 4
_WAIT_SECONDS = 600.0
_MOST_LINES = 20_000
_MOST_TEXT = 8 << 10
_ANSWERS = api.BuildStep | api.TemplateInfo | api.Gap
_BUILDERS_DISK_MIB = 2048  # where the recipe says none: the base template's
CUT_OFF = "the server was restarted meanwhile; the steps that were done are kept, so build it again"


@dataclass(slots=True)
class Build:
    """One build and its log: dictionaries, numbered from `first` on."""

    id: str
    tenant: str
    name: str
    tag: str
    request: BuildRequest | None = None  # None for one of an earlier control
    recipe: Recipe | None = None
    base: str = ""
    created_at: float = field(default_factory=time.time)
    state: Any = "waiting"
    step: int = 0
    steps: int = 0
    digest: str | None = None
    reason: str | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    first: int = 0
    began: float | None = None  # monotonic: its files came
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.state in ("done", "failed")

    @property
    def egress(self) -> tuple[str, ...]:
        """Policies of its steps."""
        return () if self.recipe is None else plan.egresses(self.recipe)

    @property
    def builder(self) -> Usage:
        """What its builder takes, which is there from the begin on as far as the quota is concerned."""
        if self.over or self.recipe is None:
            return Usage()
        return Usage(1, 1, self.recipe.memory_mib, self.recipe.disk_mib or _BUILDERS_DISK_MIB)

    def info(self) -> BuildInfo:
        """As the API shows it."""
        count = self.first + len(self.lines)
        return BuildInfo(self.id, self.name, self.tag, self.state, self.step, self.steps, count, self.created_at, self.digest, self.reason)

    def say(self, **line: Any) -> None:
        """A line of its log."""
        self.lines.append({"n": self.first + len(self.lines) + 1, **line})
        if len(self.lines) > _MOST_LINES:
            del self.lines[: _MOST_LINES // 4]
            self.first += _MOST_LINES // 4
        self.woken()

    def woken(self) -> None:
        """Who follows looks again."""
        self.changed.set()
        self.changed = asyncio.Event()


class Builds:
    """Every tenant's."""

    def __init__(self, templates: Templates, link: NodeLink, quotas: Quotas) -> None:
        self._templates = templates
        self._link = link
        self._quotas = quotas
        self._builds: dict[str, Build] = {}
        self._policies: Policies
        self.observe_build: Callable[[str, float], None] = lambda outcome, seconds: None
        self.observe_step: Callable[[float], None] = lambda seconds: None

    def under(self, policies: Policies) -> None:
        """Steps with egress have it under these. A layer above them that changes ends the builds that stand under it: what their steps may
        reach is decided when they begin.
        """
        self._policies = policies
        policies.on_layer = self._layer_changed

    def _layer_changed(self, tenant: str | None) -> None:
        for build in list(self._builds.values()):
            if not build.over and build.began is not None and tenant in (None, build.tenant) and build.egress:
                self._end(build, Unavailable("a policy above those of its steps was changed meanwhile; build it again"))
                if build.task is not None:
                    build.task.cancel()

    async def load(self, rows: Sequence[Any]) -> None:
        """Take up what the store holds; what was under way then has failed."""
        for row in rows:
            build = Build(row.id, row.tenant, row.name, row.tag, created_at=row.created_us / 1e6)
            build.state, build.digest, build.reason = row.state, row.digest, row.reason
            self._builds[build.id] = build
            if build.over:
                said = {"digest": build.digest} if build.digest else {"code": "build_failed", "reason": build.reason}
                build.say(kind="end", state=build.state, **said)
            else:
                self._end(build, Unavailable(CUT_OFF))

    async def stop(self) -> None:
        """End them; the node removes their builders."""
        tasks = [build.task for build in self._builds.values() if build.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def usage(self, tenant: str, disks_mib: int) -> Usage:
        """What a tenant's builders take, and so much of disks."""
        taken = [build.builder for build in self._builds.values() if build.tenant == tenant]
        sums = [sum(getattr(each, name) for each in taken) for name in ("sandboxes", "cpus", "memory_mib", "disk_mib")]
        return Usage(sums[0], sums[1], sums[2], sums[3] + disks_mib)

    @property
    def under_way(self) -> int:
        """How many are not over."""
        return sum(not build.over for build in self._builds.values())

    @staticmethod
    def plan(text: str) -> PlanInfo:
        """What has to come along with a recipe."""
        recipe = _parsed(text)
        inputs = plan.wants(recipe)
        steps = plan.layers(recipe, "", dict.fromkeys(inputs, ""), policies=dict.fromkeys(plan.egresses(recipe), ""))
        downloads = [DownloadInfo(each.kind, each.what, each.sha256, each.name) for each in recipe.downloads]
        return PlanInfo(recipe.name, list(inputs), downloads, [step.title for step in steps])

    async def begin(self, tenant: str, request: BuildRequest) -> Build:
        """A build that waits for its files."""
        recipe = _parsed(request.recipe)
        name = request.name or recipe.name
        if not name:
            raise InvalidArgument("the template has no name", hint='name = "..." in the recipe, or `name` in the request')
        await self._templates.check_name(name)
        missing = [path for path in plan.wants(recipe) if path not in request.inputs]
        if missing:
            raise InvalidArgument(f"inputs: {missing[0]!r} is missing", hint="POST /v1/builds/plan says what a recipe needs")
        base = await self._base(tenant, recipe)
        for policy in plan.egresses(recipe):  # refused now, not when its files have come
            await self._policies.choose(tenant, json.loads(policy))
        mine = [each for each in self._builds.values() if each.tenant == tenant]
        if sum(not each.over for each in mine) >= _MOST_WAITING:
            raise NoCapacity(f"{_MOST_WAITING} builds of tenant {tenant} are under way", hint="wait for one, or delete it")
        build = Build(f"bd-{secrets.token_hex(8)}", tenant, name, request.tag, request, recipe, base)
        # Counted and taken with nothing awaited between, as a sandbox is.
        wanted = build.builder
        self._quotas.admit(
            tenant,
            SandboxSpec(cpus=wanted.cpus, memory_mib=wanted.memory_mib, disk_mib=wanted.disk_mib),
            lambda: self._templates.had(tenant),
        )
        self._builds[build.id] = build
        olds = [each for each in mine if each.over][: max(0, len(mine) + 1 - _MOST_BUILDS)]
        row = {"id": build.id, "tenant": tenant, "name": name, "tag": build.tag, "state": build.state}
        row["created_us"] = int(build.created_at * 1e6)
        try:
            await self._templates.write(tenant, rows_of.all_of(rows_of.build(row), *(rows_of.drop(old.id) for old in olds)))
        except BaseException:
            self._builds.pop(build.id, None)
            raise
        for old in olds:
            self._builds.pop(old.id, None)
        build.task = asyncio.create_task(self._expire(build), name=f"build {build.id}")
        return build

    def builds(self, tenant: str) -> list[Build]:
        """Those that are remembered."""
        return [each for each in self._builds.values() if each.tenant == tenant]

    def build(self, tenant: str, name: str) -> Build:
        """One. NotFound, also for another tenant's."""
        found = self._builds.get(name)
        if found is None or found.tenant != tenant:
            raise NotFound(f"there is no build {name[:40]}", hint="GET /v1/builds lists them")
        return found

    async def feed(self, build: Build, pieces: AsyncIterator[bytes]) -> None:
        """Its files; the build goes on when they are there, whether or not anybody listens. The node's refusal is the build's end."""
        if build.state != "waiting":
            raise Conflict(f"build {build.id} is {build.state}", hint="each build takes its files once")
        build.state, build.began = "building", time.monotonic()
        if build.task is not None:
            build.task.cancel()
        request = build.request
        assert request is not None, "one of an earlier control is over"
        try:
            policies = {each: await self._policies.told(build.tenant, json.loads(each)) for each in build.egress}
            asked = api.TemplateBuild(
                build.tenant, request.recipe, build.base, dict(request.inputs), request.downloads, request.name, policies
            )
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
        if self._builds.pop(build.id, None) is not None:
            self._templates.post(build.tenant, rows_of.drop(build.id)).add_done_callback(_log_failure)

    async def _follow(self, build: Build, stream: Stream) -> None:
        made: api.TemplateInfo | None = None
        try:
            async with stream:
                async for event in stream:
                    made = self._heard(build, event) or made
            if made is None:
                raise Unavailable("the node ended the build without a result")
            also = rows_of.ended(build.id, "done", digest=made.digest)
            await self._templates.made(build.tenant, build.name, build.tag, made, also)
            build.digest, build.state = made.digest, "done"
            self._over(build)
            build.say(kind="end", state="done", digest=made.digest)
        except SpaceError as error:
            self._end(build, error)
        except asyncio.CancelledError:
            if not build.over:
                self._end(build, Unavailable("the build was ended"))
            raise

    def _heard(self, build: Build, event: Data | Message) -> api.TemplateInfo | None:
        if isinstance(event, Data):
            for at in range(0, len(event.payload), _MOST_TEXT):
                text = bytes(event.payload[at : at + _MOST_TEXT]).decode(errors="replace")
                build.say(kind="output", stream="stderr" if event.lane else "stdout", text=text)
            return None
        told = decoded(event, _ANSWERS)
        if isinstance(told, api.BuildStep):
            build.step, build.steps = told.number, told.of
            if told.state == "done":
                self.observe_step(told.took_ms / 1000)
            build.say(kind="step", step=told.number, of=told.of, title=told.title, state=told.state, took_ms=told.took_ms)
        return told if isinstance(told, api.TemplateInfo) else None

    def _end(self, build: Build, error: SpaceError) -> None:
        if not build.over:
            change = rows_of.ended(build.id, "failed", reason=str(error))
            news = TemplateNews("template_failed", build.tenant, f"{build.name}:{build.tag}", str(error)[:2000])
            self._templates.post(build.tenant, change, [news]).add_done_callback(_log_failure)
            build.state, build.reason = "failed", str(error)
            self._over(build)
            build.say(kind="end", state="failed", code=error.code, reason=str(error))

    def _over(self, build: Build) -> None:
        if build.began is not None:
            self.observe_build(build.state, time.monotonic() - build.began)

    async def _expire(self, build: Build) -> None:
        await asyncio.sleep(_WAIT_SECONDS)
        self._end(build, Unavailable(f"its files did not come within {_WAIT_SECONDS:.0f} s"))

    async def _base(self, tenant: str, recipe: Recipe) -> str:
        match recipe.base:
            case FromTemplate(reference=named):
                return self._templates.resolve(tenant, named)[1]
            case FromDebian(packages=packages):
                wanted = plan.debian_name(packages)
                if not await self._templates.is_shipped(wanted):
                    raise NotFound(
                        f"this machine has no root disk with the Debian packages {', '.join(packages)[:200]}",
                        hint=f"the operator makes it on the server's machine: space template layer {' '.join(packages)[:1000]}",
                    )
                return next(each.digest for each in await self._templates.there(tenant) if not each.tenant and each.name == wanted)
            case _:
                return ""


def _log_failure(future: Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("a build's row was not written: %s", error)


def _parsed(text: str) -> Recipe:
    try:
        return parse(text)
    except RecipeRefused as refused:
        raise InvalidArgument(f"recipe: {refused}"[:4000], hint="docs/howto/templates.md has an example of each part") from None
