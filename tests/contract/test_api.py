"""The API's contract: its document is what it was, every route documents its refusals, and none shows one tenant another's."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from space import control
from space.control.openapi import document
from space.control.problems import MEDIA_TYPE
from space.control.routes import ROUTES
from space.model.errors import BY_CODE, Internal, SpaceError
from space.testing.simcontrol import World, dialogue, until

GOLDEN = Path(__file__).parents[1] / "golden" / "openapi" / "openapi.json"
DOCUMENT: dict[str, Any] = json.loads(document("0.0.0"))
OPERATIONS = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]
FAULTS: dict[str, type[SpaceError]] = {**BY_CODE, "internal": Internal}
STATUSES = {code: {kind.status, *(one.status for one in kind.__subclasses__())} for code, kind in FAULTS.items()}
# A name is a tenant's own: whoever puts a policy or a template under another's name makes one of its own (test_control_policies.py,
# test_control_templates.py, test_control_credentials.py). What is deleted by its name is gone afterwards, whether it was there or not.
_OWN_NAMES = {
    ("/v1/policies/{name}", "put"), ("/v1/templates/{name}/file", "post"), ("/v1/secrets/{name}", "post"), ("/v1/secrets/{name}", "put"),
    ("/v1/secrets/{name}", "delete"), ("/v1/grants/{name}", "post"), ("/v1/grants/{name}", "put"), ("/v1/grants/{name}", "delete"),
}  # fmt: skip
WITH_ID = [(path, method) for path, method in OPERATIONS if "{" in path and (path, method) not in _OWN_NAMES]


def test_the_document_is_the_golden_one() -> None:
    assert document("0.0.0").decode() == GOLDEN.read_text(), f"the API changed: write document('0.0.0') into {GOLDEN.name} if that is meant"


def test_every_route_is_documented_and_every_reference_leads_somewhere() -> None:
    assert sorted(OPERATIONS) == sorted((route.path, route.method.lower()) for route in ROUTES)
    assert DOCUMENT["openapi"].startswith("3.1")
    for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT)):
        assert reference in DOCUMENT["components"]["schemas"]
    names = [DOCUMENT["paths"][path][method]["operationId"] for path, method in OPERATIONS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_route_documents_its_refusals_as_problems(path: str, method: str) -> None:
    responses = DOCUMENT["paths"][path][method]["responses"]
    refusals = {status: answer for status, answer in responses.items() if int(status) >= 400}
    assert "500" in refusals
    assert ("401" in refusals) == (path != "/healthz")
    assert ("404" in refusals) or "{" not in path
    for status, answer in refusals.items():
        codes = answer["content"][MEDIA_TYPE]["schema"]["allOf"][1]["properties"]["code"]["enum"]
        assert codes
        assert all(int(status) in STATUSES[code] for code in codes)


def test_every_refusal_of_a_request_names_a_remedy() -> None:
    for path in sorted(Path(control.__file__).parent.rglob("*.py")):
        if "e2b" in path.parts:
            continue  # its words are E2B's, which have no place for a remedy and are compared by clients
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "InvalidArgument":
                assert any(keyword.arg == "hint" for keyword in node.keywords), f"{path.name}:{node.lineno}: {ast.unparse(node)}"


def test_there_are_routes_with_ids_to_walk() -> None:
    assert len(WITH_ID) >= 8


# A good body of every route that takes one and has an id.
BODIES = {
    "run_process": {"argv": ["echo"]},
    "change_sandbox": {"on_timeout": "pause"},
    "put_quota": {},
    "signal_process": {"signal": "TERM"},
    "resize_process": {"rows": 24, "cols": 80},
    "make_directory": {"path": "a"},
    "move_file": {"path": "a", "to": "b"},
    "remove_file": {"path": "a"},
    "chmod_file": {"path": "a", "mode": 420},
    "chown_file": {"path": "a", "owner": "root"},
    "symlink_file": {"path": "a", "target": "b"},
    "put_sandbox_policy": {"policy": None},
    "explain_policy": {"url": "https://a.example.com/"},
    "answer_ask": {"allow": True},
    "expose_port": {},
    "put_tenant_policy": {},
    "wake_sandbox": {},
    "fork_sandbox": {},
    "rollback_sandbox": {"checkpoint": "cp-" + "a" * 20},
    "keep_sandbox_as_template": {"name": "kept"},
    "rotate_secret": {"value": "v2"},
    "put_tag": {"digest": "0" * 32},
}
RECIPE = 'version = 1\nname = "mine"\n[base]\ntemplate = "base"\n[[step]]\nrun = "true"\n'


def _shape(answer: httpx.Response, given: str) -> tuple[object, ...]:
    """Everything that an answer shows, but the id that the caller gave itself and the ids of this one request."""
    body = json.loads(answer.text.replace(given, "<id>") or "{}")  # a HEAD has none
    body.pop("request_id", None)
    heads = {name: value for name, value in answer.headers.items() if name not in ("x-request-id", "content-length")}
    return answer.status_code, body, heads


@pytest.mark.parametrize(("path", "method"), WITH_ID)
@dialogue()
async def test_another_tenants_id_is_answered_exactly_like_an_unknown_one(world: World, path: str, method: str) -> None:
    """Every path of the document that has an id, so that a new route is walked as soon as it is there."""
    running, ended = await world.create(), await world.create()
    await world.client.delete(f"/v1/sandboxes/{ended}")
    minted = (await world.client.post("/v1/keys", json={"tenant": "default"})).json()
    started = (await world.client.post(f"/v1/sandboxes/{running}/processes", json={"argv": ["sleep", "60"]})).json()["id"]
    operation = DOCUMENT["paths"][path][method]
    query = {parameter["name"]: "1" for parameter in operation["parameters"] if parameter["in"] == "query" and parameter["required"]}
    hook = (await world.client.post("/v1/webhooks", json={"url": "https://example.com/"})).json()["webhook"]
    (await world.client.put("/v1/policies/agents", json={"policy": {"version": 1}})).raise_for_status()
    recipe = {"recipe": RECIPE}
    built, waiting = [(await world.client.post("/v1/builds", json=recipe)).json()["id"] for _ in range(2)]
    (await world.client.put(f"/v1/builds/{built}/files", content=b"")).raise_for_status()
    await until(lambda: world.services is not None and world.services.templates.builds.build("default", built).over)
    of_json = "application/json" in operation.get("requestBody", {"content": {}})["content"]
    body = json.dumps(BODIES[operation["operationId"]]) if of_json else None
    theirs = {"id": [running, ended], "key_id": [minted["id"]], "webhook": [hook["id"]], "tenant": ["default"]}
    (await world.client.put("/v1/secrets/token", json={"value": "v"})).raise_for_status()
    grant = {"secret": "token", "where": {"host": "api.example.com"}, "slot": {"kind": "header"}}
    (await world.client.put("/v1/grants/use", json={"name": "use", **grant})).raise_for_status()
    named = {"templates": "mine", "secrets": "token", "grants": "use"}.get(path.split("/")[2], "agents")
    path = path.replace("/grants/{name}", "/grants/use") if "{id}" in path else path
    theirs |= {"name": [named], "build": [built, waiting]}
    unknown = {"id": "sb-" + "a" * 20, "key_id": "a" * 12, "webhook": "wh-" + "a" * 20, "tenant": "nobody", "name": "others"}
    unknown |= {"build": "bd-" + "0" * 16}
    [name] = set(re.findall(r"\{(\w+)\}", path)) & set(theirs)
    path = path.replace("{process}", started).replace("{ask}", "ask-1").replace("{port}", "7").replace("{tag}", "v1")
    path = path.replace("{checkpoint}", "cp-" + "a" * 20)
    async with await world.other_tenant() as stranger:

        async def ask(given: str) -> tuple[object, ...]:
            return _shape(await stranger.request(method, path.replace(f"{{{name}}}", given), params=query, content=body), given)

        nothing = await ask(unknown[name])
        admin = operation["x-access"] == "an admin key"
        assert nothing[0] == (403 if admin else 404), nothing
        for foreign in theirs[name]:
            assert await ask(foreign) == nothing
    assert await world.phase(running) == "running"
    assert (await world.client.get(f"/v1/sandboxes/{running}/processes/{started}")).json()["state"] == "running"
    assert world.node.deleted == [ended]
    assert (await world.client.get("/v1/templates/mine")).json()["tags"] == ["latest"]
    assert (await world.client.get(f"/v1/builds/{waiting}")).json()["state"] == "waiting"


@dialogue()
async def test_a_tenants_list_holds_its_own_only_also_with_anothers_cursor(world: World) -> None:
    for _ in range(3):
        await world.create()
    cursor = (await world.client.get("/v1/sandboxes?limit=1")).json()["next_cursor"]
    async with await world.other_tenant() as stranger:
        assert (await stranger.get("/v1/sandboxes")).json() == {"sandboxes": [], "next_cursor": None}
        assert (await stranger.get("/v1/sandboxes", params={"cursor": cursor})).json()["sandboxes"] == []
        own = (await stranger.post("/v1/sandboxes")).json()["id"]
        assert [one["id"] for one in (await stranger.get("/v1/sandboxes")).json()["sandboxes"]] == [own]


@dialogue()
async def test_the_served_document_is_the_generated_one(world: World) -> None:
    assert world.services is not None
    answer = await world.client.get("/openapi.json")
    assert answer.json()["paths"] == DOCUMENT["paths"]
    assert answer.json()["info"]["version"] == world.services.version
