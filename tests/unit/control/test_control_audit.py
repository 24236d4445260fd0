"""The audit: who did what to which sandbox, from where, and what came of it."""

from __future__ import annotations

import asyncio
from typing import Any

from space.control import limits
from space.control.audit import AuditLog
from space.control.routes import ROUTES
from space.control.store.store import Store
from space.control.timers import Timers
from space.testing.controlprocess import a_process
from space.testing.simcontrol import World, controlled, dialogue, until


async def records(world: World, **params: Any) -> list[dict[str, Any]]:
    answer = await world.client.get("/v1/audit", params=params)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["records"]
    return found


def test_only_what_looks_is_not_recorded() -> None:
    silent = {route.name for route in ROUTES if not route.audit}
    assert silent <= {
        "list_sandboxes", "get_sandbox", "sandbox_metrics", "metrics_history", "list_templates", "list_keys", "health", "metrics",
        "openapi", "events", "list_webhooks", "list_audit", "get_quota", "list_processes", "get_process",
        "egress_counters", "egress_log", "tenant_egress_log", "get_template", "list_builds", "get_build", "build_log",
        "list_policies", "get_policy", "get_operator_policy", "get_tenant_policy",
        "get_sandbox_policy", "list_asks", "list_checkpoints",
        "list_secrets", "get_secret", "list_grants", "get_grant", "list_attached", "credential_log",
        "list_exposed_ports", "get_exposed_port", "get_ingress",
    }  # fmt: skip
    assert not [route.name for route in ROUTES if not route.audit and route.method != "GET"]


@dialogue()
async def test_every_change_is_recorded_with_who_what_whence_and_the_answer(world: World) -> None:
    made = await world.client.post("/v1/sandboxes", json={}, headers={"X-Request-Id": "mine-1"})
    sandbox = made.json()["id"]
    await world.client.get("/v1/sandboxes")
    await world.client.get(f"/v1/sandboxes/{sandbox}")
    await world.client.post(
        f"/v1/sandboxes/{sandbox}/processes?stream=1", json={"argv": ["echo", "hi"]}, headers={"X-Request-Id": "mine-2"}
    )
    await world.client.post("/v1/sandboxes/sb-aaaaaaaaaaaaaaaaaaaa/pause")
    await world.client.post("/v1/sandboxes", json={"cpus": "x"})
    await world.client.delete(f"/v1/sandboxes/{sandbox}")
    found = await records(world)
    assert [(one["route"], one["sandbox"], one["status"]) for one in found] == [
        ("create_sandbox", sandbox, 201),
        ("run_process", sandbox, 200),
        ("pause_sandbox", "sb-aaaaaaaaaaaaaaaaaaaa", 404),
        ("create_sandbox", None, 400),
        ("delete_sandbox", sandbox, 204),
    ]
    first = found[0]
    assert first["request_id"] == "mine-1"
    assert (first["tenant"], first["peer"]) == ("default", "127.0.0.1")
    assert first["key_id"] == world.key.split("_")[1]
    assert world.key.split("_")[2] not in str(found)
    pages = [one["id"] for one in await records(world, limit=2)]
    assert pages == [found[0]["id"], found[1]["id"]]
    assert [one["id"] for one in await records(world, after=pages[-1], limit=1000)] == [one["id"] for one in found[2:]]


@dialogue()
async def test_a_tenant_sees_its_own_and_an_admin_everybodys(world: World) -> None:
    await world.create()
    async with await world.other_tenant() as tenant:
        await tenant.post("/v1/sandboxes", json={})
        own = (await tenant.get("/v1/audit")).json()["records"]
        assert {one["tenant"] for one in own} == {"other"}
        assert (await tenant.get("/v1/audit", params={"tenant": "default"})).status_code == 403
        assert (await tenant.get("/v1/audit", params={"tenant": "other"})).json()["records"] == own
    assert {one["tenant"] for one in await records(world)} == {"default", "other"}
    assert await records(world, tenant="other") == own


@dialogue()
async def test_a_request_without_a_key_or_beyond_the_rate_fills_no_table(world: World) -> None:
    for _ in range(3):
        await world.client.post("/v1/sandboxes", json={}, headers={"Authorization": "Bearer space_x_y"})
    await world.client.put("/v1/tenants/default/quota", json={"requests_per_second": 0.01, "burst": 1})
    for _ in range(5):
        await world.client.post("/v1/sandboxes/sb-aaaaaaaaaaaaaaaaaaaa/pause")
    async with await world.other_tenant(scope="admin") as admin:
        found = (await admin.get("/v1/audit")).json()["records"]
    assert [(one["route"], one["status"]) for one in found] == [("put_quota", 200), ("pause_sandbox", 404), ("create_key", 201)]


@dialogue()
async def test_a_stream_is_recorded_when_it_begins_once(world: World) -> None:
    sandbox = await world.create()
    path = f"/v1/sandboxes/{sandbox}/processes?stream=1"
    async with world.client.stream("POST", path, json={"argv": ["sleep", "60"]}):
        assert [one["route"] for one in await records(world)] == ["create_sandbox", "run_process"]
    await until(lambda: world.node.killed == 1)
    assert [one["route"] for one in await records(world)] == ["create_sandbox", "run_process"]


@dialogue(start=False)
async def test_a_stop_loses_no_record(world: World) -> None:
    async with controlled(world):
        assert world.services is not None
        await world.services.link.wait_up()
        await world.create()
    async with controlled(world):
        assert [one["route"] for one in await records(world)] == ["create_sandbox"]


@dialogue(start=False)
async def test_a_kill_loses_at_most_the_last_second(world: World) -> None:
    async with a_process(world) as control:
        sandbox = await world.create()
        await asyncio.sleep(limits.AUDIT_SECONDS + 0.5)
        await control.kill()
        await control.start()
        assert [(one["route"], one["sandbox"]) for one in await records(world)] == [("create_sandbox", sandbox)]
        assert await control.end() == 0


def test_records_are_stored_in_batches_and_forgotten_when_they_are_too_old(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    async def talk() -> None:
        store = Store(tmp_path / "s.db")
        audit = AuditLog(store, Timers(), keep_seconds=3600)
        before = store.commits
        for number in range(limits.AUDIT_BATCH * 3):
            audit.note(request_id=f"r{number}", key_id="k", tenant="t", peer="::1", route="x", sandbox=None, status=200)
        found, after = await audit.page(0, 1000, None)
        assert [one.request_id for one in found] == [f"r{number}" for number in range(limits.AUDIT_BATCH * 3)]
        assert after is None
        assert store.commits - before <= 3
        monkeypatch.setattr("space.control.audit._PRUNE", 100)
        old = AuditLog(store, Timers(), keep_seconds=-1)
        old.start()

        async def is_empty() -> bool:
            return (await old.page(0, 1000, None))[0] == []

        await until(is_empty)
        store.close()

    asyncio.run(talk())
