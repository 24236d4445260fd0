"""The SDK against the real control, with a simulated node behind it: what only a real server can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from space import AsyncClient, AsyncSandbox
from space.model.errors import Conflict, Gone, NoCapacity, NotFound, SandboxDied, StreamCut, Unauthenticated
from space.model.sandbox import MAX_STDIN
from space.sdk import Output
from space.testing.simcontrol import a_world, controlled, until

Real = Callable[[Path], Any]


def test_another_tenants_sandbox_is_not_there_and_a_revoked_key_is_none(tmp_path: Path, real: Real) -> None:
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


def test_cancelling_a_command_kills_it(tmp_path: Path, real: Real) -> None:
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


def test_a_cancelled_start_leaves_no_process_however_late_it_arrives(tmp_path: Path, real: Real) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (world, client), await AsyncSandbox.create(client=client) as sandbox:
            for start in (sandbox.start, sandbox.shell):
                world.node.hold_exec = asyncio.Event()
                world.node.held_execs = 0
                task: asyncio.Task[object] = asyncio.create_task(start(["sleep", "1000"]))
                await until(lambda: world.node.held_execs)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                world.node.hold_exec.set()
                world.node.hold_exec = None
                await sandbox.run(["true"])
                assert await sandbox.processes(state="running") == []
            process = await sandbox.start(["cat"], stdin=True)
            await process.delete()

    asyncio.run(scenario())


def test_a_sandbox_that_dies_during_a_command_is_a_typed_error(tmp_path: Path, real: Real) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (_, client), await AsyncSandbox.create(client=client) as sandbox:
            with pytest.raises(SandboxDied):
                await sandbox.run(["die"])

    asyncio.run(scenario())


def test_a_cancelled_create_leaves_no_sandbox(tmp_path: Path, real: Real) -> None:
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


def test_refusals_keep_their_class(tmp_path: Path, real: Real) -> None:
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


def test_sixteen_mebibytes_of_stdin_and_twenty_megabytes_of_output(tmp_path: Path, real: Real) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (_, client), await AsyncSandbox.create(client=client) as sandbox:
            data = bytes(range(256)) * (MAX_STDIN // 256)
            assert (await sandbox.run(["cat"], stdin=data)).stdout == data
            assert len((await sandbox.run(["spam", "20000000"])).stdout) == 20_000_000

    asyncio.run(scenario())


def test_a_download_that_breaks_off_leaves_nothing(tmp_path: Path, real: Real) -> None:
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


def test_a_port_and_a_local_port_that_leads_there(tmp_path: Path, real: Real) -> None:
    async def through(address: tuple[str, int], data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(data)
        await writer.drain()
        writer.write_eof()
        try:
            return await reader.read()
        finally:
            writer.close()

    async def scenario() -> None:
        async with real(tmp_path) as (world, client), await AsyncSandbox.create(client=client) as sandbox:
            with pytest.raises(NotFound) as caught:
                await sandbox.connect_port(8)
            assert caught.value.request_id
            async with await sandbox.connect_port(7) as connection:
                await connection.send(b"x" * 300_000)
                await connection.send_eof()
                got = bytearray()
                while data := await connection.receive():
                    got += data
                assert len(got) == 300_000
            async with sandbox.forward(0, 7) as forward:
                sent = [bytes([number]) * (5000 * number + 1) for number in range(50)]
                assert await asyncio.gather(*(through(forward.address, data) for data in sent)) == sent
                idle = await asyncio.open_connection(*forward.address)
                await until(lambda: world.node.sandboxes[sandbox.id].files.opened == 1)
            await until(lambda: world.node.sandboxes[sandbox.id].files.opened == 0)
            idle[1].close()

    asyncio.run(scenario())


def test_a_cancelled_write_leaves_nothing(tmp_path: Path, real: Real) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (world, client), await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.files.write("/tmp/a", b"before")
            held = asyncio.Event()

            async def pieces() -> AsyncIterator[bytes]:
                yield b"x" * 300_000
                held.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(sandbox.files.write("/tmp/a", pieces()))
            await held.wait()
            files = world.node.sandboxes[sandbox.id].files
            await until(lambda: files.open_writes == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: files.open_writes == 0)
            assert await sandbox.files.read("/tmp/a") == b"before"
            assert [info.name async for info in sandbox.files.list("/tmp")] == ["a"]

    asyncio.run(scenario())


def test_a_read_that_the_server_cuts_goes_on_or_is_an_error(tmp_path: Path, real: Real) -> None:
    data = bytes(range(256)) * 4096

    async def scenario() -> None:
        async with real(tmp_path) as (world, client), await AsyncSandbox.create(client=client) as sandbox:
            await sandbox.files.write("/tmp/a", data)
            files = world.node.sandboxes[sandbox.id].files
            files.cut_after = 300_000
            assert await sandbox.files.read("/tmp/a") == data
            pieces = sandbox.files.stream("/tmp/a")
            await anext(pieces)
            await sandbox.files.write("/tmp/a", data[::-1])
            with pytest.raises(Conflict, match="ETag"):
                async for _ in pieces:
                    pass

    asyncio.run(scenario())


def test_following_goes_on_over_a_control_that_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_world(tmp_path) as world:
            async with controlled(world):
                assert world.services is not None
                await asyncio.wait_for(world.services.link.wait_up(), 10)
                client = AsyncClient(api_url=world.url, api_key=world.key)
                sandbox = await AsyncSandbox.create(client=client)
                process = await sandbox.start(["cat"], stdin=True)
                await process.write_stdin(b"before ")
                output = process.output()
                said = bytearray()
                while bytes(said) != b"before ":
                    piece = await anext(output)
                    assert isinstance(piece, Output)
                    said += piece.data
                port = world.port
                coming = asyncio.create_task(anext(output))
            async with controlled(world, port=port):
                assert world.services is not None
                await asyncio.wait_for(world.services.link.wait_up(), 10)
                await process.write_stdin(b"after", close=True)
                piece = await coming
                assert isinstance(piece, Output)
                said += piece.data
                async for piece in output:
                    assert isinstance(piece, Output)
                    said += piece.data
                assert bytes(said) == b"before after"
                await sandbox.delete()
                await client.aclose()

    asyncio.run(scenario())


def test_a_process_of_a_sandbox_that_dies_is_a_typed_error(tmp_path: Path, real: Real) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (_, client), await AsyncSandbox.create(client=client) as sandbox:
            process = await sandbox.start(["die"])
            with pytest.raises(SandboxDied):
                await process.wait()
            assert (await process.info()).state == "lost"

    asyncio.run(scenario())


def test_a_shell_ends_with_its_connection(tmp_path: Path, real: Real) -> None:
    async def scenario() -> None:
        async with real(tmp_path) as (_, client), await AsyncSandbox.create(client=client) as sandbox:
            async with await sandbox.shell(["cat"], rows=30, cols=100) as terminal:
                await terminal.resize(50, 200)
                await terminal.send(b"hello")
                said = b""
                while not said.startswith(b"hello"):
                    piece = await anext(terminal)
                    assert isinstance(piece, Output)
                    said += piece.data
                assert [info.pty for info in await sandbox.processes("running")] == [True]
            assert await sandbox.processes() == []

    asyncio.run(scenario())
