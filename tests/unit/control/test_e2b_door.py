"""The door of the E2B face: ids, tokens, signatures, who is let in where, and what faults look like."""

from __future__ import annotations

import base64
import hashlib
import time

import pytest

from space.control.e2b.door import Address, of_host
from space.control.e2b.ids import to_e2b, to_ours
from space.control.e2b.store import Extras
from space.control.e2b.tokens import Tokens
from space.model.errors import NotFound, Unauthenticated
from space.testing.simcontrol import World, controlled, dialogue

OURS = "sb-aaaaaaaaaaaaaaaaaaaa"
TOKENS = Tokens(bytes(32))


def test_an_id_goes_there_and_back_and_an_older_clients_suffix_is_cut_off() -> None:
    assert to_e2b(OURS) == "iaaaaaaaaaaaaaaaaaaaa"
    assert to_ours("iaaaaaaaaaaaaaaaaaaaa") == OURS
    assert to_ours("iaaaaaaaaaaaaaaaaaaaa-space") == OURS
    for wrong in ("", "i", OURS, "i" + "a" * 21, "iAAAAAAAAAAAAAAAAAAAA", "iaaaaaaaaaaaaaaaaaaaa-", "i" + "1" * 20):
        with pytest.raises(NotFound):
            to_ours(wrong)


def test_a_host_name_names_a_sandbox_and_a_port() -> None:
    assert of_host("3000-iabc.sb.example.com", "sb.example.com") == Address("iabc", 3000)
    for other in ("api.sb.example.com", "3000-iabc.example.com", "x.3000-iabc.sb.example.com", "sb.example.com"):
        assert of_host(other, "sb.example.com") is None
    assert of_host("3000-iabc.", "") is None


def test_tokens_differ_by_sandbox_and_by_kind_and_open_only_their_own() -> None:
    other = "sb-bbbbbbbbbbbbbbbbbbbb"
    made = {TOKENS.envd(OURS), TOKENS.envd(other), TOKENS.traffic(OURS), TOKENS.traffic(other)}
    assert len(made) == 4
    assert TOKENS.opens_envd(OURS, TOKENS.envd(OURS))
    assert not TOKENS.opens_envd(OURS, TOKENS.traffic(OURS))
    assert not TOKENS.opens_traffic(other, TOKENS.traffic(OURS))
    assert "0" * 8 not in repr(TOKENS)


def _signed(said: str) -> str:
    return "v1_" + base64.b64encode(hashlib.sha256(said.encode()).digest()).decode().rstrip("=")


def test_a_signature_opens_one_path_for_one_operation_until_its_time_is_over() -> None:
    token = TOKENS.envd(OURS)
    read = {"path": "/a b", "username": "user", "signature": _signed(f"/a b:read:user:{token}")}
    TOKENS.check_signature(OURS, "GET", read)
    soon = int(time.time()) + 60
    timed = {"path": "x", "signature": _signed(f"x:write::{token}:{soon}"), "signature_expiration": str(soon)}
    TOKENS.check_signature(OURS, "POST", timed)
    for method, query, words in (
        ("GET", {"path": "/a b"}, "missing signature query parameter"),
        ("POST", read, "invalid signature"),
        ("GET", {**read, "path": "/other"}, "invalid signature"),
        ("GET", {**read, "signature_expiration": "99999999999"}, "invalid signature"),
        ("GET", {"path": "x", "signature": _signed(f"x:read::{token}:1"), "signature_expiration": "1"}, "signature is already expired"),
    ):
        with pytest.raises(Unauthenticated, match=words):
            TOKENS.check_signature(OURS, method, query)


@dialogue(start=False)
async def test_tokens_outlive_the_process(world: World) -> None:
    async with controlled(world):
        assert world.services is not None
        first = world.services.e2b.tokens.envd(OURS)
    async with controlled(world):
        assert world.services is not None
        assert world.services.e2b.tokens.envd(OURS) == first


@dialogue()
async def test_what_is_known_of_a_sandbox_goes_with_it(world: World) -> None:
    assert world.services is not None
    sandbox = await world.create()
    extras = world.services.e2b.extras
    assert extras.of(sandbox) == Extras()
    await extras.put(sandbox, Extras(made=True, public=True))
    assert extras.of(sandbox).public
    assert (await world.client.delete(f"/v1/sandboxes/{sandbox}")).status_code == 204
    assert extras.of(sandbox) == Extras()


@dialogue()
async def test_a_key_of_e2bs_form_is_a_key_like_any_other(world: World) -> None:
    made = (await world.client.post("/v1/keys", json={"tenant": "acme", "e2b": True})).json()
    assert made["key"].startswith("e2b_")
    assert len(made["key"]) == 44
    async with world.as_key(made["key"]) as theirs:
        assert (await theirs.get("/v1/sandboxes")).status_code == 200
        wrong = made["key"][:-1] + ("0" if made["key"][-1] != "0" else "1")
        assert (await theirs.get("/v1/sandboxes", headers={"Authorization": f"Bearer {wrong}"})).status_code == 401
        assert (await world.client.delete(f"/v1/keys/{made['id']}")).status_code == 204
        assert (await theirs.get("/v1/sandboxes")).status_code == 401


@dialogue()
async def test_a_sandboxs_token_opens_it_and_nothing_else_does(world: World) -> None:
    assert world.services is not None
    sandbox, other = await world.create(), await world.create()
    tokens = world.services.e2b.tokens
    head = {"E2b-Sandbox-Id": to_e2b(sandbox), "E2b-Sandbox-Port": "49983"}
    assert (await world.client.get("/health", headers=head)).status_code == 204
    refused = await world.client.get("/envs", headers=head)
    assert (refused.status_code, refused.json()["code"]) == (401, 401)
    for wrong in ("", world.key, tokens.envd(other), tokens.traffic(sandbox)):
        assert (await world.client.get("/envs", headers={**head, "X-Access-Token": wrong})).status_code == 401
    assert (await world.client.get("/envs", headers={**head, "X-Access-Token": tokens.envd(sandbox)})).status_code != 401
    for hidden in ("/init", "/freeze"):
        assert (await world.client.post(hidden, headers={**head, "X-Access-Token": tokens.envd(sandbox)})).status_code == 404


@dialogue()
async def test_a_sandbox_that_is_not_there_and_one_that_rests_give_the_same_answer(world: World) -> None:
    sandbox = await world.create()
    head = {"E2b-Sandbox-Id": to_e2b(sandbox)}
    assert (await world.client.post(f"/v1/sandboxes/{sandbox}/suspend")).status_code == 200
    for asked in (head["E2b-Sandbox-Id"], "i" + "a" * 20, "nonsense"):
        answer = await world.client.get("/health", headers={"E2b-Sandbox-Id": asked})
        assert answer.status_code == 502
        assert answer.json() == {"sandboxId": asked, "message": "The sandbox was not found", "code": 502}


@dialogue(domain="sb.example.com")
async def test_a_sandbox_is_meant_by_its_host_name_too(world: World) -> None:
    sandbox = await world.create()
    host = {"Host": f"49983-{to_e2b(sandbox)}.sb.example.com"}
    assert (await world.client.get("/health", headers=host)).status_code == 204
    assert (await world.client.get("/v1/sandboxes", headers={"Host": "api.sb.example.com"})).status_code == 200
    assert (await world.client.get("/v1/sandboxes", headers={"Host": "other.example.com"})).status_code == 403
