"""What the SDK promises, on a real guest: terminals, ports, files and re-attachment from end to end."""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path

import pytest

from space import AsyncClient, AsyncSandbox, Client, Output, Sandbox
from space.model.errors import NotFound
from space.serve.private import Served
from space.testing.simcontrol import until

ECHO = """
import asyncio
async def echo(reader, writer):
    total = 0
    while data := await reader.read(65536):
        total += len(data)
        writer.write(data)
        await writer.drain()
    writer.write(b"<%d>" % total)
    writer.close()
async def main():
    async with await asyncio.start_server(echo, "127.0.0.1", 7000, backlog=200) as server:
        print("ready", flush=True)
        await server.serve_forever()
asyncio.run(main())
"""


def test_a_login_shell_has_a_terminal_job_control_and_the_size_that_it_was_given(sandbox: Sandbox) -> None:
    with sandbox.shell(rows=33, cols=111) as terminal:
        # It says itself that it is there: a ^C that meets a child before its exec can be lost.
        terminal.send("stty size; tty; echo $0; sh -c 'echo sleeps; exec sleep 100'\n")
        said = b""
        while b"sleeps\r\n" not in said or b"/dev/pts/" not in said or b"33 111" not in said:
            piece = next(terminal)
            assert isinstance(piece, Output)
            said += piece.data
        terminal.send(b"\x03")  # ^C ends the sleep, not the shell
        terminal.resize(44, 122)
        terminal.send("stty size; exit 5\n")
        rest = b"".join(piece.data for piece in terminal if isinstance(piece, Output))
        assert b"44 122" in rest
        assert terminal.wait().code == 5
    assert sandbox.processes() == []


def test_fifty_connections_go_through_a_forwarded_port(served: Served) -> None:
    async def through(address: tuple[str, int], data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(data)
            await writer.drain()
            writer.write_eof()
            return await reader.read()
        finally:
            writer.close()

    async def scenario() -> None:
        async with AsyncClient(api_url=served.url, api_key=served.api_key) as client, await AsyncSandbox.create(client=client) as sandbox:
            with pytest.raises(NotFound):
                await sandbox.connect_port(7000)
            server = await sandbox.start(["python3", "-c", ECHO])
            async for piece in server.output():
                assert isinstance(piece, Output)
                if piece.data == b"ready\n":
                    break
            async with sandbox.forward(0, 7000) as forward:
                sent = [random.Random(number).randbytes(1000 * number + 1) for number in range(50)]
                got = await asyncio.gather(*(through(forward.address, data) for data in sent))
                assert got == [data + b"<%d>" % len(data) for data in sent]

    asyncio.run(scenario())


def test_a_hundred_processes_are_followed_at_once(served: Served) -> None:
    async def scenario() -> None:
        async with AsyncClient(api_url=served.url, api_key=served.api_key) as client, await AsyncSandbox.create(client=client) as sandbox:
            processes = [await sandbox.start(["cat"], stdin=True) for _ in range(100)]
            tasks = [asyncio.create_task(process.result()) for process in processes]
            for number, process in enumerate(processes):
                await process.write_stdin(str(number), close=True)
            assert [(await task).text for task in tasks] == [str(number) for number in range(100)]

    asyncio.run(scenario())


def test_large_files_go_both_ways_exactly_and_an_upload_that_is_cancelled_leaves_nothing(
    client: Client, served: Served, tmp_path: Path
) -> None:
    data = random.Random(1).randbytes(16 << 20)
    (tmp_path / "tree").mkdir()
    for number in range(20):
        (tmp_path / f"tree/{number}").write_bytes(data[: 4 << 20])
    with Sandbox.create(client=client) as sandbox:
        sandbox.files.write("big", data)
        assert sandbox.run(["sha256sum", "big"], check=True).text.split()[0] == hashlib.sha256(data).hexdigest()
        assert hashlib.sha256(sandbox.files.read("big")).digest() == hashlib.sha256(data).digest()
        odd = b"-odd \xff\n".decode("utf-8", "surrogateescape")
        sandbox.files.write(odd, "x")
        assert odd in [info.name for info in sandbox.files.list()]

        async def cancelled() -> None:
            async with AsyncClient(api_url=served.url, api_key=served.api_key) as other:
                again = await AsyncSandbox.connect(sandbox.id, client=other)
                task = asyncio.create_task(again.upload(tmp_path / "tree", "/home/user/tree"))
                await until(lambda: again.files.exists("/home/user/tree/1"))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(cancelled())
        assert not sandbox.files.exists("/home/user/tree")
