"""What goes to a server in a sandbox, what comes back, and what neither side can do to the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from pathlib import Path

import pytest
import uvloop

from space.config.instance import Instance
from space.ingress.limits import Limits
from space.model.ids import instance_name
from space.rpc import ingress_api as api
from space.serve import authority
from space.testing.fakeports import Server, canned
from space.testing.ingresslab import DOMAIN, ID, OTHER, Town, get, town

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def run(tmp_path: Path, play: object, **named: object) -> None:
    async def whole() -> None:
        async with town(tmp_path, **named) as there:  # type: ignore[arg-type]
            await play(there)  # type: ignore[operator]
            await there.until(lambda: not there.doors.sessions and not there.ports.open)

    uvloop.run(whole())


def heard(into: list[bytes], reply: bytes = OK) -> Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        into.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(reply)
        await writer.drain()

    return serve


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_a_request_goes_to_its_port_and_says_which_way_it_came(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        seen: list[bytes] = []
        there.ports.servers[80] = heard(seen)
        answer = await there.say(get(f"80-{ID}.{DOMAIN}", "X-Forwarded-For: 1.2.3.4", "Forwarded: for=1.2.3.4", "X-Own: 1", "Cookie: a=b"))
        assert status_of(answer) == 200
        assert body_of(answer) == b"ok"
        assert there.ports.asked == [api.Resolve(ID, 80)]
        head = seen[0].lower()
        assert b"x-forwarded-for: 127.0.0.1\r\n" in head
        assert b"1.2.3.4" not in head
        assert b"x-forwarded-host: 80-" in head
        assert b"x-forwarded-proto: http\r\n" in head
        assert b"x-own: 1\r\n" in head
        assert b"cookie: a=b\r\n" in head
        assert f"host: 80-{ID}.{DOMAIN}\r\n".encode() in head

    run(tmp_path, play)


def test_headers_route_and_do_not_reach_the_guest(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        seen: list[bytes] = []
        there.ports.servers[49999] = heard(seen)
        fields = (f"E2b-Sandbox-Id: {ID}", "E2b-Sandbox-Port: 49999", "E2b-Traffic-Access-Token: tt", "X-Access-Token: secret")
        assert status_of(await there.say(get("localhost", *fields))) == 200
        assert there.ports.asked == [api.Resolve(ID, 49999, "tt")]
        assert b"e2b-" not in seen[0].lower()
        assert b"secret" not in seen[0]

    run(tmp_path, play)


def test_a_masked_host_is_what_the_server_sees(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        seen: list[bytes] = []
        there.ports.answers[ID, 80] = api.Stands("localhost:${PORT}")
        there.ports.servers[80] = heard(seen)
        await there.say(get())
        assert b"\r\nhost: localhost:80\r\n" in seen[0]
        assert f"x-forwarded-host: 80-{ID}.{DOMAIN}\r\n".encode() in seen[0]

    run(tmp_path, play)


@pytest.mark.parametrize(
    ("said", "status", "body"),
    [
        (api.Refused("not_found"), 502, {"sandboxId": ID, "message": "The sandbox was not found", "code": 502}),
        (
            api.Refused("closed"),
            502,
            {"sandboxId": ID, "message": "The sandbox is running but port is not open", "port": 80, "code": 502},
        ),
        (api.Refused("token", "no token"), 403, {"sandboxId": ID, "message": "no token", "code": 403}),
        (api.Refused("hidden", "not exposed"), 403, {"sandboxId": ID, "port": 80, "message": "not exposed", "code": 403}),
        (api.Refused("busy", "too many"), 429, {"sandboxId": ID, "message": "too many", "code": 429}),
    ],
)
def test_a_refusal_is_the_json_that_sdks_read(tmp_path: Path, said: api.Refused, status: int, body: dict[str, object]) -> None:
    async def play(there: Town) -> None:
        there.ports.answers[ID, 80] = said
        answer = await there.say(get())
        assert status_of(answer) == status
        assert json.loads(body_of(answer)) == body
        page = await there.say(get(f"80-{ID}.{DOMAIN}", "Accept: text/html", "Sec-Fetch-Mode: navigate"))
        assert status_of(page) == status
        assert b"<h1>" in body_of(page)

    run(tmp_path, play)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: 80-%b.boxes.example.com\r\n\r\n" % ID.encode(),
        b"POST / HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        % ID.encode(),
        b"POST / HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" % ID.encode(),
        b"POST / HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" % ID.encode(),
        b"POST / HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcd" % ID.encode(),
        b"GET / HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\nX: a\r\n b: c\r\n\r\n" % ID.encode(),
        b"GET / HTTP/1.1\nHost: 80-%b.boxes.example.com\n\n" % ID.encode(),
        b"GET http://api.boxes.example.com/ HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\n\r\n" % ID.encode(),
        b"CONNECT api.boxes.example.com:443 HTTP/1.1\r\nHost: api.boxes.example.com:443\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: 80-%b.boxes.example.com\r\n\r\n" % ID.encode(),
        b"GET / HTTP/2.0\r\nHost: 80-%b.boxes.example.com\r\n\r\n" % ID.encode(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\nConnection: host\r\n\r\n" % ID.encode(),
        b"GET / HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\nX: " % ID.encode() + b"a" * 70_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\n" % ID.encode() + b"X: 1\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n" % ID.encode(),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused_and_the_connection_ends(tmp_path: Path, request_: bytes) -> None:
    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(OK)
        answer = await there.say(request_ + get(f"80-{OTHER}.{DOMAIN}"))
        assert 400 <= status_of(answer) < 600
        assert len(re.findall(rb"HTTP/1.1 \d", answer)) == 1  # nothing behind it was taken for a request
        assert there.ports.asked == []

    run(tmp_path, play)


@pytest.mark.parametrize("body", [b"Z\r\nabc\r\n0\r\n\r\n", b"3;x\r\nabc\r\n0\r\n\r\n", b"3\nabc\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n"])
def test_a_body_that_breaks_its_framing_hides_no_request(tmp_path: Path, body: bytes) -> None:
    async def play(there: Town) -> None:
        async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        there.ports.servers[80] = never
        head = b"POST / HTTP/1.1\r\nHost: 80-%b.boxes.example.com\r\nTransfer-Encoding: chunked\r\n\r\n" % ID.encode()
        answer = await there.say(head + body + get(f"80-{OTHER}.{DOMAIN}"))
        assert status_of(answer) == 400
        assert len(re.findall(rb"HTTP/1.1 \d", answer)) == 1
        assert [asked for asked in there.ports.asked if isinstance(asked, api.Resolve) and asked.sandbox == OTHER] == []

    run(tmp_path, play)


@pytest.mark.parametrize(
    "reply",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 20_000 + b"\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"",
    ],
)
def test_a_reply_that_is_none_is_a_502_and_nothing_of_it_gets_out(tmp_path: Path, reply: bytes) -> None:
    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(reply)
        answer = await there.say(get())
        assert status_of(answer) == 502
        assert json.loads(body_of(answer))["code"] == 502

    run(tmp_path, play)


def test_a_second_answer_behind_the_first_reaches_nobody(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", OK)
        there.ports.servers[81] = canned(OK)
        reader, writer = await asyncio.open_connection(*there.address)
        for port in (80, 80, 81):
            writer.write(f"GET / HTTP/1.1\r\nHost: {port}-{ID}.{DOMAIN}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert status_of(head) == 200
            assert await reader.readexactly(2) == b"ok"
        writer.close()
        assert len(there.ports.asked) == 3  # none was used again

    run(tmp_path, play)


def test_what_comes_on_a_kept_connection_that_nobody_asked_for_ends_it(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        said = asyncio.Event()

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await asyncio.sleep(0.1)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
            said.set()
            await reader.read()

        there.ports.servers[80] = late
        reader, writer = await asyncio.open_connection(*there.address)
        for _ in range(2):
            writer.write(f"GET / HTTP/1.1\r\nHost: 80-{ID}.{DOMAIN}\r\n\r\n".encode())
            assert status_of(await reader.readuntil(b"\r\n\r\n")) == 200
            assert await reader.readexactly(2) == b"ok"
            await said.wait()
            await asyncio.sleep(0.05)
        writer.close()
        assert len(there.ports.asked) == 2

    run(tmp_path, play)


def test_a_connection_is_used_again_for_the_same_client_and_port_only(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(*[OK] * 9)
        there.ports.servers[81] = canned(*[OK] * 9)
        reader, writer = await asyncio.open_connection(*there.address)
        for host in (f"80-{ID}", f"80-{ID}", f"81-{ID}", f"80-{OTHER}", f"80-{OTHER}"):
            writer.write(f"GET / HTTP/1.1\r\nHost: {host}.{DOMAIN}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\nok")
        await there.say(get(f"80-{OTHER}.{DOMAIN}"))
        writer.close()
        assert there.ports.asked == [api.Resolve(ID, 80), api.Resolve(ID, 81), api.Resolve(OTHER, 80), api.Resolve(OTHER, 80)]

    run(tmp_path, play)


def test_a_token_is_asked_about_again_when_it_is_another(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(*[OK] * 9)
        reader, writer = await asyncio.open_connection(*there.address)
        for token in ("a", "b"):
            writer.write(f"GET / HTTP/1.1\r\nHost: 80-{ID}.{DOMAIN}\r\nE2b-Traffic-Access-Token: {token}\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\nok")
        writer.close()
        assert there.ports.asked == [api.Resolve(ID, 80, "a"), api.Resolve(ID, 80, "b")]

    run(tmp_path, play)


def test_cookies_stay_with_their_origin_and_no_reply_leads_past_us(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        fields = (
            b'Set-Cookie: a=b; Domain=.boxes.example.com; Path=/; domain = x; HttpOnly\r\nAlt-Svc: h3=":443"\r\nKeep-Alive: timeout=5\r\n'
        )
        there.ports.servers[80] = canned(b"HTTP/1.1 200 OK\r\n" + fields + b"Content-Length: 2\r\n\r\nok")
        answer = (await there.say(get())).lower()
        assert b"set-cookie: a=b; path=/; httponly\r\n" in answer
        assert b"alt-svc" not in answer
        assert b"keep-alive" not in answer

    run(tmp_path, play)


def test_bodies_stream_both_ways_in_any_framing(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b"transfer-encoding: chunked" in head
            got = b""
            while (size := int((await reader.readline()).strip(), 16)) > 0:
                got += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + got)  # ends with the connection
            await writer.drain()

        there.ports.servers[80] = echo
        big = b"x" * 1_000_000
        request_ = get(f"80-{ID}.{DOMAIN}", "Transfer-Encoding: chunked", method="POST") + b"f4240\r\n" + big + b"\r\n0\r\n\r\n"
        answer = await there.say(request_)
        assert b"transfer-encoding: chunked" in answer.partition(b"\r\n\r\n")[0]
        assert answer.endswith(b"0\r\n\r\n")  # a whole one, told from a cut one
        assert answer.count(b"x") >= 1_000_000

    run(tmp_path, play)


def test_a_reply_that_is_cut_off_is_not_ended_as_if_it_were_whole(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        reader, writer = await asyncio.open_connection(*there.address)
        writer.write(get())
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readuntil(b"0\r\n\r\n")
        writer.close()

    run(tmp_path, play)


def test_an_old_server_and_a_head_request_and_an_expectation(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nuntil the end")
        answer = await there.say(get())
        assert body_of(answer) == b"d\r\nuntil the end\r\n0\r\n\r\n"
        there.ports.servers[80] = canned(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n")
        assert (await there.say(get(method="HEAD"))).lower().count(b"content-length: 12") == 1

        async def upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert b"expect" not in (await reader.readuntil(b"\r\n\r\n")).lower()
            assert await reader.readexactly(4) == b"body"
            writer.write(OK)

        there.ports.servers[80] = upload
        reader, writer = await asyncio.open_connection(*there.address)
        writer.write(get(f"80-{ID}.{DOMAIN}", "Expect: 100-continue", "Content-Length: 4", method="PUT"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert status_of(await reader.read()) == 200
        writer.close()

    run(tmp_path, play)


def test_a_websocket_is_bytes_both_ways_once_it_was_accepted(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        async def socket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b"upgrade: websocket\r\n" in head
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + ACCEPT
            )
            writer.write(b"\r\n\r\nfirst")
            while data := await reader.read(100):
                writer.write(data.upper())

        there.ports.servers[80] = socket
        reader, writer = await asyncio.open_connection(*there.address)
        fields = (
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {KEY}",
            "Sec-WebSocket-Version: 13",
            "Origin: https://x",
        )
        writer.write("\r\n".join(["GET /ws HTTP/1.1", f"Host: 80-{ID}.{DOMAIN}", *fields, "", ""]).encode())
        assert status_of(await reader.readuntil(b"\r\n\r\n")) == 101
        assert await reader.readexactly(5) == b"first"
        writer.write(b"frames")
        assert await reader.readexactly(6) == b"FRAMES"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    run(tmp_path, play)


def test_a_switch_with_a_wrong_accept_is_none(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: AAAA\r\n\r\nx"
        )
        fields = ("Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Key: {KEY}")
        assert status_of(await there.say(get(f"80-{ID}.{DOMAIN}", *fields))) == 502

    run(tmp_path, play)


def test_a_client_that_leaves_takes_its_request_with_it(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        ended = asyncio.Event()

        async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            ended.set()

        there.ports.servers[80] = endless
        reader, writer = await asyncio.open_connection(*there.address)
        writer.write(f"GET / HTTP/1.1\r\nHost: 80-{ID}.{DOMAIN}\r\n\r\n".encode())
        await reader.readuntil(b"abc")
        writer.close()
        await asyncio.wait_for(ended.wait(), 10)

    run(tmp_path, play)


def test_a_connection_to_a_guest_rests_for_a_moment_only(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(OK, OK)
        reader, writer = await asyncio.open_connection(*there.address)
        writer.write(f"GET / HTTP/1.1\r\nHost: 80-{ID}.{DOMAIN}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\nok")
        await there.until(lambda: there.ports.open == 0)  # while the client is still there
        writer.close()

    run(tmp_path, play, limits=Limits(guest_idle_seconds=0.05))


def test_slow_heads_and_too_many_connections_take_nothing_from_others(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(OK)
        slow = [await asyncio.open_connection(*there.address) for _ in range(8)]
        for _, writer in slow:
            writer.write(b"GET / HTTP/1.1\r\nHo")
        assert status_of(await there.say(get())) == 200  # it waited until some of the slow ones were out of time
        for reader, writer in slow:
            assert status_of(await reader.read()) == 408
            writer.close()

    run(tmp_path, play, limits=Limits(connections=8, head_seconds=0.3))


def test_a_sandbox_has_so_many_connections_and_no_more(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        there.ports.servers[80], there.ports.servers[81] = hang, canned(OK)
        held = [await asyncio.open_connection(*there.address) for _ in range(3)]
        for _, writer in held:
            writer.write(f"GET / HTTP/1.1\r\nHost: 80-{ID}.{DOMAIN}\r\n\r\n".encode())
        await there.until(lambda: len(there.ports.asked) == 3)
        assert status_of(await there.say(get(f"81-{ID}.{DOMAIN}"))) == 429
        assert status_of(await there.say(get(f"81-{OTHER}.{DOMAIN}"))) == 200
        for _, writer in held:
            writer.close()

    run(tmp_path, play, limits=Limits(connections_per_sandbox=3))


def test_what_does_not_move_ends(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        there.ports.servers[80] = silent
        assert await there.say(get()) == b""

    run(tmp_path, play, limits=Limits(idle_seconds=0.2))


def test_the_api_and_a_sandboxs_own_api_are_controls(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        seen: list[bytes] = []
        there.ports.api = heard(seen)
        assert status_of(await there.say(get(f"api.{DOMAIN}", "X-Api-Key: k"))) == 200
        assert status_of(await there.say(get(f"49983-{ID}.{DOMAIN}", "X-Access-Token: t"))) == 200
        assert there.ports.asked == [api.Api("127.0.0.1"), api.Api("127.0.0.1")]
        assert f"host: api.{DOMAIN}\r\n".encode() in seen[0]
        assert b"x-api-key: k\r\n" in seen[0]
        assert f"e2b-sandbox-id: {ID}\r\ne2b-sandbox-port: 49983\r\n".encode() in seen[1]
        assert b"x-access-token: t\r\n" in seen[1]

    run(tmp_path, play)


def test_a_client_that_control_hands_over_has_one_request_and_its_own_address(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        seen: list[bytes] = []
        there.ports.servers[80] = heard(seen)
        one = "\r\n".join(["GET / HTTP/1.1", "Host: localhost:7070", f"E2b-Sandbox-Id: {ID}", "E2b-Sandbox-Port: 80", "", ""]).encode()
        answer = await there.relayed(one + one)
        assert status_of(answer) == 200
        assert len(re.findall(rb"HTTP/1.1 \d", answer)) == 1
        assert b"connection: close" in answer
        assert b"x-forwarded-for: 192.0.2.7\r\n" in seen[0]
        assert status_of(await there.relayed(b"GET /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 400

    run(tmp_path, play)


def test_names_of_the_domain_are_certified_by_an_authority_that_is_good_for_nothing_else(tmp_path: Path) -> None:
    instance = Instance(instance_name("t"), 0, data_root=tmp_path, run_root=tmp_path)
    instance.data.mkdir(parents=True)
    (tmp_path / "pem").write_bytes(authority.certificate(instance, DOMAIN))
    assert authority.certificate(instance, DOMAIN).count(b"BEGIN CERTIFICATE") == 2  # another leaf of the same authority
    place = instance.ingress_ca / DOMAIN
    assert (place / "ca-key.pem").stat().st_mode & 0o777 == 0o600
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "pem")
    trusting = ssl.create_default_context(cafile=str(place / "ca.pem"))

    async def play(there: Town) -> None:
        there.ports.servers[80] = canned(*[OK] * 9)

        async def secure(name: str) -> bytes:
            reader, writer = await asyncio.open_connection(*there.address, ssl=trusting, server_hostname=name)
            writer.write(get(name))
            try:
                return await asyncio.wait_for(reader.read(), 20)
            finally:
                writer.close()

        assert status_of(await secure(f"80-{ID}.{DOMAIN}")) == 200
        assert body_of(await secure(f"api.{DOMAIN}")) == b"api"
        with pytest.raises(ssl.SSLCertVerificationError):
            await secure("www.example.com")
        assert status_of(await there.say(get())) == 200  # this very machine may speak plain HTTP
        reader, writer = await asyncio.open_connection(*there.address)
        writer.write(b"\x16\x03\x01\xff\xff nonsense")
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 20)
        writer.close()

    run(tmp_path, play, tls=served)


def test_a_server_in_a_sandbox_that_speaks_tls_is_spoken_to_in_tls(tmp_path: Path) -> None:
    instance = Instance(instance_name("t"), 0, data_root=tmp_path, run_root=tmp_path)
    instance.data.mkdir(parents=True)
    (tmp_path / "pem").write_bytes(authority.certificate(instance, DOMAIN))
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "pem")

    async def play(there: Town) -> None:
        seen: list[bytes] = []

        async def secure(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await writer.drain()
            await writer.start_tls(served)
            for _ in range(2):
                seen.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(OK)
                await writer.drain()

        there.ports.answers[ID, 443] = api.Stands(tls=True)
        there.ports.servers[443] = secure
        assert body_of(await there.say(get(f"443-{ID}.{DOMAIN}"))) == b"ok"
        assert seen[0].startswith(b"GET / HTTP/1.1\r\n")

        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(5)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()

        there.ports.servers[443] = plain
        assert status_of(await there.say(get(f"443-{ID}.{DOMAIN}"))) == 502

    run(tmp_path, play)


def test_without_control_there_is_an_answer(tmp_path: Path) -> None:
    async def play(there: Town) -> None:
        (tmp_path / "ports").unlink()
        answer = await there.say(get())
        assert status_of(answer) == 503
        assert json.loads(body_of(answer))["code"] == 503

    run(tmp_path, play)
