"""One function a route: decode, ask a service, answer. No rules of their own; `routes` says who may call them."""

from __future__ import annotations

import hashlib
import re

import msgspec

from space.control import answers, listing, prometheus, trees, wire
from space.control.answers import Answer
from space.control.call import Call, flag
from space.control.services import Services
from space.control.trees import TreeAnswer
from space.control.wire import CreateRequest, Health, KeyCreated, KeyList, KeyRequest, MetricsInfo, SandboxList
from space.model.errors import InvalidArgument
from space.rpc.node_api import Done, Metrics, Target, Tree

_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,128}\Z")


def repeated(call: Call, said: bytes) -> tuple[str, bytes] | None:
    """The request's Idempotency-Key, if it has one, and a digest of what it asks for: not of how that was spelled, for a client may order
    or space its JSON anew. InvalidArgument.
    """
    key = call.headers.get("idempotency-key")
    if key is None:
        return None
    if not _IDEMPOTENCY_KEY.match(key):
        raise InvalidArgument("Idempotency-Key: 1 to 128 printable ASCII characters without blanks", hint="a UUID will do")
    return key, hashlib.sha256(said).digest()


async def create_sandbox(call: Call, services: Services) -> Answer:
    """POST /v1/sandboxes."""
    wait = flag(call.argument("wait"), "wait", default=True)
    body = await call.json()
    asked = wire.decode(body, CreateRequest)
    spec = wire.sandbox_spec(asked, max_ttl_seconds=services.settings.max_ttl_seconds)
    said = msgspec.json.encode(wire.asked_for(spec))
    said += b"" if asked.policy is None else msgspec.json.encode(asked.policy, order="deterministic")
    said += msgspec.json.encode(sorted(set(asked.grants))) if asked.grants else b""
    repeat = repeated(call, said)
    info = await services.sandboxes.create(call.tenant, spec, wait=wait, repeat=repeat, policy=asked.policy, grants=asked.grants)
    call.sandbox = info.id
    return answers.value(info, 201 if wait else 202)


async def list_sandboxes(call: Call, services: Services) -> Answer:
    """GET /v1/sandboxes."""
    found, cursor = await services.sandboxes.page(call.tenant, listing.parse(call.query))
    return answers.value(SandboxList(found, cursor))


async def get_sandbox(call: Call, services: Services) -> Answer:
    """GET /v1/sandboxes/{id}."""
    return answers.value(await services.sandboxes.get(call.tenant, call.params["id"]))


async def delete_sandbox(call: Call, services: Services) -> Answer:
    """DELETE /v1/sandboxes/{id}."""
    if await services.sandboxes.delete(call.tenant, call.params["id"]):
        return answers.nothing()
    return answers.value(await services.sandboxes.get(call.tenant, call.params["id"]), 202)


async def put_tree(call: Call, services: Services) -> Answer:
    """PUT .../tree."""
    tree = await _tree(call, services)
    with services.activity.during(tree.sandbox):
        return answers.value(await trees.put(call, services.link, tree))


async def get_tree(call: Call, services: Services) -> TreeAnswer:
    """GET .../tree."""
    return TreeAnswer(call, services, await _tree(call, services))


async def _tree(call: Call, services: Services) -> Tree:
    path, user = wire.check_path(call.argument("path")), wire.check_user(call.argument("user"))
    await services.sandboxes.usable(call.tenant, call.params["id"])
    return Tree(call.params["id"], path, user)


async def noop(call: Call, services: Services) -> Answer:
    """POST .../noop."""
    await services.sandboxes.usable(call.tenant, call.params["id"])
    await services.link.call("noop", Target(call.params["id"]), Done)
    return answers.nothing()


async def sandbox_metrics(call: Call, services: Services) -> Answer:
    """GET .../metrics."""
    await services.sandboxes.usable(call.tenant, call.params["id"], wakes=False)
    found = await call.while_there(services.link.call("metrics", Target(call.params["id"]), Metrics))
    return answers.value(msgspec.convert(found, MetricsInfo, from_attributes=True))


async def list_keys(call: Call, services: Services) -> Answer:
    """GET /v1/keys."""
    return answers.value(KeyList(services.keys.infos()))


async def create_key(call: Call, services: Services) -> Answer:
    """POST /v1/keys."""
    asked = wire.decode(await call.json(), KeyRequest)
    minted = await services.keys.mint(wire.check_tenant(asked.tenant), asked.scope, asked.name, e2b=asked.e2b)
    key = minted.key
    return answers.value(KeyCreated(key.id, key.tenant, key.scope, key.name, key.created_us / 1e6, minted.text), 201)


async def revoke_key(call: Call, services: Services) -> Answer:
    """DELETE /v1/keys/{key_id}."""
    await services.keys.revoke(call.params["key_id"])
    return answers.nothing()


async def health(call: Call, services: Services) -> Answer:
    """GET /healthz."""
    info = services.link.last_info
    status = "ok" if services.link.is_up else "degraded"
    return answers.value(Health(status, "unknown" if info is None else info.isolation, services.version))


async def metrics(call: Call, services: Services) -> Answer:
    """GET /metrics."""
    await services.egress.refresh()
    return Answer(200, services.figures.text(), prometheus.MEDIA_TYPE)


async def openapi_document(call: Call, services: Services) -> Answer:
    """GET /openapi.json."""
    return Answer(200, services.document, "application/json")
