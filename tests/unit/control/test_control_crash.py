"""control as a real process, killed with SIGKILL in the middle of creates and deletes, and started again over the same store.

The node lives on in this process, as it does on a machine; the listener stays open here, as serve keeps it.
"""

from __future__ import annotations

import asyncio
import random
import signal
from dataclasses import asdict, replace
from typing import Any

import httpx
import pytest

from space.testing.certificates import certificate
from space.testing.controlprocess import Control, a_process
from space.testing.simcontrol import World, dialogue, until


async def ask(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response | None:
    """An answer, or None when the connection died on the way: nobody may conclude anything then."""
    try:
        return await client.request(method, path, **more)
    except httpx.TransportError:
        return None


async def everything(client: httpx.AsyncClient) -> dict[str, str]:
    found: dict[str, str] = {}
    cursor = None
    while True:
        page = (await client.get("/v1/sandboxes", params={"limit": 200, **({"cursor": cursor} if cursor else {})})).json()
        found |= {one["id"]: one["phase"] for one in page["sandboxes"]}
        cursor = page["next_cursor"]
        if cursor is None:
            return found


@dialogue(start=False, node_up=True)
async def test_the_signal_of_a_serve_that_ends_sandboxes_ends_them_and_then_control(world: World) -> None:
    async with a_process(world) as control:
        made = [await world.create() for _ in range(3)]
        assert control.process is not None
        control.process.send_signal(signal.SIGUSR1)
        assert await asyncio.wait_for(control.process.wait(), 20) == 0
        assert sorted(world.node.deleted) == sorted(made)
        assert "ended the sandboxes; 0 are left" in control.log()
    async with a_process(world):
        assert await everything(world.client) == dict.fromkeys(made, "gone")


@pytest.mark.parametrize("seed", range(4))
@dialogue(start=False, node_up=True)
async def test_a_kill_loses_no_sandbox_and_breaks_no_promise(world: World, seed: int) -> None:
    chance = random.Random(seed)
    async with a_process(world) as control:
        running = [await world.create() for _ in range(6)]
        created, deleted = world.node.created, len(world.node.deleted)
        point = chance.randint(1, 8)
        keys = [f"key-{number}" for number in range(12)]
        creating = [
            asyncio.create_task(ask(world.client, "POST", "/v1/sandboxes", json={}, headers={"Idempotency-Key": key})) for key in keys
        ]
        deleting = {one: asyncio.create_task(ask(world.client, "DELETE", f"/v1/sandboxes/{one}")) for one in running[:3]}
        await until(lambda: world.node.created - created + len(world.node.deleted) - deleted >= point)
        await control.kill()
        await control.start()
        # Requests whose connection nobody had accepted yet are answered by the new process.
        answers = dict(zip(keys, await asyncio.gather(*creating), strict=True))
        ends = {one: await task for one, task in deleting.items()}

        async def is_settled() -> bool:
            phases = await everything(world.client)
            there = {name: one.phase for name, one in world.node.sandboxes.items()}
            live = {one for one, phase in phases.items() if phase == "running"}
            return live == set(there) and set(phases.values()) <= {"running", "gone", "failed"}

        await until(is_settled, 20)
        phases = await everything(world.client)
        for key, answer in answers.items():
            if answer is not None and answer.status_code == 201:
                assert phases[answer.json()["id"]] == "running", key
            again = await world.client.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": key})
            assert again.status_code == 201
            if answer is not None and answer.status_code == 201:
                assert again.json()["id"] == answer.json()["id"]
        for one, end in ends.items():
            if end is not None and end.status_code in (202, 204):
                assert phases[one] == "gone"
            else:
                assert phases[one] in ("running", "gone")
        assert all(phases[one] == "running" for one in running[3:])
        await until(is_settled, 20)
        assert await control.end() == 0


@dialogue(start=False)
async def test_a_delete_that_was_promised_is_carried_out_after_a_kill(world: World) -> None:
    async with a_process(world) as control:
        kept, ended = await world.create(), await world.create()
        world.node.hold_delete = asyncio.Event()
        asked = asyncio.create_task(ask(world.client, "DELETE", f"/v1/sandboxes/{ended}"))

        async def is_deleting() -> bool:
            return await world.phase(ended) == "deleting"

        await until(is_deleting)
        await control.kill()
        assert await asked is None
        world.node.hold_delete = None
        await control.start()
        await until(lambda: world.node.deleted == [ended])
        assert list(world.node.sandboxes) == [kept]


@dialogue(start=False)
async def test_a_create_in_hand_is_adopted_after_a_kill(world: World) -> None:
    async with a_process(world) as control:
        world.node.hold_create = asyncio.Event()
        headers = {"Idempotency-Key": "k"}
        asked = asyncio.create_task(ask(world.client, "POST", "/v1/sandboxes", json={}, headers=headers))
        await until(lambda: world.node.created == 1)

        async def is_stored() -> bool:  # the row is committed while the node begins
            return len(await everything(world.client)) == 1

        await until(is_stored)
        await control.kill()
        assert await asked is None
        [(sandbox, there)] = world.node.sandboxes.items()
        await control.start()
        assert await world.phase(sandbox) in ("requested", "preparing")
        repeat = asyncio.create_task(world.client.post("/v1/sandboxes", json={}, headers=headers))
        world.node._move(there, "running")
        answer = await repeat
        assert (answer.status_code, answer.json()["id"]) == (201, sandbox)
        assert world.node.created == 1
        assert await control.end() == 0


@dialogue(start=False, host="0.0.0.0")
async def test_an_emulated_node_behind_a_network_address_is_refused_at_the_start_in_one_sentence(world: World) -> None:
    world.instance.run.mkdir(parents=True, exist_ok=True)
    cert, key = certificate(world.instance.run)
    world.settings = replace(world.settings, tls_certificate=str(cert), tls_key=str(key))
    assert asdict(world.settings)["allow_remote_emulated"] is False
    control = Control(world)
    with pytest.raises(AssertionError):
        await control.start()
    assert await control.end() == 1
    assert "not loopback, and this machine's isolation is emulated (development only)" in control.log()
    assert "Traceback" not in control.log()
    control.close()


@dialogue(start=False)
async def test_sigterm_ends_control_while_a_process_runs(world: World) -> None:
    async with a_process(world) as control:
        sandbox = await world.create()
        path = f"/v1/sandboxes/{sandbox}/processes?stream=1"
        asked = asyncio.create_task(ask(world.client, "POST", path, json={"argv": ["sleep", "600"]}))
        await until(lambda: world.node.sandboxes[sandbox].running)
        assert await control.end() == 0
        answer = await asked
        assert answer is None or answer.status_code == 200
        assert list(world.node.sandboxes) == [sandbox]
