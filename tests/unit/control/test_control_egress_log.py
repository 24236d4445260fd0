"""What the gateway decided, over HTTP: a tenant's own, each record once, also when the sandbox is gone; figures for Prometheus."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx

from space.control import limits
from space.model.errors import Unavailable
from space.testing.simcontrol import World, dialogue, until

LOG = "/v1/sandboxes/{}/egress/log"


async def lines(client: httpx.AsyncClient, path: str, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def names(found: list[dict[str, Any]]) -> list[str]:
    return [line["name"] for line in found]


@dialogue()
async def test_records_of_a_sandbox_are_told_oldest_first_with_places_to_go_on_from(world: World) -> None:
    sandbox, other = await world.create(), await world.create()
    log = world.node.egress_log
    log.add(sandbox, type="name", name="a.example.com", address="198.18.0.1")
    log.add(other, name="not.example.com", status=200)
    log.add(sandbox, "dialer", type="dial", name="a.example.com", address="192.0.2.1")
    log.add(sandbox, name="b.example.com", reason="name_not_allowed", status=403, id="5cafe-1")
    found = await lines(world.client, LOG.format(sandbox))
    assert [(line["kind"], line["chain"], line["id"], line["sandbox"]) for line in found] == [
        ("name", "gateway", "1.0", sandbox),
        ("dial", "dialer", "1.1", sandbox),
        ("request", "gateway", "3.1", sandbox),
    ]
    assert not any("h" in line or "type" in line for line in found)
    assert [line.get("request_id") for line in found] == [None, None, "5cafe-1"]  # what the guest was told is not the place
    assert await lines(world.client, LOG.format(sandbox), after=found[1]["id"]) == found[2:]
    assert await lines(world.client, LOG.format(sandbox), limit=2) == found[:2]
    assert names(await lines(world.client, LOG.format(sandbox), denied="1")) == ["b.example.com"]
    assert [line["kind"] for line in await lines(world.client, LOG.format(sandbox), kind="dial,name")] == ["name", "dial"]
    assert await lines(world.client, LOG.format(sandbox), since="2099-01-01T00:00:00Z") == []


@dialogue()
async def test_another_tenants_sandbox_is_not_found_before_and_after_its_end(world: World) -> None:
    sandbox = await world.create()
    world.node.egress_log.add(sandbox, name="secret.example.com")
    async with await world.other_tenant() as other:
        own = (await other.post("/v1/sandboxes", json={})).json()["id"]
        world.node.egress_log.add(own, name="own.example.com")
        world.node.egress_log.add("", type="lost", name="nobody", count=1)
        for path in (LOG.format(sandbox), LOG.format("sb-" + "a" * 20), LOG.format("nonsense")):
            assert (await other.get(path)).status_code == 404
        assert (await other.get(f"/v1/sandboxes/{sandbox}/egress")).status_code == 404
        assert names(await lines(other, "/v1/egress/log")) == ["own.example.com"]
        assert (await other.get("/v1/egress/log", params={"tenant": "default"})).status_code == 403
        assert (await world.client.delete(f"/v1/sandboxes/{sandbox}")).status_code == 204
        assert world.services is not None
        await until(lambda: sandbox not in world.services.sandboxes._book.live)  # type: ignore[union-attr]
        world.services.sandboxes._book._prune("default", sandbox)
        await until(lambda: _forgotten(world, sandbox))
        assert names(await lines(world.client, LOG.format(sandbox))) == ["secret.example.com"]
        assert (await other.get(LOG.format(sandbox))).status_code == 404
    everything = await lines(world.client, "/v1/egress/log")
    assert [(line["name"], line["tenant"]) for line in everything] == [
        ("secret.example.com", "default"),
        ("own.example.com", "other"),
        ("nobody", None),
    ]
    assert names(await lines(world.client, "/v1/egress/log", tenant="other")) == ["own.example.com"]


async def _forgotten(world: World, sandbox: str) -> bool:
    return (await world.client.get(f"/v1/sandboxes/{sandbox}")).status_code == 404


@dialogue()
async def test_a_follower_is_told_what_comes_with_signs_of_life_and_of_what_is_gone(world: World) -> None:
    sandbox = await world.create()
    log = world.node.egress_log
    for number in range(4):
        log.add(sandbox, name=f"old{number}.example.com")
    log.remove(2)
    assert names(await lines(world.client, LOG.format(sandbox))) == ["old2.example.com", "old3.example.com"]
    gap, *rest = await lines(world.client, LOG.format(sandbox), after="1.0")
    assert gap == {"kind": "gap", "id": "2.0", "chain": "gateway", "removed": 2}
    assert names(rest) == ["old2.example.com", "old3.example.com"]
    async with world.client.stream("GET", LOG.format(sandbox), params={"follow": "1"}) as answer:
        coming = answer.aiter_lines()
        assert json.loads(await anext(coming)) == {"kind": "heartbeat", "id": "4.0"}
        log.add(sandbox, name="new.example.com")
        log.add("sb-" + "b" * 20, name="other.example.com")
        log.add(sandbox, name="newer.example.com")
        assert [json.loads(await anext(coming))["name"] for _ in range(2)] == ["new.example.com", "newer.example.com"]
        began = time.monotonic()
        assert json.loads(await anext(coming)) == {"kind": "heartbeat", "id": "7.0"}
        assert time.monotonic() - began > limits.HEARTBEAT_SECONDS / 2
        world.node.cut()
        assert json.loads(await anext(coming))["problem"]["code"] == "unavailable"
        assert [line async for line in coming] == []


@dialogue()
async def test_a_client_that_leaves_ends_the_nodes_stream(world: World) -> None:
    sandbox = await world.create()
    async with world.client.stream("GET", LOG.format(sandbox), params={"follow": "1"}) as answer:
        await anext(answer.aiter_lines())
    told = world.node.egress_log.told
    await asyncio.sleep(0.2)
    for _ in range(3):
        world.node.egress_log.add(sandbox, name="x.example.com")
        await asyncio.sleep(0.05)
    assert world.node.egress_log.told <= told + 1


@dialogue()
async def test_what_is_asked_wrongly_is_refused(world: World) -> None:
    sandbox = await world.create()
    for wrong in ({"after": "7"}, {"after": "1.x"}, {"since": "yesterday"}, {"kind": "all"}, {"limit": "0"}, {"follow": "perhaps"}):
        answer = await world.client.get(LOG.format(sandbox), params=wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), wrong
    assert (await world.client.get(LOG.format(sandbox), headers={"accept": "text/html"})).status_code == 415
    world.node.egress_log.refuse = Unavailable("the keeper of the records is away")
    assert (await world.client.get(LOG.format(sandbox))).status_code == 503


@dialogue()
async def test_figures_are_the_sandboxs_and_their_sum_never_goes_back(world: World) -> None:
    sandbox, other = await world.create(), await world.create()
    answer = await world.client.get(f"/v1/sandboxes/{sandbox}/egress")
    assert answer.json() == {
        "drops": {"guest_udp": 2}, "connections": 3, "requests": 5, "denied": 1, "names": 2,
        "sent_bytes": 700, "received_bytes": 9000, "worker": False, "worker_restarts": 0,
    }  # fmt: skip

    async def figures() -> dict[str, float]:
        text = (await world.client.get("/metrics")).text
        rows = [line.rpartition(" ") for line in text.splitlines() if line.startswith("space_egress_")]
        return {name: float(value) for name, _, value in rows}

    both = await figures()
    assert both['space_egress_decisions_total{outcome="requests"}'] == 10
    assert both['space_egress_bytes_total{direction="received"}'] == 18_000
    assert both['space_egress_packets_total{kind="guest_udp"}'] == 4
    assert both["space_egress_workers"] == 0
    assert (await world.client.delete(f"/v1/sandboxes/{other}")).status_code == 204
    assert await figures() == both
