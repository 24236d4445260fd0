"""Handlers of what may leave sandboxes: their policies, stored ones, layers, asks, explanations."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from space.control import answers, limits, wire
from space.control import wire_policies as forms
from space.control.answers import Answer
from space.control.call import Call
from space.control.policy_store import OPERATOR
from space.control.services import Services
from space.core.policy import explain as explaining
from space.core.policy.url import parse
from space.core.policy.verdict import Allow
from space.model.egress import ExplainStep, Explanation
from space.model.errors import InvalidArgument

T = TypeVar("T")


async def get_sandbox_policy(call: Call, services: Services) -> Answer:
    """GET /v1/sandboxes/{id}/policy."""
    return answers.value(await services.sandboxes.policies.of(await services.sandboxes.record(call.tenant, call.params["id"])))


async def put_sandbox_policy(call: Call, services: Services) -> Answer:
    """PUT /v1/sandboxes/{id}/policy."""
    asked = await _body(call, forms.SandboxPolicyRequest)
    entry = await services.sandboxes.wanted(call.tenant, call.params["id"])
    return answers.value(await services.sandboxes.policies.set(entry, asked.policy))


async def explain(call: Call, services: Services) -> Answer:
    """POST /v1/sandboxes/{id}/policy/explain."""
    asked = wire.decode(await call.json(), forms.ExplainRequest)
    record = await services.sandboxes.record(call.tenant, call.params["id"])
    try:
        url = parse(asked.url)
    except ValueError as error:
        raise InvalidArgument(f"url: {str(error)[:300]}", hint="absolute, such as https://example.com/") from None
    found = await services.sandboxes.policies.document(record)
    account = explaining.account(found.stack, url, method=asked.method, websocket=asked.websocket, foreign=asked.foreign)
    steps = [ExplainStep(step.asked, explaining.outcome(step.verdict), step.lines) for step in account.steps]
    verdict = account.verdict
    rule = (None if verdict.rule is None else verdict.rule.name) if isinstance(verdict, Allow) else verdict.rule
    return answers.value(Explanation(explaining.outcome(verdict), rule, record.policy_digest, record.policy_generation, steps))


async def list_asks(call: Call, services: Services) -> Answer:
    """GET /v1/sandboxes/{id}/egress/asks."""
    entry = await services.sandboxes.wanted(call.tenant, call.params["id"])
    return answers.value(forms.AskList(list(entry.asks.values())))


async def answer_ask(call: Call, services: Services) -> Answer:
    """POST /v1/sandboxes/{id}/egress/asks/{ask}."""
    asked = wire.decode(await call.json(), forms.AskAnswer)
    entry = await services.sandboxes.wanted(call.tenant, call.params["id"])
    await services.sandboxes.asks.answer(entry, call.params["ask"], allow=asked.allow)
    return answers.nothing()


async def list_policies(call: Call, services: Services) -> Answer:
    """GET /v1/policies."""
    return answers.value(forms.PolicyList(services.sandboxes.policies.infos(call.tenant)))


async def get_policy(call: Call, services: Services) -> Answer:
    """GET /v1/policies/{name}."""
    return answers.value(await services.sandboxes.policies.info(call.tenant, call.params["name"]))


async def put_policy(call: Call, services: Services) -> Answer:
    """PUT /v1/policies/{name}."""
    asked = await _body(call, forms.PolicyRequest)
    stored, new = await services.sandboxes.policies.put(call.tenant, call.params["name"], asked.policy)
    return answers.value(stored, 201 if new else 200)


async def delete_policy(call: Call, services: Services) -> Answer:
    """DELETE /v1/policies/{name}."""
    await services.sandboxes.policies.delete(call.tenant, call.params["name"])
    return answers.nothing()


async def get_operator_policy(call: Call, services: Services) -> Answer:
    """GET /v1/policy."""
    return answers.value(await services.sandboxes.policies.layer(OPERATOR))


async def put_operator_policy(call: Call, services: Services) -> Answer:
    """PUT /v1/policy."""
    asked = await _body(call, forms.LayerRequest)
    return answers.value(await services.sandboxes.policies.set_layer(OPERATOR, asked.policy))


async def get_tenant_policy(call: Call, services: Services) -> Answer:
    """GET /v1/tenants/{tenant}/policy."""
    return answers.value(await services.sandboxes.policies.layer(wire.check_tenant(call.params["tenant"])))


async def put_tenant_policy(call: Call, services: Services) -> Answer:
    """PUT /v1/tenants/{tenant}/policy."""
    tenant = wire.check_tenant(call.params["tenant"])
    asked = await _body(call, forms.TenantLayerRequest)
    return answers.value(await services.sandboxes.policies.set_layer(tenant, asked.policy, asked.default, asked.permits))


async def _body(call: Call, cls: type[T]) -> T:
    """The body, which may be large: then it is read on a thread."""
    body = await call.json(limits.MAX_POLICY_JSON)
    return wire.decode(body, cls) if len(body) <= limits.DECODE_INLINE else await asyncio.to_thread(wire.decode, body, cls)
