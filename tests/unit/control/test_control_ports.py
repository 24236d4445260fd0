"""Ports over HTTP: bytes exact both ways, each end closed in its own time, and who does not read holds back only itself."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from space.config.settings import Settings
from space.control.app import Api
from space.control.server import web
from space.testing.certificates import certificate
from space.testing.simcontrol import World, dialogue, until
from space.testing.simfiles import SimFiles


async def files(world: World) -> tuple[str, SimFiles]:
    sandbox = await world.create()
    return f"/v1/sandboxes/{sandbox}/files", world.node.sandboxes[sandbox].files


def port(world: World, path: str, number: int, **more: Any) -> connect:
    url = f"{more.pop('scheme', 'ws')}://127.0.0.1:{world.port}{path.removesuffix('/files')}/ports/{number}"
    return connect(url, additional_headers={"X-API-Key": world.key}, proxy=None, compression=None, **more)


async def everything(connection: ClientConnection) -> bytes:
    """Up to the empty message."""
    taken = b""
    while piece := await connection.recv(decode=False):
        taken += piece
    return taken


@dialogue()
async def test_a_ports_bytes_are_exact_both_ways_and_both_ends_close_it_well(world: World) -> None:
    path, held = await files(world)
    data = bytes(range(256)) * 20_000
    async with port(world, path, 7) as connection:
        reading = asyncio.create_task(everything(connection))
        for begin in range(0, len(data), 300_000):
            await connection.send(data[begin : begin + 300_000])
        await connection.send(b"")
        assert await reading == data
        await connection.wait_closed()
    assert connection.close_code == 1000
    await until(lambda: held.opened == 0)


@dialogue()
async def test_the_two_directions_of_a_port_end_apart(world: World) -> None:
    path, held = await files(world)
    async with port(world, path, 13) as connection:
        assert await everything(connection) == b"12:00:00\n"
        await connection.send(b"thank ")
        await connection.send(b"you")
        await connection.send(b"")
        await connection.wait_closed()
    assert (connection.close_code, held.got_after_eof) == (1000, b"thank you")


@dialogue()
async def test_a_client_that_leaves_ends_the_ports_connection(world: World) -> None:
    path, held = await files(world)
    for end in ("close", "abort", "after eof"):
        async with port(world, path, 9) as connection:
            await until(lambda: held.opened == 1)
            if end == "after eof":
                await connection.send(b"")
                await asyncio.sleep(0.05)
            if end == "abort":
                connection.transport.abort()
        await until(lambda: held.opened == 0)


@dialogue()
async def test_a_ports_fault_is_a_close_code_with_its_reason(world: World) -> None:
    path, _ = await files(world)
    async with port(world, path, 9) as connection:
        await connection.send("text")
        with pytest.raises(ConnectionClosed):
            await connection.recv()
    assert connection.close_code == 1011
    assert str(connection.close_reason).startswith("invalid_argument: ")
    async with port(world, path, 9) as connection:
        await connection.send(b"x")
        world.node.cut()
        with pytest.raises(ConnectionClosed):
            await connection.recv()
    assert (connection.close_code, str(connection.close_reason)[:11]) == (1011, "unavailable")


@dialogue()
async def test_a_reader_of_a_port_that_does_not_read_holds_back_only_itself(world: World) -> None:
    path, held = await files(world)
    async with port(world, path, 7, max_queue=1) as connection:
        sending = asyncio.create_task(connection.send(b"x" * 1_000_000))
        for _ in range(40):
            done, _pending = await asyncio.wait({sending}, timeout=0.5)
            if not done:
                break
            sending = asyncio.create_task(connection.send(b"x" * 1_000_000))
        assert not sending.done()  # 40 MB fit no buffer
        begun = time.perf_counter()
        assert (await world.client.get("/healthz")).status_code == 200
        assert time.perf_counter() - begun < 5
        sending.cancel()
        connection.transport.abort()
    await until(lambda: held.opened == 0)


def test_websockets_work_over_tls(tmp_path: Path) -> None:
    pem, key = certificate(tmp_path)

    @dialogue()
    async def talk(world: World) -> None:
        assert world.services is not None
        listener = socket.create_server(("127.0.0.1", 0))
        server = web(Api(world.services), Settings(tls_certificate=str(pem), tls_key=str(key)), None)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        path, held = await files(world)
        world.port = listener.getsockname()[1]
        trust = ssl.create_default_context(cafile=pem)
        trust.check_hostname = False
        async with port(world, path, 7, scheme="wss", ssl=trust) as connection:
            reading = asyncio.create_task(everything(connection))
            for _ in range(8):
                await connection.send(b"x" * 500_000)
            await connection.send(b"")
            assert await reading == b"x" * 4_000_000
        await until(lambda: held.opened == 0)
        server.stop()
        await serving

    talk(tmp_path)
