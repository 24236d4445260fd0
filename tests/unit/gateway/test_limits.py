"""Limits: bytes, seconds, connections, and memory where one side is slow."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

import pytest

from space.gateway.surroundings import Limits
from space.testing.egresslab import ALLOWED, OTHER, get, place, reply, run

MEGABYTE = 2**20


def test_budgets_hold_over_connections_and_are_never_overdrawn(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "name": "small", "sent_limit": 10_000})
            got = 0
            for _ in range(4):
                said = await at.exchange(
                    ALLOWED, get(at, "/", "Connection: close\r\nContent-Length: 3000\r\n", method="POST") + bytes(3000)
                )
                got += said.startswith(b"HTTP/1.1 200 ")
                assert said.startswith(b"HTTP/1.1 200 ") or b"budget_sent" in said
            assert got == 3
            assert len(upstream.heads) == 3
            assert at.lab.around.spending.used("layer0", "small")[0] <= 10_000
            at.rules({"host": ALLOWED, "name": "down", "received_limit": 50})
            assert b"budget_received" in await at.exchange(ALLOWED, get(at, "/", "Connection: close\r\n"))
            await at.empty()

    run(main())


def test_slow_heads_slow_bodies_and_idle_connections_end(tmp_path: Path) -> None:
    limits = Limits(sweep=0.05, head=0.3, handshake=0.3, idle=0.5, body_grace=0.2, body_rate=1000, linger=0.2)

    async def main() -> None:
        async with place(tmp_path, limits=limits) as at:
            await at.serve(ALLOWED)
            reader, writer = await at.tls(ALLOWED)
            async with asyncio.TaskGroup() as tasks:
                drip = tasks.create_task(_drip(writer, get(at)[:-2] + b"X-A: " + b"a" * 1000))
                assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
                drip.cancel()
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, "/", "Content-Length: 1000\r\n", method="POST"))
            async with asyncio.TaskGroup() as tasks:
                drip = tasks.create_task(_drip(writer, b"a" * 1000))
                assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
                drip.cancel()
            reader, writer = await at.tls(ALLOWED)
            assert await _ends(reader)
            reader, writer = await at.raw(ALLOWED)
            writer.write(b"\x16")
            assert await _ends(reader)
            await at.empty()
            assert {end.reason for end in at.ends()} == {"head_slow", "body_slow", "idle", "handshake_slow"}

    run(main())


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    for at in range(len(data)):
        writer.write(data[at : at + 1])
        await asyncio.sleep(0.03)


async def _ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionError:
        return True


def test_connections_and_handshakes_have_limits_and_come_free_again(tmp_path: Path) -> None:
    limits = Limits(sweep=0.05, connections=3, handshakes=2)

    async def main() -> None:
        async with place(tmp_path, limits=limits) as at:
            await at.serve(ALLOWED)
            one, two, three = [await at.raw(ALLOWED) for _ in range(3)]
            assert await _ends(three[0])  # a third handshake
            four = await at.raw(ALLOWED)
            assert await _ends(four[0])
            for _, writer in (one, two):
                writer.close()
            await at.empty()
            kept = [await at.tls(ALLOWED) for _ in range(3)]
            assert await _ends((await at.raw(ALLOWED))[0])
            for _, writer in kept:
                writer.close()
            await at.empty()
            assert {end.reason for end in at.ends()} >= {"too_many_handshakes", "too_many_connections"}

    run(main())


def test_bodies_of_100_megabytes_pass_both_ways_in_bounded_memory(tmp_path: Path) -> None:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(100):
            writer.write(b"100000;ext=1\r\n" + bytes(MEGABYTE) + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\nX-Trailer: 1\r\n\r\n")
        await writer.drain()
        await reader.read()

    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED)
            await at.serve(OTHER, send)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, "/", "Transfer-Encoding: chunked\r\n", method="PUT"))
            for _ in range(100):
                writer.write(b"100000\r\n" + bytes(MEGABYTE) + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            assert b"got %d" % (100 * MEGABYTE) in (await reply(reader))[1]
            writer.close()
            reader, writer = await at.tls(OTHER)
            writer.write(get(at, name=OTHER))
            assert b"transfer-encoding: chunked" in await reader.readuntil(b"\r\n\r\n")
            total = 0
            while size := int(await reader.readline(), 16):
                total += len(await reader.readexactly(size + 2)) - 2
            assert total == 100 * MEGABYTE
            assert await reader.readline() == b"\r\n"
            writer.close()
            await at.empty()
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KiB; client and servers are in it as well

    run(main())


def test_a_guest_that_does_not_read_holds_the_upstream_and_not_the_memory(tmp_path: Path) -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(65_536))
            await writer.drain()
            sent += 65_536

    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, endless)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at))
            await reader.readuntil(b"\r\n\r\n")
            last = -1
            while sent != last:  # both kernels' buffers fill, then nothing moves
                last = sent
                await asyncio.sleep(0.3)
            (connection,) = at.lab.worker._connections
            assert connection._guest.waiting < 2 * MEGABYTE
            writer.transport.abort()
            await at.empty()

    run(main())


def test_a_guest_that_pipelines_refusals_and_reads_none_is_not_read_either(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            at.rules({"host": ALLOWED, "paths": ["/yes"]})
            _, writer = await at.tls(ALLOWED)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            requests = get(at, "/no") * 1000

            async def send() -> None:
                while True:
                    writer.write(requests)
                    await writer.drain()

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(send(), 2)
            (connection,) = at.lab.worker._connections
            assert connection._guest.waiting < 2 * MEGABYTE
            writer.transport.abort()
            await at.empty()

    run(main())


def test_a_connection_has_an_age_at_which_it_ends_whatever_it_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.05, age=0.4)) as at:
            await at.serve(ALLOWED)
            reader, writer = await at.tls(ALLOWED)

            async def busy() -> None:
                while True:
                    writer.write(get(at))
                    await reply(reader)

            with pytest.raises(ConnectionResetError):
                await busy()
            writer.close()
            await at.empty()
            assert [end.reason for end in at.ends()] == ["age"]

    run(main())


def test_upstream_connections_have_a_limit_that_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.05, upstreams=1)) as at:
            await at.serve(ALLOWED)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at))
            assert (await reply(reader))[0] == 200
            other, second = await at.tls(ALLOWED)
            second.write(get(at))
            status, body = await reply(other)
            assert (status, b"too_many_upstreams" in body) == (503, True)
            writer.close()
            await at.until(lambda: not at.lab.worker.shared.counts.upstreams)
            second.write(get(at))
            assert (await reply(other))[0] == 200
            second.close()
            await at.empty()

    run(main())
