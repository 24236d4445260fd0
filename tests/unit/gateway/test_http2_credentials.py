"""Credentials on streams of HTTP/2: the same as in HTTP/1.1, and one stream's end is no other's."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

import pytest

from space.core.credentials.grant import Placeholder, Query, Sigv4
from space.core.policy.verdict import Asked
from space.testing.egressh2 import Call, guest, serve_h2
from space.testing.egresslab import ALLOWED, place, run
from space.testing.lentgrants import LentGrants

SECRET = b"sk_live_0Pn2DMIKRiIjIpZLtxvLqw9"
MARK = "ph_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789a"


def test_the_credential_stands_in_the_emptied_slot_once(tmp_path: Path) -> None:
    async def main() -> None:
        lent = LentGrants()
        async with place(tmp_path, **lent.changes) as at:
            upstream = await serve_h2(at)
            lent.give("code", ALLOWED, at.port, value=SECRET)
            client = await guest(at)
            own = [(b"authorization", b"mine"), (b"author_ization", b"mine"), (b"cookie", b"mine"), (b"range", b"bytes=1-"), (b"x-y", b"z")]
            calls = [client.ask(f"/{n}", own) for n in range(20)]
            for call in calls:
                assert (await call.over()).status == 200
            for seen in upstream.calls:
                assert [value for name, value in seen.fields if name == b"authorization"] == [b"Bearer " + SECRET]
                assert seen[b"x-y"] == b"z"
                assert b"mine" not in repr(seen.fields).encode()
                assert not {b"range", b"cookie"} & dict(seen.fields).keys()
            assert len(lent.asked) == 1  # those that waited took of the lease that one had got
            await client.close()
            await at.empty()
            assert {(record.grant, record.version) for record in at.requests()} == {("code", 1)}

    run(main())


def test_echoes_do_not_come_back_in_any_part_of_a_reply(tmp_path: Path) -> None:
    async def main() -> None:
        async def echo(call: Call) -> None:
            talk = call.talk
            fields = [(b":status", b"200"), (b"x-echo", SECRET), (b"set-cookie", b"a=1")]
            talk.h2.send_headers(call.stream, fields)
            for byte in SECRET + b" " + base64.b64encode(b"u:" + SECRET):
                await talk.data(call.stream, bytes((byte,)))
            talk.h2.send_headers(call.stream, [(b"x-trailer", SECRET)], end_stream=True)
            talk.flush()

        lent = LentGrants()
        async with place(tmp_path, **lent.changes) as at:
            await serve_h2(at, answer=echo)
            lent.give("code", ALLOWED, at.port, Query("key"), SECRET)
            client = await guest(at)
            call = await client.get("/")
            assert dict(call.fields)[b"x-echo"] == b"*" * len(SECRET)
            assert b"set-cookie" not in dict(call.fields)
            assert len(call.got) == len(SECRET) + 1 + len(base64.b64encode(b"u:" + SECRET))
            assert call.got.count(b"*") >= 2 * len(SECRET)
            assert SECRET not in call.got
            assert call.trailers == [(b"x-trailer", b"*" * len(SECRET))]
            await client.close()
            await at.empty()
            assert [record.reason for record in at.requests()] == ["credential_echoed"]
            assert lent.alarms == [("credential_echoed", "code", ALLOWED)]

    run(main())


@pytest.mark.parametrize("echoed", [False, True])
def test_what_is_packed_is_searched_too_and_other_streams_go_on(tmp_path: Path, echoed: bool) -> None:
    body = gzip.compress(b"nothing of it " * 9_000 + (SECRET if echoed else b"") + b" at all" * 9_000)

    async def main() -> None:
        async def packed(call: Call) -> None:
            coding = b"br" if dict(call.fields)[b":path"].startswith(b"/other") else b"gzip"
            call.talk.h2.send_headers(call.stream, [(b":status", b"200"), (b"content-encoding", coding)])
            for at in range(0, len(body), 50):
                await call.talk.data(call.stream, body[at : at + 50])
            call.talk.h2.send_data(call.stream, b"", end_stream=True)
            call.talk.flush()

        lent = LentGrants()
        async with place(tmp_path, **lent.changes) as at:
            await serve_h2(at, answer=packed)
            lent.give("code", ALLOWED, at.port, Query("key"), SECRET)
            client = await guest(at)
            call = await client.get("/")
            assert (call.got == body) is not echoed
            other = await client.get("/other")
            assert other.status == 502
            await client.close()
            await at.empty()
            assert [record.reason for record in at.requests()] == ["credential_echoed" if echoed else "", "upstream_packed"]
            assert lent.alarms == [("credential_echoed", "code", ALLOWED)] * echoed

    run(main())


def test_what_is_revoked_ends_at_once_and_other_streams_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async def half(call: Call) -> None:
            call.talk.h2.send_headers(call.stream, [(b":status", b"200")])
            await call.talk.data(call.stream, b"half")

        lent = LentGrants()
        async with place(tmp_path, **lent.changes) as at:
            await serve_h2(at, answer=half)
            lent.give("code", ALLOWED, at.port, value=SECRET, paths=("/in",))
            client = await guest(at)
            mine, other = client.ask("/in"), client.ask("/out")
            await client.until(lambda: bytes(mine.got) == bytes(other.got) == b"half")
            lent.take("code")
            at.lab.worker.changed()
            await client.until(lambda: mine.error is not None)
            assert other.error is None
            (record,) = at.requests()
            assert (record.reason, record.grant) == ("grant_revoked", "code")
            await client.close()
            await at.empty()

    run(main())


def test_a_placeholder_elsewhere_ends_its_stream_alone(tmp_path: Path) -> None:
    async def main() -> None:
        lent = LentGrants()
        async with place(tmp_path, **lent.changes) as at:
            upstream = await serve_h2(at)
            lent.give("code", ALLOWED, at.port, Placeholder("KEY", name="authorization"), SECRET, placeholder=MARK)
            client = await guest(at)
            assert (await client.get("/", [(b"x-other", MARK.encode())])).status == 403
            body = client.ask("/", method="POST", ended=False)
            await client.data(body.stream, b"a=" + MARK[:20].encode())
            await client.data(body.stream, MARK[20:].encode(), ended=True)
            assert (await body.over()).status == 403
            assert (await client.get("/", [(b"authorization", f"Bearer {MARK}".encode())])).status == 200
            assert upstream.calls[-1][b"authorization"] == b"Bearer " + SECRET
            await client.close()
            await at.empty()
            assert [record.reason for record in at.requests()] == ["placeholder_misplaced", "placeholder_misplaced", ""]

    run(main())


@pytest.mark.parametrize("size", [0, 5, 200_000])
def test_a_body_is_collected_where_its_digest_is_signed(tmp_path: Path, size: int) -> None:
    async def main() -> None:
        async def ask(_: Asked) -> bool:
            return True

        lent = LentGrants()
        async with place(tmp_path, ask=ask, **lent.changes) as at:
            upstream = await serve_h2(at)
            lent.give("cloud", ALLOWED, at.port, Sigv4("sqs", "eu-test-1"), SECRET)
            lent.more["cloud"] = {"access_key_id": b"AKIDEXAMPLE"}
            client = await guest(at)
            call = client.ask("/q", [(b"authorization", b"mine")], method="POST", ended=False)
            await client.data(call.stream, b"x" * size, ended=True)
            assert (await call.over()).status == 200
            assert bytes(call.got) == b"POST /q got %d" % size
            assert upstream.calls[0][b"authorization"].startswith(b"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
            long = client.ask("/q", method="POST", ended=False)
            await client.data(long.stream, b"x" * 245_000)
            assert (await long.over()).status == 413
            await client.close()
            await at.empty()

    run(main())
