"""The shared address in every form: a connection is for the name of its address, whatever the guest says; and heads with two meanings."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from space.gateway.surroundings import Limits
from space.testing.egresslab import ALLOWED, OTHER, REFUSED, Place, place, run

HOST = b"{host}"


async def both(at: Place) -> None:
    """An allowed name, another allowed one, and one that is not, all served by the same machine, as behind a CDN."""
    for name in (ALLOWED, OTHER, REFUSED):
        await at.serve(name)


def seen(at: Place) -> bytes:
    return b"".join(upstream.seen for upstream in at.upstreams.values())


@pytest.mark.parametrize(
    ("authority", "reason"),
    [
        (REFUSED, "authority_mismatch"),
        (OTHER, "authority_mismatch"),
        (f"{ALLOWED}.evil.example.com", "authority_mismatch"),
        (f"user@{ALLOWED}", "authority_invalid"),
        ("127.0.0.1", "authority_invalid"),
        ("[::1]", "authority_invalid"),
        ("", "authority_invalid"),
    ],
)
def test_an_allowed_sni_with_another_authority_reaches_nobody(tmp_path: Path, authority: str, reason: str) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await both(at)
            head = f"GET / HTTP/1.1\r\nHost: {authority}:{at.port}\r\n\r\n".encode()
            said = await at.exchange(ALLOWED, head * 2)
            assert said.startswith(b"HTTP/1.1 421 " if reason == "authority_mismatch" else b"HTTP/1.1 400 ")
            assert said.count(b"HTTP/1.1 ") == 1  # and it closes
            await at.empty()
            assert seen(at) == b""
            assert at.lab.dialer.dialled == []
            assert [record.reason for record in at.requests()] == [reason]

    run(main())


def test_another_port_in_the_authority_is_another_authority(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await both(at)
            for port in (b":1", b""):
                assert b"authority_port" in await at.exchange(ALLOWED, b"GET / HTTP/1.1\r\nHost: " + ALLOWED.encode() + port + b"\r\n\r\n")
            await at.empty()
            assert seen(at) == b""

    run(main())


@pytest.mark.parametrize(("address", "sni"), [(ALLOWED, REFUSED), (ALLOWED, OTHER), (OTHER, ALLOWED)])
def test_another_sni_at_an_allowed_address_gets_an_alert_and_no_certificate(tmp_path: Path, address: str, sni: str) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await both(at)
            with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
                await at.tls(address, sni=sni)
            await at.empty()
            assert at.lab.signer.minted == []
            assert seen(at) == b""
            assert [end.reason for end in at.ends()] == ["sni_mismatch"]

    run(main())


def test_two_allowed_names_are_not_crossed_even_on_one_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await both(at)
            first = b"GET /1 HTTP/1.1\r\nHost: %s\r\n\r\n" % at.host(ALLOWED)
            second = b"GET /2 HTTP/1.1\r\nHost: %s\r\n\r\n" % at.host(OTHER)
            said = await at.exchange(ALLOWED, first + second + first)
            assert b"GET /1 HTTP/1.1" in said
            assert said.count(b"HTTP/1.1 421 ") == 1
            await at.empty()
            assert len(at.upstreams[ALLOWED].heads) == 1
            assert at.upstreams[OTHER].seen == b""

    run(main())


def test_a_name_that_was_allowed_when_it_was_asked_for_is_judged_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=30)) as at:
            await both(at)
            _, writer = await at.raw(ALLOWED)
            await at.until(lambda: len(at.lab.worker))
            await asyncio.sleep(0.05)
            at.rules({"host": OTHER})
            with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
                await writer.start_tls(at.lab.client_context(), server_hostname=ALLOWED)
            writer.close()
            with pytest.raises(ConnectionResetError):
                await (await at.raw(ALLOWED))[0].readexactly(1)
            await at.until(lambda: len(at.ends()) == 2)
            assert {end.reason for end in at.ends()} == {"name_not_allowed"}
            assert seen(at) == b""

    run(main())


def test_an_address_that_was_never_given_is_reset(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            reader, _ = await asyncio.open_connection("127.100.9.9", at.port)
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            await at.empty()
            assert [(end.name, end.reason) for end in at.ends()] == [("127.100.9.9", "address_not_allowed")]

    run(main())


@pytest.mark.parametrize(
    ("target", "host", "reason"),
    [
        (f"http://{REFUSED}:{{port}}/", ALLOWED, "target_authority"),
        (f"http://{ALLOWED}:{{port}}/", REFUSED, "authority_mismatch"),
        (f"http://{REFUSED}:{{port}}/", REFUSED, "authority_mismatch"),
        (f"https://{ALLOWED}:{{port}}/", ALLOWED, "target_form"),
        (f"{REFUSED}:{{port}}", ALLOWED, "target_form"),
        ("*", ALLOWED, "target_form"),
    ],
)
def test_the_absolute_form_in_the_clear_names_the_flow_or_nobody(tmp_path: Path, target: str, host: str, reason: str) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await both(at)
            at.rules({"host": ALLOWED, "scheme": "http"})
            head = f"GET {target.format(port=at.port)} HTTP/1.1\r\nHost: {host}:{at.port}\r\n\r\n".encode()
            assert reason.encode() in await at.exchange(ALLOWED, head, plain=True)
            await at.empty()
            assert seen(at) == b""

    run(main())


GET = b"GET / HTTP/1.1\r\n"
POST = b"POST / HTTP/1.1\r\n"
INNER = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
TABLE = {
    "CL with TE": POST + b"Host: {host}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "TE with CL": POST + b"Host: {host}\r\nTransfer-Encoding: chunked\r\nContent-Length: 50\r\n\r\n0\r\n\r\n" + INNER,
    "two lengths": POST + b"Host: {host}\r\nContent-Length: 0\r\nContent-Length: 35\r\n\r\n" + INNER,
    "two equal lengths": POST + b"Host: {host}\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n" + INNER,
    "a list of lengths": POST + b"Host: {host}\r\nContent-Length: 0, 0\r\n\r\n" + INNER,
    "a signed length": POST + b"Host: {host}\r\nContent-Length: +5\r\n\r\nhello",
    "a hexadecimal length": POST + b"Host: {host}\r\nContent-Length: 0x5\r\n\r\nhello",
    "TE identity": POST + b"Host: {host}\r\nTransfer-Encoding: identity\r\n\r\n" + INNER,
    "TE twice": POST + b"Host: {host}\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "TE list": POST + b"Host: {host}\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "TE vertical tab": POST + b"Host: {host}\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "TE with a space before the colon": POST + b"Host: {host}\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded TE": POST + b"Host: {host}\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: {host}\n\n",
    "bare LF in a field": GET + b"Host: {host}\r\nX: a\nTransfer-Encoding: chunked\r\n\r\n",
    "bare CR in a field": GET + b"Host: {host}\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n",
    "NUL in a field": GET + b"Host: {host}\r\nX: a\0b\r\n\r\n",
    "two hosts": GET + b"Host: {host}\r\nHost: {host}\r\n\r\n",
    "two hosts, one of another": GET + b"Host: {host}\r\nhost: refused.example.com\r\n\r\n",
    "no host": GET + b"\r\n",
    "a space before the host's colon": GET + b"Host : {host}\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.0": b"GET / HTTP/1.0\r\nHost: {host}\r\n\r\n",
    "HTTP/2 without negotiation": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two spaces": b"GET  / HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "a tab": b"GET\t/ HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "absolute form inside TLS": b"GET https://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "CONNECT": b"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "Connection names the host": GET + b"Host: {host}\r\nConnection: host\r\n\r\n",
    "Connection names a credential": GET + b"Host: {host}\r\nConnection: close, Authorization\r\n\r\n",
    "a chunk's size with a sign": POST + b"Host: {host}\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    "a chunk's size with 0x": POST + b"Host: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a chunk's size with a space": POST + b"Host: {host}\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
    "a chunk extension": POST + b'Host: {host}\r\nTransfer-Encoding: chunked\r\n\r\n5;a="\r\nhello\r\n0\r\n\r\n',
    "a chunk that ends in LF": POST + b"Host: {host}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
    "a chunk that is too long": POST + b"Host: {host}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n",
    "a trailer with a space": POST + b"Host: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX : y\r\n\r\n",
    "a path above the root": b"GET /../x HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "a path encoded twice": b"GET /%252e%252e/x HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "a backslash": b"GET /a\\..\\b HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "an encoded line end": b"GET /a%0d%0aX:y HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "a head that is too long": GET + b"Host: {host}\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    "too many fields": GET + b"Host: {host}\r\n" + b"X: a\r\n" * 200 + b"\r\n",
    "an unknown expectation": POST + b"Host: {host}\r\nExpect: 200-ok\r\nContent-Length: 2\r\n\r\nhi",
    "an empty line first": b"\r\n" + GET + b"Host: {host}\r\n\r\n",
}


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("kind", TABLE)
def test_a_head_with_two_meanings_reaches_nobody_and_ends_the_connection(tmp_path: Path, kind: str, pieces: int) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await both(at)
            data = TABLE[kind].replace(HOST, at.host(ALLOWED))
            reader, writer = await at.tls(ALLOWED)
            half = len(data) // 2 if pieces == 2 and b"chunked" not in data else 0  # a chunk that comes later may find the head sent on
            if half:
                writer.write(data[:half])
                await writer.drain()
            writer.write(data[half:] + b"GET /after HTTP/1.1\r\nHost: %s\r\n\r\n" % at.host(ALLOWED))
            said = await reader.read()
            assert said.split(b" ")[0] == b"HTTP/1.1"
            assert said.split(b" ")[1] in (b"400", b"417", b"431", b"501", b"505", b"403")
            assert said.count(b"HTTP/1.1 ") == 1
            assert b"connection: close" in said
            writer.close()
            await at.empty()
            assert seen(at) == b""
            assert at.lab.dialer.dialled == []

    run(main())


def test_an_upgrade_to_h2c_is_not_passed_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await at.serve(ALLOWED)
            fields = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nTE: trailers\r\n"
            said = await at.exchange(ALLOWED, b"GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (at.host(ALLOWED), fields))
            assert said.startswith(b"HTTP/1.1 200 ")
            assert upstream.heads == [b"GET / HTTP/1.1\r\nhost: %s\r\n\r\n" % at.host(ALLOWED)]
            await at.empty()

    run(main())
