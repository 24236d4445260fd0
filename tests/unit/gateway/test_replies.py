"""Replies: read strictly, written anew, streamed; those without one meaning, or an end, are none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from space.testing.egresslab import ALLOWED, get, place, reply, run

MEGABYTE = 2**20


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "upstream_content_length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "upstream_both"),
        (b"HTTP/1.1 200 OK\nContent-Length: 5\r\n\r\nhello", "upstream_status_line"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", "upstream_upgrade"),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "upstream_upgrade"),
        (b"HTTP/1.1 102 Processing\r\n\r\n" * 40, "upstream_interim"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "upstream_chunk"),
        (b"SSH-2.0-server\r\n\r\n", "upstream_status_line"),
        (b"", "upstream_closed"),
    ],
)
def test_a_reply_without_one_meaning_is_none(tmp_path: Path, answer: bytes, reason: str) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, odd)
            said = await at.exchange(ALLOWED, get(at, "/", "Connection: close\r\n"))
            assert said.startswith(b"HTTP/1.1 502 ") or reason == "upstream_chunk"
            await at.empty()
            assert [record.reason for record in at.requests()] == [reason]

    run(main())


@pytest.mark.parametrize("head", [b"Content-Length: 10\r\n", b"Transfer-Encoding: chunked\r\n", b""])
def test_a_reply_that_is_cut_off_is_cut_off_for_the_guest_too(tmp_path: Path, head: bytes) -> None:
    async def cutting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + (b"5\r\nhello\r\n" if b"chunked" in head else b"hello"))
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.transport.abort()

    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, cutting)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at))
            await reader.readuntil(b"hello")
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
            await at.empty()
            assert [record.reason for record in at.requests()] == ["upstream_cut"]

    run(main())


def test_a_kept_upstream_connection_that_closed_meanwhile_is_no_fault_of_the_next_request(tmp_path: Path) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        await reader.readuntil(b"\r\n\r\n")  # it takes a second request, and closes on it

    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED, once)
            reader, writer = await at.tls(ALLOWED)
            for _ in range(3):
                writer.write(get(at))
                assert await reply(reader) == (200, b"ok")
            assert upstream.connections == 3
            writer.write(get(at, method="DELETE"))
            assert (await reply(reader))[0] == 502  # who knows what it did
            writer.close()
            await at.empty()

    run(main())


def test_a_head_request_and_a_304_keep_the_length_of_what_is_not_there(tmp_path: Path) -> None:
    async def bare(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            status = b"200 OK" if head.startswith(b"HEAD") else b"304 Not Modified"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 77\r\n\r\n")

    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, bare)
            reader, writer = await at.tls(ALLOWED)
            for method in ("HEAD", "GET", "HEAD"):
                writer.write(get(at, method=method))
                assert b"content-length: 77" in await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await at.empty()

    run(main())


def test_continue_is_passed_when_it_was_expected_and_other_interim_replies_are_not(tmp_path: Path) -> None:
    async def expecting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        if b"expect: 100-continue" in head:
            assert await reader.readexactly(5) == b"hello"
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()

    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, expecting)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, "/", "Expect: 100-continue\r\nContent-Length: 5\r\n", method="POST"))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"hello")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
            writer.write(get(at))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204 ")
            writer.close()
            await at.empty()

    run(main())


def test_an_upstream_that_answers_early_is_heard_and_the_rest_of_the_body_dropped(tmp_path: Path) -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        await reader.read()

    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, early)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, "/", "Content-Length: 100000000\r\n", method="POST") + bytes(MEGABYTE))
            said = await reader.read()
            assert said.startswith(b"HTTP/1.1 413 ")
            assert b"connection: close" in said
            assert said.endswith(b"big")
            writer.close()
            await at.empty()

    run(main())


def test_server_sent_events_pass_as_they_come(tmp_path: Path) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            for n in range(3):
                writer.write(b"data: %d\n\n" % n)
                await writer.drain()
                await go.wait()
                go.clear()

        async with place(tmp_path) as at:
            await at.serve(ALLOWED, events)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at))
            await reader.readuntil(b"\r\n\r\n")
            for n in range(3):
                assert await reader.readexactly(14) == b"9\r\ndata: %d\n\n\r\n" % n
                go.set()
            assert await reader.readline() == b"0\r\n"
            writer.close()
            await at.empty()

    run(main())
