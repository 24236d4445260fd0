"""The event log over HTTP: every change once, in order, over breaks, kills and slow readers; what is too old is a gap, and said so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from space.control import limits
from space.model.errors import NoCapacity, Unavailable
from space.testing.controlprocess import a_process
from space.testing.simcontrol import World, controlled, dialogue, until


async def created(world: World) -> str:
    """A sandbox whose events are committed: an answer may be out before."""
    assert world.services is not None
    sandbox = await world.create()
    await world.services.events._store.write(lambda _: None)
    return sandbox


async def listed(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    answer = await client.get("/v1/events", params=params)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


@contextlib.asynccontextmanager
async def following(client: httpx.AsyncClient, **params: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The lines that are no heartbeats."""
    async with client.stream("GET", "/v1/events", params={"follow": "1", **params}) as answer:
        assert answer.status_code == 200

        async def lines() -> AsyncIterator[dict[str, Any]]:
            async for line in answer.aiter_lines():
                fields = json.loads(line)
                if fields["kind"] != "heartbeat":
                    yield fields

        yield lines()


@dialogue()
async def test_a_life_is_told_from_created_to_deleted(world: World) -> None:
    sandbox = await created(world)
    path = f"/v1/sandboxes/{sandbox}"
    await world.client.post(path + "/pause")
    await world.client.post(path + "/resume")
    await world.client.patch(path, json={"metadata": {"a": "1"}, "ttl_seconds": 9})
    there = world.node.sandboxes[sandbox]
    there.oom_kills, there.last_oom = 2, "python3"
    world.node._move(there, "running")
    await world.client.delete(path)
    events = await listed(world.client)
    told = [(one["kind"], one.get("from_phase"), one["phase"]) for one in events if one["phase"] != "preparing"]
    assert told[0] == ("created", None, "requested")
    assert told[1][::2] == ("phase", "running")
    assert told[2:] == [
        ("phase", "running", "paused"),
        ("phase", "paused", "running"),
        ("changed", None, "running"),
        ("out_of_memory", None, "running"),
        ("phase", "running", "deleting"),
        ("deleted", "deleting", "gone"),
    ]
    assert [(one["count"], one["process"]) for one in events if one["kind"] == "out_of_memory"] == [(2, "python3")]
    assert next(one["fields"] for one in events if one["kind"] == "changed") == ["ttl_seconds", "metadata"]
    assert (events[-1]["reason"], events[-1]["sandbox"]) == ("deleted by request", sandbox)
    assert [one["id"] for one in events] == sorted({one["id"] for one in events})
    assert [one["revision"] for one in events] == sorted(one["revision"] for one in events)
    now = (await world.client.get(path)).json()
    assert (events[-1]["revision"], events[-1]["phase"]) == (now["revision"], now["phase"])


@dialogue()
async def test_a_refused_creation_is_created_and_deleted_and_a_failed_one_ends_as_failed(world: World) -> None:
    world.node.refuse_create = NoCapacity("full")
    await world.client.post("/v1/sandboxes", json={})
    world.node.refuse_create, world.node.fail_create = None, "no boot"
    await world.client.post("/v1/sandboxes", json={})
    events = await listed(world.client)
    assert [(one["kind"], one["phase"], one["reason"]) for one in events if one["phase"] != "preparing"] == [
        ("created", "requested", None),
        ("deleted", "failed", "full"),
        ("created", "requested", None),
        ("phase", "failed", "no boot"),
    ]


@dialogue(start=False)
async def test_out_of_memory_is_told_once_also_over_a_restart(world: World) -> None:
    async with controlled(world):
        assert world.services is not None
        await world.services.link.wait_up()
        sandbox = await created(world)
        there = world.node.sandboxes[sandbox]
        there.oom_kills, there.last_oom = 2, "python3"
        world.node._move(there, "running")

        async def is_told() -> bool:
            return len(await listed(world.client, kind="out_of_memory")) == 1

        await until(is_told)
    async with controlled(world):
        assert world.services is not None
        await world.services.link.wait_up()
        await world.client.post(f"/v1/sandboxes/{sandbox}/noop")
        [told] = await listed(world.client, kind="out_of_memory")
        assert (told["count"], told["process"]) == (2, "python3")


@dialogue()
async def test_a_guest_that_runs_out_of_memory_all_the_time_is_told_once_a_second_with_all_that_it_lost(world: World) -> None:
    sandbox = await created(world)
    there = world.node.sandboxes[sandbox]
    for number in range(1, 501):
        there.oom_kills, there.last_oom = number, "x" * 1000
        world.node._move(there, "running")

    async def are_all_told() -> bool:
        counts: list[int] = [one["count"] for one in await listed(world.client, kind="out_of_memory")]
        return sum(counts) == 500

    await until(are_all_told)
    told = await listed(world.client, kind="out_of_memory")
    assert len(told) == 2
    assert told[1]["at"] - told[0]["at"] >= 0.9
    assert told[0]["process"] == "x" * 64


@dialogue()
async def test_a_change_that_could_not_be_stored_is_told_by_the_next_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await created(world)
    path = f"/v1/sandboxes/{sandbox}"
    begin = (await listed(world.client))[-1]["id"]

    def full(*_: object) -> None:
        raise Unavailable("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr("space.control.records.save", full)
        await world.client.post(path + "/pause")
        assert world.services is not None
        await world.services.events._store.write(lambda _: None)
    assert await listed(world.client, after=begin) == []
    await world.client.patch(path, json={"metadata": {"a": "1"}})
    told = await listed(world.client, after=begin)
    assert [(one["kind"], one.get("from_phase"), one["phase"]) for one in told] == [
        ("phase", "running", "paused"),
        ("changed", None, "paused"),
    ]


@dialogue()
async def test_a_reader_takes_what_it_asked_for_and_another_tenants_is_not_there(world: World) -> None:
    first, second = await created(world), await created(world)
    await world.client.delete(f"/v1/sandboxes/{first}")
    whole = await listed(world.client)
    assert await listed(world.client, sandbox=second) == [one for one in whole if one["sandbox"] == second]
    assert {one["kind"] for one in await listed(world.client, kind="created,deleted")} == {"created", "deleted"}
    assert await listed(world.client, limit=2) == whole[:2]
    assert await listed(world.client, after=whole[1]["id"], limit=3) == whole[2:5]
    assert await listed(world.client, after=whole[-1]["id"]) == []
    async with await world.other_tenant() as stranger:
        assert await listed(stranger) == []
        assert await listed(stranger, sandbox=first) == []
    for wrong in ({"kind": "all"}, {"after": "-1"}, {"limit": "0"}, {"sandbox": "x"}, {"after": "9" * 17}, {"follow": "maybe"}):
        assert (await world.client.get("/v1/events", params=wrong)).status_code == 400, wrong
    assert (await world.client.get("/v1/events", headers={"Accept": "image/png"})).status_code == 415


@dialogue()
async def test_a_follower_hears_what_comes_and_first_where_it_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.2)
    await created(world)
    newest = (await listed(world.client))[-1]["id"]
    async with world.client.stream("GET", "/v1/events?follow=1") as answer:
        lines = answer.aiter_lines()
        assert json.loads(await anext(lines)) == {"kind": "heartbeat", "id": newest}
        assert json.loads(await anext(lines)) == {"kind": "heartbeat", "id": newest}
        sandbox = await world.create()
        told = json.loads(await anext(lines))
        assert (told["kind"], told["sandbox"]) == ("created", sandbox)


@dialogue()
async def test_a_follower_is_woken_and_does_not_ask(world: World) -> None:
    assert world.services is not None
    store = world.services.events._store
    async with await world.other_tenant() as stranger, following(world.client) as lines, following(stranger):
        await asyncio.sleep(0.1)
        reads = 0
        read = store.read

        async def counted(query: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(query)

        store.read = counted  # type: ignore[method-assign]
        await asyncio.sleep(1.0)
        assert reads == 0
        sandbox = (await stranger.post("/v1/sandboxes", json={})).json()["id"]  # its follower reads, ours does not
        await asyncio.sleep(0.2)
        theirs = reads
        began = time.monotonic()
        await world.client.post("/v1/sandboxes?wait=false", json={})
        assert (await anext(lines))["sandbox"] != sandbox
        assert time.monotonic() - began < 1
        assert theirs <= 6


@dialogue()
async def test_a_follower_that_sleeps_holds_up_nobody_and_finds_everything_when_it_wakes(world: World) -> None:
    sandbox = await created(world)
    after = (await listed(world.client))[-1]["id"]
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1024)
    writer.write(
        f"GET /v1/events?follow=1&after={after} HTTP/1.1\r\nHost: 127.0.0.1:{world.port}\r\nX-API-Key: {world.key}\r\n\r\n".encode()
    )
    await writer.drain()
    async with following(world.client, after=after) as lines:
        there = world.node.sandboxes[sandbox]
        for number in range(2000):
            world.node._move(there, "paused" if number % 2 == 0 else "running")
        awake: list[int] = []
        async for told in lines:
            awake.append(told["id"])
            if len(awake) == 2000:
                break
    asleep: list[int] = []
    async with asyncio.timeout(20):
        while len(asleep) < 2000:
            line = await reader.readline()
            if line.startswith(b'{"id"'):
                asleep.append(json.loads(line)["id"])
    writer.close()
    assert asleep == awake == sorted(set(awake))


@dialogue(events_per_tenant=5)
async def test_a_place_that_is_kept_no_longer_is_a_gap_and_the_reader_goes_on_behind_it(world: World) -> None:
    sandbox = await created(world)
    first = (await listed(world.client))[0]["id"]
    there = world.node.sandboxes[sandbox]
    for number in range(40):
        world.node._move(there, "paused" if number % 2 == 0 else "running")

    async def is_pruned() -> bool:
        return [one["kind"] for one in await listed(world.client, after=first)][:1] == ["gap"]

    await until(is_pruned)
    lines = await listed(world.client, after=first)
    assert lines[0]["oldest"] == lines[1]["id"]
    assert "gap" not in {one["kind"] for one in await listed(world.client, after=lines[0]["oldest"] - 1)}
    assert "gap" not in {one["kind"] for one in await listed(world.client)}
    async with following(world.client, after=first) as followed:
        assert (await anext(followed))["kind"] == "gap"


@dialogue()
async def test_server_sent_events_carry_ids_and_go_on_behind_the_last_one(world: World) -> None:
    sandbox = await created(world)
    head = {"Accept": "text/event-stream"}
    answer = await world.client.get("/v1/events?follow=0", headers=head)
    assert answer.headers["content-type"] == "text/event-stream"
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in answer.text.strip().split("\n\n")]
    assert blocks[0]["event"] == "created"
    assert [json.loads(block["data"])["id"] for block in blocks] == [int(block["id"]) for block in blocks]
    rest = await world.client.get("/v1/events?follow=0&after=0", headers={**head, "Last-Event-ID": blocks[0]["id"]})
    assert rest.text.count("event: ") == len(blocks) - 1
    async with world.client.stream("GET", "/v1/events", headers={**head, "Last-Event-ID": blocks[-1]["id"]}) as followed:
        lines = followed.aiter_lines()
        assert [await anext(lines), await anext(lines), await anext(lines)] == [": heartbeat", f"id: {blocks[-1]['id']}", ""]
        await world.client.delete(f"/v1/sandboxes/{sandbox}")
        assert (await anext(lines)).startswith("id: ")
        assert await anext(lines) == "event: phase"


@dialogue()
async def test_a_follower_that_leaves_is_forgotten(world: World) -> None:
    assert world.services is not None
    waiters = world.services.events._waiters
    async with following(world.client):
        assert sum(map(len, waiters.values())) == 1
    await until(lambda: not waiters)


@dialogue(start=False)
async def test_a_server_that_stops_ends_its_followers_at_once(world: World) -> None:
    async with a_process(world) as control, following(world.client) as lines:
        began = time.monotonic()
        ended = asyncio.create_task(control.end())
        assert [one async for one in lines] == []
        assert await ended == 0
        assert time.monotonic() - began < 2.5  # uvicorn's patience is 3


@dialogue(start=False)
async def test_a_creation_in_flight_at_a_stop_is_told_so_and_goes_on(world: World) -> None:
    async with a_process(world) as control:
        world.node.hold_create = asyncio.Event()
        asked = asyncio.create_task(world.client.post("/v1/sandboxes", json={}))
        await until(lambda: world.node.created == 1)
        assert await control.end() == 0
        answer = await asked
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "the server is stopping" in answer.json()["detail"]


@pytest.mark.parametrize("seed", range(3))
@dialogue(start=False)
async def test_a_follower_sees_every_event_once_in_order_over_kills_of_the_server(world: World, seed: int) -> None:
    """200 phase changes go by while control is killed at random moments; the follower asks again from the last id that it saw."""
    chance = random.Random(seed)
    seen: list[dict[str, Any]] = []
    async with a_process(world) as control:
        made = [await world.create() for _ in range(2)]
        for one in made:  # an answer may be out before its event is committed
            await until(lambda one=one: _is_settled(world, one))  # type: ignore[misc]
        begin = (await listed(world.client))[-1]["id"]

        async def follow() -> None:
            while True:
                after = seen[-1]["id"] if seen else begin
                with contextlib.suppress(httpx.TransportError):
                    async with following(world.client, after=after) as lines:
                        async for line in lines:
                            seen.append(line)  # noqa: PERF401 - one by one: the connection may break

        async def change() -> None:
            for _ in range(200):
                if chance.random() < 0.9:  # what nobody sees happen while control is away is no event: most wait for it
                    await up.wait()
                there = world.node.sandboxes[chance.choice(made)]
                world.node._move(there, "running" if there.phase == "paused" else "paused")
                await asyncio.sleep(chance.uniform(0, 0.03))

        up = asyncio.Event()
        up.set()
        follower = asyncio.create_task(follow())
        changing = asyncio.create_task(change())
        for _ in range(3):
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            await control.kill()
            up.clear()
            await control.start()
            up.set()
        await changing
        for one in made:
            await until(lambda one=one: _is_settled(world, one))  # type: ignore[misc]
        stored = await listed(world.client, after=begin, limit=1000)
        await until(lambda: len(seen) >= len(stored))
        follower.cancel()
        assert await control.end() == 0
    assert seen == stored
    assert len(stored) > 100
    for one in made:
        chain = [event for event in seen if event["sandbox"] == one and event["kind"] == "phase"]
        phase = "running"
        for event in chain:
            assert event["from_phase"] == phase
            phase = event["phase"]
        assert phase == world.node.sandboxes[one].phase


async def _is_settled(world: World, sandbox: str) -> bool:
    last = (await listed(world.client, sandbox=sandbox, limit=1000))[-1]
    told: set[str] = {last["phase"], world.node.sandboxes[sandbox].phase, await world.phase(sandbox)}
    return len(told) == 1
