"""Suspended sandboxes as files over HTTP: rows, quotas and faults of what goes out and comes in."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from space.control import records
from space.control.records import Record
from space.model.errors import Unavailable
from space.testing.simcontrol import World, controlled, dialogue, until

_ZSTD = {"content-type": "application/zstd"}


async def suspended(world: World) -> tuple[str, bytes]:
    """One, and its file."""
    made = await world.create(memory_mib=256, env={"A": "b"})
    assert (await world.client.post(f"/v1/sandboxes/{made}/suspend")).json()["phase"] == "suspended"
    answer = await world.client.get(f"/v1/sandboxes/{made}/file")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zstd")
    return made, answer.content


async def taken(world: World, data: bytes) -> httpx.Response:
    return await world.client.post("/v1/sandboxes/file", content=data, headers=_ZSTD)


@dialogue()
async def test_a_file_becomes_another_sandbox_that_is_suspended_and_wakes(world: World) -> None:
    first, data = await suspended(world)
    answer = await taken(world, data)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["id"] == first, made["phase"], made["expires_at"], made["spec"]["env"]) == (False, "suspended", None, {"A": "b"})
    assert made["snapshot_bytes"] > 0
    listed = (await world.client.get("/v1/sandboxes")).json()["sandboxes"]
    assert {one["id"]: one["phase"] for one in listed} == {first: "suspended", made["id"]: "suspended"}
    woken = (await world.client.post(f"/v1/sandboxes/{made['id']}/wake")).json()
    assert (woken["phase"], woken["generation"], woken["policy"]["state"]) == ("running", 2, "applied")
    assert (await world.client.delete(f"/v1/sandboxes/{made['id']}")).status_code == 204


@dialogue()
async def test_only_ones_own_suspended_sandbox_goes_out(world: World) -> None:
    made = await world.create()
    refused = await world.client.get(f"/v1/sandboxes/{made}/file")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    async with await world.other_tenant() as other:
        assert (await other.get(f"/v1/sandboxes/{made}/file")).status_code == 404


@dialogue()
async def test_a_file_that_is_none_leaves_no_row_and_nothing_on_the_node(world: World) -> None:
    answer = await taken(world, b"something else")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    other = await world.client.post("/v1/sandboxes/file", content=b"x", headers={"content-type": "text/plain"})
    assert other.status_code == 415
    await asyncio.sleep(0.02)
    assert (world.node.sandboxes, (await world.client.get("/v1/sandboxes")).json()["sandboxes"]) == ({}, [])


@dialogue()
async def test_a_file_that_the_node_counted_otherwise_breaks_off(world: World) -> None:
    made = await world.create()
    await world.client.post(f"/v1/sandboxes/{made}/suspend")
    world.node.life.lost = 1
    with pytest.raises(httpx.RemoteProtocolError):
        await world.client.get(f"/v1/sandboxes/{made}/file")


@dialogue(max_sandboxes=2)
async def test_what_comes_counts_towards_the_servers_and_the_tenants_room(world: World) -> None:
    first, data = await suspended(world)
    quota = {"disk_mib": 3000}
    assert (await world.client.put("/v1/tenants/default/quota", json=quota)).status_code == 200
    answer = await taken(world, data)
    assert (answer.status_code, answer.json()["code"]) == (503, "no_capacity"), answer.text
    assert answer.json()["quota"] is True
    await until(lambda: list(world.node.sandboxes) == [first])  # it was deleted there
    assert (await world.client.put("/v1/tenants/default/quota", json={})).status_code == 200
    assert (await taken(world, data)).status_code == 201
    answer = await taken(world, data)
    assert (answer.status_code, answer.json()["code"]) == (503, "no_capacity")


@dialogue()
async def test_a_sandbox_that_came_and_whose_row_is_not_stored_is_deleted_on_the_node(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, data = await suspended(world)

    def refuse(connection: object, record: Record, repeat: object) -> None:
        raise Unavailable("the state store could not be read or written")

    monkeypatch.setattr(records, "add", refuse)
    assert (await taken(world, data)).status_code == 503
    await until(lambda: list(world.node.sandboxes) == [first])


@dialogue()
async def test_a_sandbox_that_came_outlives_control(world: World) -> None:
    _, data = await suspended(world)
    made = (await taken(world, data)).json()["id"]
    async with controlled(world) as again:
        assert again.services is not None
        await again.services.link.wait_up()
        assert await again.phase(made) == "suspended"
        assert (await again.client.post(f"/v1/sandboxes/{made}/wake")).json()["phase"] == "running"
