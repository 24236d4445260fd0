"""Policies in control: strict at the door, durable, live in every sandbox that they concern, and never wider than a layer above."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from space.control import limits, shelf
from space.core.policy import document
from space.core.policy.paths import normalise
from space.core.policy.verdict import Allow, Asked
from space.model.errors import DeadlineExceeded, GuestError
from space.rpc import node_api as api
from space.testing.simcontrol import World, controlled, dialogue, until
from space.testing.simegress import SimTraffic

OPEN: dict[str, Any] = {"version": 1, "open": True}


def policy(*hosts: str, **more: Any) -> dict[str, Any]:
    return {"version": 1, "rule": [{"host": host} for host in hosts], **more}


def traffic(world: World, sandbox: str) -> SimTraffic:
    return world.node.sandboxes[sandbox].traffic


def may(world: World, sandbox: str, host: str) -> bool:
    """By the document that the node decides by."""
    digest = traffic(world, sandbox).policy
    if not digest:
        return False
    found = document.read(world.node.egress.policies[digest])
    return isinstance(found.stack.request(Asked(host, 443, "https", "GET", normalise(b"/"))), Allow)


async def shown(world: World, sandbox: str) -> dict[str, Any]:
    found: dict[str, Any] = (await world.client.get(f"/v1/sandboxes/{sandbox}")).json()["policy"]
    return found


async def put(world: World, path: str, policy: Any, **more: Any) -> Any:
    answer = await world.client.put(path, json={"policy": policy, **more})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


# -- what a sandbox has ----------------------------------------------------------------------------------------------------


@dialogue()
async def test_without_a_policy_nothing_is_allowed_and_nothing_is_put(world: World) -> None:
    sandbox = await world.create()
    assert await shown(world, sandbox) == {
        "name": None, "digest": "", "generation": 0, "applied_generation": 0, "open": False, "state": "applied", "reason": None,
    }  # fmt: skip
    assert (traffic(world, sandbox).policy, world.node.egress.policies) == ("", {})
    answer = await world.client.post(f"/v1/sandboxes/{sandbox}/policy/explain", json={"url": "https://a.example.com/"})
    assert answer.json()["outcome"] == "name_not_allowed"


@dialogue()
async def test_a_sandbox_begins_with_its_policy_and_gets_another_one_live(world: World) -> None:
    sandbox = await world.create(policy=policy("a.example.com"))
    first = await shown(world, sandbox)
    assert (first["state"], first["generation"], first["applied_generation"]) == ("applied", 1, 1)
    assert may(world, sandbox, "a.example.com")
    told = await put(world, f"/v1/sandboxes/{sandbox}/policy", policy("b.example.com"))
    assert (told["status"]["state"], told["status"]["generation"], told["status"]["applied_generation"]) == ("applied", 2, 2)
    assert told["policy"] == policy("b.example.com")
    assert (may(world, sandbox, "a.example.com"), may(world, sandbox, "b.example.com")) == (False, True)
    again = await put(world, f"/v1/sandboxes/{sandbox}/policy", policy("b.example.com"))
    assert again["status"]["generation"] == 2
    await put(world, f"/v1/sandboxes/{sandbox}/policy", None)
    assert (traffic(world, sandbox).policy, traffic(world, sandbox).policy_generation) == ("", 3)


@dialogue()
async def test_a_paused_sandbox_gets_it_as_well(world: World) -> None:
    sandbox = await world.create(policy=policy("a.example.com"))
    await world.client.post(f"/v1/sandboxes/{sandbox}/pause")
    told = await put(world, f"/v1/sandboxes/{sandbox}/policy", policy("b.example.com"))
    assert told["status"]["state"] == "applied"
    assert not may(world, sandbox, "a.example.com")


@dialogue()
async def test_a_policy_with_mistakes_is_refused_with_all_of_them_and_nothing_changes(world: World) -> None:
    sandbox = await world.create(policy=policy("a.example.com"))
    wrong = {"version": 1, "rule": [{"host": "com"}, {"host": "b.example.com", "methods": ["get"]}], "extra": 1}
    for method, path, body in (
        ("PUT", f"/v1/sandboxes/{sandbox}/policy", {"policy": wrong}),
        ("PUT", "/v1/policies/agents", {"policy": wrong}),
        ("PUT", "/v1/policy", {"policy": wrong}),
        ("PUT", "/v1/tenants/default/policy", {"policy": wrong}),
        ("POST", "/v1/sandboxes", {"policy": wrong}),
    ):
        answer = await world.client.request(method, path, json=body)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (400, "invalid_argument")
        assert [one["path"] for one in problem["details"]] == ["extra", "rule[0].host", "rule[1].methods[0]"]
        assert problem["details"][1]["hint"] == "name the hosts themselves"
    assert (await shown(world, sandbox))["generation"] == 1
    assert (await world.client.get("/v1/policies")).json() == {"policies": []}


@dialogue()
async def test_what_is_risky_is_told_and_mistakes_are_bounded(world: World) -> None:
    told = await put(world, "/v1/policies/agents", policy("uploads.example.com"))
    assert "acts for its callers" in told["warnings"][0]["message"]
    many = policy(*["x" * 5000] * 500)
    answer = await world.client.put("/v1/policies/agents", json={"policy": many})
    assert len(answer.json()["details"]) == limits.POLICY_NOTES
    assert len(answer.content) < 50_000


@dialogue()
async def test_open_and_record_need_the_operators_permission_and_lose_it_live(world: World) -> None:
    for wide in (OPEN, {"version": 1, "mode": "record"}):
        answer = await world.client.post("/v1/sandboxes", json={"policy": wide})
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
        assert (await world.client.put("/v1/policies/wide", json={"policy": wide})).status_code == 403
    await put(world, "/v1/tenants/default/policy", None, permits=["open", "record"])
    opened, records = (
        await world.create(policy={**OPEN, **policy("b.example.com")}),
        await world.create(policy={"version": 1, "mode": "record"}),
    )
    assert (await shown(world, opened))["open"]
    assert (await shown(world, records))["open"]
    assert may(world, opened, "a.example.com")
    await put(world, "/v1/tenants/default/policy", None)
    assert not (await shown(world, opened))["open"]
    assert [may(world, opened, f"{one}.example.com") for one in "ab"] == [False, True]
    assert not may(world, records, "a.example.com")


@dialogue()
async def test_layers_narrow_what_runs_and_an_open_tenant_stays_within_the_operators_hosts(world: World) -> None:
    await put(world, "/v1/tenants/default/policy", None, permits=["open"])
    sandbox, own = await world.create(policy=OPEN), await world.create(policy=policy("a.example.com", "b.example.com"))
    await put(world, "/v1/policy", policy("a.example.com"))
    for one in (sandbox, own):
        assert [may(world, one, f"{host}.example.com") for host in "abc"] == [True, False, False]
    assert not (await shown(world, sandbox))["open"]
    await put(world, "/v1/tenants/default/policy", policy("b.example.com"))
    assert not may(world, own, "a.example.com")
    layers = (await world.client.get(f"/v1/sandboxes/{own}/policy")).json()["layers"]
    assert layers == ["operator", "tenant"]
    found = (await world.client.post(f"/v1/sandboxes/{own}/policy/explain", json={"url": "https://a.example.com/x"})).json()
    assert (found["outcome"], found["steps"][0]["step"]) == ("name_not_allowed", "name")
    assert found["steps"][0]["lines"][0].startswith("operator: allowed")
    await put(world, "/v1/policy", None)
    await put(world, "/v1/tenants/default/policy", None)
    assert may(world, own, "b.example.com")


# -- stored ones -----------------------------------------------------------------------------------------------------------


@dialogue()
async def test_a_change_of_a_stored_policy_is_live_in_all_that_follow_it(world: World) -> None:
    made = await put(world, "/v1/policies/agents", policy("a.example.com"))
    assert (made["revision"], made["rules"]) == (1, 1)
    followers = [await world.create(policy="agents") for _ in range(20)]
    other = await world.create(policy=policy("a.example.com"))
    assert len(world.node.egress.policies) == 1  # the same document, put once
    told = await put(world, "/v1/policies/agents", policy("b.example.com"))
    assert (told["revision"], told["sandboxes"], told["pending"]) == (2, 20, 0)
    assert [may(world, one, "a.example.com") for one in (*followers, other)] == [False] * 20 + [True]
    status = await shown(world, followers[0])
    assert (status["name"], status["generation"], status["applied_generation"]) == ("agents", 2, 2)
    assert (await world.client.get("/v1/policies/agents")).json()["policy"] == policy("b.example.com")
    listed = (await world.client.get("/v1/policies")).json()["policies"]
    assert [(one["name"], one["sandboxes"], one["policy"]) for one in listed] == [("agents", 20, None)]


@dialogue()
async def test_a_followed_or_default_policy_is_not_deleted(world: World) -> None:
    await put(world, "/v1/policies/agents", policy("a.example.com"))
    await put(world, "/v1/tenants/default/policy", None, default="agents")
    sandbox = await world.create()
    assert (await shown(world, sandbox))["name"] == "agents"
    answer = await world.client.delete("/v1/policies/agents")
    assert (answer.status_code, "followed by 1" in answer.json()["detail"]) == (409, True)
    await world.client.delete(f"/v1/sandboxes/{sandbox}")
    assert "default" in (await world.client.delete("/v1/policies/agents")).json()["detail"]
    await put(world, "/v1/tenants/default/policy", None)
    assert (await world.client.delete("/v1/policies/agents")).status_code == 204
    assert (await world.client.post("/v1/sandboxes", json={"policy": "agents"})).status_code == 404


@dialogue()
async def test_a_tenant_sees_and_uses_only_its_own_policies_and_sets_no_layer(world: World) -> None:
    await put(world, "/v1/policies/agents", policy("a.example.com"))
    sandbox = await world.create(policy="agents")
    async with await world.other_tenant() as other:
        assert (await other.get("/v1/policies")).json() == {"policies": []}
        for method, path, body in (
            ("GET", "/v1/policies/agents", None),
            ("DELETE", "/v1/policies/agents", None),
            ("POST", "/v1/sandboxes", {"policy": "agents"}),
            ("GET", f"/v1/sandboxes/{sandbox}/policy", None),
            ("PUT", f"/v1/sandboxes/{sandbox}/policy", {"policy": None}),
            ("POST", f"/v1/sandboxes/{sandbox}/policy/explain", {"url": "https://a.example.com/"}),
            ("GET", f"/v1/sandboxes/{sandbox}/egress/asks", None),
            ("POST", f"/v1/sandboxes/{sandbox}/egress/asks/ask-1", {"allow": True}),
        ):
            assert (await other.request(method, path, json=body)).status_code == 404, path
        for path in ("/v1/policy", "/v1/tenants/other/policy"):
            assert (await other.get(path)).status_code == 403
            assert (await other.put(path, json={"policy": None})).status_code == 403
        await other.put("/v1/policies/agents", json={"policy": policy("z.example.com")})
    assert may(world, sandbox, "a.example.com")


@dialogue()
async def test_a_tenants_policies_have_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POLICIES_PER_TENANT", 2)
    monkeypatch.setattr(limits, "POLICY_BYTES_PER_TENANT", 400)
    for name in ("a", "b"):
        await put(world, f"/v1/policies/{name}", policy("a.example.com"))
    answer = await world.client.put("/v1/policies/c", json={"policy": policy("a.example.com")})
    assert (answer.status_code, answer.json()["code"], answer.json()["quota"]) == (503, "no_capacity", True)
    large = policy(*[f"{one}.example.com" for one in range(20)])
    assert (await world.client.put("/v1/policies/a", json={"policy": large})).status_code == 503
    assert (await world.client.post("/v1/sandboxes", json={"policy": large})).status_code == 503
    answer = await world.client.put("/v1/policies/UPPER", json={"policy": policy("a.example.com")})
    assert answer.status_code == 400


@dialogue()
async def test_a_policy_of_twenty_thousand_rules_is_taken_and_one_more_is_not(world: World) -> None:
    rules = [{"host": f"h{number}.example.com", "methods": ["GET"], "paths": ["/a/**"]} for number in range(20_000)]
    await put(world, "/v1/policies/large", {"version": 1, "rule": rules})
    sandbox = await world.create(policy="large")
    began = time.perf_counter()
    assert (await world.client.get("/healthz")).status_code == 200
    assert time.perf_counter() - began < 5
    assert may(world, sandbox, "h19999.example.com") is False  # the path of the rule
    answer = await world.client.put("/v1/policies/large", json={"policy": {"version": 1, "rule": [*rules, {"host": "x.example.com"}]}})
    assert "at most 20000" in answer.json()["details"][0]["message"]


@dialogue()
async def test_presets_and_bundles_of_the_machine_are_taken_into_the_document(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    place = world.instance.data
    presets, bundles = place / "presets", place / "ca"
    for folder in (presets, bundles):
        folder.mkdir()
    read, stamp = shelf.read, shelf.stamp
    monkeypatch.setattr(shelf, "read", lambda: read(presets, bundles))
    monkeypatch.setattr(shelf, "stamp", lambda: stamp(presets, bundles))
    asked = {"version": 1, "presets": ["pip"]}
    answer = await world.client.post("/v1/sandboxes", json={"policy": asked})
    assert "there is no preset 'pip'" in answer.json()["details"][0]["message"]
    (bundles / "company.pem").write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    (presets / "pip.toml").write_text('version = 1\n[[rule]]\nhost = "index.example.com"\nca = "company"\n')
    sandbox = await world.create(policy=asked)
    assert may(world, sandbox, "index.example.com")
    assert set(document.read(world.node.egress.policies[traffic(world, sandbox).policy]).bundles) == {"company"}
    (presets / "pip.toml").unlink()
    await put(world, "/v1/policy", OPEN)  # every sandbox's document is made anew
    status = await shown(world, sandbox)
    assert (status["state"], status["digest"], "there is no preset" in status["reason"]) == ("refused", "", True)
    assert not may(world, sandbox, "index.example.com")


# -- the node --------------------------------------------------------------------------------------------------------------


@dialogue(start=False)
async def test_a_change_that_the_node_was_not_told_is_told_when_it_is_back(world: World) -> None:
    async with controlled(world):
        assert world.services is not None
        await world.services.link.wait_up()
        sandbox = await world.create(policy=policy("a.example.com"))
        await world.node.stop()
        await until(lambda: not world.services.link.is_up)  # type: ignore[union-attr]
        told = await put(world, f"/v1/sandboxes/{sandbox}/policy", policy("b.example.com"))
        assert (told["status"]["state"], told["status"]["generation"], told["status"]["applied_generation"]) == ("pending", 2, 1)
    assert may(world, sandbox, "a.example.com")
    async with controlled(world):  # also by another control, from its store
        assert (await shown(world, sandbox))["state"] == "pending"
        world.node.start()
        await until(lambda: may(world, sandbox, "b.example.com"))
        await until(lambda: _is(world, sandbox, "applied"))
        assert not may(world, sandbox, "a.example.com")


async def _is(world: World, sandbox: str, state: str) -> bool:
    return bool((await shown(world, sandbox))["state"] == state)


@dialogue()
async def test_a_node_that_lost_its_policies_is_given_them_again(world: World) -> None:
    sandbox = await world.create(policy=policy("a.example.com"))
    world.node.egress.policies.clear()
    other = await world.create(policy=policy("a.example.com"))
    assert may(world, other, "a.example.com")
    world.node.egress.policies.clear()
    await put(world, f"/v1/sandboxes/{sandbox}/policy", policy("b.example.com"))
    await put(world, f"/v1/sandboxes/{other}/policy", policy("b.example.com"))
    assert may(world, other, "b.example.com")


@dialogue()
async def test_a_sandbox_whose_policy_cannot_be_told_in_time_is_cut_and_gets_it_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "POLICY_CUT_SECONDS", 0.2)
    sandbox = await world.create(policy=policy("a.example.com"))
    sim = world.node.egress.verbs["set_policy"]
    broken = True

    async def refusing(stream: Any, request: bytes) -> None:
        if broken and msgspec.msgpack.decode(request, type=api.SetPolicy).policy:
            raise GuestError("the worker does not answer")
        await sim(stream, request)

    world.node._verbs["set_policy"] = refusing
    told = await put(world, f"/v1/sandboxes/{sandbox}/policy", policy("b.example.com"))
    assert (told["status"]["state"], "does not answer" in told["status"]["reason"]) == ("cut", True)
    assert traffic(world, sandbox).policy == ""
    broken = False
    await until(lambda: _is(world, sandbox, "applied"))
    assert may(world, sandbox, "b.example.com")
    status = await shown(world, sandbox)
    assert (status["reason"], status["applied_generation"]) == (None, status["generation"])


@dialogue()
async def test_a_wish_of_the_node_is_not_taken_for_what_holds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose dialer is away keeps the new policy, shows it in its level, and answers that it does not hold everywhere."""
    monkeypatch.setattr(limits, "POLICY_WAIT_SECONDS", 0.5)
    sandbox = await world.create(policy=policy("a.example.com"))
    sim, calls, away = world.node.egress.verbs["set_policy"], 0, True

    async def wishing(stream: Any, request: bytes) -> None:
        nonlocal calls
        calls += 1
        if not away:
            await sim(stream, request)
            return
        asked = msgspec.msgpack.decode(request, type=api.SetPolicy)
        there = traffic(world, sandbox)
        there.policy, there.policy_generation, there.waiting_for = asked.policy, asked.policy_generation, ["dialer"]
        world.node._egress_changed(sandbox)
        raise DeadlineExceeded("it does not hold everywhere")

    world.node._verbs["set_policy"] = wishing
    told = await put(world, f"/v1/sandboxes/{sandbox}/policy", policy("b.example.com"))
    assert (told["status"]["state"], told["status"]["generation"], told["status"]["applied_generation"]) == ("pending", 2, 1)
    assert calls > 1
    away, traffic(world, sandbox).waiting_for = False, []
    await until(lambda: _is(world, sandbox, "applied"))


@dialogue()
async def test_a_change_while_a_sandbox_is_made_is_told_when_it_runs(world: World) -> None:
    world.node.hold_create = asyncio.Event()
    answer = await world.client.post("/v1/sandboxes?wait=false", json={"policy": policy("a.example.com")})
    sandbox = answer.json()["id"]
    await until(lambda: sandbox in world.node.sandboxes)
    changing = asyncio.create_task(put(world, f"/v1/sandboxes/{sandbox}/policy", policy("b.example.com")))
    await until(lambda: _is(world, sandbox, "pending"))
    world.node.hold_create.set()
    assert (await changing)["status"]["state"] == "applied"
    assert may(world, sandbox, "b.example.com")


@dialogue()
async def test_generations_of_a_node_that_is_ahead_are_passed(world: World) -> None:
    """As after control's store was put back from a copy."""
    sandbox = await world.create(policy=policy("a.example.com"))
    traffic(world, sandbox).policy_generation = 50
    traffic(world, sandbox).policy = ""
    world.node.cut()
    await until(lambda: may(world, sandbox, "a.example.com"))
    assert traffic(world, sandbox).policy_generation == 51


@dialogue()
async def test_one_key_with_another_policy_is_a_conflict(world: World) -> None:
    head = {"Idempotency-Key": "k"}
    made = [
        await world.client.post("/v1/sandboxes", json={"policy": policy(host)}, headers=head)
        for host in ("a.example.com", "a.example.com", "b.example.com")
    ]
    assert [one.status_code for one in made] == [201, 201, 409]
    assert made[0].json()["id"] == made[1].json()["id"]


# -- asks and workers ------------------------------------------------------------------------------------------------------


async def events(world: World, *kinds: str) -> list[dict[str, Any]]:
    answer = await world.client.get("/v1/events", params={"after": "0", "kind": ",".join(kinds)})
    return [one for one in map(msgspec.json.decode, answer.text.splitlines()) if one["kind"] in kinds]


@dialogue()
async def test_a_request_that_waits_is_told_listed_answered_once_and_the_audit_says_by_whom(world: World) -> None:
    sandbox = await world.create(policy=policy("a.example.com", mode="ask"))
    ask = world.node.egress.ask(sandbox, host="b.example.com", method="POST", path="/v1/x", rule="rule[0]")
    path = f"/v1/sandboxes/{sandbox}/egress/asks"

    async def listed() -> list[Any]:
        found: list[Any] = (await world.client.get(path)).json()["asks"]
        return found

    await until(listed)
    [one] = await listed()
    assert (one["ask"], one["host"], one["port"], one["method"], one["path"], one["rule"]) == (
        ask, "b.example.com", 443, "POST", "/v1/x", "rule[0]",
    )  # fmt: skip
    await until(lambda: events(world, "egress_asked"))  # the log is written behind what is listed
    [event] = await events(world, "egress_asked")
    assert (event["sandbox"], event["ask"]) == (sandbox, one)
    assert (await world.client.post(f"{path}/{ask}", json={"allow": False})).status_code == 204
    assert world.node.egress.answered == [(sandbox, ask, False)]
    assert (await world.client.post(f"{path}/{ask}", json={"allow": True})).status_code == 404
    assert (await world.client.post(f"{path}/ask-77", json={"allow": True})).status_code == 404
    assert (await world.client.post(f"{path}/{ask}", json={"allow": "yes"})).status_code == 400

    async def recorded() -> bool:
        rows = (await world.client.get("/v1/audit")).json()["records"]
        return any(row["route"] == "answer_ask" and row["sandbox"] == sandbox and row["status"] == 204 and row["key_id"] for row in rows)

    await until(recorded)
    late = world.node.egress.ask(sandbox)
    await until(listed)
    world.node.egress.give_up(sandbox, late)
    await until(lambda: _empty(listed))


async def _empty(listed: Any) -> bool:
    return not await listed()


@dialogue()
async def test_asks_are_bounded_here_whatever_the_node_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ASK_EVENTS_PER_MINUTE", 5)
    sandbox = await world.create()
    for _ in range(limits.ASKS_PER_SANDBOX + 20):
        world.node.egress.ask(sandbox)

    async def full() -> bool:
        found = (await world.client.get(f"/v1/sandboxes/{sandbox}/egress/asks")).json()["asks"]
        return len(found) == limits.ASKS_PER_SANDBOX

    await until(full)

    async def told() -> bool:
        return len(await events(world, "egress_asked")) >= 5

    await until(told)
    assert len(await events(world, "egress_asked")) <= 10  # a minute may have begun meanwhile


@dialogue()
async def test_a_worker_that_crashes_and_a_policy_that_changes_are_events(world: World) -> None:
    sandbox = await world.create(policy=policy("a.example.com"))
    world.node.egress.crash_worker(sandbox, "signal 11")
    await put(world, f"/v1/sandboxes/{sandbox}/policy", policy("b.example.com"))

    async def told() -> bool:
        return len(await events(world, "egress_worker_ended", "egress_policy")) == 3

    await until(told)
    crash, *changes = await events(world, "egress_worker_ended", "egress_policy")
    assert (crash["kind"], crash["count"], crash["detail"]) == ("egress_worker_ended", 1, "signal 11")
    assert [(one["policy"]["state"], one["policy"]["generation"]) for one in changes] == [("pending", 2), ("applied", 2)]


@dialogue()
async def test_texts_that_nothing_names_are_forgotten(world: World) -> None:
    assert world.services is not None
    store = world.services.sandboxes._book.store

    async def count() -> int:
        found: int = await store.read(lambda connection: connection.exec_driver_sql("SELECT count(*) FROM policy_texts").scalar_one())
        return found

    sandbox = await world.create(policy=policy("a.example.com"))
    assert await count() == 2
    await put(world, f"/v1/sandboxes/{sandbox}/policy", None)
    world.services.sandboxes.policies._sweep()
    await until(lambda: _equals(count, 0))


async def _equals(count: Any, wanted: int) -> bool:
    return bool(await count() == wanted)


@dialogue(node_up=False)
async def test_stored_policies_need_no_node(world: World) -> None:
    assert (await put(world, "/v1/policies/agents", policy("a.example.com")))["revision"] == 1
