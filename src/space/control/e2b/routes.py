"""E2B's control API as data, as `space.control.routes` has ours: the same gates, in the same order. docs/e2b.md lists it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from space.control.call import Call
from space.control.e2b import handlers, handlers_secrets, table
from space.control.e2b import handlers_templates as templates
from space.control.e2b.handlers_refused import refusing
from space.control.route import FACE_SANDBOX, JSON, TEXT, Access, Body, Query, Reply, Route, Sendable
from space.control.services import Services

Handler = Callable[[Call, Services], Awaitable[Sendable]]
_BODY = Body({JSON: dict}, required=False)


def _route(method: str, path: str, name: str, about: str, handler: Handler, *query: str, **more: Any) -> Route:
    """One of theirs. query: names of parameters."""
    return Route(
        method, path, f"e2b_{name}", about, Access.TENANT, handler, (Reply(200, about, {JSON: None}),),
        query=tuple(Query(one, "as E2B says", TEXT) for one in query), body=None if method == "GET" else _BODY,
        audit=method != "GET", face=True, **more,
    )  # fmt: skip


_ONE = FACE_SANDBOX
_PAGE = ("metadata", "state", "order", "startedAfter", "template", "limit", "nextToken")

SANDBOXES: tuple[Route, ...] = (
    _route("POST", "/v2/sandboxes", "create", "Make a sandbox", handlers.create),
    _route("POST", "/sandboxes", "create_v1", "Make a sandbox (SDKs before 2.51)", handlers.create_v1),
    _route("GET", "/v2/sandboxes", "list", "A page of sandboxes", handlers.list_all, *_PAGE, reserved=True),
    _route("GET", "/sandboxes", "list_v1", "Sandboxes that run", handlers.list_v1, "metadata", reserved=True),
    _route("GET", "/sandboxes/metrics", "metrics_of_all", "Last figures of several", handlers.metrics_of_all, "sandbox_ids"),
    _route("GET", _ONE, "get", "One sandbox", handlers.get, reserved=True),
    _route("DELETE", _ONE, "kill", "End it", handlers.kill, reserved=True),
    _route("POST", "/v2" + _ONE + "/connect", "connect", "It runs, for at least so long", handlers.connect),
    _route("POST", _ONE + "/connect", "connect_v1", "The same (SDKs before 2.51)", handlers.connect_v1),
    _route("POST", _ONE + "/resume", "resume", "Wake it (older clients)", handlers.resume),
    _route("POST", _ONE + "/pause", "pause", "Put it to rest, with its memory or its disk alone", handlers.pause),
    _route("POST", _ONE + "/timeout", "timeout", "Its time from now on", handlers.timeout, reserved=True),
    _route("POST", _ONE + "/refreshes", "refreshes", "At least so long from now on", handlers.refreshes, reserved=True),
    _route("POST", _ONE + "/fork", "fork", "Copies of its present instant", handlers.fork),
    _route("PUT", _ONE + "/network", "network", "What may leave it from now on", handlers.network),
    _route("GET", _ONE + "/metrics", "metrics", "Its figures over time", handlers.metrics, "start", "end"),
    _route("GET", _ONE + "/logs", "logs_v1", "What happened to it", handlers.logs_v1, "start", "limit"),
    _route("GET", "/v2" + _ONE + "/logs", "logs", "The same, filtered", handlers.logs,
           "cursor", "limit", "direction", "level", "search"),
)  # fmt: skip

SNAPSHOTS: tuple[Route, ...] = (
    _route("POST", _ONE + "/snapshots", "snapshot", "Keep its present instant", handlers.snapshot),
    _route(
        "GET", "/snapshots", "list_snapshots", "A page of snapshots", handlers.list_snapshots, "sandboxID", "name", "limit", "nextToken"
    ),
)

_TEMPLATE, _BUILD = "/templates/{id}", "/templates/{id}/builds/{build}"
TEMPLATES: tuple[Route, ...] = (
    _route("POST", "/v3/templates", "create_template", "Ask for a build", templates.create),
    _route("POST", "/v2/templates", "create_template_v2", "The same (older SDKs)", templates.create),
    _route("POST", "/v2" + _BUILD, "start_build", "Begin it: image or template, steps, commands", templates.start),
    _route("GET", _BUILD + "/status", "build_status", "How far it is, and its log", templates.status, "logsOffset", "limit", "level"),
    _route("GET", _BUILD + "/logs", "build_logs", "Its log", templates.logs, "cursor", "limit", "direction", "level", "source"),
    _route(
        "GET",
        _TEMPLATE + "/files/{hash}",
        "upload_link",
        "Where a COPY step's files go, if they are not there",
        templates.upload_link,
    ),
    _route(
        "PUT",
        _TEMPLATE + "/files/{hash}",
        "upload",
        "The files of a COPY step",
        templates.upload,
        "tenant",
        "until",
        "sign",
        by=templates.uploader,
    ),
    _route("GET", "/templates", "list_templates", "The tenant's own", templates.list_all, "teamID"),
    _route("GET", "/v2/templates", "list_templates_v2", "The same", templates.list_all, "teamID", "limit", "nextToken"),
    _route("GET", "/default-templates", "list_default_templates", "Those that set-up made", templates.list_shipped),
    _route("GET", _TEMPLATE, "get_template", "One with its builds", templates.get, "limit", "nextToken"),
    _route("DELETE", _TEMPLATE, "delete_template", "A template, or a snapshot", templates.delete),
    _route("PATCH", _TEMPLATE, "change_template", "Publish it (refused)", templates.change),
    _route("PATCH", "/v2" + _TEMPLATE, "change_template_v2", "The same", templates.change),
    _route("GET", "/templates/aliases/{alias}", "template_alias", "Whether there is one of that name", templates.alias),
    _route("GET", _TEMPLATE + "/tags", "list_tags", "Its tags", templates.list_tags),
    _route("POST", "/templates/tags", "assign_tags", "Further tags for a build", templates.assign_tags),
    _route("DELETE", "/templates/tags", "remove_tags", "Take tags away", templates.remove_tags),
)

SECRETS: tuple[Route, ...] = (
    _route("POST", "/secrets", "create_secret", "A secret; its value is never told again", handlers_secrets.create),
    _route("GET", "/secrets", "list_secrets", "A page of them", handlers_secrets.list_all, "limit", "nextToken"),
    _route("GET", "/secrets/{id}", "get_secret", "One, without its value", handlers_secrets.get),
    _route("POST", "/secrets/{id}", "change_secret", "Another value, or other metadata", handlers_secrets.change),
    _route("DELETE", "/secrets/{id}", "delete_secret", "Forget it", handlers_secrets.delete),
)

REFUSED: tuple[Route, ...] = tuple(
    _route(method, path, "refused", "What is not here", refusing(reason))
    for (method, _, path), reason in ((route.partition(" "), why) for route, why in table.refused().items())
)

ROUTES: tuple[Route, ...] = (*SANDBOXES, *SNAPSHOTS, *TEMPLATES, *SECRETS, *REFUSED)
