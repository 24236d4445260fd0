"""Idle rules and times to live: what counts, what does not, and what becomes of a sandbox. Rules in virtual time, effects over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from space.control.activity import Activity
from space.control.idle import Idle
from space.model.sandbox import IdlePolicy
from space.testing.simcontrol import World, controlled, dialogue, until
from space.testing.virtualtime import Clock, VirtualTimers

RULE = IdlePolicy(60)


class Rules:
    """The rules alone."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.timers = VirtualTimers(self.clock)
        self.activity = Activity(self.clock)
        self.acted: list[tuple[str, float]] = []
        self.idle = Idle(self.timers, self.activity, lambda sandbox, _: self.acted.append((sandbox, self.clock.now)), now=self.clock)
        self.began = self.clock.now

    def after(self, seconds: float) -> list[tuple[str, float]]:
        """What was done within so many seconds, and when."""
        self.timers.advance(seconds)
        acted, self.acted = self.acted, []
        return [(sandbox, at - self.began) for sandbox, at in acted]


def test_a_quiet_sandbox_is_idle_after_its_seconds_once() -> None:
    rules = Rules()
    rules.idle.heed("a", RULE, busy=False)
    assert rules.after(59) == []
    assert rules.after(1000) == [("a", 60)]


def test_a_call_starts_the_clock_anew_with_one_timer_for_any_number_of_calls() -> None:
    rules = Rules()
    rules.idle.heed("a", RULE, busy=False)
    for _ in range(1000):
        rules.timers.advance(0.0625)
        with rules.activity.during("a"):
            pass
        assert len(rules.timers) == 1
    assert rules.after(1000) == [("a", 122.5)]


def test_something_in_hand_is_never_idle_however_long_it_lasts() -> None:
    rules = Rules()
    rules.idle.heed("a", RULE, busy=False)
    rules.activity.begin("a")
    assert rules.after(10_000) == []
    rules.activity.begin("a")
    rules.activity.end("a")
    assert rules.after(10_000) == []
    rules.activity.end("a")
    assert rules.after(59) == []
    assert rules.after(1) == [("a", 20_060)]


def test_a_process_of_which_nobody_reads_is_never_idle() -> None:
    rules = Rules()
    rules.idle.heed("a", RULE, busy=True)
    assert rules.after(500) == []
    rules.idle.heed("a", RULE, busy=False)
    assert rules.after(100) == [("a", 560)]


def test_a_call_that_ends_while_a_process_runs_does_not_start_the_clock() -> None:
    rules = Rules()
    rules.idle.heed("a", RULE, busy=True)
    with rules.activity.during("a"):
        rules.timers.advance(1)
    assert rules.after(500) == []
    rules.idle.heed("a", RULE, busy=False)
    assert rules.after(500) == [("a", 561)]


def test_a_paused_sandbox_is_not_idle_and_resuming_starts_the_clock_anew() -> None:
    rules = Rules()
    rules.idle.heed("a", RULE, busy=False)
    rules.timers.advance(50)
    rules.idle.heed("a", None, busy=False)
    assert rules.after(1000) == []
    assert len(rules.timers) == 0
    rules.idle.heed("a", RULE, busy=False)
    assert rules.after(59) == []
    assert rules.after(1) == [("a", 1110)]


def test_another_rule_counts_from_when_it_was_set() -> None:
    rules = Rules()
    rules.idle.heed("a", RULE, busy=False)
    rules.timers.advance(50)
    rules.idle.heed("a", IdlePolicy(20), busy=False)
    rules.idle.heed("a", IdlePolicy(20), busy=False)
    assert rules.after(1000) == [("a", 70)]


def test_what_could_not_be_done_is_tried_again_unless_something_happened() -> None:
    rules = Rules()
    rules.idle.heed("a", RULE, busy=False)
    assert rules.after(60) == [("a", 60)]
    rules.idle.again("a", 5)
    assert rules.after(6) == [("a", 65)]
    rules.idle.again("a", 5)
    with rules.activity.during("a"):
        pass
    assert rules.after(59) == []
    assert rules.after(1000) == [("a", 126)]


# -- effects -----------------------------------------------------------------------------------------------------------------


async def info(world: World, sandbox: str) -> dict[str, Any]:
    found: dict[str, Any] = (await world.client.get(f"/v1/sandboxes/{sandbox}")).json()
    return found


async def phase_is(world: World, sandbox: str, phase: str, seconds: float = 10) -> dict[str, Any]:
    async def claim() -> bool:
        return await world.phase(sandbox) == phase

    await until(claim, seconds)
    return await info(world, sandbox)


@dialogue()
async def test_an_idle_sandbox_is_paused_with_its_reason_and_looking_at_it_does_not_keep_it(world: World) -> None:
    sandbox = await world.create(idle={"seconds": 1})

    async def is_paused() -> bool:  # polls a hundred times a second
        await world.client.get(f"/v1/sandboxes/{sandbox}/metrics")
        return await world.phase(sandbox) == "paused"

    await until(is_paused, 5)
    found = await info(world, sandbox)
    assert (found["reason"], found["spec"]["idle"]) == ("idle for 1 s", {"seconds": 1, "action": "pause"})
    assert found["expires_at"] is not None
    resumed = (await world.client.post(f"/v1/sandboxes/{sandbox}/resume")).json()
    assert (resumed["phase"], resumed["reason"]) == ("running", None)
    assert (await phase_is(world, sandbox, "paused"))["reason"] == "idle for 1 s"


@dialogue()
async def test_an_idle_sandbox_is_deleted_when_its_rule_says_so(world: World) -> None:
    sandbox = await world.create(idle={"seconds": 1, "action": "delete"})
    assert (await phase_is(world, sandbox, "gone"))["reason"] == "idle for 1 s"
    assert world.node.deleted == [sandbox]
    assert 'space_idle_actions_total{action="delete"} 1.0' in (await world.client.get("/metrics")).text


@dialogue()
async def test_a_sandbox_that_the_node_calls_busy_is_not_paused_until_it_is_not(world: World) -> None:
    sandbox = await world.create(idle={"seconds": 1})
    there = world.node.sandboxes[sandbox]
    there.busy = True
    world.node._move(there, "running")
    await asyncio.sleep(1.5)
    assert await world.phase(sandbox) == "running"
    assert "space_sandboxes_busy 1.0" in (await world.client.get("/metrics")).text
    there.busy = False
    world.node._move(there, "running")
    await phase_is(world, sandbox, "paused")


@dialogue()
async def test_an_idle_rule_that_meets_a_node_that_is_away_is_carried_out_when_it_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("space.control.expiry.AGAIN_SECONDS", 0.2)
    sandbox = await world.create(idle={"seconds": 1})
    await world.node.stop()
    await asyncio.sleep(1.3)
    assert await world.phase(sandbox) == "running"
    world.node.start()
    await phase_is(world, sandbox, "paused")


@dialogue()
async def test_at_the_end_of_its_time_it_is_paused_and_kept_if_it_was_asked_to_and_lives_anew_when_resumed(world: World) -> None:
    sandbox = await world.create(ttl_seconds=1, on_timeout="pause")
    found = await phase_is(world, sandbox, "paused")
    assert (found["reason"], found["expires_at"]) == ("its time to live of 1 s was over", None)
    await asyncio.sleep(1.2)
    assert await world.phase(sandbox) == "paused"
    resumed = (await world.client.post(f"/v1/sandboxes/{sandbox}/resume")).json()
    assert resumed["expires_at"] is not None
    assert (await phase_is(world, sandbox, "paused"))["expires_at"] is None
    kept = (await world.client.patch(f"/v1/sandboxes/{sandbox}", json={"ttl_seconds": 500, "on_timeout": "delete"})).json()
    assert 495 < kept["expires_at"] - __import__("time").time() <= 500


@dialogue()
async def test_a_paused_sandbox_whose_time_is_over_stays_paused_and_is_kept(world: World) -> None:
    sandbox = await world.create(ttl_seconds=1, on_timeout="pause")
    await world.client.post(f"/v1/sandboxes/{sandbox}/pause")

    async def is_kept() -> bool:
        return (await info(world, sandbox))["expires_at"] is None

    await until(is_kept)
    assert "time to live" in (await info(world, sandbox))["reason"]


@dialogue()
async def test_a_sandbox_whose_time_is_over_while_it_is_made_is_paused_once_it_runs(world: World) -> None:
    world.node.hold_create = asyncio.Event()
    sandbox = (await world.client.post("/v1/sandboxes?wait=false", json={"ttl_seconds": 1, "on_timeout": "pause"})).json()["id"]
    await until(lambda: world.node.created == 1)
    await asyncio.sleep(1.2)
    assert await world.phase(sandbox) in ("requested", "preparing")
    world.node.hold_create.set()
    assert (await phase_is(world, sandbox, "paused"))["expires_at"] is None


@dialogue(start=False)
async def test_what_was_paused_by_its_time_is_kept_over_a_restart(world: World) -> None:
    async with controlled(world):
        assert world.services is not None
        await world.services.link.wait_up()
        sandbox = await world.create(ttl_seconds=1, on_timeout="pause")
        await phase_is(world, sandbox, "paused")
    async with controlled(world):
        await asyncio.sleep(0.3)
        found = await info(world, sandbox)
        assert (found["phase"], found["expires_at"], found["spec"]["on_timeout"]) == ("paused", None, "pause")
