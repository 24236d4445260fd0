"""What is spoken toward a guest is what its upstream speaks: found out once, after the verdict and without a byte of the guest's."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from space.gateway.protocols import Protocols
from space.gateway.surroundings import Limits
from space.testing.egressh2 import guest, serve_h2
from space.testing.egresslab import ALLOWED, REFUSED, Place, get, place, reply, run

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


async def agreed(at: Place, protocols: list[str], name: str = ALLOWED) -> str | None:
    """What a handshake agrees on."""
    context = at.lab.client_context()
    if protocols:
        context.set_alpn_protocols(protocols)
    _, writer = await at.tls(name, context=context)
    chosen: str | None = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    writer.close()
    return chosen


def test_a_guest_gets_what_its_upstream_speaks(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at)
            assert await agreed(at, ["http/1.1"]) == "http/1.1"
            assert await agreed(at, []) is None
            assert upstream.connections == []  # nobody wanted to know
            for offered in (["h2", "http/1.1"], ["h2"], ["http/1.1", "h2"]):
                assert await agreed(at, offered) == "h2"
            assert len(upstream.connections) == 1
            assert upstream.calls == []
            await at.empty()

    run(main())


def test_nothing_is_translated_for_a_guest_that_speaks_http2_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await at.serve(ALLOWED)
            assert await agreed(at, ["h2", "http/1.1"]) == "http/1.1"
            for _ in range(2):
                with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
                    await agreed(at, ["h2"])
            await at.empty()
            assert [end.reason for end in at.ends()] == ["", "alpn", "alpn"]
            assert len(at.lab.dialer.dialled) == 1

    run(main())


def test_nobody_is_asked_for_a_name_that_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at, REFUSED)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await agreed(at, ["h2", "http/1.1"], REFUSED)
            await at.empty()
            assert at.lab.dialer.dialled == []

    run(main())


def test_an_upstream_that_is_not_there_is_told_in_what_the_guest_reads(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            assert await agreed(at, ["h2", "http/1.1"]) == "http/1.1"
            client = await guest(at, protocols=("h2",))
            call = await client.get("/")
            assert (call.status, json.loads(bytes(call.got))["reason"]) == (403, "address_private")
            await client.close()
            await at.empty()

    run(main())


def test_a_certificate_for_another_name_is_no_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at, REFUSED)
            at.lab.dialer.places[ALLOWED, at.port] = at.lab.dialer.places[REFUSED, at.port]
            client = await guest(at, protocols=("h2",))
            call = await client.get("/")
            assert (call.status, json.loads(bytes(call.got))["reason"]) == (502, "upstream_certificate")
            await client.close()
            await at.empty()
            assert upstream.calls == []

    run(main())


def test_an_upstream_that_never_answers_the_handshake_delays_nobody_for_long(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.05, handshake=0.6)) as at:
            await at.serve(ALLOWED, silent, plain=True)
            assert await agreed(at, ["h2", "http/1.1"]) == "http/1.1"
            await at.empty()

    run(main())


def test_an_upstream_that_speaks_it_no_more_is_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at)
            client = await guest(at)
            await at.serve(ALLOWED)
            call = await client.get("/")
            assert (call.status, json.loads(bytes(call.got))["reason"]) == (502, "upstream_protocol")
            await client.until(lambda: client.goaway == 0)
            await client.close()
            assert await agreed(at, ["h2", "http/1.1"]) == "http/1.1"
            await at.empty()

    run(main())


def test_http2_without_negotiation_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            assert (await at.exchange(ALLOWED, PREFACE)).startswith(b"HTTP/1.1 505 ")
            fields = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
            reader, writer = await at.tls(ALLOWED)
            writer.write(get(at, "/", fields))
            assert (await reply(reader))[0] == 200  # an upgrade that is not taken up
            writer.close()
            assert upstream.heads == [b"GET / HTTP/1.1\r\nhost: %s\r\n\r\n" % at.host(ALLOWED)]
            at.rules({"host": ALLOWED, "scheme": "http"})
            assert (await at.exchange(ALLOWED, PREFACE, plain=True)).startswith(b"HTTP/1.1 505 ")
            await at.empty()

    run(main())


def test_http1_where_http2_was_agreed_on_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at)
            context = at.lab.client_context()
            context.set_alpn_protocols(["h2"])
            reader, writer = await at.tls(ALLOWED, context=context)
            writer.write(get(at))
            assert b"HTTP/1.1" not in await reader.read()
            writer.close()
            await at.empty()
            assert at.ends()[-1].reason == "http2_preface"
            assert upstream.calls == []

    run(main())


def test_what_is_known_grows_old_and_is_bounded() -> None:
    known = Protocols(2, 10)
    known.learn("a", 443, None, "h2", 0)
    assert known.known("a", 443, None, 10) == "h2"
    assert known.known("a", 443, None, 11) is None
    assert known.known("a", 443, "corporate", 0) is None
    assert known.known("a", 8443, None, 0) is None
    known.learn("b", 443, None, "http/1.1", 1)
    known.learn("c", 443, None, "h2", 2)
    assert [known.known(name, 443, None, 2) for name in "abc"] == [None, "http/1.1", "h2"]
