"""The API as data: every route with its method, path, handler, who may call it, what it takes, answers and refuses.

Dispatch, OpenAPI and the tests all read this table, so a route cannot be there without its documentation, its
authentication and its tenant check.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from starlette.types import Send

from space.control import handlers, prometheus, trees
from space.control.call import Call
from space.control.processes import NDJSON
from space.control.services import Services
from space.control.wire import (
    CreateRequest,
    Health,
    KeyCreated,
    KeyList,
    KeyRequest,
    MetricsInfo,
    ProcessRequest,
    SandboxList,
    TemplateList,
    TreeInfo,
)
from space.model import frames
from space.model.errors import (
    Conflict,
    DeadlineExceeded,
    Gone,
    GuestError,
    Internal,
    InvalidArgument,
    NoCapacity,
    NotFound,
    PermissionDenied,
    ProtocolError,
    RateLimited,
    SandboxDied,
    SpaceError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from space.model.sandbox import ExitStatus, SandboxInfo


class Access(Enum):
    """Who may call."""

    OPEN = "no key"
    TENANT = "any key"
    ADMIN = "an admin key"


class Sendable(Protocol):
    """An answer."""

    async def send(self, send: Send) -> None:
        """Send it."""


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter. schema: JSON Schema."""

    name: str
    about: str
    schema: dict[str, Any]
    required: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """What a request carries: media type -> its type, or None for bytes."""

    media: Mapping[str, type | None]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """One way to succeed. exit: what the exit frame of a stream of frames carries."""

    status: int
    about: str
    media: Mapping[str, type | None]
    exit: type | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. errors: beyond those that every route of its access can give."""

    method: str
    path: str
    name: str
    about: str
    access: Access
    handler: Callable[[Call, Services], Awaitable[Sendable]]
    replies: tuple[Reply, ...]
    errors: tuple[type[SpaceError], ...] = ()
    query: tuple[Query, ...] = ()
    headers: tuple[Query, ...] = ()
    body: Body | None = None
    # Names of parameters that begin with this are the caller's own.
    open_query: str | None = None

    @property
    def refusals(self) -> list[type[SpaceError]]:
        """Every fault it can answer with."""
        always: list[type[SpaceError]] = [InvalidArgument, PermissionDenied, Unavailable, Internal]
        if self.access is not Access.OPEN:
            always += [Unauthenticated, RateLimited]
        if self.body is not None:
            always += [TooLarge, Unsupported, DeadlineExceeded]
        if "{" in self.path:
            always.append(NotFound)
        return sorted({*always, *self.errors}, key=lambda fault: (fault.status, fault.code))


_JSON = "application/json"
_TEXT = {"type": "string"}
_SANDBOX = "/v1/sandboxes/{id}"
_GUEST: tuple[type[SpaceError], ...] = (Conflict, Gone, SandboxDied, GuestError, ProtocolError, DeadlineExceeded)
_WHERE = (Query("path", "Absolute, or below the user's home", _TEXT, required=True), Query("user", "Guest user; missing: `user`", _TEXT))
_INFO = {_JSON: SandboxInfo}

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/sandboxes",
        "create_sandbox",
        "Make a sandbox and boot it",
        Access.TENANT,
        handlers.create_sandbox,
        (
            Reply(201, "It runs (or is what an earlier request with this Idempotency-Key made)", _INFO),
            Reply(202, "wait=false: it is stored, and on its way", _INFO),
        ),
        errors=(NoCapacity, Conflict, Gone, SandboxDied, GuestError, DeadlineExceeded, ProtocolError, NotFound),
        query=(Query("wait", "false: answer as soon as it is stored", {"type": "boolean", "default": True}),),
        headers=(
            Query(
                "Idempotency-Key",
                "A repeat within 24 hours with the same body gives the same sandbox",
                {"type": "string", "maxLength": 128},
            ),
        ),
        body=Body({_JSON: CreateRequest}, required=False),
    ),
    Route(
        "GET",
        "/v1/sandboxes",
        "list_sandboxes",
        "This tenant's sandboxes, newest first; those that have ended for an hour",
        Access.TENANT,
        handlers.list_sandboxes,
        (Reply(200, "A page", {_JSON: SandboxList}),),
        query=(
            Query("phase", "Only those in this phase", _TEXT),
            Query("template", "Only those of this template", _TEXT),
            Query("limit", "At most so many", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}),
            Query("cursor", "next_cursor of the page before", _TEXT),
            Query("metadata.{name}", "Only those with this value under that name; may be repeated with other names", _TEXT),
        ),
        open_query="metadata.",
    ),
    Route("GET", _SANDBOX, "get_sandbox", "One sandbox", Access.TENANT, handlers.get_sandbox, (Reply(200, "As it is now", _INFO),)),
    Route(
        "DELETE",
        _SANDBOX,
        "delete_sandbox",
        "End a sandbox; legal in every phase, idempotent",
        Access.TENANT,
        handlers.delete_sandbox,
        (Reply(204, "It is gone", {}), Reply(202, "Its end is promised, on the disk; the node has not said yet that it is gone", _INFO)),
    ),
    Route(
        "POST",
        _SANDBOX + "/processes",
        "run_process",
        "Run a command, attached to this request: leaving kills it",
        Access.TENANT,
        handlers.run_process,
        (Reply(200, "Its life as frames or lines, ended by one exit or error", {frames.MEDIA_TYPE: None, NDJSON: None}, ExitStatus),),
        errors=_GUEST,
        query=(Query("stream", "1: this version runs attached processes only", {"type": "boolean"}, required=True),),
        body=Body({_JSON: ProcessRequest, frames.PROCESS_MEDIA_TYPE: None}),
    ),
    Route(
        "PUT",
        _SANDBOX + "/tree",
        "put_tree",
        "Unpack a tar stream below a path of the guest",
        Access.TENANT,
        handlers.put_tree,
        (Reply(200, "It arrived whole: the guest counted what was sent", {_JSON: TreeInfo}),),
        errors=_GUEST,
        query=_WHERE,
        body=Body({trees.MEDIA_TYPE: None}),
    ),
    Route(
        "GET",
        _SANDBOX + "/tree",
        "get_tree",
        "A path of the guest as a tar stream; a connection that closes early means a fault",
        Access.TENANT,
        handlers.get_tree,
        (Reply(200, "The stream; it ends well only if the guest counted the same", {trees.MEDIA_TYPE: None}),),
        errors=_GUEST,
        query=_WHERE,
    ),
    Route(
        "POST",
        _SANDBOX + "/noop",
        "noop",
        "A round trip to the guest's daemon",
        Access.TENANT,
        handlers.noop,
        (Reply(204, "It answered", {}),),
        errors=_GUEST,
    ),
    Route(
        "POST",
        _SANDBOX + "/pause",
        "pause_sandbox",
        "Stop its processors; idempotent",
        Access.TENANT,
        handlers.pause,
        (Reply(200, "It is paused", _INFO),),
        errors=_GUEST,
    ),
    Route(
        "POST",
        _SANDBOX + "/resume",
        "resume_sandbox",
        "Let its processors run; idempotent",
        Access.TENANT,
        handlers.resume,
        (Reply(200, "It runs", _INFO),),
        errors=_GUEST,
    ),
    Route(
        "GET",
        _SANDBOX + "/metrics",
        "sandbox_metrics",
        "Memory, disk and processor time of a sandbox",
        Access.TENANT,
        handlers.sandbox_metrics,
        (Reply(200, "Now", {_JSON: MetricsInfo}),),
        errors=_GUEST,
    ),
    Route(
        "GET",
        "/v1/templates",
        "list_templates",
        "What can be booted",
        Access.TENANT,
        handlers.list_templates,
        (Reply(200, "All of it", {_JSON: TemplateList}),),
        errors=(DeadlineExceeded, ProtocolError),
    ),
    Route(
        "GET",
        "/v1/keys",
        "list_keys",
        "Every key, without secrets",
        Access.ADMIN,
        handlers.list_keys,
        (Reply(200, "All of them", {_JSON: KeyList}),),
    ),
    Route(
        "POST",
        "/v1/keys",
        "create_key",
        "Mint a key for a tenant",
        Access.ADMIN,
        handlers.create_key,
        (Reply(201, "The key, shown this once", {_JSON: KeyCreated}),),
        body=Body({_JSON: KeyRequest}),
    ),
    Route(
        "DELETE",
        "/v1/keys/{key_id}",
        "revoke_key",
        "Revoke a key at once; idempotent",
        Access.ADMIN,
        handlers.revoke_key,
        (Reply(204, "It is revoked, on the disk", {}),),
        errors=(Conflict,),
    ),
    Route(
        "GET",
        "/healthz",
        "health",
        "Whether the server is well, and what isolates its guests",
        Access.OPEN,
        handlers.health,
        (Reply(200, "It answers", {_JSON: Health}),),
    ),
    Route(
        "GET",
        "/metrics",
        "metrics",
        "Figures of the server for Prometheus",
        Access.ADMIN,
        handlers.metrics,
        (Reply(200, "Now", {prometheus.MEDIA_TYPE: None}),),
    ),
    Route(
        "GET",
        "/openapi.json",
        "openapi",
        "This document",
        Access.TENANT,
        handlers.openapi_document,
        (Reply(200, "OpenAPI 3.1", {_JSON: None}),),
    ),
)
