"""Requests through a worker: what is allowed arrives, anew and whole; what is refused says why and arrives nowhere."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path

import httpx
import pytest

from space.core.policy.verdict import Asked
from space.gateway.surroundings import Limits
from space.testing.egresslab import ALLOWED, OTHER, REFUSED, Place, place, run

MEGABYTE = 2**20


def get(at: Place, path: str = "/", fields: str = "", *, method: str = "GET", name: str = ALLOWED) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {name}:{at.port}\r\n{fields}\r\n".encode()


async def reply(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """One with a length."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split(b" ")[1]), await reader.readexactly(length)


def test_an_allowed_request_arrives_anew_and_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            said = await at.exchange(ALLOWED, get(at, "/a/../b?token=s3cret&x=1", "X-Forwarded-Host: a\r\nConnection: close\r\n"))
            assert said.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"alt-svc" not in said.lower()
            assert upstream.heads == [b"GET /b?token=s3cret&x=1 HTTP/1.1\r\nhost: %s\r\n\r\n" % at.host(ALLOWED)]
            await at.empty()
            (request,) = at.requests()
            assert (request.name, request.path, request.query, request.status, request.reason) == (ALLOWED, "/b", ("token", "x"), 200, "")
            (end,) = at.ends()
            assert (end.name, end.reason, end.requests) == (ALLOWED, "", 1)
            assert "s3cret" not in repr(at.lab.records)

    run(main())


def test_a_refusal_says_why_and_the_connection_goes_on_when_nothing_is_unread(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "methods": ["GET", "HEAD"], "paths": ["/ok"], "name": "narrow"})
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, "/no"))
            status, body = await reply(reader)
            said = json.loads(body)
            assert status == 403
            assert (said["error"], said["reason"], said["rule"], said["host"]) == ("egress_denied", "path_not_allowed", "narrow", ALLOWED)
            writer.write(get(at, "/ok"))
            assert (await reply(reader))[0] == 200
            writer.write(get(at, "/ok", "X-HTTP-Method-Override: DELETE\r\n"))
            assert json.loads((await reply(reader))[1])["reason"] == "method_override"
            writer.write(get(at, "/no", method="HEAD"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
            writer.write(get(at, "/ok", "Content-Length: 5\r\n", method="POST"))
            rest = await reader.read()
            assert rest.startswith(b"HTTP/1.1 403 ")
            assert b"connection: close" in rest
            assert b"method_not_allowed" in rest
            writer.close()
            await at.empty()
            assert [head.split(b" ")[1] for head in upstream.heads] == [b"/ok"]
            assert next(record.id for record in at.requests() if record.reason == "path_not_allowed") == said["request_id"]

    run(main())


def test_a_thousand_requests_go_over_one_connection_each_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            reader, writer = await at.tls(ALLOWED)
            for _ in range(1000):
                writer.write(get(at))
                assert (await reply(reader))[0] == 200
            writer.close()
            await at.empty()
            assert upstream.connections == 1
            assert len(at.requests()) == 1000

    run(main())


def test_pipelined_requests_are_judged_one_by_one_and_answered_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "paths": ["/yes/*"]})
            reader, writer = await at.tls(ALLOWED)
            writer.write(b"".join(get(at, f"/{'no' if n % 4 == 3 else 'yes'}/{n}") for n in range(20)))
            for n in range(20):
                status, body = await reply(reader)
                assert status == (403 if n % 4 == 3 else 200)
                assert n % 4 == 3 or b"/yes/%d " % n in body
            writer.close()
            await at.empty()
            assert [head.split()[1] for head in upstream.heads] == [b"/yes/%d" % n for n in range(20) if n % 4 != 3]

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


def test_plain_http_goes_where_a_rule_says_so_and_its_refusals_can_be_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            at.rules({"host": ALLOWED, "scheme": "http"})
            await at.serve(ALLOWED, plain=True)
            assert (await at.exchange(ALLOWED, get(at, "/", "Connection: close\r\n"), plain=True)).startswith(b"HTTP/1.1 200 ")
            absolute = f"GET http://{ALLOWED}:{at.port}/x HTTP/1.1\r\nHost: {ALLOWED}:{at.port}\r\nConnection: close\r\n\r\n".encode()
            assert b"GET /x HTTP/1.1" in await at.exchange(ALLOWED, absolute, plain=True)
            assert await at.exchange(ALLOWED, b"\x16\x03\x01\x02\x00\x01", plain=True) == b""
            await at.empty()
            assert at.ends()[-1].reason == "tls_on_plain_port"

    run(main())


def test_a_credential_of_the_guest_is_refused_where_the_rule_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "foreign_credentials": "refuse"})
            reader, writer = await at.tls(ALLOWED)
            for path, fields in (
                ("/", "Authorization: Bearer x\r\n"),
                ("/", "COOKIE: a=b\r\n"),
                ("/?a=1&acc%65ss_token=x", ""),
                ("/?TOKEN=x", ""),
            ):
                writer.write(get(at, path, fields))
                assert json.loads((await reply(reader))[1])["reason"] == "foreign_credentials"
            writer.write(get(at, "/?page=2"))
            assert (await reply(reader))[0] == 200
            writer.close()
            await at.empty()
            assert len(upstream.heads) == 1

    run(main())


def test_a_rule_with_a_grant_lets_nothing_out_without_its_credential(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "grant": "token"})
            said = await at.exchange(ALLOWED, get(at, "/", "Connection: close\r\n"))
            assert b"credential_unavailable" in said
            assert upstream.connections == 0
            await at.empty()

    run(main())


@pytest.mark.parametrize("answer", [True, False])
def test_a_request_waits_for_a_person_and_does_what_they_say(tmp_path: Path, answer: bool) -> None:
    questions: list[Asked] = []

    async def ask(asked: Asked) -> bool:
        questions.append(asked)
        await asyncio.sleep(0.01)
        return answer

    async def main() -> None:
        async with place(tmp_path, ask=ask) as at:
            at.rules({"host": ALLOWED, "ask": True})
            upstream = await at.serve(ALLOWED)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, "/x") * 2)
            for _ in range(2):
                assert (await reply(reader))[0] == (200 if answer else 403)
            writer.close()
            await at.empty()
            assert [(asked.name, asked.method, asked.path.text) for asked in questions] == [(ALLOWED, "GET", "/x")] * 2
            assert upstream.connections == (1 if answer else 0)

    run(main())


def test_nobody_to_ask_means_no(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            at.rules({"host": ALLOWED, "ask": True})
            assert b"ask_unavailable" in await at.exchange(ALLOWED, get(at, "/", "Connection: close\r\n"))
            await at.empty()

    run(main())


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


def test_a_refused_dial_is_told_as_what_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            said = await at.exchange(ALLOWED, get(at, "/", "Connection: close\r\n"))
            assert said.startswith(b"HTTP/1.1 403 ")
            assert b"address_private" in said
            at.lab.dialer.places[OTHER, at.port] = ("127.0.0.1", 1)
            said = await at.exchange(OTHER, get(at, "/", "Connection: close\r\n", name=OTHER))
            assert said.startswith(b"HTTP/1.1 502 ")
            assert b"unreachable" in said
            await at.empty()
            assert REFUSED not in {name for name, _ in at.lab.dialer.dialled}

    run(main())


def test_httpx_and_curl_are_content(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "paths": ["/a", "/up"]})
            (tmp_path / "root.pem").write_text(at.lab.signer.pem)
            address = at.lab.address(ALLOWED)
            url = f"https://{ALLOWED}:{at.port}"
            root = str(tmp_path / "root.pem")

            async def curl(*options: str) -> tuple[int | None, bytes]:
                process = await asyncio.create_subprocess_exec(
                    "curl", "-sS", "--max-time", "20", "--cacert", root, "--resolve", f"{ALLOWED}:{at.port}:{address}",
                    *options, stdout=-1, stderr=-2,
                )  # fmt: skip
                out, _ = await process.communicate()
                return process.returncode, out

            assert await curl(url + "/a") == (0, b"GET /a HTTP/1.1 got 0")
            assert await curl(url + "/a", url + "/a") == (0, b"GET /a HTTP/1.1 got 0" * 2)
            assert b'"reason":"path_not_allowed"' in (await curl(url + "/b"))[1]
            (tmp_path / "big").write_bytes(bytes(3 * MEGABYTE))
            assert await curl("-T", str(tmp_path / "big"), url + "/up") == (0, b"PUT /up HTTP/1.1 got %d" % (3 * MEGABYTE))
            assert await curl("--tls-max", "1.2", url + "/a") == (0, b"GET /a HTTP/1.1 got 0")
            assert (await curl("--tls-max", "1.2", "--resolve", f"{REFUSED}:{at.port}:{address}", f"https://{REFUSED}:{at.port}/"))[0] == 35
            async with httpx.AsyncClient(verify=at.lab.client_context()) as client:
                for _ in range(5):
                    answer = await client.get(
                        f"https://{address}:{at.port}/a", headers={"Host": f"{ALLOWED}:{at.port}"}, extensions={"sni_hostname": ALLOWED}
                    )
                    assert answer.text == "GET /a HTTP/1.1 got 0"
            await at.empty()

    run(main())
