"""Templates over HTTP: builds with their log, names and tags, and one tenant that sees nothing of another's."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from space.control import builds, templates
from space.model.errors import BuildFailed, NoCapacity
from space.testing.simcontrol import World, controlled, dialogue, until

RECIPE = 'version = 1\nname = "mine"\n[base]\ntemplate = "base"\n[[step]]\nrun = "true"\n[[step]]\ncopy = "app"\nto = "/app"\n'
ASKED = {"recipe": RECIPE, "inputs": {"app": "1"}}


async def built(client: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    begun = await client.post("/v1/builds", json={**ASKED, **more})
    assert begun.status_code == 201, begun.text
    path = begun.headers["location"]
    fed = await client.put(f"{path}/files", content=b"tar " * 1000, headers={"content-type": "application/x-tar"})
    assert fed.status_code == 200, fed.text
    log = await lines(client, f"{path}/log?follow=1")
    assert log[-1]["kind"] == "end"
    return {**(await client.get(path)).json(), "log": log}


async def lines(client: httpx.AsyncClient, path: str) -> list[dict[str, Any]]:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


async def named(client: httpx.AsyncClient) -> dict[str, list[str]]:
    return {each["name"]: each["tags"] for each in (await client.get("/v1/templates")).json()["templates"]}


@dialogue()
async def test_recipe_is_planned_built_and_booted_by_name(world: World) -> None:
    planned = (await world.client.post("/v1/builds/plan", json={"recipe": RECIPE})).json()
    assert planned == {"name": "mine", "inputs": ["app"], "downloads": [], "steps": ["run true", "copy app to /app"]}
    done = await built(world.client)
    assert (done["state"], done["step"], done["steps"], done["reason"]) == ("done", 2, 2, None)
    assert [(line["kind"], line.get("state") or line.get("text")) for line in done["log"]] == [
        ("step", "begun"),
        ("output", "run true\n"),
        ("step", "done"),
        ("step", "begun"),
        ("output", "copy app to /app\n"),
        ("step", "done"),
        ("end", "done"),
    ]
    assert [line["n"] for line in done["log"]] == list(range(1, 8))
    assert await lines(world.client, f"/v1/builds/{done['id']}/log?after=5") == done["log"][5:]
    assert world.node.templating.files == b"tar " * 1000
    assert await named(world.client) == {"base": [], "mine": ["latest"]}
    created = await world.client.post("/v1/sandboxes", json={"template": "mine"})
    assert created.status_code == 201, created.text
    asked = world.node.sandboxes[created.json()["id"]].create
    assert (asked.template, asked.digest) == ("mine", done["digest"])
    assert created.json()["spec"]["template"] == "mine"


@dialogue()
async def test_tags_lead_to_builds_and_a_disk_goes_with_its_last_tag(world: World) -> None:
    first = await built(world.client, tag="v1")
    second = await built(world.client, recipe=RECIPE.replace("true", "false"), tag="v2")
    client, node = world.client, world.node.templating
    assert (await client.put("/v1/templates/mine/tags/latest", json={"digest": first["digest"]})).json()["tags"] == ["latest", "v1"]
    assert (await client.get("/v1/templates/mine?tag=v2")).json()["digest"] == second["digest"]
    for reference, digest in (("mine", first), ("mine:v2", second)):
        created = await client.post("/v1/sandboxes", json={"template": reference})
        assert world.node.sandboxes[created.json()["id"]].create.digest == digest["digest"]
    assert (await client.post("/v1/sandboxes", json={"template": "mine:v3"})).json()["code"] == "not_found"
    assert (await client.delete("/v1/templates/mine?tag=v1")).status_code == 204
    assert first["digest"] in node.own
    node.in_use.add(first["digest"])
    assert (await client.delete("/v1/templates/mine")).json()["code"] == "conflict"
    assert (await client.delete("/v1/templates/mine?force=1")).status_code == 204
    assert first["digest"] not in node.own
    assert await named(client) == {"base": [], "mine": ["v2"]}
    rebaked = (await client.post("/v1/templates/mine/rebake?tag=v2")).json()
    assert rebaked["tags"] == ["v2"]
    assert rebaked["digest"] != second["digest"]


@dialogue()
async def test_another_tenant_sees_nothing_of_it(world: World) -> None:
    done = await built(world.client)
    async with await world.other_tenant() as other:
        assert await named(other) == {"base": []}
        assert (await other.get("/v1/builds")).json() == {"builds": []}
        for method, path in (
            ("GET", f"/v1/builds/{done['id']}"),
            ("GET", f"/v1/builds/{done['id']}/log"),
            ("PUT", f"/v1/builds/{done['id']}/files"),
            ("DELETE", f"/v1/builds/{done['id']}"),
            ("GET", "/v1/templates/mine"),
            ("DELETE", "/v1/templates/mine"),
            ("POST", "/v1/templates/mine/rebake"),
        ):
            assert (await other.request(method, path)).status_code == 404, path
        tagged = await other.put("/v1/templates/theirs/tags/latest", json={"digest": done["digest"]})
        assert tagged.status_code == 404
        shipped = next(each for each in (await world.client.get("/v1/templates")).json()["templates"] if each["shipped"])
        tagged = await world.client.put("/v1/templates/mine/tags/latest", json={"digest": shipped["digest"]})
        assert (tagged.status_code, "is shipped, and has no tags" in tagged.json()["title"] + tagged.json().get("detail", "")) == (
            409,
            True,
        )
        assert (await other.post("/v1/sandboxes", json={"template": "mine"})).status_code == 404
        assert (await other.post("/v1/prune", json={})).status_code == 403
        mine = await built(other)
        assert mine["digest"] != done["digest"]
    assert (await world.client.get("/v1/templates/mine")).json()["digest"] == done["digest"]


@dialogue()
async def test_shipped_names_are_nobodys(world: World) -> None:
    refused = await world.client.post("/v1/builds", json={**ASKED, "name": "base"})
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    assert (await world.client.delete("/v1/templates/base")).json()["code"] == "conflict"
    assert (await world.client.get("/v1/templates/base")).json()["shipped"]


@dialogue()
async def test_build_that_fails_says_at_which_step_and_names_nothing(world: World) -> None:
    world.node.templating.fail_build = BuildFailed("step 1 (run true): it ended with status 1")
    done = await built(world.client)
    assert (done["state"], done["step"]) == ("failed", 1)
    assert done["log"][-1]["code"] == "build_failed"
    assert done["reason"] == "step 1 (run true): it ended with status 1"
    assert await named(world.client) == {"base": []}


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"recipe": "version = 2"}, "version: is 2"),
    ({"recipe": "["}, "no TOML"),
    ({"inputs": {}}, "'app' is missing"),
    ({"name": "Not A Name"}, "name"),
    ({"tag": "-"}, "tag"),
    ({"recipe": RECIPE.replace('name = "mine"\n', "")}, "has no name"),
)


@dialogue()
async def test_request_that_is_wrong_begins_nothing(world: World) -> None:
    for change, words in WRONG:
        answer = await world.client.post("/v1/builds", json={**ASKED, **change})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), answer.text
        assert words in answer.json()["detail"]
        assert (await world.client.get("/v1/builds")).json() == {"builds": []}


@dialogue()
async def test_base_of_debians_packages_that_is_not_there_says_what_makes_it(world: World) -> None:
    recipe = 'version = 1\nname = "d"\n[base]\ndebian = ["jq"]\n'
    answer = await world.client.post("/v1/builds", json={"recipe": recipe})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "space template layer jq" in answer.json()["hint"]


@dialogue()
async def test_builds_are_bounded_and_deletable(world: World) -> None:
    begun = [(await world.client.post("/v1/builds", json=ASKED)).json()["id"] for _ in range(builds._MOST_WAITING)]
    full = await world.client.post("/v1/builds", json=ASKED)
    assert (full.status_code, full.json()["code"]) == (503, NoCapacity.code)
    assert (await world.client.delete(f"/v1/builds/{begun[0]}")).status_code == 204
    assert (await world.client.get(f"/v1/builds/{begun[0]}")).status_code == 404
    assert (await built(world.client))["state"] == "done"
    twice = await world.client.put(f"/v1/builds/{begun[1]}/files", content=b"")
    assert twice.status_code == 200
    await until(lambda: world.services is not None and world.services.templates.builds.build("default", begun[1]).over)
    again = await world.client.put(f"/v1/builds/{begun[1]}/files", content=b"")
    assert again.json()["code"] == "conflict"


@dialogue()
async def test_names_outlive_the_server(world: World) -> None:
    done = await built(world.client)
    assert world.services is not None
    now = world.services
    fresh = templates.Templates(now.templates._store, now.events, now.quotas)
    await fresh.start(now.link, now.sandboxes.usage)
    assert fresh.resolve("default", "mine") == ("mine", done["digest"])
    assert fresh.sizes == {"default": 300}
    assert [build.info().state for build in fresh.builds.builds("default")] == ["done"]


async def told(client: httpx.AsyncClient) -> list[tuple[str, str, str]]:
    kinds = "template_built,template_failed,template_deleted"
    found = (await client.get(f"/v1/events?kind={kinds}")).text.splitlines()
    events = [event for event in map(json.loads, found) if event["kind"] in kinds]
    return [(event["kind"], event["template"], event.get("detail", "")) for event in events]


@dialogue(start=False)
async def test_build_that_a_restart_cut_off_is_told_as_failed_with_the_reason(world: World) -> None:
    async with controlled(world):
        await until(lambda: world.services is not None and world.services.link.is_up)
        begun = (await world.client.post("/v1/builds", json=ASKED)).json()["id"]
    async with controlled(world):
        await until(lambda: world.services is not None and world.services.link.is_up)
        found = (await world.client.get(f"/v1/builds/{begun}")).json()
        assert (found["state"], found["name"], found["tag"]) == ("failed", "mine", "latest")
        assert "restarted" in found["reason"]
        assert (await lines(world.client, f"/v1/builds/{begun}/log?follow=1"))[-1]["reason"] == found["reason"]
        assert await told(world.client) == [("template_failed", "mine:latest", found["reason"])]
        assert (await world.client.put(f"/v1/builds/{begun}/files", content=b"")).json()["code"] == "conflict"
        assert (await world.client.get("/v1/tenants/default/quota")).json()["used"]["sandboxes"] == 0
        assert (await world.client.delete(f"/v1/builds/{begun}")).status_code == 204
    async with controlled(world):
        assert (await world.client.get("/v1/builds")).json() == {"builds": []}


@dialogue()
async def test_events_tell_of_templates_and_figures_count_them(world: World) -> None:
    done = await built(world.client)
    world.node.templating.fail_build = BuildFailed("step 1 (run true): it ended with status 3")
    await built(world.client, tag="v2")
    assert (await world.client.delete("/v1/templates/mine")).status_code == 204
    assert await told(world.client) == [
        ("template_built", "mine:latest", done["digest"]),
        ("template_failed", "mine:v2", "step 1 (run true): it ended with status 3"),
        ("template_deleted", "mine:latest", done["digest"]),
    ]
    assert 'space_events_total{kind="template_failed"} 1.0' in (await world.client.get("/metrics")).text


@dialogue()
async def test_quota_counts_builders_while_they_are_there_and_templates_disks_after(world: World) -> None:
    client = world.client

    async def used() -> dict[str, int]:
        return dict((await client.get("/v1/tenants/default/quota")).json()["used"])

    begun = (await client.post("/v1/builds", json=ASKED)).json()["id"]
    assert await used() == {"sandboxes": 1, "cpus": 1, "memory_mib": 1024, "disk_mib": 2048, "snapshot_mib": 0, "checkpoints": 0}
    await client.delete(f"/v1/builds/{begun}")
    assert (await used())["sandboxes"] == 0
    await built(client)
    assert await used() == {"sandboxes": 0, "cpus": 0, "memory_mib": 0, "disk_mib": 300, "snapshot_mib": 0, "checkpoints": 0}
    figures = (await client.get("/metrics")).text
    assert 'space_template_bytes{tenant="default"} 3.145728e+08' in figures
    assert 'space_template_build_seconds_count{outcome="done"} 1.0' in figures
    assert re.search(r"space_template_step_seconds_count [1-9]", figures)
    assert 'outcome="failed"' not in figures  # the one that was deleted had not begun
    await client.put("/v1/tenants/default/quota", json={"disk_mib": 2300})
    refused = await client.post("/v1/builds", json=ASKED)
    assert (refused.status_code, refused.json()["quota"]) == (503, True), refused.text
    assert (await client.post("/v1/sandboxes", json={})).json()["quota"] is True
    file = (await client.get("/v1/templates/base/file")).content
    assert (await client.post("/v1/templates/other/file", content=file)).json()["code"] == "invalid_argument"  # 2048 MiB, 2000 are left
    await client.put("/v1/tenants/default/quota", json={"disk_mib": 300})
    assert (await client.post("/v1/templates/other/file", content=file)).json()["quota"] is True
    await client.delete("/v1/templates/mine")
    assert (await used())["disk_mib"] == 0


@dialogue()
async def test_prune_is_an_admins(world: World) -> None:
    assert (await world.client.post("/v1/prune", json={"dry_run": True})).json() == {"steps": ["a" * 32], "freed_bytes": 1 << 20}


@dialogue()
async def test_template_goes_out_as_a_file_and_comes_in_under_another_name(world: World) -> None:
    await built(world.client)
    answer = await world.client.get("/v1/templates/mine/file")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zstd")
    made = await world.client.post("/v1/templates/theirs/file?tag=v1", content=answer.content, headers={"content-type": "application/zstd"})
    assert made.status_code == 201, made.text
    assert (made.json()["name"], made.json()["tags"], made.json()["shipped"]) == ("theirs", ["v1"], False)
    assert (await world.client.get("/v1/templates/base/file")).status_code == 200
    assert (await world.client.get("/v1/templates/none/file")).status_code == 404


@dialogue()
async def test_file_that_is_no_template_and_a_shipped_name_are_refused(world: World) -> None:
    for name, data, status, code in (
        ("mine", b"no template", 400, "invalid_argument"),
        ("base", b"", 403, "permission_denied"),
        ("A", b"", 400, "invalid_argument"),
    ):
        answer = await world.client.post(f"/v1/templates/{name}/file", content=data)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    answer = await world.client.post("/v1/templates/mine/file", content=b"", headers={"content-type": "text/html"})
    assert answer.json()["code"] == "unsupported"
    assert await named(world.client) == {"base": []}


@dialogue()
async def test_export_that_lost_bytes_is_cut_off_and_never_taken_for_the_whole(world: World) -> None:
    await built(world.client)
    world.node.templating.lost = 1
    with pytest.raises(httpx.HTTPError):
        await world.client.get("/v1/templates/mine/file")


@dialogue()
async def test_a_sandbox_becomes_a_template_once_for_one_key_and_goes_on(world: World) -> None:
    client = world.client
    sandbox = await world.create()

    async def keep(name: str, key: str | None = None, **more: str) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await client.post(f"/v1/sandboxes/{sandbox}/template", json={"name": name, **more}, headers=headers)

    first, again = [await keep("mine", "k", tag="v1") for _ in range(2)]
    assert (first.status_code, first.json()) == (201, again.json())
    assert (first.json()["name"], first.json()["tags"], first.json()["shipped"]) == ("mine", ["v1"], False)
    other = await keep("mine", "k", tag="v2")
    assert (other.status_code, "another body" in other.json()["detail"]) == (409, True)
    assert (await keep("mine", tag="v1")).json()["digest"] != first.json()["digest"]
    assert (await keep("base")).json()["code"] == "permission_denied"
    assert (await keep("no name")).json()["code"] == "invalid_argument"
    assert await world.phase(sandbox) == "running"
    assert (await client.post("/v1/sandboxes", json={"template": "mine:v1"})).status_code == 201
    await client.post(f"/v1/sandboxes/{sandbox}/suspend")
    assert (await keep("mine")).status_code == 409
    stranger = await world.other_tenant()
    async with stranger:
        assert (await stranger.post(f"/v1/sandboxes/{sandbox}/template", json={"name": "theirs"})).status_code == 404


FETCHING = """version = 1
name = "mine"
[base]
template = "base"
[[step]]
run = "fetch"
egress = "mirrors"
[[step]]
run = "look"
[step.egress]
version = 1
mode = "record"
"""


@dialogue()
async def test_steps_with_egress_have_it_under_policies_that_their_tenant_may_have(world: World) -> None:
    asked = {"recipe": FETCHING, "inputs": {}}
    refused = await world.client.post("/v1/builds", json={**ASKED, **asked})
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found"), refused.text
    await world.client.put("/v1/policies/mirrors", json={"policy": {"version": 1, "rule": [{"host": "mirror.example.com"}]}})
    refused = await world.client.post("/v1/builds", json={**ASKED, **asked})
    assert (refused.status_code, "mode record" in refused.json()["detail"]) == (403, True), refused.text
    assert (await world.client.put("/v1/tenants/default/policy", json={"policy": None, "permits": ["record"]})).status_code == 200
    done = await built(world.client, **asked)
    assert done["state"] == "done", done
    told = world.node.templating.asked[-1].policies
    assert set(told) == {'"mirrors"', '{"mode": "record", "version": 1}'}
    assert all(b"mirror.example.com" in world.node.egress.policies[digest] for said, digest in told.items() if "mirrors" in said)
    assert set(told.values()) <= world.node.egress.policies.keys()


@dialogue()
async def test_a_layer_that_changes_ends_builds_whose_steps_stand_under_it_and_no_others(world: World) -> None:
    await world.client.put("/v1/policies/mirrors", json={"policy": {"version": 1, "rule": [{"host": "mirror.example.com"}]}})
    world.node.templating.hold_build = asyncio.Event()
    recipe = FETCHING.partition('[[step]]\nrun = "look"')[0]
    paths = []
    for asked in ({"recipe": recipe, "inputs": {}}, {}):
        begun = await world.client.post("/v1/builds", json={**ASKED, **asked})
        assert begun.status_code == 201, begun.text
        paths.append(begun.headers["location"])
        await world.client.put(f"{paths[-1]}/files", content=b"tar ", headers={"content-type": "application/x-tar"})
    assert (await world.client.put("/v1/tenants/default/policy", json={"policy": None, "permits": ["open"]})).status_code == 200
    first, second = [(await world.client.get(path)).json() for path in paths]
    assert (first["state"], "changed meanwhile" in first["reason"]) == ("failed", True)
    assert second["state"] == "building"
    world.node.templating.hold_build.set()
