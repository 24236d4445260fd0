"""What is signed anew is what botocore would have signed; what cannot be is refused."""

from __future__ import annotations

import calendar
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import botocore.auth  # type: ignore[import-untyped]
import pytest
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from space.core.credentials import sigv4
from space.core.credentials.sigv4 import Chunks, Key, Unsignable, payload, sign

KEY = Key(b"AKIDEXAMPLE", b"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
WHEN = datetime(2026, 5, 24, 1, 2, 3, tzinfo=UTC)
NOW = float(calendar.timegm(WHEN.utctimetuple()))
CLOCK = "get_current_datetime"
HOST = b"bucket.s3.example.com"
EMPTY = hashlib.sha256(b"").hexdigest().encode()


def by_botocore(service: str, method: str, target: str, fields: dict[str, str], body: bytes, token: str | None = None) -> tuple[str, str]:
    """Its Authorization, and the digest that it says."""
    kind = botocore.auth.S3SigV4Auth if service == "s3" else botocore.auth.SigV4Auth
    request = AWSRequest(method, f"https://{HOST.decode()}{target}", headers=fields, data=body)
    if service == "s3":
        request.context["payload_signing_enabled"] = True
    with mock.patch.object(botocore.auth, CLOCK, return_value=WHEN.replace(tzinfo=None)):
        kind(Credentials(KEY.access.decode(), KEY.secret.decode(), token), service, "eu-test-1").add_auth(request)
    return request.headers["Authorization"], request.headers.get("X-Amz-Content-SHA256", "")


@pytest.mark.parametrize("service", ["s3", "sqs"])
@pytest.mark.parametrize("token", ["", "session/token+="])
@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "/", None),
        ("GET", "/a/b-c_d.e~f", "x=1"),
        ("PUT", "/with%20space/%C3%A9", None),
        ("GET", "/", "list-type=2&prefix=a%2Fb&delimiter=%2F&marker"),
        ("GET", "/", "b=2&a=2&a=1&a-b=0&A=3"),
        ("POST", "/x", "k=~%2B%20"),
    ],
)
def test_it_signs_as_botocore_does(service: str, token: str, method: str, path: str, query: str | None) -> None:
    body = b"hello" if method != "GET" else b""
    fields = {"content-type": "application/x-thing;  a=b", "x-amz-meta-a": "  b  c "} if body else {"x-amz-target": "T.1"}
    target = path if query is None else f"{path}?{query}"
    expected, _ = by_botocore(service, method, target, dict(fields), body, token or None)
    raw = tuple((name.encode(), value.strip().encode()) for name, value in fields.items())
    key = Key(KEY.access, KEY.secret, token.encode())
    signed = sign(method.encode(), HOST, path, query, raw, hashlib.sha256(body).hexdigest().encode(), key, service, "eu-test-1", NOW)
    assert dict(signed.fields)[b"authorization"].decode() == expected
    assert dict(signed.fields).get(b"x-amz-security-token", b"").decode() == token
    assert KEY.secret.decode() not in repr(signed) + repr(key)


# Documented with its values: "Example: PUT object in chunks" of the service's own guide to signed chunks.
def test_chunks_are_signed_as_the_service_documents_it() -> None:
    secret = b"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    fields = (
        (b"content-encoding", b"aws-chunked"),
        (b"x-amz-decoded-content-length", b"66560"),
        (b"x-amz-storage-class", b"REDUCED_REDUNDANCY"),
    )
    when = float(calendar.timegm((2013, 5, 24, 0, 0, 0)))
    kind, digest = payload([(b"x-amz-content-sha256", b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD")], "s3", body=True)
    assert kind == "chunks"
    key = Key(b"A", secret)
    mine = sign(b"PUT", HOST, "/examplebucket/chunkObject.txt", None, fields, digest, key, "s3", "us-east-1", when)
    # Its example is another host's and signs two fields more, so the seed is taken from there.
    seed = b"4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    signed = sigv4.Signed(b"", (), seed, mine.key, mine.when, mine.scope)
    chunks = Chunks(signed)
    old = b"0" * 64
    body = b"".join(b"%x;chunk-signature=%s\r\n%s\r\n" % (size, old, b"a" * size) for size in (65_536, 1024, 0))
    out = b"".join(chunks.receive(body[at : at + 1000]) for at in range(0, len(body), 1000))
    assert chunks.ended
    assert len(out) == len(body)
    assert [out[at + 17 : at + 81] for at in [out.find(b";chunk-signature=")]] == [
        b"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"
    ]
    assert b"400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n" in out
    assert out.endswith(b"0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n")


def chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x;chunk-signature=%s\r\n%s\r\n" % (len(part), b"f" * 64, part) for part in [*parts, b""])


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.data())
def test_however_chunks_are_cut_they_say_the_same(parts: list[bytes], data: st.DataObject) -> None:
    signed = sign(b"PUT", HOST, "/x", None, (), sigv4.UNSIGNED, KEY, "s3", "eu-test-1", NOW)
    body = chunked(parts)
    whole = Chunks(signed).receive(body)
    assert len(whole) == len(body)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    one = Chunks(signed)
    assert b"".join(one.receive(body[a:b]) for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)) == whole
    assert one.ended
    last = signed.seed
    for part in [*parts, b""]:
        text = "\n".join(
            ("AWS4-HMAC-SHA256-PAYLOAD", signed.when, signed.scope, last.decode(), EMPTY.decode(), hashlib.sha256(part).hexdigest())
        )
        last = hmac.new(signed.key, text.encode(), hashlib.sha256).hexdigest().encode()
        assert last in whole


@given(st.binary(max_size=400))
def test_what_is_no_chunk_is_refused_or_waited_for(data: bytes) -> None:
    signed = sign(b"PUT", HOST, "/x", None, (), sigv4.UNSIGNED, KEY, "s3", "eu-test-1", NOW)
    chunks = Chunks(signed, most=64)
    try:
        out = chunks.receive(data)
    except Unsignable:
        return
    assert len(out) <= len(data)


@pytest.mark.parametrize(
    "body",
    [
        b"5\r\nhello\r\n",
        b"5;chunk-signature=" + b"F" * 64 + b"\r\n",
        b"fffffff;chunk-signature=" + b"f" * 64 + b"\r\n",
        b"5;chunk-signature=" + b"f" * 64 + b"\r\nhello!!",
        b"5;chunk-signature=" + b"f" * 200,
        chunked([b"a"]) + b"x",
    ],
)
def test_a_body_that_breaks_its_chunks_ends(body: bytes) -> None:
    signed = sign(b"PUT", HOST, "/x", None, (), sigv4.UNSIGNED, KEY, "s3", "eu-test-1", NOW)
    with pytest.raises(Unsignable):
        Chunks(signed).receive(body)


@pytest.mark.parametrize(
    ("path", "query", "reason"),
    [
        ("/a%2Fb", None, "sigv4_path"),
        ("/", "a=b+c", "sigv4_query"),
        ("/", "a=b;c", "sigv4_query"),
        ("/", "X-Amz-Signature=1", "sigv4_presigned"),
        ("/", "x%2damz-Algorithm=1", "sigv4_presigned"),
    ],
)
def test_what_has_two_readings_is_not_signed(path: str, query: str | None, reason: str) -> None:
    with pytest.raises(Unsignable) as refused:
        sign(b"GET", HOST, path, query, (), EMPTY, KEY, "s3", "eu-test-1", NOW)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("said", "service", "expected"),
    [
        (None, "s3", ("said", b"UNSIGNED-PAYLOAD")),
        (None, "sqs", ("digest", b"")),
        (b"UNSIGNED-PAYLOAD", "s3", ("said", b"UNSIGNED-PAYLOAD")),
        (b"STREAMING-UNSIGNED-PAYLOAD-TRAILER", "s3", ("said", b"STREAMING-UNSIGNED-PAYLOAD-TRAILER")),
        (b"a" * 64, "sqs", ("said", b"a" * 64)),
        (b"UNSIGNED-PAYLOAD", "sqs", None),
        (b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", "s3", None),
        (b"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "s3", None),
        (b"A" * 64, "s3", None),
        (b"", "s3", None),
    ],
)
def test_bodies_are_told_apart(said: bytes | None, service: str, expected: Any) -> None:
    fields = [] if said is None else [(b"x-amz_content-sha256", said)]
    if expected is None:
        with pytest.raises(Unsignable):
            payload(fields, service, body=True)
    else:
        assert payload(fields, service, body=True) == expected
    with pytest.raises(Unsignable):
        payload([(b"x-amz-content-sha256", b"a" * 64)] * 2, service, body=True)
