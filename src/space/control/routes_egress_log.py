"""Routes of what the gateway decided and counted."""

from __future__ import annotations

import msgspec

from space.control import answers, egress_log
from space.control.answers import Answer
from space.control.call import Call
from space.control.limits import EVENTS_DEFAULT, EVENTS_MAX
from space.control.route import GUEST, JSON, NDJSON, SANDBOX, TEXT, Access, Query, Reply, Route
from space.control.services import Services
from space.model.egresslog import RECORD_KINDS
from space.rpc.node_api import EgressCounters, Target


class EgressInfo(msgspec.Struct, frozen=True):
    """A sandbox's traffic over its life. drops: packets by kind that its filter refused, and `admitted_*` those that it let in.

    connections, requests, denied, names: that were served, or refused for the policy, and names that were answered. worker: whether a
    process serves it now; worker_restarts: how often one was begun after the first.
    """

    drops: dict[str, int]
    connections: int
    requests: int
    denied: int
    names: int
    sent_bytes: int
    received_bytes: int
    worker: bool
    worker_restarts: int


async def counters(call: Call, services: Services) -> Answer:
    """GET .../egress."""
    await services.sandboxes.usable(call.tenant, call.params["id"], paused=True)
    found = await services.link.call("egress_counters", Target(call.params["id"]), EgressCounters)
    return answers.value(msgspec.convert(found, EgressInfo, from_attributes=True))


_QUERY = (
    Query("after", "The `id` of the last line that is known; missing: from now on with follow, from the oldest without", TEXT),
    Query("follow", "Go on with what comes", {"type": "boolean", "default": False}),
    Query(
        "limit",
        f"At most so many records; missing: no end with follow, {EVENTS_DEFAULT} without",
        {"type": "integer", "minimum": 1, "maximum": EVENTS_MAX},
    ),
    Query("since", "Only what is not older, such as 2026-01-31T12:00:00Z", TEXT),
    Query("denied", "Only refusals", {"type": "boolean", "default": False}),
    Query("kind", "Only these, with commas between them: " + ", ".join(RECORD_KINDS), TEXT),
)

ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        SANDBOX + "/egress",
        "egress_counters",
        "A sandbox's traffic in figures, and what its filter dropped",
        Access.TENANT,
        counters,
        (Reply(200, "Over its life", {JSON: EgressInfo}),),
        errors=GUEST,
        audit=False,
    ),
    Route(
        "GET",
        SANDBOX + "/egress/log",
        "egress_log",
        "What the gateway decided of a sandbox's traffic, also when it is gone: each record once, oldest first",
        Access.TENANT,
        egress_log.of_sandbox,
        (Reply(200, "Lines; also heartbeats and gaps", {NDJSON: None}),),
        query=_QUERY,
        audit=False,
    ),
    Route(
        "GET",
        "/v1/egress/log",
        "tenant_egress_log",
        "The same of all sandboxes of the tenant; with an admin key of everybody's",
        Access.TENANT,
        egress_log.of_tenant,
        (Reply(200, "Lines; also heartbeats and gaps", {NDJSON: None}),),
        query=(*_QUERY, Query("tenant", "Only this tenant's", TEXT)),
        audit=False,
    ),
)
