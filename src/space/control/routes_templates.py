"""Routes of templates and their builds, with their handlers."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

import msgspec
from starlette.types import Send

from space.control import answers, limits, trees, wire
from space.control.answers import Answer
from space.control.builds import Build
from space.control.call import Call, flag, number
from space.control.handlers import repeated
from space.control.route import GUEST, IDEMPOTENCY, JSON, NDJSON, SANDBOX, Access, Body, Query, Reply, Route
from space.control.services import Services
from space.control.templates import LATEST
from space.control.wire_templates import (
    BuildInfo,
    BuildList,
    BuildRequest,
    KeepRequest,
    PlanInfo,
    PlanRequest,
    PruneInfo,
    PruneRequest,
    TagRequest,
    TemplateInfo,
    TemplateList,
)
from space.core.template.recipe import MOST_BYTES
from space.model.errors import (
    BuildFailed,
    Conflict,
    DeadlineExceeded,
    GuestError,
    NoCapacity,
    NotFound,
    ProtocolError,
    SandboxDied,
    Unsupported,
)

_BODY = 2 * MOST_BYTES
_TEMPLATE = "/v1/templates/{name}"
_BUILD = "/v1/builds/{build}"
_NODE = (DeadlineExceeded, ProtocolError)
_TAG = Query("tag", "Which build of it", {"type": "string", "default": LATEST, "maxLength": 63})


def _named(call: Call) -> str:
    return f"{call.params['name']}:{call.argument('tag') or LATEST}"


async def list_templates(call: Call, services: Services) -> Answer:
    """GET /v1/templates."""
    return answers.value(TemplateList(await services.templates.everything(call.tenant)))


async def get_template(call: Call, services: Services) -> Answer:
    """GET /v1/templates/{name}."""
    return answers.value(await services.templates.find(call.tenant, _named(call)))


async def delete_template(call: Call, services: Services) -> Answer:
    """DELETE /v1/templates/{name}."""
    force = flag(call.argument("force"), "force", default=False)
    services.templates.resolve(call.tenant, _named(call))
    await services.templates.delete(call.tenant, _named(call), force=force)
    return answers.nothing()


async def put_tag(call: Call, services: Services) -> Answer:
    """PUT /v1/templates/{name}/tags/{tag}."""
    asked = wire.decode(await call.json(), TagRequest)
    name, tag = call.params["name"], call.params["tag"]
    services.templates.checked(name, tag)
    return answers.value(await services.templates.tag(call.tenant, name, tag, asked.digest))


async def rebake(call: Call, services: Services) -> Answer:
    """POST /v1/templates/{name}/rebake."""
    services.templates.resolve(call.tenant, _named(call))
    return answers.value(await services.templates.rebake(call.tenant, _named(call)), 201)


async def keep_sandbox(call: Call, services: Services) -> Answer:
    """POST /v1/sandboxes/{id}/template."""
    asked = wire.decode(await call.json(), KeepRequest)
    tenant, sandbox, templates = call.tenant, call.params["id"], services.templates
    templates.checked(asked.name, asked.tag)
    entry = await services.sandboxes.wanted(tenant, sandbox)
    repeat = repeated(call, msgspec.json.encode([tenant, sandbox, call.headers.get("idempotency-key")]))
    digest = secrets.token_hex(16) if repeat is None else repeat[1][:16].hex()

    async def take() -> TemplateInfo:
        return await templates.of_sandbox(tenant, sandbox, asked.name, asked.tag, digest)

    return answers.value(await services.sandboxes.lives.instant(entry, take, f"template of {sandbox}"), 201)


async def prune(call: Call, services: Services) -> Answer:
    """POST /v1/prune."""
    asked = wire.decode(await call.json(), PruneRequest)
    done = await services.templates.prune(asked.keep_seconds, dry_run=asked.dry_run)
    return answers.value(PruneInfo(done.steps, done.freed_bytes))


async def plan_build(call: Call, services: Services) -> Answer:
    """POST /v1/builds/plan."""
    return answers.value(services.templates.builds.plan(wire.decode(await call.json(_BODY), PlanRequest).recipe))


async def create_build(call: Call, services: Services) -> Answer:
    """POST /v1/builds."""
    build = await services.templates.builds.begin(call.tenant, wire.decode(await call.json(_BODY), BuildRequest))
    return answers.value(build.info(), 201, Location=f"/v1/builds/{build.id}")


async def list_builds(call: Call, services: Services) -> Answer:
    """GET /v1/builds."""
    return answers.value(BuildList([build.info() for build in services.templates.builds.builds(call.tenant)]))


async def get_build(call: Call, services: Services) -> Answer:
    """GET /v1/builds/{build}."""
    return answers.value(services.templates.builds.build(call.tenant, call.params["build"]).info())


async def put_files(call: Call, services: Services) -> Answer:
    """PUT /v1/builds/{build}/files."""
    build = services.templates.builds.build(call.tenant, call.params["build"])
    if call.media_type not in (trees.MEDIA_TYPE, "application/octet-stream", ""):
        raise Unsupported(f"media type {call.media_type[:80]!r} is no tar stream", hint=f"send {trees.MEDIA_TYPE}")
    await services.templates.builds.feed(build, call.pieces(None))
    return answers.value(build.info())


async def delete_build(call: Call, services: Services) -> Answer:
    """DELETE /v1/builds/{build}."""
    services.templates.builds.cancel(services.templates.builds.build(call.tenant, call.params["build"]))
    return answers.nothing()


async def build_log(call: Call, services: Services) -> LogAnswer:
    """GET /v1/builds/{build}/log."""
    build = services.templates.builds.build(call.tenant, call.params["build"])
    after = number(call.argument("after"), "after", default=0, least=0, most=2**53)
    return LogAnswer(call, build, after, flag(call.argument("follow"), "follow", default=False))


@dataclass(slots=True)
class LogAnswer:
    """The lines of a build's log while the answer is sent; with follow until the build is over."""

    call: Call
    build: Build
    after: int
    follow: bool

    async def send(self, send: Send) -> None:
        """Send it; ClientGone."""
        headers = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.call.while_there(self._lines(send))
        await send({"type": "http.response.body", "body": b""})

    async def _lines(self, send: Send) -> None:
        build = self.build
        while True:
            if self.after < build.first:
                await self._write(send, [{"kind": "gap", "n": build.first}])
                self.after = build.first
            if some := build.lines[self.after - build.first :][:256]:
                await self._write(send, some)
                self.after = int(some[-1]["n"])
            elif build.over or not self.follow:
                return
            else:
                changed = build.changed
                try:
                    async with asyncio.timeout(limits.HEARTBEAT_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    await self._write(send, [{"kind": "heartbeat", "n": self.after}])

    @staticmethod
    async def _write(send: Send, lines: list[dict[str, object]]) -> None:
        body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        await send({"type": "http.response.body", "body": body, "more_body": True})


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/templates",
        "list_templates",
        "What can be booted: the shipped templates, and the tenant's own",
        Access.TENANT,
        list_templates,
        (Reply(200, "All of it", {JSON: TemplateList}),),
        errors=_NODE,
        reserved=True,
        audit=False,
    ),
    Route(
        "GET",
        _TEMPLATE,
        "get_template",
        "One template, by name and tag",
        Access.TENANT,
        get_template,
        (Reply(200, "As it is", {JSON: TemplateInfo}),),
        errors=_NODE,
        query=(_TAG,),
        reserved=True,
        audit=False,
    ),
    Route(
        "DELETE",
        _TEMPLATE,
        "delete_template",
        "Take a tag away, and with a build's last one its disk",
        Access.TENANT,
        delete_template,
        (Reply(204, "It is gone", {}),),
        errors=(*_NODE, Conflict),
        query=(
            _TAG,
            Query("force", "Also while it has sandboxes: their disks are their own", {"type": "boolean", "default": False}),
        ),
        reserved=True,
    ),
    Route(
        "PUT",
        _TEMPLATE + "/tags/{tag}",
        "put_tag",
        "Let a tag lead to one of the tenant's builds",
        Access.TENANT,
        put_tag,
        (Reply(200, "As it is now", {JSON: TemplateInfo}),),
        errors=_NODE,
        body=Body({JSON: TagRequest}),
    ),
    Route(
        "POST",
        _TEMPLATE + "/rebake",
        "rebake_template",
        "The same disk for this machine's kernel, initramfs and VMM; the tag leads there",
        Access.TENANT,
        rebake,
        (Reply(201, "The new build", {JSON: TemplateInfo}),),
        errors=(*_NODE, Conflict, NoCapacity),
        query=(_TAG,),
    ),
    Route(
        "POST",
        SANDBOX + "/template",
        "keep_sandbox_as_template",
        "Its disk of this instant as a template; it goes on",
        Access.TENANT,
        keep_sandbox,
        (Reply(201, "The template (or what an earlier request with this Idempotency-Key made)", {JSON: TemplateInfo}),),
        errors=(*GUEST, NoCapacity),
        headers=(IDEMPOTENCY,),
        body=Body({JSON: KeepRequest}),
    ),
    Route(
        "POST",
        "/v1/prune",
        "prune",
        "Drop what builds keep to be faster; never a template, a sandbox or anything of theirs",
        Access.ADMIN,
        prune,
        (Reply(200, "What went, or would go", {JSON: PruneInfo}),),
        errors=_NODE,
        body=Body({JSON: PruneRequest}, required=False),
    ),
    Route(
        "POST",
        "/v1/builds/plan",
        "plan_build",
        "Read a recipe, and say what has to come along",
        Access.TENANT,
        plan_build,
        (Reply(200, "What it needs", {JSON: PlanInfo}),),
        body=Body({JSON: PlanRequest}),
    ),
    Route(
        "POST",
        "/v1/builds",
        "create_build",
        "Begin a build, which waits for its files",
        Access.TENANT,
        create_build,
        (Reply(201, "It waits", {JSON: BuildInfo}),),
        errors=(*_NODE, NotFound, NoCapacity),
        body=Body({JSON: BuildRequest}),
    ),
    Route(
        "GET",
        "/v1/builds",
        "list_builds",
        "Builds under way, and the last ones",
        Access.TENANT,
        list_builds,
        (Reply(200, "All of them", {JSON: BuildList}),),
        reserved=True,
        audit=False,
    ),
    Route(
        "GET",
        _BUILD,
        "get_build",
        "How a build is doing",
        Access.TENANT,
        get_build,
        (Reply(200, "Now", {JSON: BuildInfo}),),
        reserved=True,
        audit=False,
    ),
    Route(
        "PUT",
        _BUILD + "/files",
        "put_build_files",
        "What came with the recipe: `files/<path>` and `downloads/<kind>/<file>`; the build goes on by itself then",
        Access.TENANT,
        put_files,
        (Reply(200, "They are in the builder, or the build has ended", {JSON: BuildInfo}),),
        errors=(*_NODE, Conflict, NoCapacity, BuildFailed, GuestError, SandboxDied),
        body=Body({trees.MEDIA_TYPE: None}),
    ),
    Route(
        "GET",
        _BUILD + "/log",
        "build_log",
        "A build's log: steps and output, each line once and numbered",
        Access.TENANT,
        build_log,
        (Reply(200, "Lines; also heartbeats and gaps", {NDJSON: None}),),
        query=(
            Query("after", "The `n` of the last line that is known", {"type": "integer", "minimum": 0, "default": 0}),
            Query("follow", "Until the build is over", {"type": "boolean", "default": False}),
        ),
        audit=False,
    ),
    Route(
        "DELETE",
        _BUILD,
        "delete_build",
        "End a build, or forget one that is over; a template that it made stays",
        Access.TENANT,
        delete_build,
        (Reply(204, "It is forgotten", {}),),
        reserved=True,
    ),
)
