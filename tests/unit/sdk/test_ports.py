"""Ports of a sandbox over both forms of the SDK: bytes, ends, and a local port that leads there."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from space import Sandbox
from space.model.errors import Conflict, ConnectionFailed, InvalidArgument, NotFound, ProtocolError, StreamCut, Unauthenticated, Unavailable
from space.sdk import AsyncClient, AsyncSandbox, Client, Forward
from space.sdk.testing import MockServer
from space.testing.certificates import certificate
from space.testing.simcontrol import until

Opened = Callable[[MockServer], Any]
pytestmark = pytest.mark.usefixtures("no_pauses")


def echo(connection: socket.socket) -> None:
    """Everything back, then what it was in all: told only behind the end."""
    total = 0
    while data := connection.recv(65536):
        total += len(data)
        connection.sendall(data)
    connection.sendall(f"<{total}>".encode())


@pytest.fixture
def server() -> MockServer:
    server = MockServer()
    server.service(7)(echo)
    return server


def test_each_direction_has_its_own_end(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox, await sandbox.connect_port(7) as connection:
            await connection.send(b"hello")
            assert await connection.receive() == b"hello"
            await connection.send_eof()
            await connection.send_eof()
            assert await connection.receive() == b"<5>"
            assert await connection.receive() == b""
            assert await connection.receive() == b""
            with pytest.raises(Conflict, match="ended"):
                await connection.send(b"more")

    asyncio.run(scenario())


def test_faults_before_the_upgrade_are_the_servers(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            with pytest.raises(NotFound, match="nothing listens on port 8") as caught:
                await sandbox.connect_port(8)
            assert caught.value.request_id
            with pytest.raises(InvalidArgument):
                await sandbox.connect_port(0)
            server.fail_next(Unavailable("away"), path="/ports/7")
            with pytest.raises(Unavailable):
                await sandbox.connect_port(7)
            server.cut_next(3, path="/ports/7")
            async with await sandbox.connect_port(7) as connection:
                await connection.send(b"abcdef")
                assert await connection.receive() == b"abc"
                with pytest.raises(StreamCut):
                    await connection.receive()

    asyncio.run(scenario())


def test_over_the_wire_too(server: MockServer) -> None:
    async def scenario() -> None:
        with server.listen() as url:
            async with await AsyncSandbox.create(api_url=url, api_key=server.key) as sandbox:
                async with await sandbox.connect_port(7) as connection:
                    await connection.send(b"x" * 300_000)
                    await connection.send_eof()
                    got = bytearray()
                    while data := await connection.receive():
                        got += data
                    assert bytes(got) == b"x" * 300_000 + b"<300000>"
                async with AsyncClient(api_url=url, api_key="wrong") as other:
                    with pytest.raises(Unauthenticated):
                        await other.socket(f"/v1/sandboxes/{sandbox.id}/ports/7")

    asyncio.run(scenario())


def test_a_server_that_is_not_there_or_speaks_no_websockets() -> None:
    with Client(api_url="http://127.0.0.1:9", api_key="k") as client, pytest.raises(ConnectionFailed, match="space serve"):
        client.socket("/x")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            Client(api_url=f"http://127.0.0.1:{listening.getsockname()[1]}", api_key="k") as client,
            pytest.raises(ProtocolError, match="200"),
        ):
            client.socket("/x")
        thread.join()


async def _through(address: tuple[str, int], data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(data)
        await writer.drain()
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


def test_fifty_connections_at_once_go_through_a_forwarded_port(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox, sandbox.forward(0, 7) as forward:
            address = await _address(forward)
            sent = [bytes([number]) * (1000 * number + 1) for number in range(50)]
            got = await asyncio.gather(*(_through(address, data) for data in sent))
            assert got == [data + f"<{len(data)}>".encode() for data in sent]

    before = threading.active_count()
    asyncio.run(scenario())
    asyncio.run(until(lambda: threading.active_count() <= before))


async def _address(forward: Any) -> tuple[str, int]:
    found = forward.address
    assert found[0] == "127.0.0.1"
    return (found[0], found[1])


def test_a_connection_whose_way_to_the_guest_fails_is_reset_and_the_others_go_on(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox, sandbox.forward(0, 7) as forward:
            address = await _address(forward)
            server.fail_next(NotFound("nothing listens"), path="/ports/7")
            with pytest.raises(ConnectionResetError):
                await _through(address, b"x")
            assert await _through(address, b"x") == b"x<1>"
            await until(lambda: len(forward.failures) == 1)

    asyncio.run(scenario())


def test_leaving_the_block_closes_every_connection_and_the_port(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            async with sandbox.forward(0, 7) as forward:
                address = await _address(forward)
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"hello")
                assert await reader.readexactly(5) == b"hello"
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            with pytest.raises(OSError):
                await asyncio.open_connection(*address)

    asyncio.run(scenario())


def test_a_reader_that_takes_nothing_holds_the_sender_back(server: MockServer, opened: Opened) -> None:
    sent = [0]

    @server.service(9)
    def spout(connection: socket.socket) -> None:
        with suppress(OSError):
            while True:
                sent[0] += connection.send(bytes(65536))

    async def scenario() -> None:
        async with opened(server) as sandbox, sandbox.forward(0, 9) as forward:
            _, writer = await asyncio.open_connection(*await _address(forward), limit=1024)
            before = -1
            while sent[0] != before:
                before = sent[0]
                await asyncio.sleep(0.3)
            assert 0 < before < 64 << 20
            writer.transport.abort()

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_a_sentence(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            with socket.create_server(("127.0.0.1", 0)) as taken:
                port = taken.getsockname()[1]
                with pytest.raises(Conflict, match=f"cannot listen on 127.0.0.1 port {port}"):
                    await sandbox.forward(port, 7).__aenter__()
            for local, remote in ((70_000, 7), (0, 0)):
                with pytest.raises(InvalidArgument):
                    sandbox.forward(local, remote)

    asyncio.run(scenario())


def test_an_interrupt_leaves_no_listener(server: MockServer) -> None:
    with server.client() as client, Sandbox.create(client=client) as sandbox:
        forward = sandbox.forward(0, 7)
        seen: list[tuple[str, int]] = []
        with pytest.raises(KeyboardInterrupt):
            _interrupted(forward, seen)
        with pytest.raises(OSError):
            socket.create_connection(seen[0])


def _interrupted(forward: Forward, seen: list[tuple[str, int]]) -> None:
    with forward, socket.create_connection(forward.address) as local:
        seen.append(forward.address)
        local.sendall(b"x")
        assert local.recv(1) == b"x"
        signal.raise_signal(signal.SIGINT)


def test_a_server_that_gives_no_sign_of_life_is_cut_off_and_one_that_says_nothing_is_not(
    server: MockServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in ("_async", "_sync"):
        monkeypatch.setattr(f"space.sdk.{form}._socket.SILENCE_SECONDS", 0.5)

    async def scenario() -> None:
        async with opened(server) as sandbox:
            async with await sandbox.connect_port(7) as connection:
                quiet = asyncio.create_task(connection.receive())
                assert not (await asyncio.wait({quiet}, timeout=1.5))[0]
                await connection.send(b"x")
                assert await quiet == b"x"
            with server.hung():
                connection = await sandbox.connect_port(7)
                with pytest.raises(StreamCut, match=r"for 1 s"):
                    await connection.receive()
                await connection.aclose()

    asyncio.run(scenario())


def test_who_takes_a_long_time_to_read_is_not_cut_off(server: MockServer, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("_async", "_sync"):
        monkeypatch.setattr(f"space.sdk.{form}._socket.PING_SECONDS", 0.05)
    data = bytes(4 << 20)
    server.service(9)(lambda connection: connection.sendall(data))

    async def scenario() -> None:
        async with opened(server) as sandbox, await sandbox.connect_port(9) as connection:
            got = len(await connection.receive())
            await asyncio.sleep(1)
            while piece := await connection.receive():
                got += len(piece)
            assert got == len(data)

    asyncio.run(scenario())


def test_over_tls_the_certificate_counts_for_websockets_as_for_requests(
    server: MockServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)

    async def scenario(url: str) -> None:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            back, onward = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            await asyncio.gather(_pump(reader, onward), _pump(back, writer))

        async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context) as front:
            address = f"https://127.0.0.1:{front.sockets[0].getsockname()[1]}"
            async with AsyncClient(api_url=address, api_key=server.key) as client:
                with pytest.raises(ConnectionFailed, match="certificate"):
                    await client.socket("/v1/sandboxes/sb-x/ports/7")
            monkeypatch.setenv("SSL_CERT_FILE", str(pem))
            async with AsyncClient(api_url=address, api_key=server.key) as client:
                with pytest.raises(NotFound, match="there is no sandbox"):
                    await client.socket("/v1/sandboxes/sb-x/ports/7")

    with server.listen() as url:
        asyncio.run(scenario(url))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
