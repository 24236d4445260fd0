"""A policy that is another one: what it does not allow ends within a second, and the next request is judged by it."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from space.gateway.surroundings import Limits
from space.testing.egresslab import ALLOWED, Place, place, run


def get(at: Place, path: str = "/") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {ALLOWED}:{at.port}\r\n\r\n".encode()


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10)
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"more")
        await writer.drain()
        await asyncio.sleep(0.02)


def test_a_reply_in_mid_stream_ends_within_a_second(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, endless)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at))
            await reader.readuntil(b"more")
            at.rules({"host": ALLOWED, "paths": ["/other"]})
            began = time.monotonic()
            with pytest.raises(ConnectionResetError):
                await reader.read()
            assert time.monotonic() - began < 1
            writer.close()
            await at.empty()
            assert [record.reason for record in at.requests()] == ["policy_changed"]

    run(main())


def test_a_change_that_still_allows_it_disturbs_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, endless)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at))
            for _ in range(5):
                at.rules({"host": ALLOWED, "paths": ["/"]})
                at.lab.worker.changed()
                await reader.readuntil(b"more")
            writer.transport.abort()
            await at.empty()

    run(main())


def test_the_next_request_of_a_connection_is_judged_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, "/a"))
            assert b" 200 " in await reader.readuntil(b"got 0")
            at.rules({"host": ALLOWED, "paths": ["/b"]})
            writer.write(get(at, "/a") + get(at, "/b"))
            assert b" 403 " in await reader.readuntil(b"}")
            assert b" 200 " in await reader.readuntil(b"got 0")
            writer.close()
            await at.empty()
            assert [head.split()[1] for head in upstream.heads] == [b"/a", b"/b"]
            assert upstream.connections == 2  # a rule may ask for another certificate

    run(main())


@pytest.mark.parametrize("where", ["waiting", "hello", "stream", "dialling"])
def test_connections_in_every_stage_end_when_nothing_is_allowed(tmp_path: Path, where: str) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED, endless, plain=where in ("stream", "dialling"))
            if where == "stream":
                at.lab.policy({"rule": [{"tcp": f"{ALLOWED}:{at.port}"}]})
            if where in ("hello", "stream"):
                _, writer = await at.raw(ALLOWED)
                writer.write(b"\x16")
            else:
                _, writer = await at.tls(ALLOWED)
                writer.write(get(at)[:-2] if where == "waiting" else get(at))
            await asyncio.sleep(0.1)
            assert len(at.lab.worker) == 1
            at.lab.policy({})
            await at.until(lambda: at.ends())
            assert at.ends()[0].reason == "policy_changed"
            writer.close()
            await at.empty()

    run(main())


def test_without_a_policy_nothing_is_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            at.lab.policy()
            with pytest.raises(ConnectionResetError):
                await (await at.raw(ALLOWED))[0].readexactly(1)
            await at.empty()
            assert [end.reason for end in at.ends()] == ["no_policy"]

    run(main())


def test_a_flow_that_becomes_another_kind_before_its_hello_is_refused(tmp_path: Path) -> None:
    """Else one that began as a stream would be terminated toward the guest and go on in the clear."""

    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=30)) as at:
            upstream = await at.serve(ALLOWED, plain=True)
            at.lab.policy({"rule": [{"passthrough": f"{ALLOWED}:{at.port}"}]})
            _, writer = await at.raw(ALLOWED)
            await at.until(lambda: at.lab.worker.shared.counts.handshakes)
            at.rules({"host": ALLOWED})
            with pytest.raises(ssl.SSLError):
                await writer.start_tls(at.lab.client_context(), server_hostname=ALLOWED)
            writer.close()
            await at.until(lambda: at.ends())
            assert at.ends()[0].reason == "scheme_not_allowed"
            assert upstream.connections == 0

    run(main())


def test_an_open_policy_and_one_that_records_let_through_and_say_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED)
            head = get(at).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            at.rules({"host": ALLOWED, "paths": ["/other"]}, mode="record")
            assert (await at.exchange(ALLOWED, head)).startswith(b"HTTP/1.1 200 ")
            at.rules({"host": ALLOWED, "paths": ["/other"]}, open=True)
            assert (await at.exchange(ALLOWED, head)).startswith(b"HTTP/1.1 403 ")
            await at.empty()
            assert [(record.status, record.recorded) for record in at.requests()] == [(200, True), (403, False)]

    run(main())
