"""Templates and suspended sandboxes as files over HTTP: passed through with back-pressure. A download ends well only after the node counted
the same; an upload is answered when it is a template or a sandbox, and what is refused or cut off is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import Send

from space.control import answers
from space.control.answers import Answer
from space.control.call import Call, CutOff
from space.control.link import decoded
from space.control.route import SANDBOX, Access, Body, Query, Reply, Route
from space.control.services import Services
from space.control.templates import LATEST
from space.control.transfer import Count, events, upload
from space.control.wire_templates import TemplateInfo
from space.core.template.recipe import reference
from space.core.wire.events import Data, Message
from space.model.errors import (
    Conflict,
    DeadlineExceeded,
    Gone,
    GuestError,
    InvalidArgument,
    NoCapacity,
    NotFound,
    ProtocolError,
    SpaceError,
    Unsupported,
)
from space.model.sandbox import SandboxInfo
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.stream import Stream

MEDIA_TYPE = "application/zstd"
_PATH = "/v1/templates/{name}/file"
_NODE = (DeadlineExceeded, ProtocolError, GuestError)
_TAG = Query("tag", "Which build of it", {"type": "string", "default": LATEST, "maxLength": 63})


async def export(call: Call, services: Services) -> BundleAnswer:
    """GET /v1/templates/{name}/file."""
    found = await services.templates.find(call.tenant, f"{call.params['name']}:{call.argument('tag') or LATEST}")
    return BundleAnswer(call, services, "template_export", api.TemplateTarget(call.tenant, found.digest))


async def export_sandbox(call: Call, services: Services) -> BundleAnswer:
    """GET /v1/sandboxes/{id}/file."""
    entry = await services.sandboxes.wanted(call.tenant, call.params["id"])
    return BundleAnswer(call, services, "sandbox_export", api.Target(entry.record.id))


async def take_sandbox(call: Call, services: Services) -> Answer:
    """POST /v1/sandboxes/file."""
    _typed(call, "sandbox")

    async def receive(sandbox: str, most_mib: int) -> life_api.Imported:
        asked = life_api.Import(sandbox=sandbox, tenant=call.tenant, most_mib=most_mib)
        async with await services.link.open("sandbox_import", asked, bulk=True) as stream:
            return await upload(call.pieces(None), stream, "the sandbox", Count(), stream.close, _arrived)

    info = await services.sandboxes.arrive(call.tenant, receive)
    call.sandbox = info.id
    return answers.value(info, 201)


def _typed(call: Call, what: str) -> None:
    if call.media_type not in (MEDIA_TYPE, "application/octet-stream", ""):
        raise Unsupported(f"media type {call.media_type[:80]!r} is no {what}", hint=f"send {MEDIA_TYPE}, as the export is")


def _arrived(message: Message) -> life_api.Imported:
    told: life_api.Imported = decoded(message, life_api.Imported)
    return told


async def take(call: Call, services: Services) -> Answer:
    """POST /v1/templates/{name}/file."""
    _typed(call, "template")
    templates, named = services.templates, f"{call.params['name']}:{call.argument('tag') or LATEST}"
    try:
        name, tag = reference(named)
    except ValueError as error:
        raise InvalidArgument(str(error), hint="1 to 63 of a-z, 0-9, '.', '_' and '-'") from None
    most = await templates.room(call.tenant, name)
    asked = api.TemplateImport(call.tenant, name, most)
    async with await services.link.open("template_import", asked, bulk=True) as stream:
        made = await upload(call.pieces(None), stream, "the template", Count(), stream.close, _made)
    return answers.value(await templates.arrived(call.tenant, name, tag, made), 201)


def _made(message: Message) -> api.TemplateInfo:
    told: api.TemplateInfo = decoded(message, api.TemplateInfo)
    return told


@dataclass(frozen=True, slots=True)
class BundleAnswer:
    """A file that is read while the answer is sent. verb: of the node."""

    call: Call
    services: Services
    verb: str
    target: api.TemplateTarget | api.Target

    async def send(self, send: Send) -> None:
        """Send it. SpaceError only before the head has gone out, then CutOff; ClientGone."""
        await self.call.while_there(self._send(send))

    async def _send(self, send: Send) -> None:
        started = False
        try:
            async with await self.services.link.open(self.verb, self.target, bulk=True, finish=True) as stream:
                async for data in _verified(stream):
                    if not started:
                        started = True
                        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
                        await send({"type": "http.response.start", "status": 200, "headers": headers})
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except SpaceError as error:
            if started:
                raise CutOff(error) from error
            raise


async def _verified(stream: Stream) -> AsyncIterator[bytes]:
    """The file's bytes; it ends without a fault only if the node counted the same."""
    count = Count()
    async for event in events(stream, "the file"):
        if isinstance(event, Data):
            if event.payload:
                count.add(event.payload)
                yield event.payload
            continue
        done: api.Exported = decoded(event, api.Exported)
        count.verify("the file", done.bytes, done.crc32)
        return


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        _PATH,
        "export_template",
        "A template as one file: packed, without the holes of its disk, with its digest",
        Access.TENANT,
        export,
        (Reply(200, "The file; its connection breaks where it cannot be whole", {MEDIA_TYPE: None}),),
        errors=(*_NODE, NoCapacity),
        query=(_TAG,),
    ),
    Route(
        "POST",
        _PATH,
        "import_template",
        "Make a template of a file; the tag leads there. It boots with what this machine has",
        Access.TENANT,
        take,
        (Reply(201, "It is a template", {"application/json": TemplateInfo}),),
        errors=(*_NODE, NoCapacity),
        query=(_TAG,),
        body=Body({MEDIA_TYPE: None}),
    ),
    Route(
        "GET",
        f"{SANDBOX}/file",
        "export_sandbox",
        "A suspended sandbox as one file: memory, device state and disk, packed, without holes, sealed by this installation",
        Access.TENANT,
        export_sandbox,
        (Reply(200, "The file; its connection breaks where it cannot be whole", {MEDIA_TYPE: None}),),
        errors=(*_NODE, Conflict, Gone, NoCapacity),
    ),
    Route(
        "POST",
        "/v1/sandboxes/file",
        "import_sandbox",
        "Make a suspended sandbox of a file that this installation wrote: another one than went out, which wakes with the same memory",
        Access.TENANT,
        take_sandbox,
        (Reply(201, "It is suspended", {"application/json": SandboxInfo}),),
        errors=(*_NODE, Conflict, NotFound, NoCapacity),
        body=Body({MEDIA_TYPE: None}),
    ),
)
