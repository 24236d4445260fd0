"""Streams through a worker: each is judged as a request of HTTP/1.1 is, and refused without harm to the others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from space.core.policy.verdict import Asked
from space.gateway.surroundings import Limits
from space.testing.egressh2 import Call, Fields, Served, guest, serve_h2
from space.testing.egresslab import ALLOWED, OTHER, REFUSED, place, run


def test_an_allowed_stream_arrives_anew_and_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at)
            client = await guest(at)
            call = await client.get("/a/../b?token=s3cret&x=1", [(b"x-forwarded-host", b"a"), (b"te", b"trailers"), (b"x-y", b"z")])
            assert (call.status, bytes(call.got)) == (200, b"GET /b?token=s3cret&x=1 got 0")
            assert b"alt-svc" not in dict(call.fields)
            assert upstream.calls[0].fields == [
                (b":method", b"GET"),
                (b":scheme", b"https"),
                (b":authority", at.host(ALLOWED)),
                (b":path", b"/b?token=s3cret&x=1"),
                (b"x-y", b"z"),
                (b"te", b"trailers"),
            ]
            await client.close()
            await at.empty()
            (request,) = at.requests()
            assert (request.name, request.path, request.query, request.status, request.reason) == (ALLOWED, "/b", ("token", "x"), 200, "")
            (end,) = at.ends()
            assert (end.name, end.reason, end.requests) == (ALLOWED, "", 1)
            assert "s3cret" not in repr(at.lab.records)

    run(main())


def test_allowed_and_refused_streams_live_side_by_side(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at)
            at.rules({"host": ALLOWED, "methods": ["GET", "HEAD"], "paths": ["/yes/*"], "name": "narrow"})
            client = await guest(at)
            calls = [client.ask(f"/{'no' if n % 3 else 'yes'}/{n}") for n in range(60)]
            for n, call in enumerate(calls):
                await call.over()
                assert call.status == (403 if n % 3 else 200)
            said = json.loads(bytes(calls[1].got))
            assert (said["error"], said["reason"], said["rule"], said["host"]) == ("egress_denied", "path_not_allowed", "narrow", ALLOWED)
            upload = client.ask("/yes/up", method="POST", ended=False)
            await upload.over()
            assert (upload.status, json.loads(bytes(upload.got))["reason"]) == (403, "method_not_allowed")
            assert (await client.get("/no", method="HEAD")).status == 403
            override = await client.get("/yes/1", [(b"x-http-method-override", b"DELETE")])
            assert json.loads(bytes(override.got))["reason"] == "method_override"
            assert (await client.get("/yes/last")).status == 200
            await client.close()
            await at.empty()
            assert len(upstream.connections) == 2  # one to find out what it speaks, one for all streams
            assert {call[b":path"][:5] for call in upstream.calls} == {b"/yes/"}
            assert said["request_id"] in {record.id for record in at.requests() if record.reason == "path_not_allowed"}

    run(main())


BYPASSES: dict[str, tuple[str | None, Fields, int, str]] = {
    "another authority": (REFUSED, [], 421, "authority_mismatch"),
    "another allowed authority": (OTHER, [], 421, "authority_mismatch"),
    "a host beside it": (None, [(b"host", REFUSED.encode())], 400, "host"),
    "a user name": (f"{REFUSED}@{ALLOWED}", [], 400, "authority_invalid"),
    "an address": ("127.0.0.1", [], 400, "authority_invalid"),
    "a connection field": (None, [(b"connection", b"x")], 400, "connection"),
    "an upgrade": (None, [(b"upgrade", b"h2c")], 400, "connection"),
    "a transfer coding": (None, [(b"transfer-encoding", b"chunked")], 400, "connection"),
    "extended CONNECT": (None, [(b":protocol", b"websocket")], 400, "pseudo"),
    "upper case": (None, [(b"X-A", b"b")], 400, "field"),
    "a line end": (None, [(b"x", b"y\r\nhost: refused.example.com")], 400, "field"),
    "two lengths": (None, [(b"content-length", b"0"), (b"content-length", b"0")], 400, "content_length"),
    "an expectation": (None, [(b"expect", b"200-maybe")], 417, "expect"),
}


@pytest.mark.parametrize(("authority", "fields", "status", "reason"), BYPASSES.values(), ids=BYPASSES.keys())
def test_a_stream_that_disagrees_is_refused_and_no_other(
    tmp_path: Path, authority: str | None, fields: Fields, status: int, reason: str
) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at)
            await serve_h2(at, OTHER)
            client = await guest(at)
            name = f"{authority}:{at.port}".encode() if authority else None
            call = await client.get("/", fields, authority=name)
            assert (call.status, json.loads(bytes(call.got))["reason"]) == (status, reason)
            assert (await client.get("/fine")).status == 200
            await client.close()
            await at.empty()
            assert [call[b":path"] for call in upstream.calls] == [b"/fine"]
            assert {name for name, _ in at.lab.dialer.dialled} == {ALLOWED}
            assert [record.reason for record in at.requests()] == [reason, ""]

    run(main())


def test_foreign_credentials_grants_and_questions_are_judged_for_each_stream(tmp_path: Path) -> None:
    async def ask(asked: Asked) -> bool:
        await asyncio.sleep(0.01)
        return asked.path.text == "/ask/yes"

    async def main() -> None:
        async with place(tmp_path, ask=ask) as at:
            upstream = await serve_h2(at)
            at.rules(
                {"host": ALLOWED, "paths": ["/ask/*"], "ask": True},
                {"host": ALLOWED, "paths": ["/grant"], "grant": "token"},
                {"host": ALLOWED, "paths": ["/plain"], "foreign_credentials": "refuse"},
            )
            client = await guest(at)
            calls = [
                client.ask(path, fields)
                for path, fields in (
                    ("/ask/yes", None),
                    ("/ask/no", None),
                    ("/grant", None),
                    ("/plain", [(b"authorization", b"Bearer x")]),
                    ("/plain", [(b"cookie", b"a=b"), (b"cookie", b"c=d")]),
                    ("/plain", None),
                )
            ]
            assert [(await call.over()).status for call in calls] == [200, 403, 503, 403, 403, 200]
            assert [json.loads(bytes(calls[n].got))["reason"] for n in (1, 2, 3, 4)] == [
                *("ask_refused", "credential_unavailable", "foreign_credentials", "foreign_credentials")
            ]
            await client.close()
            await at.empty()
            assert sorted(call[b":path"] for call in upstream.calls) == [b"/ask/yes", b"/plain"]

    run(main())


def test_a_conversation_like_grpc_goes_both_ways_and_ends_with_trailers(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        served = call.talk
        assert isinstance(served, Served)
        served.respond(call, [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"trailer", b"grpc-status")])
        seen = 0
        while not call.ended:
            await served.until(lambda seen=seen: call.size > seen or call.ended)  # type: ignore[misc]
            if call.size > seen:
                await served.data(call.stream, bytes(call.got[seen:]))
                seen = call.size
        served.h2.send_headers(call.stream, [(b"grpc-status", b"0"), (b"grpc-message", b"fine")], end_stream=True)
        served.flush()

    async def main() -> None:
        async with place(tmp_path) as at:
            at.rules({"host": ALLOWED, "methods": ["POST"], "paths": ["/pkg.Service/*"]})
            upstream = await serve_h2(at, answer=answer)
            client = await guest(at)
            head = [(b"content-type", b"application/grpc"), (b"te", b"trailers"), (b"grpc-timeout", b"10S")]
            call = client.ask("/pkg.Service/Chat", head, method="POST", ended=False)
            for n in range(50):
                message = b"\0\0\0\0\5%05d" % n
                await client.data(call.stream, message)
                await client.until(lambda n=n: call.size == 10 * (n + 1))  # type: ignore[misc]
            await client.data(call.stream, b"", ended=True)
            await call.over()
            assert (call.status, call.trailers) == (200, [(b"grpc-status", b"0"), (b"grpc-message", b"fine")])
            assert dict(upstream.calls[0].fields)[b"te"] == b"trailers"
            refused = await client.get("/pkg.Other/Chat", head, method="POST", ended=False)
            assert (refused.status, refused.ended, refused.error) == (403, True, None)  # its answer is whole
            await client.until(lambda: refused.error == 0)  # and it need not send the rest
            await client.close()
            await at.empty()

    run(main())


def test_trailers_of_a_guest_are_checked_and_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at)
            client = await guest(at)
            for trailers, status in (([(b"x", b"y")], 200), ([(b"authorization", b"x")], 400), ([(b"x", b"a\nb")], 400)):
                call = client.ask("/", method="POST", ended=False)
                await client.data(call.stream, b"hello")
                client.h2.send_headers(call.stream, trailers, end_stream=True)
                client.flush()
                assert (await call.over()).status == status
            await client.close()
            await at.empty()
            assert [call.trailers for call in upstream.calls] == [None] * 3
            assert upstream.calls[0].size == 5

    run(main())


def test_httpx_and_curl_are_content_with_http2(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at)
            at.rules({"host": ALLOWED, "paths": ["/a", "/up"]})
            (tmp_path / "root.pem").write_text(at.lab.signer.pem)
            (tmp_path / "big").write_bytes(bytes(3 * 2**20))
            address, url, root = at.lab.address(ALLOWED), f"https://{ALLOWED}:{at.port}", str(tmp_path / "root.pem")

            async def curl(*options: str) -> tuple[int | None, bytes]:
                process = await asyncio.create_subprocess_exec(
                    "curl", "-sS", "--http2", "--max-time", "20", "--cacert", root, "--resolve", f"{ALLOWED}:{at.port}:{address}",
                    "-w", " %{http_version}", *options, stdout=-1, stderr=-2,
                )  # fmt: skip
                out, _ = await process.communicate()
                return process.returncode, out

            assert await curl(url + "/a") == (0, b"GET /a got 0 2")
            assert await curl(url + "/a", url + "/a") == (0, b"GET /a got 0 2" * 2)
            assert await curl("-I", url + "/a", "-o", "/dev/null") == (0, b" 2")
            assert b'"reason":"path_not_allowed"' in (await curl(url + "/b"))[1]
            assert await curl("-T", str(tmp_path / "big"), url + "/up") == (0, b"PUT /up got %d 2" % (3 * 2**20))
            assert await curl("--tls-max", "1.2", url + "/a") == (0, b"GET /a got 0 2")
            async with httpx.AsyncClient(verify=at.lab.client_context(), http2=True) as client:
                host = {"Host": f"{ALLOWED}:{at.port}"}
                for _ in range(5):
                    answer = await client.get(f"https://{address}:{at.port}/a", headers=host, extensions={"sni_hostname": ALLOWED})
                    assert (answer.http_version, answer.text) == ("HTTP/2", "GET /a got 0")
                at.rules({"host": ALLOWED, "paths": ["/b"]})  # the connection ends, and the client goes on over another one
                answer = await client.get(f"https://{address}:{at.port}/b", headers=host, extensions={"sni_hostname": ALLOWED})
                assert answer.text == "GET /b got 0"
            await at.empty()

    run(main())


def test_a_refusal_is_not_followed_by_a_reset_while_the_guest_still_sends_a_little(tmp_path: Path) -> None:
    """Else curl of Debian 12 says `Stream error` instead of what it was answered."""

    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.05, linger=0.3)) as at:
            await serve_h2(at)
            at.rules({"host": ALLOWED, "methods": ["GET"]})
            client = await guest(at)
            call = client.ask("/", method="POST", ended=False)
            await client.until(lambda: call.ended)
            assert (call.status, json.loads(bytes(call.got))["reason"], call.error) == (403, "method_not_allowed", None)
            client.h2.send_data(call.stream, b"what it had at hand", end_stream=True)
            client.flush()
            endless = client.ask("/", method="POST", ended=False)
            await client.until(lambda: endless.error is not None)
            assert (endless.status, endless.error, call.error) == (403, 0, None)
            assert (await (client.ask("/")).over()).status == 200
            await client.close()
            await at.empty()

    run(main())
