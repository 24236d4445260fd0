"""Requests that are signed anew, over real TLS: what arrives is what the lent key signs, and nothing of the guest's signature."""

from __future__ import annotations

import asyncio
import calendar
import hashlib
import time
from pathlib import Path

import pytest

from space.core.credentials import sigv4
from space.core.credentials.grant import Sigv4
from space.testing.egresslab import ALLOWED, Place, get, place, reply, run
from space.testing.lentgrants import LentGrants

AWS = {"access_key_id": b"AKIDEXAMPLE"}
AWS_SECRET = b"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


def expected(at: Place, head: bytes, service: str, digest: bytes) -> bytes:
    """The Authorization that a request of these fields should have."""
    line, *fields = head.rstrip(b"\r\n").split(b"\r\n")
    pairs = [(name, value) for name, _, value in (field.partition(b": ") for field in fields)]
    when = calendar.timegm(time.strptime(dict(pairs)[b"x-amz-date"].decode(), "%Y%m%dT%H%M%SZ"))
    path, _, query = line.split(b" ")[1].decode().partition("?")
    rest = [pair for pair in pairs if pair[0] != b"host"]
    key = sigv4.Key(AWS["access_key_id"], AWS_SECRET)
    made = sigv4.sign(line.split(b" ")[0], at.host(ALLOWED), path, query or None, rest, digest, key, service, "eu-test-1", when)
    return dict(made.fields)[b"authorization"]


@pytest.mark.parametrize("service", ["s3", "sqs"])
@pytest.mark.parametrize("body", [b"", b"hello" * 40_000])
def test_a_request_is_signed_anew(tmp_path: Path, service: str, body: bytes) -> None:
    async def main() -> None:
        lent = LentGrants()
        async with place(tmp_path, **lent.changes) as at:
            upstream = await at.serve(ALLOWED)
            lent.give("cloud", ALLOWED, at.port, Sigv4(service, "eu-test-1"), AWS_SECRET)
            lent.more["cloud"] = AWS
            reader, writer = await at.tls(ALLOWED)
            mine = "Authorization: AWS4-HMAC-SHA256 Credential=mine\r\nX-Amz-Date: 20200101T000000Z\r\n"
            mine += "X-Amz-Security-Token: mine\r\nX-Amz-Meta: 1\r\n"
            length = f"Content-Length: {len(body)}\r\n" if body else ""
            writer.write(get(at, "/a b?x=1".replace(" ", "%20"), mine + length, method="PUT" if body else "GET"))
            for at_byte in range(0, len(body), 60_000):
                writer.write(body[at_byte : at_byte + 60_000])
                await writer.drain()
            assert (await reply(reader)) == (200, b"%s /a%%20b?x=1 HTTP/1.1 got %d" % (b"PUT" if body else b"GET", len(body)))
            writer.close()
            await at.empty()
            (head,) = upstream.heads
            assert b"mine" not in head
            digest = b"UNSIGNED-PAYLOAD" if body and service == "s3" else hashlib.sha256(body).hexdigest().encode()
            assert b"\r\nauthorization: " + expected(at, head, service, digest) + b"\r\n" in head
            assert AWS_SECRET not in head

    run(main())


def test_signed_chunks_are_signed_anew(tmp_path: Path) -> None:
    async def main() -> None:
        lent = LentGrants()
        async with place(tmp_path, **lent.changes) as at:
            bodies: list[bytes] = []

            async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                head = await upstream.head(reader)
                bodies.append(await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0])))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()

            upstream = await at.serve(ALLOWED, takes)
            lent.give("cloud", ALLOWED, at.port, Sigv4("s3", "eu-test-1"), AWS_SECRET)
            lent.more["cloud"] = AWS
            parts = [b"a" * 65_536, b"b" * 10, b""]
            body = b"".join(b"%x;chunk-signature=%s\r\n%s\r\n" % (len(part), b"0" * 64, part) for part in parts)
            fields = f"X-Amz-Content-SHA256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
            assert (await at.exchange(ALLOWED, get(at, "/key", fields, method="PUT") + body)).startswith(b"HTTP/1.1 200 ")
            await at.empty()
            (head,) = upstream.heads
            digest = b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
            said = expected(at, head, "s3", digest)
            assert b"\r\nauthorization: " + said + b"\r\n" in head
            assert len(bodies[0]) == len(body)
            assert b"0" * 64 not in bodies[0]
            bad = get(at, "/key", fields, method="PUT") + body.replace(b"chunk-sig", b"chunk_sig")
            assert b"sigv4_chunk" in await at.exchange(ALLOWED, bad)
            for extra in ("X-Amz-Content-SHA256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER\r\n", "X-Amz-Content-SHA256: x\r\n"):
                assert b"sigv4_payload" in await at.exchange(ALLOWED, get(at, "/key", extra + "Connection: close\r\n"))
            assert b"sigv4_presigned" in await at.exchange(ALLOWED, get(at, "/key?X-Amz-Algorithm=1", "Connection: close\r\n"))

    run(main())
