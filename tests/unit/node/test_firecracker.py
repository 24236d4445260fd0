"""The Firecracker driver against an API server that keeps to the protocol, one that does not, and one that its guest has taken over."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.plan import firecracker as plan
from space.model.errors import DeadlineExceeded, ProtocolError, SandboxDied, SpaceError
from space.node.vmm import fcapi

UID = os.getuid()
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def heard(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next((int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")), 0)
    return head, await reader.readexactly(length)


async def served(directory: Path, answer: Answer, call: plan.Call, seconds: float = 2.0) -> dict[str, object]:
    """What the client makes of a server."""
    path = directory / "api.sock"
    server = await asyncio.start_unix_server(answer, path)
    try:
        return await fcapi.Api(path, UID).call(call, seconds)
    finally:
        server.close()


def saying(data: bytes, *, stay: bool = False) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        writer.write(data)
        await writer.drain()
        if stay:
            await reader.read()
        writer.close()

    return answer


NO_CONTENT = b"HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n"


def test_a_call_is_one_request_with_its_length(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await heard(reader))
        writer.write(NO_CONTENT)

    assert asyncio.run(served(tmp_path, answer, plan.pause())) == {}
    ((head, body),) = seen
    assert head.startswith("PATCH /vm HTTP/1.1\r\n")
    assert json.loads(body) == {"state": "Paused"}


def test_an_answer_is_over_by_its_length_although_the_connection_stays(tmp_path: Path) -> None:
    body = b'{"state": "Running"}'
    said = b"HTTP/1.1 200 \r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert asyncio.run(served(tmp_path, saying(said, stay=True), plan.look())) == {"state": "Running"}


def test_a_refusal_carries_the_reason_in_printable_words(tmp_path: Path) -> None:
    body = json.dumps({"fault_message": "no such drive \x1b[31m" + "x" * 1000}).encode()
    said = b"HTTP/1.1 400 \r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with pytest.raises(ProtocolError, match=r"refused PATCH /vm: no such drive \?\[31m") as refused:
        asyncio.run(served(tmp_path, saying(said), plan.pause()))
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 2x4 \r\n\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: 999999999\r\n\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 \r\nno field\r\n\r\n",
        b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 \r\nContent-Length: 3\r\n\r\n{]}",
        NO_CONTENT + b"more",
        b"A" * 70_000,
    ],
)
def test_what_is_no_answer_ends_the_call(tmp_path: Path, said: bytes) -> None:
    with pytest.raises(ProtocolError):
        asyncio.run(served(tmp_path, saying(said, stay=True), plan.look()))


def test_one_that_hangs_up_has_died_and_one_that_is_silent_is_late(tmp_path: Path) -> None:
    with pytest.raises(SandboxDied, match="before it had answered"):
        asyncio.run(served(tmp_path, saying(b"HTTP/1.1 20"), plan.look()))
    (tmp_path / "api.sock").unlink()
    with pytest.raises(DeadlineExceeded, match="GET /"):
        asyncio.run(served(tmp_path, saying(b"HTTP/1.1 20", stay=True), plan.look(), 0.1))


def test_a_socket_that_is_not_the_vmms_is_not_spoken_to(tmp_path: Path) -> None:
    """It may put anything in its directory: a link to a socket of somebody else's, or a file."""
    real = tmp_path / "real.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(real))
    listener.listen()
    (tmp_path / "link.sock").symlink_to(real)
    (tmp_path / "file.sock").touch()
    for name, uid in (("link.sock", UID), ("file.sock", UID), ("real.sock", UID + 1)):
        with pytest.raises(ProtocolError, match="no socket of the VMM's"):
            asyncio.run(fcapi.connect(tmp_path / name, uid, 1.0))
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()


@given(st.binary(max_size=300))
def test_no_bytes_are_more_than_an_answer_or_a_refusal(data: bytes) -> None:
    for said in (data, b"HTTP/1.1 200 \r\n" + data, b"HTTP/1.1 200 \r\nContent-Length: 5\r\n\r\n" + data):
        try:
            length = fcapi.length_of_answer(said)
            if length is not None:
                assert 0 < length <= fcapi.LARGEST_ANSWER
                fcapi.answer(said[:length], plan.look())
        except SpaceError:
            continue
