"""Secrets and grants over the API: what is passed on, what is refused and why, and that a value is nowhere afterwards."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from space.model.errors import Unavailable
from space.testing.simcontrol import World, dialogue, until

CANARY = "canary-4f6e21b09c"
GRANT: dict[str, Any] = {"secret": "token", "where": {"host": "api.example.com"}, "slot": {"kind": "header"}}


async def stored(world: World, name: str = "token", **more: Any) -> None:
    answer = await world.client.post(f"/v1/secrets/{name}", json={"value": CANARY, **more})
    assert answer.status_code == 201, answer.text


@dialogue()
async def test_a_secret_is_stored_once_rotated_revoked_and_deleted_and_never_shown(world: World) -> None:
    await stored(world, labels={"team": "a"}, description="of the code host", expires="2030-01-01T00:00:00Z")
    assert world.node.credentials.held.value("default", "token") == {"value": CANARY.encode()}
    shown = (await world.client.get("/v1/secrets/token")).json()
    assert (shown["kind"], shown["version"], shown["labels"], shown["expires_at"]) == ("static", 1, {"team": "a"}, 1893456000.0)
    assert (await world.client.post("/v1/secrets/token", json={"value": "x"})).status_code == 409, "the name is in use"
    rotated = await world.client.post("/v1/secrets/token/rotate", json={"value": "another"})
    assert (rotated.status_code, rotated.json()["version"]) == (200, 2)
    assert (await world.client.put("/v1/secrets/other", json={"value": "x"})).json()["version"] == 1
    listed = (await world.client.get("/v1/secrets?limit=1")).json()
    assert ([one["name"] for one in listed["secrets"]], listed["next_cursor"]) == (["other"], "other")
    listed = (await world.client.get("/v1/secrets?cursor=other")).json()
    assert ([one["name"] for one in listed["secrets"]], listed["next_cursor"]) == (["token"], None)
    assert (await world.client.post("/v1/secrets/token/revoke")).json()["revoked_at"] is not None
    assert (await world.client.delete("/v1/secrets/token")).status_code == 204
    assert (await world.client.get("/v1/secrets/token")).status_code == 404


@dialogue()
async def test_a_grant_is_made_replaced_revoked_and_keeps_its_secret(world: World) -> None:
    await stored(world)
    made = await world.client.post("/v1/grants/g", json=GRANT)
    assert (made.status_code, made.json()["secret"], made.json()["grant"]["name"]) == (201, "token", "g")
    assert (await world.client.post("/v1/grants/g", json=GRANT)).status_code == 409
    assert (await world.client.put("/v1/grants/g", json=GRANT | {"uses": 3})).json()["grant"]["uses"] == 3
    assert [one["name"] for one in (await world.client.get("/v1/grants?secret=token")).json()["grants"]] == ["g"]
    assert (await world.client.get("/v1/grants?secret=other")).json()["grants"] == []
    assert (await world.client.delete("/v1/secrets/token")).status_code == 409, "a grant names it"
    assert (await world.client.post("/v1/grants/g/revoke")).json()["revoked_at"] is not None
    assert (await world.client.delete("/v1/grants/g")).status_code == 204
    assert (await world.client.delete("/v1/grants/g")).status_code == 204


@pytest.mark.parametrize(
    ("body", "said", "hint"),
    [
        ({"valeu": "x"}, "unknown field `valeu`", "value?"),
        ({"value": 5}, "$.value", ""),
        ({"value": "x", "kind": "magic"}, "kind: it is none", "static"),
        ({"value": "x", "kind": "aws"}, "has parts", "secret_access_key"),
        ({"value": {"secret_access_key": "x"}, "kind": "aws"}, "access_key_id", ""),
        ({"value": {"value": "x", "other": "y"}}, "other", "known: value"),
        ({"value": ""}, "empty", ""),
        ({"value": "x" * 40_000}, "longer than", ""),
        ({"value": "x", "expires": "soon"}, "no time", "such as"),
        ({"value": "x", "description": "y" * 300}, "$.description", ""),
        ({"value": "x", "public": {"endpoint": "e"}}, "endpoint", ""),
    ],
)
@dialogue()
async def test_what_is_no_secret_is_refused_in_words_without_its_value(world: World, body: Any, said: str, hint: str) -> None:
    answer = await world.client.post("/v1/secrets/s", json=body)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["detail"]
    assert hint in answer.json().get("hint", "")


@pytest.mark.parametrize(
    ("grant", "said", "hint"),
    [
        (GRANT | {"whree": 1}, "unknown field `whree`", "where?"),
        (GRANT | {"where": {"host": "*.example.com"}}, "where.host", "one host"),
        (GRANT | {"where": {"host": "API.example.com"}}, "where.host", "write api.example.com"),
        (GRANT | {"where": {"host": "api.example.com", "port": 70_000}}, "where.port", ""),
        (GRANT | {"slot": {"kind": "header", "name": "host"}}, "slot.name", ""),
        (GRANT | {"slot": {"kind": "elsewhere"}}, "slot", ""),
        (GRANT | {"until": "tomorrow"}, "until", "such as"),
        (GRANT | {"name": "another"}, "name", "leave it out"),
        (GRANT | {"rate": {"count": 0, "seconds": 1}}, "rate.count", ""),
        ([], "object", ""),
    ],
)
@dialogue()
async def test_what_is_no_grant_is_refused_with_its_place(world: World, grant: Any, said: str, hint: str) -> None:
    await stored(world)
    answer = await world.client.post("/v1/grants/g", json=grant)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["detail"]
    assert hint in answer.json().get("hint", "")


@dialogue()
async def test_a_grant_of_an_unknown_secret_is_not_found_and_names_are_names(world: World) -> None:
    assert (await world.client.post("/v1/grants/g", json=GRANT)).status_code == 404
    assert (await world.client.post("/v1/secrets/UPPER", json={"value": "x"})).status_code == 400
    assert (await world.client.get("/v1/secrets?cursor=%20")).status_code == 400


@dialogue()
async def test_another_tenant_sees_and_changes_nothing(world: World) -> None:
    await stored(world)
    await world.client.post("/v1/grants/g", json=GRANT)
    sandbox = await world.create()
    async with await world.other_tenant() as other:
        assert (await other.get("/v1/secrets")).json()["secrets"] == []
        assert (await other.get("/v1/secrets/token")).status_code == 404
        assert (await other.post("/v1/secrets/token/rotate", json={"value": "x"})).status_code == 404
        assert (await other.post("/v1/grants/g/revoke")).status_code == 404
        assert (await other.put(f"/v1/sandboxes/{sandbox}/grants/g")).status_code == 404
        assert (await other.delete("/v1/secrets/token")).status_code == 204
    assert world.node.credentials.held.value("default", "token") == {"value": CANARY.encode()}


@dialogue()
async def test_grants_are_attached_at_create_or_later_and_are_forgotten_with_the_sandbox(world: World) -> None:
    await stored(world)
    for name in ("a", "b"):
        await world.client.post(f"/v1/grants/{name}", json=GRANT)
    sandbox = await world.create(grants=["a"], metadata={"team": "x"})
    assert world.node.sandboxes[sandbox].create.labels == {"team": "x"}
    assert (await world.client.put(f"/v1/sandboxes/{sandbox}/grants/b")).status_code == 204
    assert (await world.client.get(f"/v1/sandboxes/{sandbox}/grants")).json() == {"grants": ["a", "b"]}
    assert (await world.client.delete(f"/v1/sandboxes/{sandbox}/grants/a")).status_code == 204
    assert (await world.client.get(f"/v1/sandboxes/{sandbox}/grants")).json() == {"grants": ["b"]}
    assert (await world.client.put(f"/v1/sandboxes/{sandbox}/grants/missing")).status_code == 404
    await world.client.delete(f"/v1/sandboxes/{sandbox}")
    assert world.node.credentials.held.forgotten == [sandbox]


@dialogue()
async def test_a_create_with_an_unknown_grant_leaves_no_sandbox(world: World) -> None:
    answer = await world.client.post("/v1/sandboxes", json={"grants": ["missing"]})
    assert answer.status_code == 404
    assert answer.json()["detail"].startswith("there is no grant 'missing'")
    assert (await world.client.get("/v1/sandboxes")).json()["sandboxes"] == []
    assert (await world.client.post("/v1/sandboxes", json={"grants": ["No Name"]})).status_code == 400


@dialogue()
async def test_no_grant_crosses_a_fork_unless_it_says_so_or_is_granted_again(world: World) -> None:
    await stored(world)
    slot = {"kind": "placeholder", "name": "authorization"}
    selecting: dict[str, dict[str, Any]] = {"attached": {}, "label": {"who": {"labels": {"team": "a"}}}, "all": {"who": {"all": True}}}
    for name, more in selecting.items():
        await world.client.post(f"/v1/grants/{name}", json=GRANT | {"slot": slot | {"env": name.upper()}} | more)
    crossing = GRANT | {"slot": slot | {"env": "CROSSES"}, "who": {"all": True}, "forks": True}
    await world.client.post("/v1/grants/crosses", json=crossing)
    parent = await world.create(grants=["attached"], metadata={"team": "a"})
    assert world.node.credentials.environment(parent).keys() == {"ATTACHED", "LABEL", "ALL", "CROSSES"}
    forked = await world.client.post(f"/v1/sandboxes/{parent}/fork", json={"count": 1})
    child = forked.json()["sandboxes"][0]["id"]
    assert world.node.credentials.environment(child).keys() == {"CROSSES"}
    await world.client.put(f"/v1/sandboxes/{child}/grants/attached")
    assert world.node.credentials.environment(child).keys() == {"CROSSES", "ATTACHED"}
    forked = await world.client.post(f"/v1/sandboxes/{parent}/fork", json={"count": 2, "grants": ["attached", "label"]})
    for one in forked.json()["sandboxes"]:
        assert world.node.credentials.environment(one["id"]).keys() == {"CROSSES", "ATTACHED", "LABEL"}
    before = len((await world.client.get("/v1/sandboxes")).json()["sandboxes"])
    assert (await world.client.post(f"/v1/sandboxes/{parent}/fork", json={"grants": ["none"]})).status_code == 404
    assert len((await world.client.get("/v1/sandboxes")).json()["sandboxes"]) == before


@dialogue()
async def test_changed_metadata_is_what_grants_select_by(world: World) -> None:
    sandbox = await world.create(metadata={"team": "a"})
    await world.client.patch(f"/v1/sandboxes/{sandbox}", json={"metadata": {"team": "b"}})
    assert world.node.sandboxes[sandbox].create.labels == {"team": "b"}


@dialogue(tenant_secrets=2, tenant_grants=1)
async def test_a_tenant_may_have_so_many_secrets_and_grants(world: World) -> None:
    await stored(world, "token")
    await stored(world, "b")
    full = await world.client.post("/v1/secrets/c", json={"value": "x"})
    assert (full.status_code, full.json()["quota"]) == (507, True) or full.json()["code"] == "no_capacity"
    assert (await world.client.put("/v1/secrets/b", json={"value": "x"})).status_code == 200, "it is there already"
    assert (await world.client.post("/v1/secrets/b/rotate", json={"value": "x"})).status_code == 200
    assert (await world.client.post("/v1/grants/g", json=GRANT)).status_code == 201
    assert (await world.client.post("/v1/grants/h", json=GRANT)).json()["quota"]
    await world.client.put("/v1/tenants/default/quota", json={"secrets": 3})
    assert (await world.client.post("/v1/secrets/c", json={"value": "x"})).status_code == 201


@dialogue()
async def test_more_than_a_page_of_the_brokers_is_listed_once_each(world: World) -> None:
    for number in range(70):
        await stored(world, f"s{number:03}")
    first = (await world.client.get("/v1/secrets?limit=50")).json()
    rest = (await world.client.get(f"/v1/secrets?limit=50&cursor={first['next_cursor']}")).json()
    assert [one["name"] for one in first["secrets"] + rest["secrets"]] == [f"s{number:03}" for number in range(70)]
    assert rest["next_cursor"] is None


@dialogue()
async def test_an_alarm_is_an_event_and_a_figure(world: World) -> None:
    sandbox = await world.create()
    await until(lambda: world.services is not None and world.services.sandboxes._book.live[sandbox].alarms is not None)
    world.node.alarm(sandbox, "tripwire", "g")
    world.node.alarm(sandbox, "tripwire", "g")

    async def told() -> list[Any]:
        lines = (await world.client.get("/v1/events")).text.splitlines()
        return [one for one in map(json.loads, lines) if one["kind"] == "credential_alarm"]

    async def both() -> bool:
        return bool(sum(one["count"] for one in await told()) == 2)

    await until(both)
    alarm = (await told())[0]["alarm"]
    assert (alarm["kind"], alarm["grant"], alarm["secret"], alarm["host"]) == ("tripwire", "g", "s", "api.example.com")
    assert 'space_credential_alarms_total{kind="tripwire"} 2.0' in (await world.client.get("/metrics")).text


@dialogue()
async def test_the_log_of_credentials_is_told_by_secret_by_sandbox_and_to_its_tenant(world: World) -> None:
    one, two = await world.create(), await world.create()
    log = world.node.egress_log
    log.add(one, "broker", type="credential", grant="g", secret="a", name="api.example.com", port=443, version=2)
    log.add(two, "broker", type="credential", grant="h", secret="b", name="api.example.com", port=443, reason="grant_rate")
    log.add(one, "gateway", type="request", name="www.example.com")

    async def read(query: str = "", client: Any = None) -> list[Any]:
        return [json.loads(line) for line in (await (client or world.client).get("/v1/credentials/log" + query)).text.splitlines()]

    assert [(line["id"], line["kind"], line["secret"], line["chain"]) for line in await read()] == [
        ("1", "credential", "a", "broker"), ("2", "credential", "b", "broker"),
    ]  # fmt: skip
    assert [line["grant"] for line in await read("?secret=a")] == ["g"]
    assert [line["grant"] for line in await read("?grant=h")] == ["h"]
    assert [line["grant"] for line in await read(f"?sandbox={two}")] == ["h"]
    assert [line["grant"] for line in await read("?after=1")] == ["h"]
    assert [line["grant"] for line in await read("?denied=1")] == ["h"]
    assert (await world.client.get("/v1/credentials/log?after=1.2")).status_code == 400
    async with await world.other_tenant() as other:
        assert await read(client=other) == []
        assert (await other.get(f"/v1/credentials/log?sandbox={one}")).status_code == 404
        assert (await other.get("/v1/credentials/log?tenant=default")).status_code == 403


@dialogue()
async def test_a_broker_that_is_away_is_said_and_others_go_on(world: World) -> None:
    world.node.credentials.away = Unavailable("the broker is away", hint="it is started again; repeat in a moment")
    answer = await world.client.post("/v1/secrets/token", json={"value": CANARY})
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("the broker is away")
    assert await world.create()


async def _whole(world: World, value: str) -> list[str]:
    """Everything that may be asked with a value in it, in every way that it can go wrong; all that was answered."""
    client, sandbox = world.client, await world.create()
    aws = {"kind": "aws", "value": {"secret_access_key": value, "session_token": value}, "public": {"access_key_id": "AKIDEXAMPLE"}}
    refresh = {
        "kind": "oauth_refresh",
        "value": {"refresh_token": value, "client_secret": value},
        "public": {"endpoint": "e", "client_id": "c"},
    }
    bodies: list[Any] = [
        {"value": value}, aws, refresh, {"value": value, "kind": value}, {"value": value, "expires": value}, {"value": [value]},
        {"value": {"value": value, "other": value}}, {"value": value, "description": "x" * 300}, {"value": value, "labels": [value]},
        {"value": value * 5000}, {"value": {"a": {"b": value}}}, {"value": value + "\ud800"}, [value], value,
    ]  # fmt: skip
    said = []
    for number, body in enumerate(bodies):
        for method, path in (("POST", ""), ("PUT", ""), ("POST", "/rotate"), ("POST", "/rotate")):
            content = json.dumps(body).encode()
            headers = {"content-type": "application/json", "idempotency-key": "k"}
            answer = await client.request(method, f"/v1/secrets/s{number}{path}", content=content, headers=headers)
            said.append(str(answer.headers) + answer.text)
    cut = json.dumps({"value": value}).encode()[:-3]
    for content, kind in ((cut, "application/json"), (cut, "text/plain"), (b"\xff" + cut, "application/json")):
        said.append((await client.post("/v1/secrets/cut", content=content, headers={"content-type": kind})).text)
    world.node.credentials.away = Unavailable("the broker is away")
    said.append((await client.post("/v1/secrets/away", json={"value": value})).text)
    world.node.credentials.away = None
    await client.post("/v1/grants/g", json=GRANT | {"secret": "s0"})
    await client.put(f"/v1/sandboxes/{sandbox}/grants/g")
    shown = ("secrets", "secrets/s0", "grants", "grants/g", f"sandboxes/{sandbox}/grants", f"sandboxes/{sandbox}", "sandboxes")
    for path in (*shown, "events", "audit", "credentials/log", "egress/log"):
        answer = await client.get(f"/v1/{path}")
        said.append(answer.text)
    said.append((await client.get("/metrics")).text)
    for path in ("secrets/s0/revoke", "grants/g/revoke"):
        answer = await client.post(f"/v1/{path}")
        said.append(answer.text)
    await client.delete(f"/v1/sandboxes/{sandbox}")
    return said


def test_a_value_is_in_no_answer_no_log_and_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @dialogue()
    async def talk(world: World) -> None:
        said = await _whole(world, CANARY)
        assert world.node.credentials.held.value("default", "s2")["refresh_token"] == CANARY.encode()
        assert not [answer for answer in said if CANARY in answer]

    caplog.set_level(logging.DEBUG)
    talk(tmp_path)
    assert CANARY not in caplog.text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "state.db" for path in files)
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
