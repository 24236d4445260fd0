"""Credentials through a worker, over real TLS: the upstream gets the lent one, in its slot alone; the guest never does."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from space.core.credentials.grant import Basic, Header, Outline, Placeholder, Query
from space.core.policy.paths import normalise
from space.core.policy.verdict import Allow, Asked
from space.gateway.loans import Grants
from space.model.errors import PermissionDenied, Unavailable
from space.testing.egress import stack_of
from space.testing.egresslab import ALLOWED, OTHER, Place, get, place, reply, run
from space.testing.lentgrants import LentGrants

SECRET = b"sk_live_0Pn2DMIKRiIjIpZLtxvLqw9"
MARK = "ph_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789a"
BEARER = b"authorization: Bearer " + SECRET + b"\r\n"


@contextlib.asynccontextmanager
async def lending(directory: Path, **of: Any) -> AsyncIterator[tuple[Place, LentGrants]]:
    lent = LentGrants(**of)
    async with place(directory, **lent.changes) as at:
        at.rules({"host": ALLOWED, "name": "one"}, {"host": OTHER})
        yield at, lent


async def said(at: Place, path: str = "/", fields: str = "", *, method: str = "GET", name: str = ALLOWED) -> tuple[int, bytes]:
    reader, writer = await at.tls(name)
    writer.write(get(at, path, fields, method=method, name=name))
    try:
        return await reply(reader)
    finally:
        writer.close()


def test_the_credential_stands_in_the_emptied_slot_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream = await at.serve(ALLOWED)
            lent.give("code", ALLOWED, at.port, value=SECRET)
            spellings = ("authorization", "AUTHORIZATION", "Author_ization", "authorization: a\r\nauthorization")
            for spelling in spellings:
                status, _ = await said(at, "/a?b=1", f"{spelling}: Bearer mine\r\nCookie: x=1\r\nX-Api_Key: 2\r\nX-Other: 3\r\n")
                assert status == 200
            await said(at, "/", "Connection: x-api-key, close\r\nX-Api-Key: 1\r\nProxy-Authorization: a\r\n")
            await at.empty()
            for head in upstream.heads:
                assert head.count(BEARER) == 1
                lower = head.lower()
                assert lower.count(b"auth") == 1
                assert b"mine" not in head
                assert b"cookie" not in lower
                assert b"api" not in lower
            assert all(b"x-other: 3" in head for head in upstream.heads[:4])
            record = at.requests()[0]
            assert (record.grant, record.version, record.reason) == ("code", 1, "")
            assert SECRET.decode() not in repr(at.lab.records)
            assert len(lent.asked) == 1  # the rest went by the same lease

    run(main())


def test_connection_cannot_name_the_slot_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream = await at.serve(ALLOWED)
            lent.give("code", ALLOWED, at.port, Header("x-api-key", "{}"), SECRET)
            assert b" 400 " in await at.exchange(ALLOWED, get(at, "/", "Connection: authorization\r\n"))
            assert (await said(at, "/", "Connection: x-api-key\r\nX-Api-Key: 1\r\n"))[0] == 200
            await at.empty()
            (head,) = upstream.heads
            assert head.count(b"x-api-key: " + SECRET + b"\r\n") == 1
            assert head.lower().count(b"api-key") == 1

    run(main())


@pytest.mark.parametrize(
    ("slot", "more", "sent"),
    [
        (Header("x-api-key", ""), {}, b"\r\nx-api-key: " + SECRET + b"\r\n"),
        (Header(), {}, b"\r\n" + BEARER),
        (Header("authorization", "token {}"), {}, b"\r\nauthorization: token " + SECRET + b"\r\n"),
        (Basic("user"), {}, b"\r\nauthorization: Basic " + base64.b64encode(b"user:" + SECRET) + b"\r\n"),
        (Basic(), {"username": b"other"}, b"\r\nauthorization: Basic " + base64.b64encode(b"other:" + SECRET) + b"\r\n"),
        (Query("key"), {}, b" /p?x=1&key=" + SECRET + b" HTTP/1.1\r\n"),
    ],
)
def test_each_slot(tmp_path: Path, slot: Any, more: dict[str, bytes], sent: bytes) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream = await at.serve(ALLOWED)
            lent.give("code", ALLOWED, at.port, slot, SECRET)
            lent.more["code"] = more
            assert (await said(at, "/p?x=1&k%65y=mine&api_key=mine", "Authorization: mine\r\n"))[0] == 200
            await at.empty()
            (head,) = upstream.heads
            assert sent in head
            assert b"mine" not in head
            assert SECRET.decode() not in repr(at.lab.records)

    run(main())


def test_only_what_an_explicit_rule_allows_gets_a_credential(tmp_path: Path) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream, plain = await at.serve(ALLOWED), await at.serve(OTHER, plain=True)
            lent.give("code", ALLOWED, at.port, value=SECRET, methods=("GET",), paths=("/in/**",))
            lent.give("other", OTHER, at.port, value=SECRET)
            at.lab.policy(
                {"rule": [{"host": OTHER, "port": at.port, "scheme": "http"}], "open": True},
            )
            await at.exchange(OTHER, get(at, "/", "Connection: close\r\n", name=OTHER), plain=True)
            at.rules({"host": ALLOWED})
            for path, method in (("/out", "GET"), ("/in/x", "DELETE"), ("/in%2Fx", "GET"), ("/in/../out", "GET")):
                assert (await said(at, path, "Authorization: mine\r\n", method=method))[0] == 200
            assert lent.asked == []
            assert (await said(at, "/in/x", "Authorization: mine\r\n"))[0] == 200
            await at.empty()
            assert all(b"authorization: mine" in head for head in upstream.heads[:4])
            assert BEARER in upstream.heads[4]
            assert all(SECRET not in head for head in [*plain.heads, *upstream.heads[:4]])

    run(main())


def test_an_open_policy_lends_nothing() -> None:
    """Toward a host that no rule names; one that a rule names gets what is for it, under the same policy."""
    grants = Grants([Outline("code", ALLOWED, 443, None, None, Header())])
    for policy, lent in (
        ({"open": True}, False),
        ({"rule": [{"host": OTHER}], "open": True}, False),
        ({"rule": [{"host": ALLOWED}], "open": True}, True),
    ):
        asked = Asked(ALLOWED, 443, "https", "GET", normalise(b"/"))
        verdict = stack_of(policy).request(asked)
        assert isinstance(verdict, Allow)
        assert (grants.chosen(asked, verdict, ()) is not None) == lent


def test_what_a_mode_alone_lets_pass_gets_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        lent = LentGrants()
        async with place(tmp_path, **lent.changes) as at:
            lent.give("code", ALLOWED, at.port, value=SECRET)
            rule = {"rule": [{"host": ALLOWED, "port": at.port, "paths": ["/x"]}], "mode": "record"}
            at.lab.policy(rule)
            upstream = await at.serve(ALLOWED)
            assert (await said(at, "/y"))[0] == 200
            assert (await said(at, "/x"))[0] == 200
            await at.empty()
            assert SECRET not in upstream.heads[0]
            assert BEARER in upstream.heads[1]

    run(main())


def test_a_rule_that_names_a_grant_lets_nothing_out_without_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "grant": "code", "name": "one"})
            lent.refuses["code"] = PermissionDenied("grant_unknown")
            status, body = await said(at)
            assert (status, json.loads(body)["reason"]) == (403, "grant_unknown")
            lent.give("code", ALLOWED, at.port, value=SECRET, paths=("/in",))
            lent.refuses["code"] = PermissionDenied("grant_scope")
            status, body = await said(at, "/out")
            assert (status, json.loads(body)["reason"]) == (403, "grant_scope")
            del lent.refuses["code"]
            assert (await said(at, "/in"))[0] == 200
            await at.empty()
            assert [head.split()[1] for head in upstream.heads] == [b"/in"]
            assert [(record.reason, record.grant) for record in at.requests()] == [
                ("grant_unknown", "code"),
                ("grant_scope", "code"),
                ("", "code"),
            ]

    run(main())


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (PermissionDenied("grant_expired"), 403, "grant_expired"),
        (PermissionDenied("grant_rate"), 429, "grant_rate"),
        (PermissionDenied("grant_used_up"), 403, "grant_used_up"),
        (PermissionDenied("whatever it says"), 403, "grant_unknown"),
        (PermissionDenied("credential_unavailable"), 503, "credential_unavailable"),
        (Unavailable("the broker is gone"), 503, "credential_unavailable"),
    ],
)
def test_a_refusal_is_answered_recorded_and_nobody_elses(tmp_path: Path, error: Any, status: int, reason: str) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream = await at.serve(ALLOWED)
            await at.serve(OTHER)
            lent.give("code", ALLOWED, at.port, value=SECRET)
            lent.refuses["code"] = error
            got, body = await said(at)
            assert (got, json.loads(body)["reason"]) == (status, reason)
            assert (await said(at, name=OTHER))[0] == 200
            await at.empty()
            assert upstream.heads == []
            assert (at.requests()[0].reason, at.requests()[0].grant, at.requests()[0].version) == (reason, "code", 0)
            del lent.refuses["code"]
            assert (await said(at))[0] == 200
            await at.empty()

    run(main())


def test_a_lease_ends_by_uses_and_by_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with lending(tmp_path, uses=3, seconds=60.0) as (at, lent):
            await at.serve(ALLOWED)
            lent.give("code", ALLOWED, at.port, value=SECRET)
            reader, writer = await at.tls(ALLOWED)
            for _ in range(7):
                writer.write(get(at))
                assert (await reply(reader))[0] == 200
            assert len(lent.asked) == 3
            lent.uses, lent.seconds = 64, 0.0
            for _ in range(4):
                writer.write(get(at))
                assert (await reply(reader))[0] == 200
            assert len(lent.asked) == 5  # two were left of the third
            writer.close()
            await at.empty()

    run(main())


def test_what_is_revoked_ends_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            begun = asyncio.Event()

            async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
                begun.set()
                await reader.read()

            await at.serve(ALLOWED, slow)
            await at.serve(OTHER, slow)
            lent.give("code", ALLOWED, at.port, value=SECRET)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at))
            assert (await reader.readuntil(b"half")).endswith(b"half")
            there, other = await at.tls(OTHER)
            other.write(get(at, name=OTHER))
            assert (await there.readuntil(b"half")).endswith(b"half")
            lent.take("code")
            at.lab.worker.changed()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            (record,) = at.requests()
            assert (record.reason, record.grant) == ("grant_revoked", "code")
            other.close()
            await at.empty()

    run(main())


def test_a_person_is_asked_where_the_grant_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        asked: list[str] = []

        async def ask(of: Asked) -> bool:
            asked.append(of.path.text)
            return of.path.text == "/yes"

        lent = LentGrants(uses=1)
        async with place(tmp_path, ask=ask, **lent.changes) as at:
            upstream = await at.serve(ALLOWED)
            lent.give("code", ALLOWED, at.port, value=SECRET, approval=True)
            assert (await said(at, "/yes"))[0] == 200
            status, body = await said(at, "/no")
            assert (status, json.loads(body)["reason"]) == (403, "ask_refused")
            await at.empty()
            assert asked == ["/yes", "/no"]
            assert lent.asked == [("code", "GET", "/yes", True)]
            assert len(upstream.heads) == 1

    run(main())


def test_echoes_and_cookies_do_not_come_back(tmp_path: Path) -> None:
    echoes = [SECRET, base64.b64encode(b"x:" + SECRET), SECRET.hex().encode(), json.dumps(SECRET.decode()).encode()]

    async def main() -> None:
        async with lending(tmp_path) as (at, lent):

            async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"accept-encoding: identity\r\n" in head
                assert b"range" not in head.lower()
                body = b"; ".join(echoes) + b" end"
                fields = b"x-echo: " + SECRET + b"\r\nset-cookie: session=1\r\nlocation: /?k=" + SECRET + b"\r\n"
                if b"/chunked" in head:
                    writer.write(b"HTTP/1.1 200 OK\r\n" + fields + b"transfer-encoding: chunked\r\n\r\n")
                    for at in range(len(body)):
                        writer.write(b"1\r\n%c\r\n" % body[at])
                        if at % 16 == 0:
                            await writer.drain()
                            await asyncio.sleep(0)
                    writer.write(b"0\r\nx-trailer: " + SECRET + b"\r\n\r\n")
                elif b"/close" in head:
                    writer.write(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n" + body)
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\n" + fields + b"content-length: %d\r\n\r\n" % len(body))
                    for at in range(0, len(body), 7):
                        writer.write(body[at : at + 7])
                        await writer.drain()
                        await asyncio.sleep(0.001)
                await writer.drain()

            await at.serve(ALLOWED, echo)
            lent.give("code", ALLOWED, at.port, value=SECRET)
            for path in ("/length", "/chunked", "/close"):
                fields = "Connection: close\r\nAccept-Encoding: gzip\r\nRange: bytes=1-\r\nIf-Range: x\r\n"
                answer = await at.exchange(ALLOWED, get(at, path, fields))
                assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), path
                assert b"end" in answer
                assert b"set-cookie" not in answer.lower()
                plain = answer.replace(b"\r\n", b"").lower()
                assert not any(one.lower() in plain for one in echoes), path
                assert b"x-echo: " + b"*" * len(SECRET) + b"\r\n" in answer
            await at.empty()
            assert [(record.reason, record.status) for record in at.requests()] == [("credential_echoed", 200)] * 3
            assert lent.alarms == [("credential_echoed", "code", ALLOWED)] * 3

    run(main())


@pytest.mark.parametrize(
    ("coding", "pack", "status", "reason"),
    [
        ("gzip", lambda data: gzip.compress(data), 200, ""),
        ("deflate", zlib.compress, 200, ""),
        ("identity", lambda data: data, 200, ""),
        ("br", lambda data: data, 502, "upstream_packed"),
        ("gzip, gzip", lambda data: gzip.compress(gzip.compress(data)), 502, "upstream_packed"),
        ("gzip", lambda data: data, 0, "upstream_packed"),
    ],
)
def test_a_reply_that_is_packed_though_nobody_asked_is_searched_or_refused(
    tmp_path: Path, coding: str, pack: Callable[[bytes], bytes], status: int, reason: str
) -> None:
    body = b"nothing of it " * 20_000

    async def main() -> None:
        async with lending(tmp_path) as (at, lent):

            async def packed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                head = await reader.readuntil(b"\r\n\r\n")
                data = pack(body + SECRET + body if b"/echo" in head else body)
                fields = f"content-encoding: {coding}\r\ncontent-length: {len(data)}\r\n"
                writer.write(b"HTTP/1.1 200 OK\r\n" + fields.encode() + b"\r\n")
                for at in range(0, len(data), 97):
                    writer.write(data[at : at + 97])
                    await writer.drain()

            await at.serve(ALLOWED, packed)
            answer = await at.exchange(ALLOWED, get(at, "/", "Connection: close\r\n"))
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), "without a grant nobody looks"
            lent.give("code", ALLOWED, at.port, value=SECRET)
            answer = await at.exchange(ALLOWED, get(at, "/", "Connection: close\r\n"))
            assert answer[9:12] == (b"%d" % status if status else b"")
            assert (pack(body) in answer) == (status == 200)
            answer = await at.exchange(ALLOWED, get(at, "/echo", "Connection: close\r\n"))
            assert SECRET not in answer
            assert pack(SECRET)[-20:] not in answer
            await at.empty()
            second = "credential_echoed" if status == 200 and coding != "identity" else reason
            assert [record.reason for record in at.requests()[1:]] == [reason, second if coding != "identity" else "credential_echoed"]
            assert lent.alarms == ([("credential_echoed", "code", ALLOWED)] if status == 200 else [])
            head = await at.exchange(ALLOWED, get(at, "/", "Connection: close\r\n", method="HEAD"))
            assert head.startswith(b"HTTP/1.1 200 OK\r\n"), "what has no body is not packed"

    run(main())


def test_a_redirect_passes_and_its_target_is_judged_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):

            async def away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 302 Found\r\nlocation: https://%s:%d/x\r\ncontent-length: 0\r\n\r\n" % (OTHER.encode(), at.port))
                await writer.drain()

            await at.serve(ALLOWED, away)
            other = await at.serve(OTHER)
            lent.give("code", ALLOWED, at.port, value=SECRET)
            answer = await at.exchange(ALLOWED, get(at, "/", "Connection: close\r\n"))
            assert b"location: https://%s:%d/x\r\n" % (OTHER.encode(), at.port) in answer
            assert (await said(at, "/x", name=OTHER))[0] == 200
            await at.empty()
            assert SECRET not in other.heads[0]

    run(main())


def test_trace_gets_no_credential(tmp_path: Path) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream = await at.serve(ALLOWED)
            lent.give("code", ALLOWED, at.port, value=SECRET)
            for method in ("TRACE", "TRACK", "trace"):
                assert json.loads((await said(at, method=method))[1])["reason"] == "trace"
            await at.empty()
            assert upstream.heads == []
            assert lent.asked == []

    run(main())


def test_a_placeholder_is_replaced_in_its_slot_toward_its_host(tmp_path: Path) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream = await at.serve(ALLOWED)
            at.rules({"host": ALLOWED, "foreign_credentials": "refuse"})
            lent.give("code", ALLOWED, at.port, Placeholder("KEY", name="authorization"), SECRET, placeholder=MARK)
            assert (await said(at, "/", f"Authorization: Bearer {MARK}\r\nAuthor_ization: Bearer {MARK}\r\n"))[0] == 200
            assert (await said(at, "/none"))[0] == 200
            status, body = await said(at, "/", "Authorization: Bearer mine\r\n")
            assert (status, json.loads(body)["reason"]) == (403, "foreign_credentials")
            await at.empty()
            first, second = upstream.heads
            assert first.count(BEARER) == 1
            assert MARK.encode() not in first
            assert b"authorization" not in second
            assert [record.grant for record in at.requests()] == ["code", "", ""]

    run(main())


@pytest.mark.parametrize(
    ("slot", "path", "fields", "expected"),
    [
        (Placeholder("KEY", "basic"), "/", f"Authorization: Basic {base64.b64encode(f'u:{MARK}'.encode()).decode()}\r\n",
         b"authorization: Basic " + base64.b64encode(b"u:" + SECRET)),
        (Placeholder("KEY", "query", "key"), f"/?a=1&key={MARK}&b=2", "", b"GET /?a=1&b=2&key=" + SECRET + b" "),
    ],
)  # fmt: skip
def test_other_places_of_placeholders(tmp_path: Path, slot: Placeholder, path: str, fields: str, expected: bytes) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream = await at.serve(ALLOWED)
            lent.give("code", ALLOWED, at.port, slot, SECRET, placeholder=MARK)
            assert (await said(at, path, fields))[0] == 200
            await at.empty()
            assert expected in upstream.heads[0]
            assert MARK.encode() not in upstream.heads[0]

    run(main())


BASIC = base64.b64encode(b"x" + MARK.encode()).decode()


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        ("/", f"X-Other: {MARK}\r\n", ALLOWED),
        ("/", f"Authorization: Bearer {MARK}\r\nX-Other: {BASIC}\r\n", ALLOWED),
        ("/", f"Authorization: Bearer {MARK}\r\nCookie: a={MARK.encode().hex()}\r\n", ALLOWED),
        (f"/{MARK}", "", ALLOWED),
        (f"/?a={MARK}", "", ALLOWED),
        (f"/?{MARK.replace('_', '%5f')}", "", ALLOWED),
        ("/", f"Authorization: Bearer {MARK}\r\n", OTHER),
        ("/out", f"Authorization: Bearer {MARK}\r\n", ALLOWED),
    ],
)
def test_a_placeholder_elsewhere_is_denied_and_recorded(tmp_path: Path, path: str, fields: str, name: str) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream, other = await at.serve(ALLOWED), await at.serve(OTHER)
            lent.give("code", ALLOWED, at.port, Placeholder("KEY", name="authorization"), SECRET, placeholder=MARK, paths=("/", "/" + MARK))
            status, body = await said(at, path, fields, name=name)
            assert (status, json.loads(body)["reason"]) == (403, "placeholder_misplaced")
            await at.empty()
            assert upstream.heads == other.heads == []
            (record,) = at.requests()
            assert (record.reason, record.grant) == ("placeholder_misplaced", "code")
            assert lent.alarms == [("placeholder_misplaced", "code", name)]

    run(main())


@pytest.mark.parametrize("cut", [0, 1, 17, 39])
def test_a_placeholder_in_a_body_cuts_the_request(tmp_path: Path, cut: int) -> None:
    async def main() -> None:
        async with lending(tmp_path) as (at, lent):
            upstream = await at.serve(ALLOWED)
            lent.give("code", ALLOWED, at.port, Placeholder("KEY", name="authorization"), SECRET, placeholder=MARK)
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, "/", "Content-Length: 100000\r\n", method="POST") + b"x" * 100 + MARK[:cut].encode())
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(MARK[cut:].encode() + b"y" * 1000)
            answer = await reader.read()
            assert b"placeholder_misplaced" in answer
            writer.close()
            await at.empty()
            assert at.requests()[0].reason == "placeholder_misplaced"
            assert b"y" not in upstream.seen.partition(b"\r\n\r\n")[2]

    run(main())
