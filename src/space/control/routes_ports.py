"""Routes of ports that others may reach through the ingress, with their handlers."""

from __future__ import annotations

from msgspec import Struct

from space.control import answers, wire
from space.control.answers import Answer
from space.control.call import Call
from space.control.route import JSON, SANDBOX, Access, Body, Reply, Route
from space.control.services import Services
from space.model.errors import Conflict, Gone, InvalidArgument
from space.model.ports import ExposedPort, IngressInfo


class ExposeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """public: anybody may reach it; otherwise who has its token."""

    public: bool = False


class ExposedList(Struct, frozen=True):
    """Ports that were exposed, by number."""

    ports: list[ExposedPort]


def _port(call: Call) -> int:
    text = call.params["port"]
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 1 <= int(text) <= 65_535:
        raise InvalidArgument(f"port: {text[:16]!r} is none (1 to 65535)", hint=".../exposed/8080")
    return int(text)


async def expose(call: Call, services: Services) -> Answer:
    """PUT .../exposed/{port}."""
    asked = wire.decode(await call.json(), ExposeRequest)
    return answers.value(await services.exposing.put(call.tenant, call.params["id"], _port(call), public=asked.public))


async def unexpose(call: Call, services: Services) -> Answer:
    """DELETE .../exposed/{port}."""
    await services.exposing.remove(call.tenant, call.params["id"], _port(call))
    return answers.nothing()


async def get_exposed(call: Call, services: Services) -> Answer:
    """GET .../exposed/{port}."""
    return answers.value(await services.exposing.get(call.tenant, call.params["id"], _port(call)))


async def list_exposed(call: Call, services: Services) -> Answer:
    """GET .../exposed."""
    return answers.value(ExposedList(await services.exposing.list(call.tenant, call.params["id"])))


async def get_ingress(call: Call, services: Services) -> Answer:
    """GET /v1/ingress."""
    return answers.value(services.exposing.ingress())


_ONE = f"{SANDBOX}/exposed/{{port}}"
ROUTES: tuple[Route, ...] = (
    Route(
        "PUT",
        _ONE,
        "expose_port",
        "Let a port of it be reached through the ingress, by anybody or with a token; idempotent",
        Access.TENANT,
        expose,
        (Reply(200, "It can be reached", {JSON: ExposedPort}),),
        errors=(Gone, Conflict),
        body=Body({JSON: ExposeRequest}, required=False),
    ),
    Route(
        "DELETE",
        _ONE,
        "unexpose_port",
        "Let it be reached no more; idempotent",
        Access.TENANT,
        unexpose,
        (Reply(204, "It cannot be reached", {}),),
        errors=(Gone,),
        reserved=True,
    ),
    Route(
        "GET",
        _ONE,
        "get_exposed_port",
        "How a port that is exposed is reached",
        Access.TENANT,
        get_exposed,
        (Reply(200, "How", {JSON: ExposedPort}),),
        errors=(Gone,),
        reserved=True,
        audit=False,
    ),
    Route(
        "GET",
        f"{SANDBOX}/exposed",
        "list_exposed_ports",
        "Its ports that were exposed, by number",
        Access.TENANT,
        list_exposed,
        (Reply(200, "All of them", {JSON: ExposedList}),),
        errors=(Gone,),
        reserved=True,
        audit=False,
    ),
    Route(
        "GET",
        "/v1/ingress",
        "get_ingress",
        "How ports of sandboxes are reached, and the authority to trust",
        Access.TENANT,
        get_ingress,
        (Reply(200, "How", {JSON: IngressInfo}),),
        audit=False,
    ),
)
