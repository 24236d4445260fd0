"""The SDK against the real control (with a simulated node behind it), and the mock server held to the same dialogues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from space import AsyncClient, AsyncSandbox
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.files import FileChange
from space.model.sandbox import IdlePolicy, Phase
from space.model.tenants import Quota
from space.sdk import Event, EventGap, Output, Secret
from space.sdk.testing import MockServer

Real = Callable[[Path], Any]
Dialogue = Callable[[AsyncClient], Coroutine[Any, Any, None]]


@pytest.fixture(params=["mock", "control"])
def talk(request: pytest.FixtureRequest, tmp_path: Path, real: Real) -> Callable[[Dialogue], None]:
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


def test_a_process_in_the_background(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(client=client) as sandbox:
            process = await sandbox.start(["cat"], stdin=True)
            assert process.id.startswith("pr-")
            assert await process.write_stdin(b"one ") == 4
            assert await (await sandbox.process(process.id)).write_stdin(b"two", close=True) == 7
            status = await process.wait()
            assert (status.code, status.signal, status.stdout_bytes, status.stderr_bytes) == (0, None, 7, 0)
            assert (await process.result()).stdout == b"one two"
            assert b"".join([piece.data async for piece in process.output(stdout=4) if isinstance(piece, Output)]) == b"two"
            assert b"".join([piece.data async for piece in process.output(stdout=-2) if isinstance(piece, Output)]) == b"wo"
            with pytest.raises(InvalidArgument):
                await anext(process.output(stdout=1000))
            with pytest.raises(Conflict):
                await process.write_stdin(b"late")
            with pytest.raises(Conflict):
                await process.signal("TERM")
            (info,) = await sandbox.processes()
            assert (info.id, info.sandbox, info.argv, info.state, info.exit, info.stdin_bytes) == (
                process.id, sandbox.id, ["cat"], "exited", status, 7,
            )  # fmt: skip
            assert await sandbox.processes("running") == []
            await process.delete()
            await process.delete()
            with pytest.raises(NotFound):
                await process.info()
            with pytest.raises(NotFound):
                await sandbox.process("pr-0123456789abcdef")
            with pytest.raises(NotFound):
                await sandbox.start(["no-such-program"])

    talk(dialogue)


def test_what_there_is_of_a_process_that_runs_and_its_end_by_a_signal(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(client=client) as sandbox:
            process = await sandbox.start(["cat"], stdin=True)
            await process.write_stdin(b"abc")
            async for _ in process.output():
                break
            assert [piece async for piece in process.output(follow=False)] == [Output("stdout", 0, b"abc")]
            waiting = asyncio.create_task(process.wait())
            await process.kill()
            status = await waiting
            assert (status.code, status.signal) == (None, 9)

    talk(dialogue)


def test_a_connected_process(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(client=client) as sandbox:
            process = await sandbox.start(["cat"], stdin=True)
            async with await process.connect() as terminal:
                await terminal.send(b"hello")
                said = bytearray()
                while bytes(said) != b"hello":
                    piece = await anext(terminal)
                    assert isinstance(piece, Output)
                    said += piece.data
                await terminal.send_eof()
                assert (await terminal.wait()).code == 0
            async with await process.connect(stdout=3) as again:
                assert [piece async for piece in again] == [Output("stdout", 3, b"lo")]
            with pytest.raises(NotFound):
                await client.socket(f"/v1/sandboxes/{sandbox.id}/processes/pr-0123456789abcdef/connect")

    talk(dialogue)


def test_single_files(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(client=client) as sandbox:
            files = sandbox.files
            await files.mkdir("/srv/d", parents=True)
            await files.mkdir("/srv/d", parents=True)
            data = bytes(range(256)) * 4096
            info = await files.write("/srv/d/a", data, mode=0o640)
            assert (info.name, info.kind, info.size, info.mode) == ("a", "file", len(data), 0o640)
            assert await files.read("/srv/d/a") == data
            assert await files.read("/srv/d/a", offset=1000, length=10) == data[1000:1010]
            assert await files.read("/srv/d/a", offset=len(data)) == b""
            assert (await files.write("/srv/d/a", b"end", append=True)).size == len(data) + 3
            assert await files.read("/srv/d/a", offset=len(data)) == b"end"
            odd = "/srv/d/-r\n \udcff ü?&#%2f"
            await files.write(odd, b"x", parents=True)
            await files.symlink("/srv/d/link", odd)
            assert [info.name async for info in files.list("/srv/d")] == [odd[7:], "a", "link"]
            assert await files.read("/srv/d/link") == b"x"
            assert (await files.stat("/srv/d/link", follow=False)).target == odd
            assert (await files.chmod("/srv/d/a", 0o600)).mode == 0o600
            assert (await files.move("/srv/d/a", "/srv/d/b")).name == "b"
            assert not await files.exists("/srv/d/a")
            for refused, fault in (
                (files.write("/srv/d/b", b"", exclusive=True), Conflict),
                (files.move("/srv/d/b", "/srv/d/link"), Conflict),
                (files.remove("/srv/d"), Conflict),
                (files.read("/srv/d"), Conflict),
                (files.read("/srv/d/none"), NotFound),
                (files.write("/srv/none/a", b""), NotFound),
                (files.stat("/srv/d/none"), NotFound),
            ):
                with pytest.raises(fault):
                    await refused
            await files.remove("/srv/d", recursive=True)
            await files.remove("/srv/d", missing_ok=True)

    talk(dialogue)


def test_a_watch(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.files.mkdir("/srv/d", parents=True)
            async with sandbox.files.watch("/srv/d") as changes:
                await sandbox.files.mkdir("/srv/d/e")
                assert await asyncio.wait_for(anext(changes), 10) == FileChange("created", "e", directory=True)
            with pytest.raises(NotFound):
                async with sandbox.files.watch("/srv/none"):
                    pass

    talk(dialogue)


def test_changes_of_a_sandbox(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(client=client, metadata={"a": "b"}, idle=IdlePolicy(300), on_timeout="pause") as sandbox:
            before = await sandbox.info()
            assert (before.spec.idle, before.spec.on_timeout) == (IdlePolicy(300, "pause"), "pause")
            info = await sandbox.update(metadata={"c": "d"}, ttl_seconds=900)
            assert (info.spec.metadata, info.spec.ttl_seconds, info.spec.idle) == ({"a": "b", "c": "d"}, 900, IdlePolicy(300, "pause"))
            assert info.revision > before.revision
            info = await sandbox.update(metadata={"a": None}, idle=None, on_timeout="delete", revision=info.revision)
            assert (info.spec.metadata, info.spec.idle, info.spec.on_timeout) == ({"c": "d"}, None, "delete")
            with pytest.raises(Conflict):
                await sandbox.update(ttl_seconds=60, revision=before.revision)
            with pytest.raises(InvalidArgument):
                await sandbox.update()

    talk(dialogue)


def test_figures_over_time(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(client=client) as sandbox:
            history = await sandbox.metrics_history()
            assert history.interval_seconds > 0
            assert [sample.at for sample in history.samples] == sorted(sample.at for sample in history.samples)
            assert (await sandbox.metrics_history(since=2e9)).samples == ()

    talk(dialogue)


async def the_next(kind: str, events: AsyncIterator[Event | EventGap]) -> Event:
    async with asyncio.timeout(10):
        async for event in events:
            if isinstance(event, Event) and event.kind == kind:
                return event
    raise AssertionError("the events ended")


async def told(client: AsyncClient, **asked: Any) -> list[Event]:
    return [event async for event in client.events(follow=False, **asked) if isinstance(event, Event)]


def test_events(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        async with await AsyncSandbox.create(client=client) as sandbox, contextlib.aclosing(client.events(sandbox=sandbox.id)) as coming:
            first = asyncio.create_task(the_next("changed", coming))
            await asyncio.sleep(0.3)  # what comes from now on is told from when the server has the request
            await sandbox.update(metadata={"a": "b"})
            changed = await first
            assert (changed.sandbox, list(changed.fields or ())) == (sandbox.id, ["metadata"])
            await sandbox.delete()
            deleted = await the_next("deleted", coming)
            every = await told(client, sandbox=sandbox.id)
            assert every[0].kind == "created"
            assert [event.id for event in every] == sorted(event.id for event in every)
            assert changed in every
            assert every[-1] == deleted
            assert await told(client, after=deleted.id) == []
            assert [event.kind for event in await told(client, kinds=["deleted", "created"])] == ["created", "deleted"]

    talk(dialogue)


def test_webhooks_quotas_and_the_audit(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        made = await client.create_webhook("https://example.com/hook", kinds=["deleted"])
        assert len(made.secret) >= 16
        assert [hook.id for hook in await client.webhooks()] == [made.webhook.id]
        await client.delete_webhook(made.webhook.id)
        assert await client.webhooks() == []
        assert (await client.quota("acme")).quota == Quota()
        info = await client.set_quota("acme", Quota(sandboxes=3, requests_per_second=1.5))
        assert (info.tenant, info.quota) == ("acme", Quota(sandboxes=3, requests_per_second=1.5))
        sandbox = await AsyncSandbox.create(client=client)
        await sandbox.delete()
        records = [record async for record in client.audit(page_size=2)]
        assert [record.id for record in records] == sorted({record.id for record in records})
        assert {record.sandbox for record in records} >= {sandbox.id}

    talk(dialogue)


def test_secrets_and_grants_are_stored_used_by_name_and_taken_back(talk: Callable[[Dialogue], None]) -> None:
    async def dialogue(client: AsyncClient) -> None:
        stored = await client.put_secret("token", Secret(b"value"), labels={"team": "a"}, description="of the code host")
        assert (stored.kind, stored.version, stored.labels, stored.grants) == ("static", 1, {"team": "a"}, 0)
        with pytest.raises(Conflict):
            await client.put_secret("token", "value")
        assert (await client.put_secret("token", "value", replace=True)).version == 2
        assert (await client.rotate_secret("token", b"value")).version == 3
        aws = {"secret_access_key": Secret(b"k")}
        await client.put_secret("s3", aws, kind="aws", public={"access_key_id": "AKIDEXAMPLE"})
        assert [one.name async for one in client.secrets()] == ["s3", "token"]
        grant = {"secret": "token", "where": {"host": "api.example.com"}, "slot": {"kind": "header"}}
        with pytest.raises(NotFound):
            await client.put_grant("g", grant | {"secret": "missing"})
        with pytest.raises(InvalidArgument, match="whree"):
            await client.put_grant("g", grant | {"whree": 1})
        made = await client.put_grant("g", grant)
        assert (made.name, made.secret, made.grant["where"], made.attached) == ("g", "token", {"host": "api.example.com"}, 0)
        assert [one.name async for one in client.grants(secret="token")] == ["g"]
        with pytest.raises(Conflict):
            await client.delete_secret("token")
        async with await AsyncSandbox.create(client=client, grants=["g"]) as sandbox:
            assert await sandbox.grants() == ["g"]
            await sandbox.detach_grant("g")
            await sandbox.attach_grant("g")
            assert (await client.grant("g")).attached == 1
            with pytest.raises(NotFound):
                await sandbox.attach_grant("missing")
        with pytest.raises(NotFound):
            await AsyncSandbox.create(client=client, grants=["missing"])
        assert [one async for one in client.credential_log(secret="token")] == []
        assert (await client.revoke_grant("g")).revoked_at is not None
        await client.delete_grant("g")
        assert (await client.revoke_secret("token")).revoked_at is not None
        await client.delete_secret("token")
        with pytest.raises(NotFound):
            await client.secret("token")

    talk(dialogue)
