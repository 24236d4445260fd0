"""The SDK against the real control (with a simulated node behind it), and the mock server held to the same dialogues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from space import AsyncClient, AsyncSandbox
from space.model.errors import Conflict, Gone, NoCapacity, NotFound, SandboxDied, StreamCut, Unauthenticated
from space.model.sandbox import MAX_STDIN, Phase
from space.sdk.testing import MockServer
from space.testing.simcontrol import World, a_world, controlled, until

Dialogue = Callable[[AsyncClient], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def real(root: Path) -> AsyncIterator[tuple[World, AsyncClient]]:
    """control on loopback, its node connected, and a client with the admin's key."""
    async with a_world(root) as world, controlled(world):
        assert world.services is not None
        await asyncio.wait_for(world.services.link.wait_up(), 10)
        async with AsyncClient(api_url=world.url, api_key=world.key) as client:
            yield world, client


@pytest.fixture(params=["mock", "control"])
def talk(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Dialogue], None]:
    """Runs a dialogue with the mock server, and with control."""

    async def with_mock(dialogue: Dialogue) -> None:
        async with MockServer().async_client() as client:
            await dialogue(client)

    async def with_control(dialogue: Dialogue) -> None:
        async with real(tmp_path) as (_, client):
            await dialogue(client)

    def run(dialogue: Dialogue) -> None:
        asyncio.run(with_mock(dialogue) if request.param == "mock" else with_control(dialogue))

    return run


# -- both ----------------------------------------------------------------------------------------------------------------


def test_a_sandbox_lives_and_ends(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(
            client=client, memory_mib=256, metadata={"a": "b"}, env={"K": "v"}, ttl_seconds=100
        ) as sandbox:
            info = await sandbox.info()
            assert (info.phase, info.spec.memory_mib, info.spec.metadata, info.spec.env) == (Phase.RUNNING, 256, {"a": "b"}, {"K": "v"})
            assert info.expires_at is not None
            assert info.expires_at - info.created_at == pytest.approx(100)
            await sandbox.pause()
            assert (await sandbox.info()).phase is Phase.PAUSED
            await sandbox.resume()
            await sandbox.noop()
            assert (await sandbox.metrics()).memory_total > 0
        await sandbox.delete()
        assert [found.id async for found in AsyncSandbox.list(client=client, phase="running")] == []

    talk(dialogue)


def test_one_idempotency_key_makes_one_sandbox(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        made = [await AsyncSandbox.create(client=client, idempotency_key="k-1") for _ in range(2)]
        assert made[0].id == made[1].id
        assert (await AsyncSandbox.create(client=client)).id != made[0].id

    talk(dialogue)


def test_the_list_has_everything_once(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        made = [(await AsyncSandbox.create(client=client)).id for _ in range(5)]
        found = [info.id async for info in client.sandboxes(page_size=2)]
        assert sorted(found) == sorted(made)

    talk(dialogue)


def test_commands(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(client=client) as sandbox:
            assert (await sandbox.run(["echo", "a", "b"])).stdout == b"a b\n"
            assert (await sandbox.run(["exit", "3"])).exit_code == 3
            data = bytes(range(256)) * 4096
            assert (await sandbox.run(["cat"], stdin=data)).stdout == data
            with pytest.raises(NotFound):
                await sandbox.run(["no-such-program"])

    talk(dialogue)


def test_trees(talk: Callable[[Dialogue], None], tmp_path: Path) -> None:
    (tmp_path / "s/d").mkdir(parents=True)
    (tmp_path / "s/d/f").write_bytes(b"x" * 700_000)

    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.upload(tmp_path / "s", "/srv/s")
            await sandbox.download("/srv/s", tmp_path / "t")
            with pytest.raises(NotFound):
                await sandbox.download("/srv/none", tmp_path / "none")

    talk(dialogue)
    assert (tmp_path / "t/d/f").read_bytes() == b"x" * 700_000
    assert not (tmp_path / "none").exists()


def test_keys(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        made = await client.create_key(tenant="acme", name="ci")
        assert (made.tenant, made.scope, made.name) == ("acme", "tenant", "ci")
        assert made.id in {key.id for key in await client.keys()}
        await client.revoke_key(made.id)
        assert next(key for key in await client.keys() if key.id == made.id).revoked_at is not None

    talk(dialogue)


def test_what_is_asked_of_the_server_itself(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        assert {"status", "version", "isolation"} <= set(await client.health())
        assert [template["name"] for template in await client.templates()] == ["base"]

    talk(dialogue)


# -- control alone ---------------------------------------------------------------------------------------------------------


def test_another_tenants_sandbox_is_not_there_and_a_revoked_key_is_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (world, client):
            sandbox = await AsyncSandbox.create(client=client)
            made = await client.create_key(tenant="other")
            async with AsyncClient(api_url=world.url, api_key=made.key) as other:
                with pytest.raises(NotFound):
                    await AsyncSandbox.connect(sandbox.id, client=other)
                await client.revoke_key(made.id)
                with pytest.raises(Unauthenticated):
                    await other.templates()

    asyncio.run(scenario())


def test_cancelling_a_command_kills_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (world, client), await AsyncSandbox.create(client=client) as sandbox:
            task = asyncio.create_task(sandbox.run(["sleep", "1000"]))
            await until(lambda: any(there.running for there in world.node.sandboxes.values()))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: world.node.killed == 1)
            await sandbox.noop()

    asyncio.run(scenario())


def test_a_sandbox_that_dies_during_a_command_is_a_typed_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (_, client), await AsyncSandbox.create(client=client) as sandbox:
            with pytest.raises(SandboxDied):
                await sandbox.run(["die"])

    asyncio.run(scenario())


def test_a_cancelled_create_leaves_no_sandbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (world, client):
            world.node.hold_create = asyncio.Event()
            task = asyncio.create_task(AsyncSandbox.create(client=client))
            await until(lambda: world.node.sandboxes)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            world.node.hold_create.set()
            await until(lambda: not world.node.sandboxes)
            assert world.node.created == 1

    asyncio.run(scenario())


def test_refusals_keep_their_class(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (world, client):
            world.node.refuse_create = NoCapacity("no memory is left")
            with pytest.raises(NoCapacity, match="no memory is left") as caught:
                await AsyncSandbox.create(client=client)
            assert caught.value.request_id
            world.node.refuse_create = None
            sandbox = await AsyncSandbox.create(client=client)
            await sandbox.pause()
            with pytest.raises(Conflict, match="paused"):
                await sandbox.run(["true"])
            await sandbox.resume()
            await sandbox.delete()
            with pytest.raises(Gone):
                await sandbox.run(["true"])

    asyncio.run(scenario())


def test_sixteen_mebibytes_of_stdin_and_twenty_megabytes_of_output(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (_, client), await AsyncSandbox.create(client=client) as sandbox:
            data = bytes(range(256)) * (MAX_STDIN // 256)
            assert (await sandbox.run(["cat"], stdin=data)).stdout == data
            assert len((await sandbox.run(["spam", "20000000"])).stdout) == 20_000_000

    asyncio.run(scenario())


def test_a_download_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/f").write_bytes(bytes(1_000_000))

    async def scenario() -> None:
        async with real(tmp_path / "world") as (world, client), await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.upload(tmp_path / "s", "/srv/s")
            world.node.break_tree_after = 500_000
            with pytest.raises(StreamCut):
                await sandbox.download("/srv/s", tmp_path / "t")

    asyncio.run(scenario())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "world"]
