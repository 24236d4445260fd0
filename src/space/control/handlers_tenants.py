"""Handlers of what a tenant's operators ask: changes of a sandbox, history, events, webhooks, quotas, audit."""

from __future__ import annotations

from space.control import answers, event_stream, limits, wire
from space.control import wire_tenants as forms
from space.control.answers import Answer
from space.control.call import Call
from space.control.event_stream import EventsAnswer, number
from space.control.keys import ADMIN
from space.control.services import Services
from space.model.errors import InvalidArgument, PermissionDenied
from space.rpc.node_api import History, MetricsHistory

_LARGEST = 2**53


async def change_sandbox(call: Call, services: Services) -> Answer:
    """PATCH /v1/sandboxes/{id}."""
    revision = _revision(call.headers.get("if-match"))
    asked = wire.decode(await call.json(), forms.ChangeRequest)
    return answers.value(await services.sandboxes.change(call.tenant, call.params["id"], asked, revision=revision))


async def metrics_history(call: Call, services: Services) -> Answer:
    """GET .../metrics/history."""
    since = _seconds(call.argument("since"))
    await services.sandboxes.usable(call.tenant, call.params["id"], paused=True)
    found = await services.link.call("history", History(call.params["id"], int(since * 1e6)), MetricsHistory)
    samples = [
        forms.SampleInfo(at=sample.at_us / 1e6, **{name: getattr(sample, name) for name in forms.SampleInfo.__struct_fields__[1:]})
        for sample in found.samples
    ]
    return answers.value(forms.HistoryInfo(found.interval_ms / 1000, samples))


async def events(call: Call, services: Services) -> EventsAnswer:
    """GET /v1/events."""
    return EventsAnswer(call, services.events, event_stream.asked(call))


async def create_webhook(call: Call, services: Services) -> Answer:
    """POST /v1/webhooks."""
    asked = wire.decode(await call.json(), forms.WebhookRequest)
    return answers.value(await services.webhooks.create(call.tenant, asked.url, asked.kinds, asked.secret), 201)


async def list_webhooks(call: Call, services: Services) -> Answer:
    """GET /v1/webhooks."""
    return answers.value(forms.WebhookList(services.webhooks.infos(call.tenant)))


async def delete_webhook(call: Call, services: Services) -> Answer:
    """DELETE /v1/webhooks/{webhook}."""
    await services.webhooks.delete(call.tenant, call.params["webhook"])
    return answers.nothing()


async def get_quota(call: Call, services: Services) -> Answer:
    """GET /v1/tenants/{tenant}/quota."""
    tenant = wire.check_tenant(call.params["tenant"])
    return answers.value(services.quotas.info(tenant, services.sandboxes.usage(tenant)))


async def put_quota(call: Call, services: Services) -> Answer:
    """PUT /v1/tenants/{tenant}/quota."""
    tenant = wire.check_tenant(call.params["tenant"])
    await services.quotas.set(tenant, forms.quota(wire.decode(await call.json(), forms.QuotaRequest)))
    return answers.value(services.quotas.info(tenant, services.sandboxes.usage(tenant)))


async def list_audit(call: Call, services: Services) -> Answer:
    """GET /v1/audit."""
    tenant = call.argument("tenant")
    if tenant is not None:
        wire.check_tenant(tenant)
    if call.key.scope != ADMIN:
        if tenant not in (None, call.tenant):
            raise PermissionDenied("the audit of another tenant needs a key with scope admin")
        tenant = call.tenant
    after = number(call.argument("after"), "after", least=0, most=_LARGEST) or 0
    limit = number(call.argument("limit"), "limit", least=1, most=limits.AUDIT_MAX) or limits.AUDIT_DEFAULT
    return answers.value(forms.AuditList(*await services.audit.page(after, limit, tenant)))


def _revision(text: str | None) -> int | None:
    """If-Match: a revision, quoted as an ETag or not; `*` is any."""
    if text is None or text.strip() == "*":
        return None
    bare = text.strip().removeprefix('"').removesuffix('"')
    if not bare.isascii() or not bare.isdigit() or len(bare) > 16:
        raise InvalidArgument(f"If-Match: {text[:32]!r} is no revision", hint="the field `revision` of the sandbox")
    return int(bare)


def _seconds(text: str | None) -> float:
    try:
        seconds = 0.0 if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e11:
        raise InvalidArgument(f"since: UNIX seconds, not {(text or '')[:32]!r}", hint="the `at` of the last sample that you have")
    return seconds
