"""A tenant's key reaches nothing of another tenant by any operation of the E2B face, and learns not even that it is there."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from space.control.e2b import routes
from space.control.e2b.ids import to_e2b
from space.testing.simcontrol import World, dialogue

# What a request needs to be understood; every other operation takes none.
_BODIES: dict[str, dict[str, Any]] = {
    "e2b_timeout": {"timeout": 60},
    "e2b_connect_v1": {"timeout": 60},
    "e2b_change_secret": {"value": "stolen"},
    "e2b_fork": {"count": 1},
}
# Where nobody's things are named: what they do with a foreign name is told in the test itself.
_NO_NAME = {
    "e2b_create", "e2b_create_v1", "e2b_list", "e2b_list_v1", "e2b_metrics_of_all", "e2b_list_snapshots", "e2b_create_template",
    "e2b_create_template_v2", "e2b_list_templates", "e2b_list_templates_v2", "e2b_list_default_templates", "e2b_assign_tags",
    "e2b_remove_tags", "e2b_create_secret", "e2b_list_secrets", "e2b_refused",
}  # fmt: skip
# Archives are their tenant's own, whatever template they are for: see the last test.
_ARCHIVES = {"e2b_upload", "e2b_upload_link"}


async def _secret(world: World) -> str:
    made = await world.client.post("/secrets", json={"name": "theirs", "value": "a value of theirs"})
    assert made.status_code == 201, made.text
    return str(made.json()["secretID"])


async def _snapshot(world: World, sandbox: str) -> str:
    made = await world.client.post(f"/sandboxes/{sandbox}/snapshots", json={"name": "their-snapshot"})
    assert made.status_code == 201, made.text
    return str(made.json()["snapshotID"])


async def _build(world: World) -> tuple[str, str]:
    made = await world.client.post("/v3/templates", json={"name": "their-template"})
    assert made.status_code == 202, made.text
    return str(made.json()["templateID"]), str(made.json()["buildID"])


@dialogue()
async def test_no_operation_reaches_what_is_another_tenants(world: World) -> None:
    made = (await world.client.post("/v2/sandboxes", json={"templateID": "base"})).json()
    sandbox = made["sandboxID"]
    secret, (template, build) = await _secret(world), await _build(world)
    tried = set()
    async with await world.other_tenant() as other:
        for route in routes.ROUTES:
            name = route.name
            if name in _NO_NAME | _ARCHIVES:
                continue
            one = secret if route.path.startswith("/secrets") else template if "/templates" in route.path else sandbox
            path = route.path.replace("{build}", build).replace("{alias}", template)
            path = re.sub(r"\{[^}]*\}", one, path)
            body = None if route.method == "GET" else _BODIES.get(name, {})
            answer = await other.request(route.method, path, json=body)
            assert answer.status_code == 404, (name, path, answer.status_code, answer.text)
            assert answer.json()["code"] == 404
            nothing = path.replace(sandbox, "i" + "a" * 20)
            if nothing != path:
                absent = await other.request(route.method, nothing, json=body)
                assert absent.json()["message"].replace("i" + "a" * 20, sandbox) == answer.json()["message"], "it is not told apart"
            tried.add(name)
    assert tried | _NO_NAME | _ARCHIVES == {route.name for route in routes.ROUTES}, "every operation is tried or named"
    assert (await world.client.get(f"/sandboxes/{sandbox}")).json()["state"] == "running"
    assert (await world.client.get(f"/secrets/{secret}")).json()["name"] == "theirs"


@dialogue()
async def test_lists_repeats_and_tokens_are_a_tenants_own(world: World) -> None:
    assert world.services is not None
    key = {"Idempotency-Key": "the-same-key"}
    mine = (await world.client.post("/v2/sandboxes", json={"templateID": "base"}, headers=key)).json()
    await _secret(world)
    async with await world.other_tenant() as other:
        theirs = (await other.post("/v2/sandboxes", json={"templateID": "base"}, headers=key)).json()
        assert theirs["sandboxID"] != mine["sandboxID"], "a repeat of another tenant's is no repeat"
        assert theirs["envdAccessToken"] != mine["envdAccessToken"]
        for path in ("/v2/sandboxes", "/sandboxes"):
            assert [one["sandboxID"] for one in (await other.get(path)).json()] == [theirs["sandboxID"]]
        asked = f"/sandboxes/metrics?sandbox_ids={mine['sandboxID']}"
        assert mine["sandboxID"] not in (await other.get(asked)).text
        assert (await other.get("/secrets")).json() == []
        assert (await other.get("/snapshots", params={"sandboxID": mine["sandboxID"]})).json() == []
        head = {"E2b-Sandbox-Id": mine["sandboxID"], "X-Access-Token": theirs["envdAccessToken"]}
        assert (await other.get("/envs", headers=head)).status_code == 401
        assert not world.services.e2b.tokens.opens_traffic("sb-" + mine["sandboxID"][1:], theirs["envdAccessToken"])
        assert to_e2b("sb-" + mine["sandboxID"][1:]) == mine["sandboxID"]


@dialogue()
async def test_nothing_is_made_of_what_is_another_tenants(world: World) -> None:
    mine = (await world.client.post("/v2/sandboxes", json={"templateID": "base"})).json()
    snapshot, (template, _) = await _snapshot(world, mine["sandboxID"]), await _build(world)
    await _secret(world)
    async with await world.other_tenant() as other:
        for source in (snapshot, template, "their-snapshot"):
            answer = await other.post("/v2/sandboxes", json={"templateID": source})
            assert answer.status_code == 404, (source, answer.text)
        assert (await other.delete(f"/templates/{quote(snapshot, safe='')}")).status_code == 404
        rules = {"api.example.com": [{"transform": {"headers": {"authorization": "Bearer ${e2b.secrets.theirs}"}}}]}
        network = {"allowOut": ["api.example.com"], "denyOut": ["0.0.0.0/0"], "rules": rules}
        lent = await other.post("/v2/sandboxes", json={"templateID": "base", "network": network})
        assert lent.status_code == 404, lent.text
        assert "theirs" in lent.json()["message"]
        assert (await other.get("/v2/sandboxes")).json() == []
        for method in ("POST", "DELETE"):
            body = {"target": template, "name": template, "tags": ["taken"]}
            assert (await other.request(method, "/templates/tags", json=body)).status_code == 404
    assert [one["snapshotID"] for one in (await world.client.get("/snapshots")).json()] == [snapshot]


@dialogue()
async def test_an_archive_goes_to_the_tenant_who_asked_and_a_link_for_it_opens_no_other(world: World) -> None:
    template, _ = await _build(world)
    path = f"/templates/{template}/files/{'0' * 64}"
    async with await world.other_tenant() as other:
        link = (await other.get(path)).json()
        assert not link["present"]
        wrong = link["url"].replace("tenant=other", "tenant=default")
        assert wrong != link["url"]
        assert (await other.put(wrong, content=b"planted")).status_code in (401, 403)
        assert (await other.put(link["url"], content=b"mine")).status_code < 300
        assert (await other.get(path)).json()["present"]
    assert not (await world.client.get(path)).json()["present"]
