"""Lives through the SDK, before its mock server and before a control with a SimNode: the same calls, the same answers."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import httpx
import pytest
import uvloop

from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.sandbox import IdlePolicy, Phase
from space.sdk import AsyncSandbox, Client, Sandbox
from space.sdk.testing import MockServer
from space.testing.simcontrol import World, dialogue


def story(client: Client) -> None:
    """What both servers must do alike."""
    with Sandbox.create(client=client, ttl_seconds=600, idle=IdlePolicy(500, "suspend"), on_timeout="stop", wake_on_call=False) as sandbox:
        spec = sandbox.info().spec
        assert (spec.idle, spec.on_timeout, spec.wake_on_call) == (IdlePolicy(500, "suspend"), "stop", False)
        assert sandbox.update(wake_on_call=True).spec.wake_on_call
        for _ in range(2):
            sandbox.suspend()
        info = sandbox.info()
        assert (info.phase, info.expires_at, info.snapshot_bytes > 0) == (Phase.SUSPENDED, None, True)
        with pytest.raises(Conflict, match="suspended"):
            sandbox.run(["true"])
        with pytest.raises(Conflict):
            sandbox.checkpoint()
        for _ in range(2):
            sandbox.wake()
        info = sandbox.info()
        assert (info.phase, info.generation, info.start, info.expires_at is not None) == (Phase.RUNNING, 2, "restore", True)
        assert sandbox.run(["true"]).ok
        sandbox.stop()
        with pytest.raises(Conflict):
            sandbox.suspend()
        sandbox.wake()
        assert (sandbox.info().generation, sandbox.info().start) == (3, "cold")
        sandbox.pause()
        sandbox.resume()
        made = sandbox.checkpoint()
        assert sandbox.checkpoints() == [made]
        sandbox.rollback(made)
        assert (sandbox.info().generation, sandbox.info().checkpoints) == (4, 1)
        children = sandbox.fork(2, ttl_seconds=60, metadata={"child": "yes"})
        assert len({child.id for child in children} | {sandbox.id}) == 3
        for child in children:
            with child:
                info = child.info()
                assert (info.phase, info.parent, info.start, info.generation) == (Phase.RUNNING, sandbox.id, "fork", 1)
                assert (info.spec.ttl_seconds, dict(info.spec.metadata)) == (60, {"child": "yes"})
                assert child.run(["true"]).ok
        for _ in range(2):
            sandbox.drop_checkpoint(made)
        with pytest.raises(NotFound):
            sandbox.rollback(made)
    kinds = [event.kind for event in client.events(follow=False) if not hasattr(event, "oldest") and event.sandbox == sandbox.id]
    with Sandbox.create(client=client) as sandbox:
        template = sandbox.keep_as_template("kept:v1", idempotency_key="once")
        assert (template["name"], template["tags"]) == ("kept", ["v1"])
        assert sandbox.keep_as_template("kept:v1", idempotency_key="once")["digest"] == template["digest"]
        assert sandbox.run(["true"]).ok
    with Sandbox.create("kept:v1", client=client) as of_it:
        assert of_it.info().spec.template == "kept:v1"
    assert [kinds.count(kind) for kind in ("checkpointed", "rolled_back", "forked")] == [1, 1, 1]


def test_the_mock_server_lives_as_the_server_does() -> None:
    with MockServer().client() as client:
        story(client)


def travel(client: Client, directory: Path) -> None:
    """A suspended one as a file, and back as another."""
    file = directory / "night.space"
    with Sandbox.create(client=client, env={"A": "b"}) as sandbox:
        with pytest.raises(Conflict, match="a file is made of one that is suspended"):
            sandbox.export(file)
        assert list(directory.iterdir()) == []
        sandbox.suspend()
        assert sandbox.export(file) == file.stat().st_size > 0
        with pytest.raises(Conflict, match="is there already"):
            sandbox.export(file)
        with Sandbox.import_file(file, client=client) as other:
            info = other.info()
            assert (info.id == sandbox.id, info.phase, info.expires_at) == (False, Phase.SUSPENDED, None)
            assert dict(info.spec.env) == {"A": "b"}
        other.wake()  # leaving its block deleted nothing
        assert other.info().start == "restore"
        other.delete()
    file.write_bytes(b"something else")
    with pytest.raises(InvalidArgument, match="no sandbox that can be imported"):
        Sandbox.import_file(file, client=client)
    with pytest.raises(InvalidArgument, match="cannot read"):
        Sandbox.import_file(directory / "nothing", client=client)


def test_a_sandbox_travels_as_a_file_on_the_mock_server(tmp_path: Path) -> None:
    with MockServer().client() as client:
        travel(client, tmp_path)


@dialogue()
async def test_a_sandbox_travels_as_a_file_on_a_server(world: World) -> None:
    def talk() -> None:
        with Client(api_url=world.url, api_key=world.key) as client, tempfile.TemporaryDirectory() as directory:
            travel(client, Path(directory))

    await asyncio.to_thread(talk)


@dialogue()
async def test_a_server_lives_as_the_sdk_says(world: World) -> None:
    def talk() -> None:
        with Client(api_url=world.url, api_key=world.key) as client:
            story(client)

    await asyncio.to_thread(talk)


def test_a_call_wakes_what_a_rule_put_to_rest_on_the_mock_server_and_not_what_was_asked_to_rest() -> None:
    server = MockServer()
    with server.client() as client, Sandbox.create(client=client) as sandbox:
        server.rest(sandbox.id, Phase.SUSPENDED)
        assert sandbox.run(["echo", "here"]).text == "here\n"
        assert sandbox.info().phase is Phase.RUNNING
        server.rest(sandbox.id, Phase.PAUSED)
        sandbox.update(wake_on_call=False)
        with pytest.raises(Conflict):
            sandbox.run(["true"])


def test_a_fork_whose_answer_was_lost_is_repeated_and_makes_no_second_children() -> None:
    server = MockServer()
    with server.client() as client, Sandbox.create(client=client) as sandbox:
        server.fail_next(httpx.ReadError("lost"), path="/fork", after=True)
        children = sandbox.fork(2)
        assert len(server.sandboxes) == 3
        assert {child.id for child in children} == server.sandboxes.keys() - {sandbox.id}
        assert len(sandbox.fork(1)) == 1
        assert len(server.sandboxes) == 4


def test_the_asynchronous_one_forks_as_well() -> None:
    async def talk() -> None:
        server = MockServer()
        async with server.async_client() as client, await AsyncSandbox.create(client=client) as sandbox:
            [child] = await sandbox.fork()
            async with child:
                assert (await child.info()).parent == sandbox.id
            assert child.id not in server.sandboxes

    uvloop.run(talk())
