"""Routes of what a tenant and its operators watch and govern: changes, history, events, webhooks, quotas, audit."""

from __future__ import annotations

from space.control import handlers_tenants as handlers
from space.control.event_stream import NDJSON, SSE
from space.control.limits import AUDIT_DEFAULT, AUDIT_MAX, EVENTS_DEFAULT, EVENTS_MAX
from space.control.route import GUEST, JSON, SANDBOX, TEXT, Access, Body, Query, Reply, Route
from space.control.wire_tenants import AuditList, ChangeRequest, HistoryInfo, QuotaRequest, WebhookList, WebhookRequest
from space.model.errors import Conflict, Gone
from space.model.events import EVENT_KINDS
from space.model.sandbox import SandboxInfo
from space.model.tenants import QuotaInfo, WebhookCreated

_PLACE = {"type": "integer", "minimum": 0, "maximum": 2**53}

ROUTES: tuple[Route, ...] = (
    Route(
        "PATCH",
        SANDBOX,
        "change_sandbox",
        "Change a sandbox's time to live (from now on), metadata (merged), idle rule, or what becomes of it at the end",
        Access.TENANT,
        handlers.change_sandbox,
        (Reply(200, "As it is now", {JSON: SandboxInfo}),),
        errors=(Conflict, Gone),
        headers=(Query("If-Match", "Only if it is at this revision", TEXT),),
        body=Body({JSON: ChangeRequest}),
    ),
    Route(
        "GET",
        SANDBOX + "/metrics/history",
        "metrics_history",
        "A sandbox's figures over time",
        Access.TENANT,
        handlers.metrics_history,
        (Reply(200, "Oldest first", {JSON: HistoryInfo}),),
        errors=GUEST,
        query=(Query("since", "Only what is newer, UNIX seconds", {"type": "number", "minimum": 0}),),
        audit=False,
    ),
    Route(
        "GET",
        "/v1/events",
        "events",
        "What happens to this tenant's sandboxes: each event once, in order, also over breaks of the connection",
        Access.TENANT,
        handlers.events,
        (Reply(200, "Lines, or server-sent events; also heartbeats and gaps", {NDJSON: None, SSE: None}),),
        query=(
            Query("after", "The last id that is known; missing: from now on with follow, from the oldest without", _PLACE),
            Query("follow", "Go on with what comes; the default for server-sent events", {"type": "boolean", "default": False}),
            Query(
                "limit",
                f"At most so many events; missing: no end with follow, {EVENTS_DEFAULT} without",
                {"type": "integer", "minimum": 1, "maximum": EVENTS_MAX},
            ),
            Query("sandbox", "Only those of this sandbox", TEXT),
            Query("kind", "Only these, with commas between them: " + ", ".join(EVENT_KINDS), TEXT),
        ),
        headers=(Query("Last-Event-ID", "With server-sent events: counts instead of `after`", TEXT),),
        audit=False,
    ),
    Route(
        "POST",
        "/v1/webhooks",
        "create_webhook",
        "Deliver this tenant's events from now on: signed, in order, at least once",
        Access.TENANT,
        handlers.create_webhook,
        (Reply(201, "With the secret of its signatures, shown this once", {JSON: WebhookCreated}),),
        errors=(Conflict,),
        body=Body({JSON: WebhookRequest}),
    ),
    Route(
        "GET",
        "/v1/webhooks",
        "list_webhooks",
        "This tenant's webhooks, and how they are doing",
        Access.TENANT,
        handlers.list_webhooks,
        (Reply(200, "All of them, without secrets", {JSON: WebhookList}),),
        reserved=True,
        audit=False,
    ),
    Route(
        "DELETE",
        "/v1/webhooks/{webhook}",
        "delete_webhook",
        "Deliver nothing more there",
        Access.TENANT,
        handlers.delete_webhook,
        (Reply(204, "It is gone, on the disk", {}),),
        reserved=True,
    ),
    Route(
        "GET",
        "/v1/audit",
        "list_audit",
        "Who did what: a tenant's own, or with an admin key everybody's",
        Access.TENANT,
        handlers.list_audit,
        (Reply(200, "A page, oldest first", {JSON: AuditList}),),
        query=(
            Query("after", "The last id that is known", _PLACE),
            Query("limit", "At most so many", {"type": "integer", "minimum": 1, "maximum": AUDIT_MAX, "default": AUDIT_DEFAULT}),
            Query("tenant", "Only this tenant's", TEXT),
        ),
        audit=False,
    ),
    Route(
        "GET",
        "/v1/tenants/{tenant}/quota",
        "get_quota",
        "What a tenant may have, and has",
        Access.ADMIN,
        handlers.get_quota,
        (Reply(200, "Now", {JSON: QuotaInfo}),),
        reserved=True,
        audit=False,
    ),
    Route(
        "PUT",
        "/v1/tenants/{tenant}/quota",
        "put_quota",
        "Set a tenant's quota, whole; what it has already stays",
        Access.ADMIN,
        handlers.put_quota,
        (Reply(200, "As it counts from now on", {JSON: QuotaInfo}),),
        body=Body({JSON: QuotaRequest}),
    ),
)
