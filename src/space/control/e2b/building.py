"""Builds of templates as E2B's clients see them: asked for, fed with archives, started, followed; over our own builds.

    POST /v3/templates -> waiting -> (archives) -> POST .../builds/{id} -> building -> ready | error

What is remembered of a template beside its disk (sizes, builds) is a document in the store; the log of a build is of this process's life.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, delete, insert, select

from space.control.builds import Build, Builds
from space.control.e2b import recipes
from space.control.e2b.archives import Archives
from space.control.e2b.recipes import BuildStart, Made
from space.control.records import Record
from space.control.store.schema import e2b_templates
from space.control.store.store import Store
from space.control.templates import LATEST, Templates
from space.control.wire_templates import BuildRequest
from space.model.errors import Conflict, NotFound, SpaceError
from space.model.sandbox import DEFAULT_CPUS, DEFAULT_MEMORY_MIB, MIB

log = logging.getLogger("space.control.e2b")
Status = Literal["waiting", "building", "ready", "error"]
DEFAULT_TAG: Final = "default"  # theirs; ours is `latest`
_AT_ONCE: Final = 2  # of the node
_MOST_BUILDS: Final = 20
_MOST_LINES: Final = 20_000
_MOST_TEXT: Final = 4096
_BUILDER_MIB: Final = 1024
_BUILDERS_MOST_MIB: Final = 8192
_NAMESPACE: Final = uuid.UUID("6f1c1c0e-0b8f-4f60-9a3b-5d0d3f8f2f77")
_NOBODY = re.compile(r'there is no user "([^"]{1,64})"')
CUT_OFF: Final = "the server was restarted meanwhile; the steps that were done are kept, so build it again"


class BuildDoc(Struct, frozen=True, omit_defaults=True):
    """One build. tags: theirs. Times: microseconds. source: of which sandbox's disk it is, where it was not built."""

    id: str
    tags: list[str]
    status: Status
    created_us: int
    updated_us: int
    cpus: int = DEFAULT_CPUS
    memory_mib: int = DEFAULT_MEMORY_MIB
    disk_mib: int | None = None
    digest: str = ""
    reason: str = ""
    step: str = ""
    source: str = ""


class TemplateDoc(Struct, frozen=True, omit_defaults=True):
    """A template of this name, newest build last."""

    builds: list[BuildDoc] = []


@dataclass(slots=True)
class Live:
    """A build of this process's life. lines: of its log, as answers have them."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    build: Build | None = None
    task: asyncio.Task[None] | None = None

    def say(self, message: str, level: str = "info", step: str | None = None) -> None:
        """A line, or several."""
        if len(self.lines) < _MOST_LINES:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{time.time_ns() // 1_000_000 % 1000:03}Z"
            self.lines.append({"timestamp": stamp, "message": message[:_MOST_TEXT], "level": level} | ({"step": step} if step else {}))


class Building:
    """Every tenant's."""

    def __init__(self, store: Store, archives: Archives) -> None:
        self._store = store
        self.archives = archives
        self._docs: dict[tuple[str, str], TemplateDoc] = {}
        self._live: dict[str, Live] = {}
        self._room = asyncio.Semaphore(_AT_ONCE)
        self.sizes: dict[tuple[str, str], tuple[int, int]] = {}

    async def load(self) -> None:
        """Take up what the store holds: a build that was under way is over."""
        rows = await self._store.read(lambda connection: connection.execute(select(e2b_templates)).all())
        for row in rows:
            doc = msgspec.convert(row.doc, TemplateDoc)
            builds = [msgspec.structs.replace(one, status="error", reason=CUT_OFF) if _under_way(one) else one for one in doc.builds]
            self._docs[row.tenant, row.name] = TemplateDoc(builds)
            self._remember(row.tenant, builds)

    async def stop(self) -> None:
        """End those that run."""
        tasks = [live.task for live in self._live.values() if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def doc(self, tenant: str, name: str) -> TemplateDoc:
        """What is known of a template; nothing of one that was made otherwise."""
        return self._docs.get((tenant, name), TemplateDoc())

    def names(self, tenant: str) -> list[str]:
        """Those that builds were asked for under."""
        return sorted(name for owner, name in self._docs if owner == tenant)

    def build_id(self, tenant: str, name: str, digest: str) -> str:
        """Of the build that made a template; of one that was made otherwise a name for its digest."""
        found = [one.id for one in self.doc(tenant, name).builds if one.digest == digest]
        return found[-1] if found else str(uuid.uuid5(_NAMESPACE, digest))

    async def ask(self, tenant: str, name: str, tags: list[str], *, cpus: int, memory_mib: int, disk_mib: int | None) -> BuildDoc:
        """A build that waits for its steps."""
        now = time.time_ns() // 1000
        made = BuildDoc(str(uuid.uuid4()), tags, "waiting", now, now, cpus, memory_mib, disk_mib)
        known = self.doc(tenant, name).builds
        over = [one for one in known if not _under_way(one)][: max(0, len(known) + 1 - _MOST_BUILDS)]
        if len(known) - len(over) >= _MOST_BUILDS:
            raise Conflict(f"{len(known)} builds of template {name} are under way")
        for one in over:
            self._live.pop(one.id, None)
        await self._put(tenant, name, TemplateDoc([*(one for one in known if one not in over), made]))
        self._live[made.id] = Live()
        return made

    def find(self, tenant: str, name: str, build: str) -> BuildDoc:
        """NotFound."""
        for one in self.doc(tenant, name).builds:
            if one.id == build:
                return one
        raise NotFound(f"template {name[:64]} has no build {build[:40]!r}")

    def lines(self, build: str) -> list[dict[str, Any]]:
        """Of its log so far."""
        live = self._live.get(build)
        return [] if live is None else live.lines

    async def start(self, templates: Templates, tenant: str, name: str, build: str, asked: BuildStart, base: Base) -> None:
        """Begin it; it goes on by itself. Conflict, NotFound (an archive), InvalidArgument."""
        doc = self.find(tenant, name, build)
        live = self._live.get(build)
        if doc.status != "waiting" or live is None or live.task is not None:
            raise Conflict(f"build {build} is {doc.status}: each is started once")
        brought = {step.files_hash for step in asked.steps if step.files_hash}
        more = sum(self.archives.size(tenant, one) for one in brought) // MIB
        memory = min(max(_BUILDER_MIB, doc.memory_mib, 2 * more + 512), _BUILDERS_MOST_MIB)
        disk = None if doc.disk_mib is None else max(base.disk_mib, doc.disk_mib)
        made = recipes.made(asked, base=base.name, user=base.user, cwd=base.cwd, memory_mib=memory, disk_mib=disk)
        Builds.plan(made.text)  # what is wrong with it is told now
        live.task = asyncio.create_task(self._drive(templates, tenant, name, doc, live, made), name=f"e2b build {build}")
        await self._change(tenant, name, build, status="building")

    async def kept(self, tenant: str, name: str, version: str, digest: str, record: Record) -> None:
        """A sandbox's disk became a version of a template."""
        now, spec = time.time_ns() // 1000, record.spec
        made = BuildDoc(str(uuid.uuid4()), [version], "ready", now, now, spec.cpus, spec.memory_mib, None, digest, source=record.id)
        self.sizes[tenant, digest] = (spec.cpus, spec.memory_mib)
        await self._put(tenant, name, TemplateDoc([*self.doc(tenant, name).builds, made]))

    async def dropped(self, tenant: str, name: str, version: str) -> None:
        """There is no such version any more."""
        left = [one for one in self.doc(tenant, name).builds if not (one.source and one.tags == [version])]
        if left:
            await self._put(tenant, name, TemplateDoc(left))
        else:
            await self.forget(tenant, name)

    async def forget(self, tenant: str, name: str) -> None:
        """There is no such template any more."""
        for one in self.doc(tenant, name).builds:
            live = self._live.pop(one.id, None)
            if live is not None and live.task is not None:
                live.task.cancel()
        if self._docs.pop((tenant, name), None) is not None:
            await self._store.write(lambda connection: _drop(connection, tenant, name))

    async def _drive(self, templates: Templates, tenant: str, name: str, doc: BuildDoc, live: Live, made: Made) -> None:
        step = "base"
        try:
            async with self._room:
                first, *more = [ours(tag) for tag in doc.tags]
                build = live.build = await templates.builds.begin(tenant, BuildRequest(made.text, name, first))
                feeding = asyncio.create_task(templates.builds.feed(build, self.archives.stream(tenant, made.archives)))
                try:
                    step = await _follow(build, live, made)
                finally:
                    feeding.cancel()
                    await asyncio.gather(feeding, return_exceptions=True)
                if build.state != "done" or build.digest is None:
                    await self._failed(tenant, name, doc.id, live, _words(build.reason or "the build ended", step, made), step)
                    return
                for tag in more:
                    await templates.tag(tenant, name, tag, build.digest)
            live.say("Build finished")
            self.sizes[tenant, build.digest] = (doc.cpus, doc.memory_mib)
            await self._change(tenant, name, doc.id, status="ready", digest=build.digest)
        except SpaceError as fault:
            await self._failed(tenant, name, doc.id, live, str(fault), step)
        except Exception:
            log.exception("a build of template %s failed", name)
            await self._failed(tenant, name, doc.id, live, "the server failed at this build", step)

    async def _failed(self, tenant: str, name: str, build: str, live: Live, reason: str, step: str) -> None:
        live.say(reason, "error", step)
        await self._change(tenant, name, build, status="error", reason=reason, step=step)

    async def _change(self, tenant: str, name: str, build: str, **fields: Any) -> None:
        known = self.doc(tenant, name).builds
        changed = [msgspec.structs.replace(one, updated_us=time.time_ns() // 1000, **fields) if one.id == build else one for one in known]
        if known:  # it may have been deleted meanwhile
            await self._put(tenant, name, TemplateDoc(changed))

    async def _put(self, tenant: str, name: str, doc: TemplateDoc) -> None:
        self._docs[tenant, name] = doc
        await self._store.write(lambda connection: _put(connection, tenant, name, doc))

    def _remember(self, tenant: str, builds: list[BuildDoc]) -> None:
        self.sizes |= {(tenant, one.digest): (one.cpus, one.memory_mib) for one in builds if one.digest}


@dataclass(frozen=True, slots=True)
class Base:
    """What a build stands on. user, cwd: empty for a shipped template's."""

    name: str
    user: str
    cwd: str
    disk_mib: int


async def _follow(build: Build, live: Live, made: Made) -> str:
    """Its lines, until it is over; the client's step that was the last."""
    at, step = 0, "base"
    while True:
        changed, lines = build.changed, build.lines[at - build.first :]
        for line in lines:
            step = _told(line, live, made, step)
        at = build.first + len(build.lines)
        if build.over:
            return step
        await changed.wait()


def _told(line: dict[str, Any], live: Live, made: Made, step: str) -> str:
    match line.get("kind"):
        case "step":
            number = made.indices[line["step"] - 1] if line["step"] <= len(made.indices) else 0
            step = str(number) if number else "finalize"
            if line["state"] in ("begun", "cached"):
                title = made.titles[number - 1] if number else str(line["title"])
                cached = "CACHED " if line["state"] == "cached" else ""
                live.say(f"[builder {number}/{len(made.titles)}] {cached}{title}", step=step)
            elif line["step"] == len(made.indices):
                return "finalize"
        case "output":
            for text in str(line["text"]).splitlines():
                live.say(text, "info" if line["stream"] == "stdout" else "warn", step)
        case _:
            pass
    return step


def _words(reason: str, step: str, made: Made) -> str:
    """A failure in the words that E2B's clients look for."""
    if not step.isdigit() or not 1 <= int(step) <= len(made.titles):
        return reason
    kind, _, said = made.titles[int(step) - 1].partition(" ")
    cause = reason.rpartition("): ")[2]
    if (nobody := _NOBODY.search(cause)) is not None:
        cause = f"unauthenticated: invalid username: '{nobody[1]}'"
    what = "run command" if kind == "RUN" else f"carry out {kind}"
    return f"failed to {what} '{said}': command failed: {cause}"


def ours(tag: str) -> str:
    """Their tag as ours."""
    return LATEST if tag == DEFAULT_TAG else tag


def theirs(tag: str) -> str:
    """Our tag as theirs."""
    return DEFAULT_TAG if tag == LATEST else tag


def _under_way(build: BuildDoc) -> bool:
    return build.status in ("waiting", "building")


def _put(connection: Connection, tenant: str, name: str, doc: TemplateDoc) -> None:
    _drop(connection, tenant, name)
    connection.execute(insert(e2b_templates).values(tenant=tenant, name=name, doc=msgspec.to_builtins(doc)))


def _drop(connection: Connection, tenant: str, name: str) -> None:
    connection.execute(delete(e2b_templates).where(e2b_templates.c.tenant == tenant, e2b_templates.c.name == name))
