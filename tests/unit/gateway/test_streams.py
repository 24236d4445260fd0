"""Streams that are not looked into: `tcp` and `passthrough` rules, literal addresses."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from space.gateway.surroundings import Dialled, DialRefused
from space.testing.egresslab import ALLOWED, OTHER, Place, place, run


async def greet_and_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 hello\r\n")
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.write(b"bye")


def tcp(at: Place, **more: Any) -> None:
    at.lab.policy({"rule": [{"tcp": f"{ALLOWED}:{at.port}", "name": "stream", **more}]})


def test_a_server_may_speak_first_and_each_half_ends_on_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            tcp(at)
            await at.serve(ALLOWED, greet_and_echo, plain=True)
            reader, writer = await at.raw(ALLOWED)
            assert await reader.readline() == b"220 hello\r\n"
            sent = bytes(range(256)) * 40_000

            async def send() -> None:
                writer.write(sent)
                await writer.drain()
                writer.write_eof()

            sending = asyncio.ensure_future(send())
            assert await reader.read() == sent + b"bye"
            await sending
            writer.close()
            await at.empty()
            (end,) = at.ends()
            assert (end.scheme, end.rule, end.reason, end.sent, end.received) == ("tcp", "stream", "", len(sent), len(sent) + 14)
            assert end.upstream.startswith("127.0.0.1:")

    run(main())


def test_what_is_sent_at_once_waits_for_the_upstream_and_arrives(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            tcp(at)
            await at.serve(ALLOWED, greet_and_echo, plain=True)
            reader, writer = await at.raw(ALLOWED)
            writer.write(b"early")
            writer.write_eof()
            said = await reader.read()
            assert said == b"220 hello\r\nearlybye"
            writer.close()
            await at.empty()

    run(main())


def test_a_guest_that_sends_while_nobody_is_there_yet_is_not_read(tmp_path: Path) -> None:
    async def never(_name: object, _port: int) -> Dialled | DialRefused:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        async with place(tmp_path, dial=never) as at:
            tcp(at)
            _, writer = await at.raw(ALLOWED)
            writer.write(bytes(50 * 2**20))
            await asyncio.sleep(0.5)
            (connection,) = at.lab.worker._connections
            assert connection._guest.taken < 2**20
            writer.transport.abort()
            at.lab.worker.close()
            await at.empty()

    run(main())


def test_budgets_end_a_stream(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            tcp(at, sent_limit=1000)
            await at.serve(ALLOWED, greet_and_echo, plain=True)
            reader, writer = await at.raw(ALLOWED)
            writer.write(bytes(900))
            await reader.readexactly(911)
            writer.write(bytes(200))
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            await at.empty()
            assert [end.reason for end in at.ends()] == ["budget_sent"]
            assert at.lab.around.spending.used("layer0", "stream")[0] == 900

    run(main())


def test_a_dial_that_is_refused_resets(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            tcp(at)
            with pytest.raises(ConnectionResetError):
                await (await at.raw(ALLOWED))[0].readexactly(1)
            await at.empty()
            assert [end.reason for end in at.ends()] == ["address_private"]

    run(main())


def test_a_slow_reader_holds_the_upstream(tmp_path: Path) -> None:
    sent = 0

    async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(bytes(65_536))
            await writer.drain()
            sent += 65_536

    async def main() -> None:
        async with place(tmp_path) as at:
            tcp(at)
            await at.serve(ALLOWED, endless, plain=True)
            _, writer = await at.raw(ALLOWED)
            last = -1
            while sent != last or not sent:
                last = sent
                await asyncio.sleep(0.3)
            assert sent < 30 * 2**20
            writer.transport.abort()
            await at.empty()

    run(main())


def passing(at: Place) -> None:
    at.lab.policy({"rule": [{"passthrough": f"{ALLOWED}:{at.port}"}]})


def test_passthrough_leaves_tls_alone_once_the_hello_agrees(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            passing(at)
            await at.serve(ALLOWED)
            reader, writer = await at.tls(ALLOWED)
            writer.write(b"GET /%252e%252e HTTP/1.1\r\nHost: whatever\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"got 0")
            writer.close()
            assert at.lab.signer.minted == []
            with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
                await at.tls(ALLOWED, sni=OTHER)
            assert await at.exchange(ALLOWED, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", plain=True) == b""
            await at.empty()
            assert {end.reason for end in at.ends()} == {"", "sni_mismatch", "hello_not_tls"}
            assert len(at.upstreams[ALLOWED].heads) == 1

    run(main())


def with_ech(hello: bytes) -> bytes:
    """The same hello with an encrypted one in it."""
    extension = b"\xfe\x0d\x00\x04\x00\x00\x00\x00"
    at = 5 + 4 + 2 + 32
    at += 1 + hello[at]
    at += 2 + int.from_bytes(hello[at : at + 2], "big")
    at += 1 + hello[at]
    length = int.from_bytes(hello[at : at + 2], "big") + len(extension)
    body = hello[9:at] + length.to_bytes(2, "big") + extension + hello[at + 2 :]
    return hello[:3] + (len(body) + 4).to_bytes(2, "big") + b"\x01" + len(body).to_bytes(3, "big") + body


def test_passthrough_refuses_what_it_cannot_see(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            passing(at)
            upstream = await at.serve(ALLOWED)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = at.lab.client_context().wrap_bio(incoming, outgoing, server_hostname=ALLOWED)
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            said = await at.exchange(ALLOWED, with_ech(outgoing.read()), plain=True)
            assert said == b"\x15\x03\x03\x00\x02\x02\x70"
            await at.empty()
            assert [end.reason for end in at.ends()] == ["ech"]
            assert upstream.connections == 0

    run(main())


def test_a_literal_address_is_a_stream_where_a_cidr_rule_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            at.lab.policy({"cidr": [f"127.0.0.5/32:{at.port}"]})
            upstream = await at.serve("127.0.0.5", greet_and_echo, plain=True)
            reader, writer = await asyncio.open_connection("127.0.0.5", at.port)
            assert await reader.readline() == b"220 hello\r\n"
            at.lab.policy({})
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            writer.close()
            await at.empty()
            assert upstream.connections == 1
            assert [(end.name, end.scheme, end.reason) for end in at.ends()] == [("127.0.0.5", "tcp", "policy_changed")]

    run(main())
