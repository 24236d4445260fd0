"""What may be changed of a sandbox: its time to live, metadata, idle rule, and what becomes of it at the end."""

from __future__ import annotations

import asyncio
import hashlib
import time

import msgspec
import pytest

from space.control import wire
from space.control.wire_tenants import ChangeRequest, changed_spec
from space.model.errors import InvalidArgument
from space.model.sandbox import IdlePolicy, SandboxSpec
from space.testing.simcontrol import World, controlled, dialogue, until


def test_a_specification_without_new_fields_has_the_digest_that_an_older_server_stored() -> None:
    spec = SandboxSpec(env={"B": "2", "A": "1"})
    old = b'{"template":"base","cpus":1,"memory_mib":512,"disk_mib":2048,"env":{"A":"1","B":"2"},"metadata":{},"ttl_seconds":3600}'
    assert hashlib.sha256(msgspec.json.encode(wire.asked_for(spec))).digest() == hashlib.sha256(old).digest()
    idle = wire.asked_for(SandboxSpec(idle=IdlePolicy(3)))
    assert idle["idle"] == {"seconds": 3, "action": "pause"}


def test_only_what_is_given_is_changed() -> None:
    spec = SandboxSpec(metadata={"a": "1", "b": "2"}, idle=IdlePolicy(60), ttl_seconds=100)
    asked = wire.decode(b'{"metadata": {"a": null, "c": "3"}, "ttl_seconds": 7}', ChangeRequest)
    changed, fields = changed_spec(spec, asked, max_ttl_seconds=1000)
    assert changed == SandboxSpec(metadata={"b": "2", "c": "3"}, idle=IdlePolicy(60), ttl_seconds=7)
    assert fields == ["ttl_seconds", "metadata"]
    changed, fields = changed_spec(spec, wire.decode(b'{"idle": null, "on_timeout": "pause"}', ChangeRequest), max_ttl_seconds=1000)
    assert (changed.idle, changed.on_timeout, fields) == (None, "pause", ["idle", "on_timeout"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "nothing is to be changed"),
        (b'{"ttl_seconds": 0}', "ttl_seconds is 1 to 1000, not 0"),
        (b'{"ttl_seconds": -1}', "ttl_seconds is 1 to 1000"),
        (b'{"ttl_seconds": 1001}', "ttl_seconds is 1 to 1000"),
        (b'{"ttl_seconds": null}', "ttl_seconds"),
        (b'{"idle": {"seconds": 0}}', "idle.seconds is 1 to"),
        (b'{"idle": {"seconds": -5}}', "idle.seconds is 1 to"),
        (b'{"idle": {}}', "seconds"),
        (b'{"idle": {"seconds": 5, "action": "sleep"}}', "action"),
        (b'{"idle": 5}', "idle"),
        (b'{"on_timeout": "keep"}', "on_timeout"),
        (b'{"metadata": {"-": "x"}}', "no name"),
        (b'{"metadata": {"a": 1}}', "metadata"),
        (b'{"metadata": null}', "metadata"),
        (b'{"cpus": 2}', "cpus"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(body: bytes, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        changed_spec(SandboxSpec(), wire.decode(body, ChangeRequest), max_ttl_seconds=1000)


def test_merged_metadata_is_bounded() -> None:
    full = SandboxSpec(metadata={f"n{n}": "" for n in range(wire.MAX_METADATA)})
    with pytest.raises(InvalidArgument, match="65 names are more than 64"):
        changed_spec(full, ChangeRequest(metadata={"one.more": ""}), max_ttl_seconds=10)
    assert len(changed_spec(full, ChangeRequest(metadata={"one.more": "", "n0": None}), max_ttl_seconds=10)[0].metadata) == 64


@dialogue()
async def test_a_change_is_shown_stored_filtered_by_and_counts_from_now_on(world: World) -> None:
    made = (await world.client.post("/v1/sandboxes", json={"ttl_seconds": 1, "metadata": {"a": "1", "b": "2"}})).json()
    path = f"/v1/sandboxes/{made['id']}"
    asked = {"ttl_seconds": 600, "metadata": {"a": None, "c": "3"}, "idle": {"seconds": 300, "action": "delete"}, "on_timeout": "pause"}
    answer = await world.client.patch(path, json=asked)
    assert answer.status_code == 200, answer.text
    changed = answer.json()
    assert changed["spec"]["metadata"] == {"b": "2", "c": "3"}
    assert changed["spec"]["idle"] == {"seconds": 300, "action": "delete"}
    assert (changed["spec"]["on_timeout"], changed["spec"]["ttl_seconds"]) == ("pause", 600)
    assert 590 < changed["expires_at"] - time.time() <= 600
    assert changed["revision"] > made["revision"]
    assert (await world.client.get(path)).json() == changed
    listed = (await world.client.get("/v1/sandboxes", params={"metadata.c": "3"})).json()["sandboxes"]
    assert listed == [changed]
    assert (await world.client.get("/v1/sandboxes", params={"metadata.a": "1"})).json()["sandboxes"] == []
    await asyncio.sleep(1.2)  # beyond its first time to live
    assert await world.phase(made["id"]) == "running"
    shorter = (await world.client.patch(path, json={"ttl_seconds": 1, "on_timeout": "delete"})).json()
    assert shorter["expires_at"] < changed["expires_at"]

    async def is_gone() -> bool:
        return await world.phase(made["id"]) == "gone"

    await until(is_gone)
    late = await world.client.patch(path, json={"ttl_seconds": 5})
    assert (late.status_code, late.json()["code"]) == (410, "gone")


@dialogue()
async def test_a_change_of_another_revision_is_refused(world: World) -> None:
    sandbox = await world.create()
    path = f"/v1/sandboxes/{sandbox}"
    revision = (await world.client.get(path)).json()["revision"]
    first = await world.client.patch(path, json={"metadata": {"a": "1"}}, headers={"If-Match": f'"{revision}"'})
    assert first.status_code == 200
    second = await world.client.patch(path, json={"metadata": {"a": "2"}}, headers={"If-Match": f'"{revision}"'})
    assert (second.status_code, second.json()["code"]) == (409, "conflict")
    assert f"If-Match says {revision}" in second.json()["detail"]
    wrong = await world.client.patch(path, json={"metadata": {"a": "2"}}, headers={"If-Match": "soon"})
    assert wrong.status_code == 400


@dialogue(start=False)
async def test_a_change_outlives_a_restart(world: World) -> None:
    async with controlled(world):
        assert world.services is not None
        await world.services.link.wait_up()
        sandbox = await world.create()
        changed = (await world.client.patch(f"/v1/sandboxes/{sandbox}", json={"metadata": {"k": "v"}, "idle": {"seconds": 9}})).json()
    async with controlled(world):
        assert (await world.client.get(f"/v1/sandboxes/{sandbox}")).json() == changed


@dialogue()
async def test_a_creation_that_is_deleted_says_so(world: World) -> None:
    world.node.hold_create = asyncio.Event()
    asked = asyncio.create_task(world.client.post("/v1/sandboxes", json={}))
    await until(lambda: world.node.created == 1)
    [sandbox] = world.node.sandboxes
    deleting = asyncio.create_task(world.client.delete(f"/v1/sandboxes/{sandbox}"))
    await until(lambda: world.node.deleted == [sandbox])
    world.node.hold_create.set()
    answer = await asked
    assert (answer.status_code, answer.json()["code"]) == (410, "gone")
    assert "was ended while it was made: deleted by request" in answer.json()["detail"]
    assert (await deleting).status_code == 204


@dialogue()
async def test_the_history_of_a_sandbox_is_what_the_node_has_since_then(world: World) -> None:
    sandbox = await world.create()
    path = f"/v1/sandboxes/{sandbox}/metrics/history"
    whole = (await world.client.get(path)).json()
    assert (whole["interval_seconds"], [one["at"] for one in whole["samples"]]) == (10.0, [10.0, 20.0, 30.0])
    assert whole["samples"][0]["memory_total"] == 512 << 20
    assert [one["at"] for one in (await world.client.get(path, params={"since": "19.5"})).json()["samples"]] == [20.0, 30.0]
    for wrong in ("-1", "soon", "nan", "inf"):
        assert (await world.client.get(path, params={"since": wrong})).status_code == 400
