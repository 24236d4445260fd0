"""Keys: minted once, stored hashed, revoked at once."""

from __future__ import annotations

import sqlite3

import pytest

from space.control.keys import Allowance, new
from space.testing.simcontrol import World, controlled, dialogue


@dialogue()
async def test_the_first_start_mints_an_admin_key_that_only_its_owner_reads(world: World) -> None:
    assert world.instance.admin_key.stat().st_mode & 0o777 == 0o600
    assert world.key.startswith("space_")
    [only] = (await world.client.get("/v1/keys")).json()["keys"]
    assert (only["tenant"], only["scope"], only["revoked_at"]) == ("default", "admin", None)
    assert only["id"] == world.key.split("_")[1]


@dialogue(start=False)
async def test_a_restart_mints_no_second_key(world: World) -> None:
    async with controlled(world):
        first = world.key
    async with controlled(world):
        assert world.key == first
        assert len((await world.client.get("/v1/keys")).json()["keys"]) == 1


@dialogue(start=False)
async def test_a_start_that_died_between_file_and_store_is_made_good(world: World) -> None:
    world.instance.admin_key.write_text("space_left_over\n")
    async with controlled(world):
        assert (await world.client.get("/v1/keys")).status_code == 200


@dialogue()
async def test_a_minted_key_works_for_its_tenant_until_it_is_revoked(world: World) -> None:
    made = await world.client.post("/v1/keys", json={"tenant": "acme", "name": "ci"})
    assert made.status_code == 201
    key = made.json()
    async with world.as_key(key["key"]) as theirs:
        assert (await theirs.post("/v1/sandboxes")).status_code == 201
        listed = (await world.client.get("/v1/keys")).json()["keys"]
        assert [one["name"] for one in listed] == ["first start", "ci"]
        for one in listed:
            assert "key" not in one
            assert "digest" not in one
        assert (await world.client.delete(f"/v1/keys/{key['id']}")).status_code == 204
        assert (await theirs.get("/v1/sandboxes")).status_code == 401
        assert (await world.client.delete(f"/v1/keys/{key['id']}")).status_code == 204
    assert (await world.client.delete("/v1/keys/unknown")).status_code == 404


@dialogue()
async def test_the_last_admin_key_cannot_be_revoked(world: World) -> None:
    own = world.key.split("_")[1]
    refused = await world.client.delete(f"/v1/keys/{own}")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    async with await world.other_tenant("default", scope="admin") as second:
        assert (await second.delete(f"/v1/keys/{own}")).status_code == 204
        assert (await world.client.get("/v1/keys")).status_code == 401


@dialogue(start=False)
async def test_a_revocation_outlives_a_restart(world: World) -> None:
    async with controlled(world):
        key = (await world.client.post("/v1/keys", json={"tenant": "acme"})).json()
        await world.client.delete(f"/v1/keys/{key['id']}")
    async with controlled(world), world.as_key(key["key"]) as theirs:
        assert (await theirs.get("/v1/sandboxes")).status_code == 401


@dialogue()
async def test_no_secret_is_in_the_store(world: World) -> None:
    made = (await world.client.post("/v1/keys", json={"tenant": "acme"})).json()
    with sqlite3.connect(world.instance.control_data / "state.db") as base:
        dump = "\n".join(base.iterdump())
    assert made["id"] in dump
    for key in (made["key"], world.key):
        assert key.split("_")[2] not in dump
    base.close()
    for path in world.instance.control_data.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tenant": "UPPER"},
        {"tenant": ""},
        {"tenant": "a" * 40},
        {"tenant": "a", "scope": "root"},
        {"tenant": "a", "name": "n" * 65},
        {"tenant": 1},
        {"tenant": "a", "x": 1},
    ],
)
@dialogue()
async def test_a_wrong_key_request_is_refused(world: World, body: dict[str, object]) -> None:
    answer = await world.client.post("/v1/keys", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


def test_a_key_hides_its_secret_when_it_is_printed() -> None:
    minted = new("acme", "tenant", "x")
    assert minted.text.split("_")[2] not in repr(minted)
    assert len(minted.text.split("_")[2]) == 64
    assert "digest" not in repr(minted)


def test_an_allowance_comes_back_with_time_and_is_kept_by_peer() -> None:
    now = 0.0
    allowance = Allowance(2, 0.5, lambda: now)
    assert [allowance.spend("a"), allowance.spend("a"), allowance.spend("a")] == [0, 0, 2]
    assert allowance.spend("b") == 0
    now = 2.0
    assert allowance.spend("a") == 0
    assert allowance.spend("a") == 2
