"""Policies, layers and asks in the SDK: one dialogue over the mock server and over the real control."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from space import AsyncClient, AsyncSandbox
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.sdk import Event, policies
from space.sdk.testing import MockServer
from space.testing.simcontrol import until

Dialogue = Callable[[AsyncClient, Callable[[str], str]], Coroutine[Any, Any, None]]
A: dict[str, Any] = {"version": 1, "rule": [{"name": "a", "host": "a.example.com"}]}
B = 'version = 1\n[[rule]]\nname = "b"\nhost = "b.example.com"\n'


@pytest.fixture(params=["mock", "control"])
def talk(request: pytest.FixtureRequest, tmp_path: Path, real: Callable[[Path], Any]) -> Callable[[Dialogue], None]:
    """Runs a dialogue with the mock server, and with control; it is given what makes a request of a sandbox wait."""

    async def with_mock(dialogue: Dialogue) -> None:
        server = MockServer()
        async with server.async_client() as client:
            await dialogue(client, server.egress.ask)

    async def with_control(dialogue: Dialogue) -> None:
        async with real(tmp_path) as (world, client):
            await dialogue(client, world.node.egress.ask)

    return lambda dialogue: asyncio.run(with_mock(dialogue) if request.param == "mock" else with_control(dialogue))


def test_a_sandbox_has_the_policy_that_it_was_given_and_gets_others(talk: Callable[[Dialogue], None], tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(B)

    async def dialogue(client: AsyncClient, _: Callable[[str], str]) -> None:
        async with await AsyncSandbox.create(client=client, policy=A) as sandbox:
            first = await sandbox.policy()
            assert (first.policy, first.status.generation, first.status.state) == (A, 1, "applied")
            assert (await sandbox.info()).policy == first.status
            found = await sandbox.explain("https://a.example.com/x")
            assert (found.outcome, found.rule, found.digest) == ("allow", "a", first.status.digest)
            for given in (B, tmp_path / "b.toml"):
                told = await sandbox.set_policy(given)
                assert (told.status.generation, told.status.applied_generation) in ((2, 2), (3, 3))
                assert (await sandbox.explain("https://a.example.com/x")).outcome == "name_not_allowed"
            assert (await sandbox.set_policy(None)).status.digest == ""
        async with await AsyncSandbox.create(client=client) as bare:
            assert (await bare.policy()).policy is None

    talk(dialogue)


def test_stored_policies_and_layers(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient, _: Callable[[str], str]) -> None:
        made = await client.set_policy("agents", A)
        assert (made.revision, made.rules, made.policy is None or made.policy == A) == (1, 1, True)
        async with await AsyncSandbox.create(client=client, policy="agents") as sandbox:
            assert (await client.set_policy("agents", B)).sandboxes == 1
            assert (await sandbox.policy()).status.name == "agents"
            assert (await sandbox.explain("https://b.example.com/")).rule == "b"
            with pytest.raises(Conflict):
                await client.delete_policy("agents")
        assert [one.name for one in await client.policies()] == ["agents"]
        assert (await client.policy("agents")).policy == policies.policy_table(B)
        await client.delete_policy("agents")
        with pytest.raises(NotFound):
            await client.policy("agents")
        assert (await client.operator_policy()).policy is None
        assert (await client.set_operator_policy(A)).policy == A
        layer = await client.set_tenant_policy("acme", A, permits=["open"])
        assert (layer.permits, layer.revision) == (("open",), 1)
        assert (await client.tenant_policy("acme")).policy == A

    talk(dialogue)


def test_every_mistake_comes_with_its_place(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient, _: Callable[[str], str]) -> None:
        wrong = {"version": 2, "extra": 1}
        async with await AsyncSandbox.create(client=client) as sandbox:
            for ask in (sandbox.set_policy(wrong), client.set_policy("x", wrong), AsyncSandbox.create(client=client, policy=wrong)):
                with pytest.raises(InvalidArgument) as refused:
                    await ask
                assert {one["path"] for one in refused.value.details} == {"version", "extra"}
            with pytest.raises(NotFound):
                await sandbox.set_policy("unknown")

    talk(dialogue)


def test_a_request_that_waits_is_seen_and_answered_once(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient, ask: Callable[[str], str]) -> None:
        async with await AsyncSandbox.create(client=client, policy={"version": 1, "mode": "ask"}) as sandbox:
            name = ask(sandbox.id)
            await until(sandbox.asks)
            waiting = await sandbox.asks()
            assert [(one.ask, one.sandbox, one.host) for one in waiting] == [(name, sandbox.id, "example.com")]
            await sandbox.answer(waiting[0], allow=True)
            with pytest.raises(NotFound):
                await sandbox.answer(name, allow=True)
            told = [event async for event in client.events(follow=False, kinds=["egress_asked"]) if isinstance(event, Event)]
            assert [event.ask for event in told] == waiting

    talk(dialogue)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (Path("missing.toml"), NotFound),
        ("version =", InvalidArgument),
        ("", InvalidArgument),
        ("agents", InvalidArgument),
        (7, InvalidArgument),
        (b"version = 1", InvalidArgument),
    ],
    ids=str,
)
def test_what_is_no_policy_is_refused_before_anything_is_sent(given: Any, fault: type[Exception]) -> None:
    with pytest.raises(fault):
        policies.policy_table(given)
    assert policies.policy_request("agents") == "agents"
