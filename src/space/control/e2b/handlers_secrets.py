"""Handlers of secrets as E2B's clients ask for them: static secrets of the broker, by name. No answer has a value.

Our names are lower case: theirs are kept as they were written, and found in any case.
"""

from __future__ import annotations

from typing import Any

from space.control import answers
from space.control.answers import Answer
from space.control.call import Call, number
from space.control.e2b import forms, views
from space.control.services import Services
from space.control.wire_credentials import SecretRequest
from space.control.wire_credentials import name as checked
from space.model.credentials import SecretInfo
from space.model.errors import InvalidArgument, NotFound


async def create(call: Call, services: Services) -> Answer:
    """POST /secrets."""
    asked = forms.decode(await call.json(), forms.NewSecret)
    name = checked(asked.name.lower(), "secret")
    said = SecretRequest(value=asked.value, labels=asked.metadata or {}, description=asked.name)
    made = await services.credentials.put_secret(call.tenant, name, said, said.sealed(), "new")
    return answers.value(_view(made), 201)


async def list_all(call: Call, services: Services) -> Answer:
    """GET /secrets."""
    limit = number(call.argument("limit"), "limit", default=100, least=1, most=100)
    found, cursor = await services.credentials.secrets(call.tenant, call.argument("nextToken") or "", limit)
    head = {"X_Next_Token": cursor} if cursor else {}
    return answers.value([_view(one) for one in found if not one.name.startswith("e2b.")], 200, **head)


async def get(call: Call, services: Services) -> Answer:
    """GET /secrets/{id}."""
    return answers.value(_view(await services.credentials.secret(call.tenant, _name(call))))


async def change(call: Call, services: Services) -> Answer:
    """POST /secrets/{id}."""
    asked = forms.decode(await call.json(), forms.SecretChange)
    name = _name(call)
    known = await services.credentials.secret(call.tenant, name)
    if asked.value is None:
        raise InvalidArgument("value is missing: metadata alone cannot be changed here")
    said = SecretRequest(value=asked.value, labels=dict(known.labels) if asked.metadata is None else asked.metadata,
                         description=known.description)  # fmt: skip
    return answers.value(_view(await services.credentials.put_secret(call.tenant, name, said, said.sealed(), "rotate")))


async def delete(call: Call, services: Services) -> Answer:
    """DELETE /secrets/{id}."""
    name = _name(call)
    await services.credentials.secret(call.tenant, name)
    await services.credentials.delete_secret(call.tenant, name)
    return answers.nothing()


def _name(call: Call) -> str:
    try:
        return checked(call.params["id"].lower(), "secret")
    except InvalidArgument:
        raise NotFound(f"secret {call.params['id'][:64]!r} was not found") from None


def _view(info: SecretInfo) -> dict[str, Any]:
    return {
        "secretID": info.name,
        "name": info.description if info.description.lower() == info.name else info.name,
        "currentVersion": info.version,
        "metadata": dict(info.labels),
        "createdAt": views.time(int(info.created_at * 1e6)),
        "updatedAt": views.time(int((info.rotated_at or info.created_at) * 1e6)),
    }
