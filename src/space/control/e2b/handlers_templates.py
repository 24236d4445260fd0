"""Handlers of templates, tags, aliases and builds as E2B's clients ask for them."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from msgspec import Meta, Struct, field

from space.control import answers
from space.control.answers import Answer
from space.control.call import Call, number
from space.control.e2b import forms, images, views
from space.control.e2b.building import DEFAULT_TAG, Base, BuildDoc, ours, theirs
from space.control.e2b.faults import NotHere
from space.control.e2b.ids import ENVD_VERSION
from space.control.e2b.recipes import BuildStart
from space.control.e2b.sizes import ours as plain
from space.control.keys import Key
from space.control.services import Services
from space.control.wire_templates import TemplateInfo
from space.core.template.recipe import MOST_DISK_MIB, reference
from space.model.errors import InvalidArgument, NotFound, Unauthenticated
from space.model.sandbox import DEFAULT_CPUS, DEFAULT_MEMORY_MIB

_UPLOAD_SECONDS = 3600
_PAGE = 100
_Tags = Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=50)]


class NewTemplate(Struct, frozen=True, rename="camel"):
    """name: perhaps with a tag. alias: of older clients."""

    name: Annotated[str, Meta(max_length=200)] | None = None
    alias: Annotated[str, Meta(max_length=200)] | None = None
    tags: _Tags | None = None
    cpu_count: Annotated[int, Meta(ge=1, le=64)] | None = None
    memory_mb: Annotated[int, Meta(ge=128, le=1_048_576)] | None = field(name="memoryMB", default=None)
    min_free_disk_mb: Annotated[int, Meta(ge=0, le=MOST_DISK_MIB)] | None = None


class NewTags(Struct, frozen=True):
    """target: `name:tag`."""

    target: Annotated[str, Meta(max_length=200)]
    tags: _Tags


class OldTags(Struct, frozen=True):
    """Of that name."""

    name: Annotated[str, Meta(max_length=200)]
    tags: _Tags


class Changed(Struct, frozen=True):
    """public: only False is possible."""

    public: bool | None = None


# -- builds -----------------------------------------------------------------------------------------------------------------


async def create(call: Call, services: Services) -> Answer:
    """POST /v3/templates, and older ones of the same meaning."""
    asked = forms.decode(await call.json(), NewTemplate)
    said = asked.name or asked.alias
    if not said:
        raise InvalidArgument("name is missing")
    name, tag = _named(said)
    tags = list(dict.fromkeys([*([tag] if tag else []), *(asked.tags or ())])) or [DEFAULT_TAG]
    for one in tags:
        services.templates.checked(name, ours(one))
    await services.templates.check_name(name)
    disk = None
    if asked.min_free_disk_mb:
        disk = asked.min_free_disk_mb + 2048
    made = await services.e2b.building.ask(
        call.tenant,
        name,
        tags,
        cpus=asked.cpu_count or DEFAULT_CPUS,
        memory_mib=asked.memory_mb or DEFAULT_MEMORY_MIB,
        disk_mib=disk,
    )
    return answers.value({"templateID": name, "buildID": made.id, "public": False, "names": [name], "tags": tags, "aliases": [name]}, 202)


async def start(call: Call, services: Services) -> Answer:
    """POST /v2/templates/{id}/builds/{build}."""
    asked = forms.decode(await call.json(), BuildStart)
    name, _ = _named(call.params["id"])
    services.e2b.building.find(call.tenant, name, call.params["build"])
    base = await _base(call, services, asked)
    await services.e2b.building.start(services.templates, call.tenant, name, call.params["build"], asked, base)
    return answers.value({}, 202)


async def _base(call: Call, services: Services, asked: BuildStart) -> Base:
    if asked.from_template:
        name, tag = _named(asked.from_template)
        named = f"{name}:{ours(tag or DEFAULT_TAG)}" if tag else name
    else:
        image = asked.from_image or "e2bdev/base"
        found = images.template(services.e2b.images, image)
        if found is None:
            raise NotHere(
                f"image {image[:200]!r} is not known here: no image registry is asked",
                hint="the operator's file (setting e2b_images) says which template stands for it; known: "
                + ", ".join(sorted(services.e2b.images))[:1000],
            )
        named = found
    info = await services.templates.find(call.tenant, named)
    return Base(named, info.user, info.cwd, info.disk_mib)


async def status(call: Call, services: Services) -> Answer:
    """GET /templates/{id}/builds/{build}/status."""
    name, _ = _named(call.params["id"])
    found = services.e2b.building.find(call.tenant, name, call.params["build"])
    at = number(call.argument("logsOffset"), "logsOffset", default=0, least=0, most=2**31)
    limit = number(call.argument("limit"), "limit", default=_PAGE, least=0, most=_PAGE)
    lines = services.e2b.building.lines(found.id)[at : at + limit]
    said: dict[str, Any] = {
        "templateID": name,
        "buildID": found.id,
        "status": found.status,
        "logs": [f"{line['message']}\n" for line in lines],
        "logEntries": lines,
    }
    if found.status == "error":
        said["reason"] = {"message": found.reason, "logEntries": []} | ({"step": found.step} if found.step else {})
    return answers.value(said)


async def logs(call: Call, services: Services) -> Answer:
    """GET /templates/{id}/builds/{build}/logs."""
    name, _ = _named(call.params["id"])
    found = services.e2b.building.find(call.tenant, name, call.params["build"])
    limit = number(call.argument("limit"), "limit", default=_PAGE, least=1, most=_PAGE)
    lines = services.e2b.building.lines(found.id)
    if call.argument("direction") == "backward":
        lines = lines[::-1]
    return answers.value({"logs": lines[:limit]})


# -- archives ---------------------------------------------------------------------------------------------------------------


async def upload_link(call: Call, services: Services) -> Answer:
    """GET /templates/{id}/files/{hash}."""
    name, files = call.params["id"], call.params["hash"]
    present = services.e2b.building.archives.has(call.tenant, files)
    until = int(time.time()) + _UPLOAD_SECONDS
    query = f"tenant={call.tenant}&until={until}&sign={_sign(services, call.tenant, files, until)}"
    where = f"{call.scope['scheme']}://{call.headers.get('host', '')}"
    return answers.value({"present": present, "url": f"{where}/templates/{quote(name, safe='')}/files/{files}?{query}"}, 201)


def uploader(services: Services, parameters: Mapping[str, str], query: bytes) -> Key:
    """Who has a link that this server gave. Unauthenticated."""
    said = dict(parse_qsl(query.decode("latin-1")))
    until = said.get("until", "")
    if not until.isascii() or not until.isdigit() or len(until) > 12:
        raise Unauthenticated("this is no upload link")
    right = _sign(services, said.get("tenant", ""), parameters["hash"], int(until))
    if not hmac.compare_digest(right.encode(), said.get("sign", "").encode("utf-8", "surrogateescape")) or int(until) < time.time():
        raise Unauthenticated("the upload link is not right, or its time is over")
    return Key("e2b-upload", said["tenant"], "", "", b"", 0)


def _sign(services: Services, tenant: str, files: str, until: int) -> str:
    return services.e2b.tokens.signed(f"upload:{hashlib.sha256(f'{tenant} {files} {until}'.encode()).hexdigest()}")


async def upload(call: Call, services: Services) -> Answer:
    """PUT /templates/{id}/files/{hash}."""
    await services.e2b.building.archives.put(call.tenant, call.params["hash"], call.pieces(None, "the archive"))
    return Answer(200, b"{}", "application/json")


# -- templates --------------------------------------------------------------------------------------------------------------


async def list_all(call: Call, services: Services) -> Answer:
    """GET /templates, GET /v2/templates."""
    return answers.value([_view(services, call.tenant, *one) for one in sorted((await _there(call, services)).items())])


async def list_shipped(call: Call, services: Services) -> Answer:
    """GET /default-templates."""
    found = [one for one in await services.templates.everything(call.tenant) if one.shipped]
    return answers.value([_view(services, "", one.name, [one]) for one in found])


async def get(call: Call, services: Services) -> Answer:
    """GET /templates/{id}."""
    name, _ = _named(call.params["id"])
    found = (await _there(call, services)).get(name)
    if found is None and not services.e2b.building.doc(call.tenant, name).builds:
        raise NotFound(f"template {name[:64]!r} was not found")
    said = _view(services, call.tenant, name, found or [])
    said["builds"] = [_build(one) for one in services.e2b.building.doc(call.tenant, name).builds[::-1]]
    return answers.value(said)


async def delete(call: Call, services: Services) -> Answer:
    """DELETE /templates/{id}: all of its tags, or that one; also a snapshot."""
    if await services.e2b.snapshots.delete(services, call.tenant, call.params["id"]):
        return answers.nothing()
    name, tag = _named(call.params["id"])
    found = [one for one in services.templates.tags(call.tenant, name) if not tag or one == ours(tag)]
    if not found and (tag or not services.e2b.building.doc(call.tenant, name).builds):
        raise NotFound(f"template {call.params['id'][:128]!r} was not found")
    for one in found:
        await services.templates.delete(call.tenant, f"{name}:{one}", force=False)
    if not services.templates.tags(call.tenant, name):
        await services.e2b.building.forget(call.tenant, name)
    return answers.nothing()


async def change(call: Call, services: Services) -> Answer:
    """PATCH /templates/{id}, PATCH /v2/templates/{id}."""
    asked = forms.decode(await call.json(), Changed)
    name, _ = _named(call.params["id"])
    if name not in await _there(call, services):
        raise NotFound(f"template {name[:64]!r} was not found")
    if asked.public:
        raise NotHere("a template is its tenant's own: it cannot be published here")
    return answers.value({"names": [name]})


async def alias(call: Call, services: Services) -> Answer:
    """GET /templates/aliases/{alias}."""
    name, tag = _named(call.params["alias"])
    if not tag and services.templates.tags(call.tenant, name):  # none of them has to be the usual one
        return answers.value({"templateID": name, "public": False})
    info = await services.templates.find(call.tenant, f"{name}:{ours(tag)}" if tag else name)
    return answers.value({"templateID": name, "public": info.shipped})


async def _there(call: Call, services: Services) -> dict[str, list[TemplateInfo]]:
    """The tenant's own, by name."""
    found: dict[str, list[TemplateInfo]] = {}
    for one in await services.templates.everything(call.tenant):
        if not one.shipped and one.tags:
            found.setdefault(one.name, []).append(one)
    return found


def _view(services: Services, tenant: str, name: str, found: list[TemplateInfo]) -> dict[str, Any]:
    builds = services.e2b.building.doc(tenant, name).builds
    newest = max(found, key=lambda one: one.created_at or 0.0, default=None)
    created = int(min((one.created_at or 0.0 for one in found), default=0.0) * 1e6)
    updated = int((newest.created_at or 0.0) * 1e6) if newest is not None else builds[-1].updated_us
    digest = "" if newest is None else newest.digest
    cpus, memory = services.e2b.building.sizes.get((tenant, digest), (DEFAULT_CPUS, DEFAULT_MEMORY_MIB))
    last = builds[-1].status if builds else "ready"
    return {
        "templateID": name,
        "buildID": services.e2b.building.build_id(tenant, name, digest) if digest else builds[-1].id,
        "cpuCount": cpus,
        "memoryMB": memory,
        "diskSizeMB": 0 if newest is None else newest.disk_mib,
        "public": newest is not None and newest.shipped,
        "aliases": [name],
        "names": [name],
        "createdAt": views.time(created or updated),
        "updatedAt": views.time(updated),
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": sum(views.template_name(services, one) == name for one in services.sandboxes.of_tenant(tenant)),
        "buildCount": len(builds) or len(found),
        "envdVersion": ENVD_VERSION,
        "buildStatus": last,
    }


def _build(doc: BuildDoc) -> dict[str, Any]:
    said: dict[str, Any] = {
        "buildID": doc.id,
        "status": doc.status,
        "createdAt": views.time(doc.created_us),
        "updatedAt": views.time(doc.updated_us),
        "cpuCount": doc.cpus,
        "memoryMB": doc.memory_mib,
        "envdVersion": ENVD_VERSION,
    }
    return said | ({"finishedAt": views.time(doc.updated_us)} if doc.status in ("ready", "error") else {})


# -- tags -------------------------------------------------------------------------------------------------------------------


async def list_tags(call: Call, services: Services) -> Answer:
    """GET /templates/{id}/tags."""
    name, _ = _named(call.params["id"])
    found = (await _there(call, services)).get(name)
    if found is None:
        raise NotFound(f"template {name[:64]!r} was not found")
    return answers.value(
        [
            {
                "tag": theirs(tag),
                "buildID": services.e2b.building.build_id(call.tenant, name, one.digest),
                "createdAt": views.time(int((one.created_at or 0.0) * 1e6)),
            }
            for one in found
            for tag in one.tags
        ]
    )


async def assign_tags(call: Call, services: Services) -> Answer:
    """POST /templates/tags."""
    asked = forms.decode(await call.json(), NewTags)
    name, tag = _named(asked.target)
    _, digest = services.templates.resolve(call.tenant, f"{name}:{ours(tag or DEFAULT_TAG)}")
    if not digest:
        raise NotFound(f"template {asked.target[:128]!r} was not found")
    new = [_named(one)[1] if ":" in one else one for one in asked.tags]
    for one in new:
        services.templates.checked(name, ours(one))
    for one in new:
        await services.templates.tag(call.tenant, name, ours(one), digest)
    return answers.value({"buildID": services.e2b.building.build_id(call.tenant, name, digest), "tags": new}, 201)


async def remove_tags(call: Call, services: Services) -> Answer:
    """DELETE /templates/tags."""
    asked = forms.decode(await call.json(), OldTags)
    name, _ = _named(asked.name)
    there = services.templates.tags(call.tenant, name)
    if missing := [one for one in asked.tags if ours(one) not in there]:
        raise NotFound(f"template {name[:64]!r} has no tag {missing[0][:64]!r}")
    for one in asked.tags:
        await services.templates.delete(call.tenant, f"{name}:{ours(one)}", force=False)
    return answers.nothing()


def _named(text: str) -> tuple[str, str]:
    """Name and tag (theirs; empty for none). NotFound for what is none."""
    said = plain(text)
    name, _, tag = said.partition(":")
    try:
        reference(said)
    except ValueError as error:
        raise InvalidArgument(f"{text[:128]!r} is no name of a template: {error}") from None
    return name, tag
