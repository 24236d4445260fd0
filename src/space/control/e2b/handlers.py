"""Handlers of sandboxes as E2B's clients ask for them: decode, ask, answer."""

from __future__ import annotations

from typing import Any

import msgspec

from space.control import answers
from space.control.answers import Answer
from space.control.call import Call, number
from space.control.e2b import figures, forms, listing, lives, views
from space.control.e2b.faults import answer as fault_answer
from space.control.e2b.faults import status
from space.control.e2b.ids import to_ours
from space.control.records import Record
from space.control.services import Services
from space.model.errors import InvalidArgument, NoCapacity, SpaceError


async def create_v1(call: Call, services: Services) -> Answer:
    """POST /sandboxes."""
    return await _create(call, services, 1)


async def create(call: Call, services: Services) -> Answer:
    """POST /v2/sandboxes."""
    return await _create(call, services, 2)


async def _create(call: Call, services: Services, version: int) -> Answer:
    asked = forms.decode(await call.json(), forms.NewSandbox)
    record = await lives.create(services, call.tenant, asked, version=version, key=call.headers.get("idempotency-key"))
    call.sandbox = record.id
    return answers.value(views.sandbox(services, record), 201)


async def list_v1(call: Call, services: Services) -> Answer:
    """GET /sandboxes: those that run."""
    wanted = listing.Filter(states=frozenset({"running"}), metadata=listing.pairs(call.argument("metadata")), limit=1_000_000)
    found, _ = listing.page(views.there(services, call.tenant), services.e2b.extras, wanted)
    return answers.value([views.listed(services, one) for one in found])


async def list_all(call: Call, services: Services) -> Answer:
    """GET /v2/sandboxes."""
    there = views.there(services, call.tenant)
    found, token = listing.page(there, services.e2b.extras, listing.parse(call))
    head = {"X_Total_Running": str(sum(views.state(one) == "running" for one in there))} | ({"X_Next_Token": token} if token else {})
    return answers.value([views.listed(services, one) for one in found], 200, **head)


async def get(call: Call, services: Services) -> Answer:
    """GET /sandboxes/{id}."""
    return answers.value(views.detail(services, _mine(call, services)))


async def kill(call: Call, services: Services) -> Answer:
    """DELETE /sandboxes/{id}."""
    await services.sandboxes.delete(call.tenant, _mine(call, services).id)
    return answers.nothing()


async def connect_v1(call: Call, services: Services) -> Answer:
    """POST /sandboxes/{id}/connect."""
    return await _connect(call, services, needs_timeout=True)


async def connect(call: Call, services: Services) -> Answer:
    """POST /v2/sandboxes/{id}/connect."""
    return await _connect(call, services, needs_timeout=False)


async def _connect(call: Call, services: Services, *, needs_timeout: bool) -> Answer:
    _seen(call)
    asked = forms.decode(await call.json(), forms.Connect)
    if needs_timeout and asked.timeout is None:
        raise InvalidArgument("timeout is missing", hint="seconds")
    record, woken = await lives.connect(services, call.tenant, call.params["id"], asked.timeout, cold=asked.memory is False)
    return answers.value(views.sandbox(services, record), 201 if woken else 200)


async def resume(call: Call, services: Services) -> Answer:
    """POST /sandboxes/{id}/resume."""
    _seen(call)
    asked = forms.decode(await call.json(), forms.Resume)
    record, _ = await lives.connect(services, call.tenant, call.params["id"], asked.timeout, cold=asked.memory is False)
    return answers.value(views.sandbox(services, record), 201)


async def pause(call: Call, services: Services) -> Answer:
    """POST /sandboxes/{id}/pause."""
    _seen(call)
    asked = forms.decode(await call.json(), forms.Pause)
    await lives.pause(services, call.tenant, call.params["id"], memory=asked.memory is not False)
    return answers.nothing()


async def timeout(call: Call, services: Services) -> Answer:
    """POST /sandboxes/{id}/timeout."""
    _seen(call)
    await lives.end_in(services, call.tenant, call.params["id"], forms.decode(await call.json(), forms.Timeout).timeout)
    return answers.nothing()


async def refreshes(call: Call, services: Services) -> Answer:
    """POST /sandboxes/{id}/refreshes."""
    _seen(call)
    asked = forms.decode(await call.json(), forms.Refresh)
    await lives.refresh(services, call.tenant, call.params["id"], lives.TIMEOUT if asked.duration is None else asked.duration)
    return answers.nothing()


async def fork(call: Call, services: Services) -> Answer:
    """POST /sandboxes/{id}/fork: all of them, or the same fault for each."""
    _seen(call)
    asked = forms.decode(await call.json(), forms.Fork)
    views.mine(services, call.tenant, call.params["id"])
    try:
        made = await lives.fork(services, call.tenant, call.params["id"], asked)
    except NoCapacity as fault:
        return answers.value([{"error": _told(fault)}] * (asked.count or 1), 201)
    return answers.value([{"sandbox": views.sandbox(services, one)} for one in made], 201)


def _told(fault: SpaceError) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.json.decode(fault_answer(fault).body)
    return {"code": status(fault), "message": said["message"]}


async def network(call: Call, services: Services) -> Answer:
    """PUT /sandboxes/{id}/network."""
    _seen(call)
    await lives.change_network(services, call.tenant, call.params["id"], forms.decode(await call.json(), forms.Network))
    return answers.nothing()


async def metrics(call: Call, services: Services) -> Answer:
    """GET /sandboxes/{id}/metrics."""
    record = _mine(call, services)
    return answers.value(await figures.of(call, services, record))


async def metrics_of_all(call: Call, services: Services) -> Answer:
    """GET /sandboxes/metrics: the last ones of several."""
    return answers.value({"sandboxes": await figures.last(call, services)})


async def logs_v1(call: Call, services: Services) -> Answer:
    """GET /sandboxes/{id}/logs."""
    entries = await figures.logs(call, services, _mine(call, services), first="start")
    return answers.value({"logs": [{"timestamp": one["timestamp"], "line": one["message"]} for one in entries], "logEntries": entries})


async def logs(call: Call, services: Services) -> Answer:
    """GET /v2/sandboxes/{id}/logs."""
    return answers.value({"logs": await figures.logs(call, services, _mine(call, services), first="cursor")})


async def snapshot(call: Call, services: Services) -> Answer:
    """POST /sandboxes/{id}/snapshots."""
    asked = forms.decode(await call.json(), forms.NewSnapshot)
    record = _mine(call, services)
    made, names = await services.e2b.snapshots.make(services, record, asked.name, memory=asked.memory is not False)
    return answers.value({"snapshotID": made, "names": names}, 201)


async def list_snapshots(call: Call, services: Services) -> Answer:
    """GET /snapshots."""
    limit = number(call.argument("limit"), "limit", default=100, least=1, most=100)
    after = number(call.argument("nextToken") or None, "nextToken", default=2**62, least=0, most=2**62)
    asked = call.argument("sandboxID")
    found = services.e2b.snapshots.listed(services, call.tenant, None if not asked else to_ours(asked), call.argument("name"))
    left = [(at, one) for at, one in found if at < after]
    head = {"X_Next_Token": str(left[limit - 1][0])} if len(left) > limit else {}
    return answers.value([{"snapshotID": held, "names": names} for _, (held, names) in left[:limit]], 200, **head)


def _mine(call: Call, services: Services) -> Record:
    found = views.mine(services, call.tenant, call.params["id"])
    call.sandbox = found.id
    return found


def _seen(call: Call) -> None:
    """For the audit: by our own id."""
    call.sandbox = to_ours(call.params["id"])
