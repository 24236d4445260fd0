"""WebSockets where a rule allows them: frames pass both ways, judged; nothing else gets a 101."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection, serve

from space.gateway.surroundings import Limits
from space.gateway.websocket import BadFrame, Frames
from space.testing.egress import server_context
from space.testing.egresslab import ALLOWED, Place, place, run
from space.testing.lentgrants import LentGrants

MASK = b"\x01\x02\x03\x04"


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


def asking(at: Place, fields: str = "", key: str = "AAAAAAAAAAAAAAAAAAAAAA==") -> bytes:
    return (
        f"GET /chat HTTP/1.1\r\nHost: {ALLOWED}:{at.port}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n{fields}\r\n"
    ).encode()


def test_a_websocket_echoes_through_both_ways(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            context = server_context(at.lab.signer.make(ALLOWED), tmp_path)
            async with serve(echo, "127.0.0.1", 0, ssl=context, max_size=None) as server:
                at.lab.dialer.places[ALLOWED, at.port] = ("127.0.0.1", next(iter(server.sockets)).getsockname()[1])
                at.rules({"host": ALLOWED, "websocket": True})
                url = f"wss://{ALLOWED}:{at.port}/chat"
                async with websockets.connect(
                    url, host=at.lab.address(ALLOWED), ssl=at.lab.client_context(), max_size=None, proxy=None
                ) as client:
                    for message in ("hello", b"\0" * 5_000_000, "", "x" * 126, "y" * 65_536):
                        await client.send(message)
                        assert await client.recv() == message
                    assert await (await client.ping()) >= 0
                    assert client.protocol.extensions == []
            await at.empty()
            (request,) = at.requests()
            assert (request.status, request.reason) == (101, "")
            assert request.sent > 5_000_000
            assert request.received > 5_000_000

    run(main())


def test_a_granted_one_gets_the_credential_in_its_head_alone_and_no_message_waits_for_another(tmp_path: Path) -> None:
    """A message whose last letter is the secret's first one is all that comes: whoever waits for it gets it."""
    secret = b"sk_live_0Pn2DMIKRiIjIpZLtxvLqw9"
    heads: list[str] = []

    async def said(connection: ServerConnection) -> None:
        assert connection.request is not None
        heads.append(connection.request.headers.get("authorization", ""))
        await echo(connection)

    async def main() -> None:
        lent = LentGrants()
        async with place(tmp_path, **lent.changes) as at:
            context = server_context(at.lab.signer.make(ALLOWED), tmp_path)
            async with serve(said, "127.0.0.1", 0, ssl=context) as server:
                at.lab.dialer.places[ALLOWED, at.port] = ("127.0.0.1", next(iter(server.sockets)).getsockname()[1])
                at.rules({"host": ALLOWED, "websocket": True})
                lent.give("code", ALLOWED, at.port, value=secret)
                url = f"wss://{ALLOWED}:{at.port}/chat"
                async with websockets.connect(url, host=at.lab.address(ALLOWED), ssl=at.lab.client_context(), proxy=None) as client:
                    for message in ("yes", "sk_live", "sk_live_0P", ""):
                        await client.send(message)
                        assert await asyncio.wait_for(client.recv(), 5) == message
                    await client.send(f"so: {secret.decode()}!")
                    assert await client.recv() == f"so: {'*' * len(secret)}!"
                    await client.send([secret.decode()[:9], secret.decode()[9:]])  # one message in two frames
                    assert secret.decode() not in str(await client.recv())
            await at.empty()
            assert heads == [f"Bearer {secret.decode()}"]
            assert [(one.status, one.grant, one.reason) for one in at.requests()] == [(101, "code", "credential_echoed")]

    run(main())


def test_without_the_rule_or_a_right_handshake_there_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            reader, writer = await at.tls(ALLOWED)
            writer.write(asking(at))
            said = (await reader.readuntil(b"}")).split(b"\r\n\r\n")[1]
            assert json.loads(said)["reason"] == "websocket_not_allowed"
            writer.close()
            at.rules({"host": ALLOWED, "websocket": True})
            for bad in (asking(at, key="short"), asking(at).replace(b": 13", b": 12"), asking(at, "Sec-WebSocket-Key: x\r\n")):
                assert b"websocket_invalid" in await at.exchange(ALLOWED, bad)
            await at.empty()
            assert upstream.seen == b""

    run(main())


def test_an_upstream_that_does_not_switch_answers_as_ever(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "websocket": True})
            reader, writer = await at.tls(ALLOWED)
            for _ in range(2):
                writer.write(asking(at, "Sec-WebSocket-Extensions: permessage-deflate\r\n"))
                assert (await reader.readuntil(b"got 0")).startswith(b"HTTP/1.1 200 ")
            assert b"extensions" not in upstream.heads[0].lower()
            assert b"upgrade: websocket\r\n" in upstream.heads[0]
            writer.close()
            await at.empty()

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"Upgrade: websocket\r\nSec-WebSocket-Accept: wrong\r\n",
        b"Upgrade: websocket\r\n",
        b"Upgrade: h2c\r\nSec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n",
        b"Upgrade: websocket\r\nSec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\nSec-WebSocket-Extensions: permessage-deflate\r\n",
    ],
)
def test_a_switch_to_something_else_is_none(tmp_path: Path, answer: bytes) -> None:
    async def wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n" + answer + b"\r\n")
        await writer.drain()
        await reader.read()

    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, wrong)
            at.rules({"host": ALLOWED, "websocket": True})
            said = await at.exchange(ALLOWED, asking(at))
            assert said.startswith(b"HTTP/1.1 502 ")
            assert b"upstream_upgrade" in said
            await at.empty()

    run(main())


def test_a_frame_that_may_not_pass_ends_both_sides(tmp_path: Path) -> None:
    got = b""

    async def accepting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n\r\n\x81\x02hi"
        )
        got += await reader.read(100)
        await reader.read()

    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.05, frame=1000)) as at:
            await at.serve(ALLOWED, accepting)
            at.rules({"host": ALLOWED, "websocket": True})
            for bad, reason in (
                (b"\x82\xfe\x03\xe9" + MASK, "websocket_too_large"),
                (b"\x81\x02hi", "websocket_mask"),
                (b"GET / HTTP/1.1\r\n\r\n", "websocket_reserved"),
            ):
                reader, writer = await at.tls(ALLOWED)
                writer.write(asking(at))
                await reader.readuntil(b"\x81\x02hi")
                writer.write(bad)
                with pytest.raises(ConnectionResetError):
                    await reader.readexactly(1)
                writer.close()
                await at.empty()
                assert at.requests()[-1].reason == reason
            assert got == b""

    run(main())


@pytest.mark.parametrize(
    ("frames", "fault"),
    [
        (b"\xc1\x80" + MASK, "reserved"),
        (b"\x83\x80" + MASK, "opcode"),
        (b"\x81\x00", "mask"),
        (b"\x09\x80" + MASK, "control"),
        (b"\x89\xfe\x00\x7e" + MASK, "control"),
        (b"\x88\x81" + MASK + b"x", "control"),
        (b"\x81\xfe\x00\x05" + MASK, "length"),
        (b"\x81\xff\x00\x00\x00\x00\x00\x00\x00\x7e" + MASK, "length"),
        (b"\x81\xff\x80\x00\x00\x00\x00\x00\x00\x00" + MASK, "length"),
        (b"\x80\x80" + MASK, "continuation"),
        (b"\x01\x80" + MASK + b"\x81\x80" + MASK, "continuation"),
        (b"\x88\x80" + MASK + b"\x81\x80" + MASK, "after_close"),
    ],
)
def test_frames_that_break_the_rules_are_named(frames: bytes, fault: str) -> None:
    with pytest.raises(BadFrame) as raised:
        Frames(masked=True, most=1000).receive(frames)
    assert raised.value.fault == fault


@given(st.lists(st.integers(0, 70_000), max_size=4), st.lists(st.integers(1, 9000), max_size=8))
def test_frames_pass_byte_for_byte_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    data = b""
    for size in sizes:
        length = (
            bytes([size | 0x80])
            if size < 126
            else b"\xfe" + size.to_bytes(2, "big")
            if size < 65_536
            else b"\xff" + size.to_bytes(8, "big")
        )
        data += b"\x82" + length + MASK + bytes(size)
    frames, passed, at = Frames(masked=True, most=2**20), b"", 0
    for cut in [*cuts, len(data)]:
        passed += frames.receive(data[at : at + cut])
        at += cut
    assert passed == data


@given(st.binary(max_size=200))
def test_rubbish_is_refused_or_passed_and_never_held(data: bytes) -> None:
    frames = Frames(masked=True, most=1000)
    try:
        passed = frames.receive(data)
    except BadFrame:
        return
    assert data.startswith(passed)
    assert len(data) - len(passed) <= 14
