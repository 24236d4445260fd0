"""Lives over HTTP, before a SimNode: put to rest, woken, taken back, forked. Promises outlive control; calls wake what rests by a rule."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import httpx
import pytest

from space.control import limits
from space.model.errors import NoCapacity
from space.model.ids import new_checkpoint_id
from space.testing.simcontrol import World, controlled, dialogue, until

ECHO = {"argv": ["echo", "here"]}


async def info(world: World, sandbox: str) -> dict[str, Any]:
    found: dict[str, Any] = (await world.client.get(f"/v1/sandboxes/{sandbox}")).json()
    return found


async def ask(world: World, sandbox: str, verb: str, **body: Any) -> httpx.Response:
    return await world.client.post(f"/v1/sandboxes/{sandbox}/{verb}", json=body or None)


async def done(world: World, sandbox: str, verb: str, **body: Any) -> dict[str, Any]:
    answer = await ask(world, sandbox, verb, **body)
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def phase_is(world: World, sandbox: str, phase: str, seconds: float = 10) -> dict[str, Any]:
    async def claim() -> bool:
        return await world.phase(sandbox) == phase

    await until(claim, seconds)
    return await info(world, sandbox)


async def kinds(world: World, sandbox: str) -> list[tuple[str, ...]]:
    lines = (await world.client.get("/v1/events", params={"sandbox": sandbox})).text.splitlines()
    found = [httpx.Response(200, content=line).json() for line in lines]
    return [(one["kind"], one["phase"]) for one in found if one["kind"] not in ("heartbeat", "gap")]


# -- asked for ---------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_suspend_stop_and_wake_are_idempotent_and_each_life_has_a_generation_of_its_own(world: World) -> None:
    sandbox = await world.create()
    assert (await info(world, sandbox))["start"] == "cold"
    for _ in range(2):
        found = await done(world, sandbox, "suspend")
        assert (found["phase"], found["generation"], found["expires_at"]) == ("suspended", 1, None)
        assert found["snapshot_bytes"] > 0
    for _ in range(2):
        found = await done(world, sandbox, "wake")
        assert (found["phase"], found["generation"], found["start"], found["snapshot_bytes"]) == ("running", 2, "restore", 0)
        assert found["expires_at"] is not None
    for _ in range(2):
        assert (await done(world, sandbox, "stop"))["phase"] == "stopped"
    assert (await ask(world, sandbox, "suspend")).json()["code"] == "conflict"
    found = await done(world, sandbox, "wake")
    assert (found["phase"], found["generation"], found["start"]) == ("running", 3, "cold")
    assert (await done(world, sandbox, "pause"))["phase"] == "paused"
    found = await done(world, sandbox, "wake")
    assert (found["phase"], found["generation"]) == ("running", 3), "it goes on where it stood: no new life"
    assert world.node.sandboxes[sandbox].create.generation == 3


@dialogue()
async def test_what_was_put_to_rest_by_request_stays_so_and_says_how_to_wake_it(world: World) -> None:
    sandbox = await world.create()
    for verb, phase in (("pause", "paused"), ("suspend", "suspended"), ("stop", "stopped")):
        assert (await done(world, sandbox, verb))["phase"] == phase
        refused = await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json=ECHO)
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert phase in refused.json()["detail"]
        assert refused.json()["hint"]
        assert await world.phase(sandbox) == phase
    assert (await done(world, sandbox, "wake"))["phase"] == "running"


@dialogue()
async def test_a_wake_that_is_refused_leaves_it_as_it_was_and_another_one_is_another_life(world: World) -> None:
    sandbox = await world.create()
    await done(world, sandbox, "suspend")
    world.node.life.refuse_wake = NoCapacity("full")
    assert (await ask(world, sandbox, "wake")).json()["code"] == "no_capacity"
    world.node.life.refuse_wake, world.node.life.fail_wake = None, "its guest is silent"
    fell = await ask(world, sandbox, "wake")
    assert (fell.status_code, fell.json()["code"]) == (502, "guest_error")
    assert "its guest is silent" in fell.json()["detail"]
    found = await info(world, sandbox)
    assert (found["phase"], found["reason"]) == ("suspended", "its guest is silent")
    world.node.life.fail_wake = None
    found = await done(world, sandbox, "wake")
    assert (found["phase"], found["generation"], found["reason"]) == ("running", 4, None)


@dialogue()
async def test_a_stored_memory_that_cannot_be_gone_on_from_is_given_up_only_when_asked(world: World) -> None:
    sandbox = await world.create()
    await done(world, sandbox, "suspend")
    world.node.life.without_vmm = True
    refused = await ask(world, sandbox, "wake")
    assert (refused.json()["code"], "cold" in refused.json()["hint"]) == ("conflict", True)
    assert await world.phase(sandbox) == "suspended"
    found = await done(world, sandbox, "wake", cold=True)
    assert (found["phase"], found["start"]) == ("running", "cold")


@dialogue()
async def test_a_suspension_that_fails_leaves_it_running(world: World) -> None:
    sandbox = await world.create()
    world.node.life.fail_suspend = "the disk is full"
    fell = await ask(world, sandbox, "suspend")
    assert (fell.json()["code"], "the disk is full" in fell.json()["detail"]) == ("guest_error", True)
    assert (await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json=ECHO)).is_success


@dialogue()
async def test_a_failed_sandbox_keeps_its_disk_and_wakes_from_it(world: World) -> None:
    sandbox = await world.create()
    world.node.lose(sandbox, "its VM ended")
    found = await phase_is(world, sandbox, "failed")
    assert found["reason"] == "its VM ended"
    refused = await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json=ECHO)
    assert (refused.status_code, "its VM ended" in refused.json()["detail"], "wake" in refused.json()["hint"]) == (410, True, True)
    assert sandbox not in world.node.deleted
    found = await done(world, sandbox, "wake")
    assert (found["phase"], found["start"], found["reason"]) == ("running", "cold", None)
    assert (await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json=ECHO)).is_success


@dialogue()
async def test_a_client_that_leaves_stops_nothing(world: World) -> None:
    sandbox = await world.create()
    hold = world.node.life.hold = asyncio.Event()
    going = asyncio.create_task(ask(world, sandbox, "suspend"))
    await phase_is(world, sandbox, "suspending")
    going.cancel()
    hold.set()
    await phase_is(world, sandbox, "suspended")


@dialogue()
async def test_what_is_asked_meanwhile_comes_after_what_is_in_hand(world: World) -> None:
    sandbox = await world.create()
    hold = world.node.life.hold = asyncio.Event()
    suspending = asyncio.create_task(done(world, sandbox, "suspend"))
    await phase_is(world, sandbox, "suspending")
    waking = asyncio.create_task(done(world, sandbox, "wake"))
    await asyncio.sleep(0.05)
    assert not waking.done()
    hold.set()
    assert (await suspending)["phase"] in ("suspended", "waking", "running")
    assert (await waking)["phase"] == "running"
    assert (await info(world, sandbox))["generation"] == 2


# -- promises outlive control and node ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "phase"), [("suspend", "suspended"), ("stop", "stopped"), ("wake", "running"), ("rollback", "running")])
@dialogue(start=False)
async def test_what_was_asked_is_carried_out_after_a_restart_of_control(world: World, verb: str, phase: str) -> None:
    body: dict[str, Any] = {}
    async with controlled(world):
        assert world.services is not None
        await world.services.link.wait_up()
        sandbox = await world.create()
        if verb == "wake":
            await done(world, sandbox, "suspend")
        if verb == "rollback":
            body = {"checkpoint": (await done(world, sandbox, "checkpoint"))["id"]}
        hold = world.node.life.hold = asyncio.Event()
        going = asyncio.create_task(ask(world, sandbox, verb, **body))
        await until(lambda: world.node.sandboxes[sandbox].phase in ("suspending", "stopping", "waking"))
    going.cancel()
    # The node was stopped in the middle as well, and has gone back to what is stored.
    there = world.node.sandboxes[sandbox]
    there.phase = {"suspend": "running", "stop": "running", "wake": "suspended", "rollback": "suspended"}[verb]
    there.stored = verb in ("wake", "rollback")
    hold.set()
    world.node.life.hold = None
    async with controlled(world):
        found = await phase_is(world, sandbox, phase)
        assert found["generation"] == (1 if phase != "running" else 2)
        assert world.services is not None
        await until(lambda: world.services.sandboxes._book.live[sandbox].record.wish == "")  # type: ignore[union-attr]
    async with controlled(world):
        assert world.services is not None
        await world.services.link.wait_up()
        found = await phase_is(world, sandbox, phase)
        assert found["generation"] == (1 if phase != "running" else 2), "it is done once"


@dialogue()
async def test_without_a_node_nothing_is_promised(world: World) -> None:
    sandbox = await world.create()
    await world.node.stop()
    assert world.services is not None
    await until(lambda: not world.services.link.is_up)  # type: ignore[union-attr]
    assert (await ask(world, sandbox, "suspend")).json()["code"] == "unavailable"
    world.node.start()
    await until(lambda: world.services.link.is_up)  # type: ignore[union-attr]
    await asyncio.sleep(0.05)
    assert await world.phase(sandbox) == "running"


@dialogue()
async def test_a_session_that_breaks_in_the_middle_ends_no_promise(world: World) -> None:
    sandbox = await world.create()
    hold = world.node.life.hold = asyncio.Event()
    going = asyncio.create_task(ask(world, sandbox, "suspend"))
    await phase_is(world, sandbox, "suspending")
    world.node.cut()
    answer = await going
    assert (answer.json()["code"], "carried out" in answer.json()["hint"]) == ("unavailable", True)
    world.node.sandboxes[sandbox].phase = "running"
    hold.set()
    await phase_is(world, sandbox, "suspended")


# -- calls wake what a rule put to rest ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "phase"), [("pause", "paused"), ("suspend", "suspended"), ("stop", "stopped")])
@dialogue()
async def test_a_call_wakes_what_its_idle_rule_put_to_rest_once_for_all_that_wait_and_in_their_order(
    world: World, action: str, phase: str
) -> None:
    sandbox = await world.create(idle={"seconds": 1, "action": action})
    found = await phase_is(world, sandbox, phase)
    assert (found["reason"], found["expires_at"] is not None) == ("idle for 1 s", True)
    metrics = await world.client.get(f"/v1/sandboxes/{sandbox}/metrics")
    assert metrics.status_code == 409, "asking how it is wakes nothing"
    await world.client.patch(f"/v1/sandboxes/{sandbox}", json={"idle": None})
    hold = world.node.life.hold = None if action == "pause" else asyncio.Event()
    order: list[int] = []

    async def call(number: int) -> None:
        answer = await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json={"argv": ["sleep", str(number)]})
        assert answer.is_success, answer.text

    calls = []
    for number in range(20, 30):
        calls.append(asyncio.create_task(call(number)))
        await asyncio.sleep(0.02)
    if hold is not None:
        assert not any(one.done() for one in calls)
        hold.set()
    await asyncio.gather(*calls)
    order = [int(process.asked.argv[1]) for process in world.node.processes[sandbox].values()]
    assert order == sorted(order)
    assert await world.phase(sandbox) == "running"
    assert (await info(world, sandbox))["generation"] == (1 if action == "pause" else 2)
    text = (await world.client.get("/metrics")).text
    assert 'space_wakes_by_call_total{outcome="woken"} 1.0' in text


@dialogue()
async def test_a_sandbox_that_is_not_to_wake_on_a_call_does_not(world: World) -> None:
    sandbox = await world.create(idle={"seconds": 1, "action": "suspend"}, wake_on_call=False)
    await phase_is(world, sandbox, "suspended")
    refused = await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json=ECHO)
    assert (refused.status_code, "idle for 1 s" in refused.json()["detail"]) == (409, True)
    assert (await done(world, sandbox, "wake"))["phase"] == "running"


@dialogue()
async def test_a_request_to_rest_beats_the_rule_that_did_it_first(world: World) -> None:
    sandbox = await world.create(idle={"seconds": 1, "action": "suspend"})
    await phase_is(world, sandbox, "suspended")
    await done(world, sandbox, "suspend")
    assert (await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json=ECHO)).status_code == 409


@dialogue()
async def test_calls_that_wait_are_bounded_and_a_wake_that_fails_is_told_to_each(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELD_CALLS", 3)
    sandbox = await world.create(idle={"seconds": 1, "action": "suspend"})
    await phase_is(world, sandbox, "suspended")
    hold = world.node.life.hold = asyncio.Event()
    world.node.life.fail_wake = "its guest is silent"
    path = f"/v1/sandboxes/{sandbox}/processes"
    held = [asyncio.create_task(world.client.post(path, json=ECHO)) for _ in range(3)]
    await phase_is(world, sandbox, "waking")
    await until(lambda: world.services.sandboxes._book.live[sandbox].held == 3)  # type: ignore[union-attr]
    assert (await world.client.post(path, json=ECHO)).status_code == 429
    hold.set()
    assert [answer.json()["code"] for answer in await asyncio.gather(*held)] == ["guest_error"] * 3
    assert await world.phase(sandbox) == "suspended"


@pytest.mark.parametrize(("action", "phase"), [("pause", "paused"), ("suspend", "suspended"), ("stop", "stopped")])
@dialogue()
async def test_at_the_end_of_its_time_it_is_put_to_rest_and_kept_and_lives_anew_when_it_is_called(
    world: World, action: str, phase: str
) -> None:
    sandbox = await world.create(ttl_seconds=1, on_timeout=action)
    found = await phase_is(world, sandbox, phase)
    assert (found["reason"], found["expires_at"]) == ("its time to live of 1 s was over", None)
    await world.client.patch(f"/v1/sandboxes/{sandbox}", json={"ttl_seconds": 500})
    assert (await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json=ECHO)).is_success
    found = await info(world, sandbox)
    assert (found["phase"], found["reason"]) == ("running", None)


@dialogue()
async def test_what_rests_by_its_idle_rule_has_its_time_to_live_all_the_same(world: World) -> None:
    sandbox = await world.create(ttl_seconds=2, idle={"seconds": 1, "action": "suspend"})
    await phase_is(world, sandbox, "suspended")
    await until(lambda: sandbox in world.node.deleted, 5)


@dialogue()
async def test_the_memory_of_a_paused_one_is_freed_at_the_end_of_its_time_if_that_was_asked_for(world: World) -> None:
    sandbox = await world.create(ttl_seconds=1, on_timeout="suspend")
    await done(world, sandbox, "pause")
    assert (await phase_is(world, sandbox, "suspended"))["expires_at"] is None


# -- policies ---------------------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_a_policy_that_changes_while_it_is_suspended_holds_from_its_next_life_on(world: World) -> None:
    sandbox = await world.create(policy={"version": 1, "rule": [{"host": "old.example.com"}]})
    before = (await info(world, sandbox))["policy"]
    await done(world, sandbox, "suspend")
    answer = await asyncio.wait_for(
        world.client.put(
            f"/v1/sandboxes/{sandbox}/policy", json={"policy": {"version": 1, "rule": [{"host": "new.example.com"}]}}
        ),
        5,
    )  # fmt: skip
    assert answer.is_success, answer.text
    told = (await info(world, sandbox))["policy"]
    assert (told["state"], told["digest"] != before["digest"]) == ("pending", True)
    assert world.node.sandboxes[sandbox].traffic.policy == before["digest"], "a node is not told of one that has no life"
    await done(world, sandbox, "wake")
    assert world.node.sandboxes[sandbox].traffic.policy == told["digest"]
    found = (await info(world, sandbox))["policy"]
    assert (found["state"], found["generation"], found["applied_generation"]) == ("applied", told["generation"], told["generation"])


# -- checkpoints -------------------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_a_sandbox_goes_back_to_its_checkpoint_and_goes_on_from_there(world: World) -> None:
    sandbox = await world.create()
    path = f"/v1/sandboxes/{sandbox}/tree"
    (await world.client.put(path, params={"path": "/a"}, content=bytes(1024))).raise_for_status()
    made = (await ask(world, sandbox, "checkpoint")).json()
    assert (made["id"][:3], made["stopped_ms"] > 0, made["bytes"] > 0) == ("cp-", True, True)
    assert (await info(world, sandbox))["checkpoints"] == 1
    (await world.client.put(path, params={"path": "/a"}, content=bytes(2048))).raise_for_status()
    found = await done(world, sandbox, "rollback", checkpoint=made["id"])
    assert (found["phase"], found["generation"]) == ("running", 2)
    assert len((await world.client.get(path, params={"path": "/a"})).content) == 1024
    assert (await world.client.get(f"/v1/sandboxes/{sandbox}/checkpoints")).json() == {"checkpoints": [made]}
    for _ in range(2):
        assert (await world.client.delete(f"/v1/sandboxes/{sandbox}/checkpoints/{made['id']}")).status_code == 204
    assert (await ask(world, sandbox, "rollback", checkpoint=made["id"])).status_code == 404
    assert (await world.client.delete(f"/v1/sandboxes/{sandbox}/checkpoints/x")).status_code == 400
    told = [kind for kind, _ in await kinds(world, sandbox)]
    assert (told.count("checkpointed"), told.count("rolled_back")) == (1, 1)
    assert (await info(world, sandbox))["phase"] == "running"


@dialogue()
async def test_a_rollback_to_what_is_not_there_changes_nothing(world: World) -> None:
    sandbox = await world.create()
    assert (await ask(world, sandbox, "rollback", checkpoint=new_checkpoint_id())).status_code == 404
    assert (await ask(world, sandbox, "rollback", checkpoint="cp-1")).status_code == 400
    assert (await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json=ECHO)).is_success


# -- forks ----------------------------------------------------------------------------------------------------


@dialogue()
async def test_children_of_a_fork_are_sandboxes_of_their_own(world: World) -> None:
    parent = await world.create(
        env={"A": "b"}, metadata={"who": "me"}, ttl_seconds=100, policy={"version": 1, "rule": [{"host": "a.example.com"}]}
    )
    made = (await done(world, parent, "fork", count=3, ttl_seconds=50, metadata={"child": "yes"}))["sandboxes"]
    assert len({one["id"] for one in made} | {parent}) == 4
    mother = await info(world, parent)
    for one in made:
        assert (one["phase"], one["parent"], one["start"], one["generation"]) == ("running", parent, "fork", 1)
        assert (one["spec"]["metadata"], one["spec"]["env"], one["spec"]["ttl_seconds"]) == ({"child": "yes"}, {"A": "b"}, 50)
        assert one["policy"]["digest"] == mother["policy"]["digest"]
        assert one["policy"]["state"] == "applied"
    [only] = (await done(world, parent, "fork"))["sandboxes"]
    assert (only["spec"]["metadata"], only["spec"]["ttl_seconds"]) == ({"who": "me"}, 100)
    (await world.client.delete(f"/v1/sandboxes/{only['id']}")).raise_for_status()
    assert (await info(world, parent))["phase"] == "running"
    assert ("forked", "running") in await kinds(world, parent)
    async with await world.other_tenant() as stranger:
        assert (await stranger.get(f"/v1/sandboxes/{made[0]['id']}")).status_code == 404


def _forked(world: World, parent: str, key: str, **asked: Any) -> Awaitable[httpx.Response]:
    return world.client.post(f"/v1/sandboxes/{parent}/fork", json=asked, headers={"Idempotency-Key": key})


@dialogue()
async def test_a_fork_that_is_repeated_with_its_key_makes_no_more_children(world: World) -> None:
    parent = await world.create()
    world.node.life.hold_fork = asyncio.Event()
    both = [asyncio.ensure_future(_forked(world, parent, "once", count=2)) for _ in range(2)]
    await until(lambda: len(world.node.sandboxes) == 3)
    world.node.life.hold_fork.set()
    first, second = [(await one).json()["sandboxes"] for one in both]
    assert [one["id"] for one in first] == [one["id"] for one in second]
    assert [one["phase"] for one in (*first, *second)] == ["running"] * 4
    again = (await _forked(world, parent, "once", count=2)).json()["sandboxes"]
    assert [one["id"] for one in again] == [one["id"] for one in first]
    assert (await _forked(world, parent, "once", count=3)).status_code == 409, "another body"
    other = (await _forked(world, parent, "twice", count=2)).json()["sandboxes"]
    assert not {one["id"] for one in other} & {one["id"] for one in first}
    await world.client.delete(f"/v1/sandboxes/{first[1]['id']}")
    gone = await _forked(world, parent, "once", count=2)
    assert (gone.status_code, gone.json()["code"]) == (410, "gone")
    assert len(world.node.sandboxes) == 1 + 2 + 2 - 1


@dialogue(start=False)
async def test_a_key_of_a_fork_is_known_after_a_restart_and_free_again_where_the_fork_failed(world: World) -> None:
    async with controlled(world):
        parent = await world.create()
        made = (await _forked(world, parent, "once", count=2)).json()["sandboxes"]
    async with controlled(world):
        again = (await _forked(world, parent, "once", count=2)).json()["sandboxes"]
        assert {one["id"] for one in again} == {one["id"] for one in made}
        world.node.refuse_create = NoCapacity("full")
        assert (await _forked(world, parent, "later")).json()["code"] == "no_capacity"
        world.node.refuse_create, world.node.fail_create = None, "its VM did not start"
        assert (await _forked(world, parent, "later")).json()["code"] == "sandbox_died"
        world.node.fail_create = None
        assert (await _forked(world, parent, "later")).status_code == 201


@dialogue(max_sandboxes=3)
async def test_a_fork_for_which_there_is_no_room_makes_nothing(world: World) -> None:
    parent = await world.create()
    assert (await ask(world, parent, "fork", count=3)).json()["code"] == "no_capacity"
    await world.client.put("/v1/tenants/default/quota", json={"sandboxes": 2})
    refused = await ask(world, parent, "fork", count=2)
    assert (refused.json()["code"], refused.json()["quota"]) == ("no_capacity", True)
    world.node.refuse_create = NoCapacity("full")
    assert (await ask(world, parent, "fork")).json()["code"] == "no_capacity"
    assert [one["id"] for one in (await world.client.get("/v1/sandboxes")).json()["sandboxes"]] == [parent]
    assert world.node.created == 1


@dialogue()
async def test_a_fork_of_which_a_child_fails_leaves_none_and_its_parent_goes_on(world: World) -> None:
    parent = await world.create()
    world.node.fail_create = "its VM did not start"
    refused = await ask(world, parent, "fork", count=2)
    assert (refused.status_code, refused.json()["code"]) == (502, "sandbox_died")
    await until(lambda: len(world.node.deleted) == 2)
    assert list(world.node.sandboxes) == [parent]
    assert (await world.client.post(f"/v1/sandboxes/{parent}/processes", json=ECHO)).is_success


@dialogue()
async def test_a_fork_whose_session_breaks_leaves_what_the_list_says(world: World) -> None:
    parent = await world.create()
    world.node.life.hold_fork = asyncio.Event()
    going = asyncio.create_task(ask(world, parent, "fork", count=2))
    await until(lambda: world.node.created == 3)
    world.node.cut()
    assert (await going).json()["code"] == "unavailable"
    for there in world.node.sandboxes.values():
        there.phase = "running"
    assert world.services is not None
    await until(lambda: world.services.link.is_up)  # type: ignore[union-attr]
    world.node.cut()

    async def is_told() -> bool:
        found = (await world.client.get("/v1/sandboxes")).json()["sandboxes"]
        return [one["phase"] for one in found] == ["running"] * 3

    await until(is_told)


@dialogue()
async def test_a_suspended_sandbox_is_not_forked_and_a_paused_one_is(world: World) -> None:
    parent = await world.create()
    await done(world, parent, "suspend")
    assert (await ask(world, parent, "fork")).status_code == 409
    await done(world, parent, "wake")
    await done(world, parent, "pause")
    assert len((await done(world, parent, "fork", count=2))["sandboxes"]) == 2
    assert await world.phase(parent) == "paused"


# -- quotas ----------------------------------------------------------------------------------------------------


@dialogue()
async def test_a_suspended_sandbox_takes_its_disk_and_its_memory_file_but_no_cpus_and_no_memory(world: World) -> None:
    sandbox = await world.create(memory_mib=512, cpus=2)

    async def used() -> dict[str, int]:
        found: dict[str, int] = (await world.client.get("/v1/tenants/default/quota")).json()["used"]
        return found

    assert await used() == {"sandboxes": 1, "cpus": 2, "memory_mib": 512, "disk_mib": 2048, "snapshot_mib": 0, "checkpoints": 0}
    await done(world, sandbox, "suspend")
    assert await used() == {"sandboxes": 1, "cpus": 0, "memory_mib": 0, "disk_mib": 2048, "snapshot_mib": 48, "checkpoints": 0}
    await world.client.put("/v1/tenants/default/quota", json={"memory_mib": 600})
    other = await world.create(memory_mib=512)
    refused = await ask(world, sandbox, "wake")
    assert (refused.json()["code"], refused.json()["quota"]) == ("no_capacity", True)
    assert await world.phase(sandbox) == "suspended"
    (await world.client.delete(f"/v1/sandboxes/{other}")).raise_for_status()
    assert (await done(world, sandbox, "wake"))["phase"] == "running"


@dialogue()
async def test_checkpoints_and_what_they_take_have_quotas_and_a_rule_is_never_refused_them(world: World) -> None:
    sandbox = await world.create(idle={"seconds": 1, "action": "suspend"})
    await world.client.put("/v1/tenants/default/quota", json={"checkpoints": 1})
    await done(world, sandbox, "checkpoint")
    refused = await ask(world, sandbox, "checkpoint")
    assert (refused.json()["code"], "checkpoints 1" in refused.json()["detail"]) == ("no_capacity", True)
    await world.client.put("/v1/tenants/default/quota", json={"snapshot_mib": 100})
    refused = await ask(world, sandbox, "suspend")
    assert (refused.json()["code"], "snapshot_mib 100" in refused.json()["detail"]) == ("no_capacity", True)
    await phase_is(world, sandbox, "suspended")
