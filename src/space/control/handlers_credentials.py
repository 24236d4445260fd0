"""Handlers of secrets, grants, and what a sandbox has attached."""

from __future__ import annotations

from space.control import answers, limits
from space.control import wire_credentials as forms
from space.control.answers import Answer
from space.control.call import Call, number
from space.control.credentials import Mode
from space.control.services import Services
from space.model.errors import InvalidArgument


async def list_secrets(call: Call, services: Services) -> Answer:
    """GET /v1/secrets."""
    return answers.value(forms.SecretList(*await services.credentials.secrets(call.tenant, *_page(call, "secret"))))


async def get_secret(call: Call, services: Services) -> Answer:
    """GET /v1/secrets/{name}."""
    return answers.value(await services.credentials.secret(call.tenant, _secret(call)))


async def create_secret(call: Call, services: Services) -> Answer:
    """POST /v1/secrets/{name}."""
    return await _put(call, services, "new", 201)


async def put_secret(call: Call, services: Services) -> Answer:
    """PUT /v1/secrets/{name}."""
    return await _put(call, services, "either", 200)


async def rotate_secret(call: Call, services: Services) -> Answer:
    """POST /v1/secrets/{name}/rotate."""
    return await _put(call, services, "rotate", 200)


async def revoke_secret(call: Call, services: Services) -> Answer:
    """POST /v1/secrets/{name}/revoke."""
    return answers.value(await services.credentials.revoke_secret(call.tenant, _secret(call)))


async def delete_secret(call: Call, services: Services) -> Answer:
    """DELETE /v1/secrets/{name}."""
    await services.credentials.delete_secret(call.tenant, _secret(call))
    return answers.nothing()


async def list_grants(call: Call, services: Services) -> Answer:
    """GET /v1/grants."""
    secret = call.argument("secret")
    wanted = "" if secret is None else forms.name(secret, "secret")
    return answers.value(forms.GrantList(*await services.credentials.grants(call.tenant, *_page(call, "grant"), wanted)))


async def get_grant(call: Call, services: Services) -> Answer:
    """GET /v1/grants/{name}."""
    return answers.value(await services.credentials.grant(call.tenant, _grant(call)))


async def create_grant(call: Call, services: Services) -> Answer:
    """POST /v1/grants/{name}."""
    asked = forms.grant(await call.json(limits.MAX_GRANT_JSON), _grant(call))
    return answers.value(await services.credentials.put_grant(call.tenant, asked, replace=False), 201)


async def put_grant(call: Call, services: Services) -> Answer:
    """PUT /v1/grants/{name}."""
    asked = forms.grant(await call.json(limits.MAX_GRANT_JSON), _grant(call))
    return answers.value(await services.credentials.put_grant(call.tenant, asked, replace=True))


async def revoke_grant(call: Call, services: Services) -> Answer:
    """POST /v1/grants/{name}/revoke."""
    return answers.value(await services.credentials.revoke_grant(call.tenant, _grant(call)))


async def delete_grant(call: Call, services: Services) -> Answer:
    """DELETE /v1/grants/{name}."""
    await services.credentials.delete_grant(call.tenant, _grant(call))
    return answers.nothing()


async def attached(call: Call, services: Services) -> Answer:
    """GET /v1/sandboxes/{id}/grants."""
    entry = await services.sandboxes.wanted(call.tenant, call.params["id"])
    return answers.value(forms.AttachedGrants(await services.credentials.attached(call.tenant, entry.record.id)))


async def attach(call: Call, services: Services) -> Answer:
    """PUT /v1/sandboxes/{id}/grants/{name}."""
    entry = await services.sandboxes.wanted(call.tenant, call.params["id"])
    await services.credentials.attach(call.tenant, entry.record.id, [_grant(call)])
    return answers.nothing()


async def detach(call: Call, services: Services) -> Answer:
    """DELETE /v1/sandboxes/{id}/grants/{name}."""
    entry = await services.sandboxes.wanted(call.tenant, call.params["id"])
    await services.credentials.detach(call.tenant, entry.record.id, _grant(call))
    return answers.nothing()


async def _put(call: Call, services: Services, mode: Mode, status: int) -> Answer:
    name = _secret(call)
    asked = forms.decode(await call.json(limits.MAX_SECRET_JSON), forms.SecretRequest)
    return answers.value(await services.credentials.put_secret(call.tenant, name, asked, asked.sealed(), mode), status)


def _secret(call: Call) -> str:
    return forms.name(call.params["name"], "secret")


def _grant(call: Call) -> str:
    return forms.name(call.params["name"], "grant")


def _page(call: Call, what: str) -> tuple[str, int]:
    cursor = call.argument("cursor")
    try:
        after = "" if cursor is None else forms.name(cursor, what)
    except InvalidArgument:
        raise InvalidArgument("cursor: it is none of ours", hint="next_cursor of the page before") from None
    return after, number(call.argument("limit"), "limit", default=50, least=1, most=200)
