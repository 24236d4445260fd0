"""The OpenAPI 3.1 document, generated from the route table. Deterministic: the golden test compares its bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from space.control.problems import MEDIA_TYPE, Problem
from space.control.route import Access, Query, Reply, Route
from space.control.routes import ROUTES

_PARAMETER = re.compile(r"\{(\w+)\}")
_REQUEST_ID = Query("X-Request-Id", "Joins the answer to log lines: 1 to 64 of A-Za-z0-9._-; anything else is replaced", {"type": "string"})
_REF = "#/components/schemas/{name}"


def document(version: str) -> bytes:
    """The document, as JSON with sorted keys."""
    types = sorted({kind for route in ROUTES for kind in _types(route)} | {Problem}, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(types, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "space",
            "version": version,
            "summary": "Sandboxed Platform for Agentic Code Execution",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }
    return msgspec.json.format(msgspec.json.encode(whole, order="sorted"), indent=1) + b"\n"


def _types(route: Route) -> list[type]:
    media = [route.body.media] if route.body else []
    media += [{"exit": reply.exit, "lines": reply.lines} for reply in route.replies]
    return [kind for known in [*media, *(reply.media for reply in route.replies)] for kind in known.values() if kind is not None]


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in _PARAMETER.findall(route.path)),
            *(_parameter(query, "query") for query in route.query),
            *(_parameter(header, "header") for header in route.headers),
            _parameter(_REQUEST_ID, "header"),
        ],
        "responses": {**{str(reply.status): _reply(reply) for reply in route.replies}, **_problems(route)},
        "security": [] if route.access is Access.OPEN else [{"bearer": []}, {"header": []}],
        "x-access": route.access.value,
    }
    if route.socket is not None:
        operation["x-websocket"] = route.socket
    if route.body is not None:
        operation["requestBody"] = {"required": route.body.required, "content": _content(route.body.media)}
    return operation


def _parameter(query: Query, where: str) -> dict[str, Any]:
    return {"name": query.name, "in": where, "required": query.required, "description": query.about, "schema": query.schema}


def _reply(reply: Reply) -> dict[str, Any]:
    described: dict[str, Any] = {"description": reply.about}
    if reply.media:
        described["content"] = _content(reply.media)
    if reply.exit is not None:
        described["x-exit-frame"] = {"$ref": _REF.format(name=reply.exit.__name__)}
    if reply.lines is not None:
        described["x-line"] = {"$ref": _REF.format(name=reply.lines.__name__)}
    return described


def _content(media: Mapping[str, type | None]) -> dict[str, Any]:
    return {name: {} if kind is None else {"schema": {"$ref": _REF.format(name=kind.__name__)}} for name, kind in media.items()}


def _problems(route: Route) -> dict[str, Any]:
    """One response a status; every code that it can carry is named."""
    by_status: dict[int, list[str]] = {}
    for fault in route.refusals:
        by_status.setdefault(fault.status, []).append(fault.code)
    return {
        str(status): {
            "description": " or ".join(codes),
            "content": {
                MEDIA_TYPE: {"schema": {"allOf": [{"$ref": _REF.format(name="Problem")}, {"properties": {"code": {"enum": codes}}}]}}
            },
        }
        for status, codes in by_status.items()
    }
