"""Requests through a worker: what is allowed arrives, anew and whole; what is refused says why and arrives nowhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from space.core.policy.verdict import Asked
from space.testing.egresslab import ALLOWED, OTHER, REFUSED, get, place, reply, run

MEGABYTE = 2**20


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
