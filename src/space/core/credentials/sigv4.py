"""AWS Signature Version 4: a request that a guest signed with what is worth nothing is signed anew, for one service and region. Pure.

    payload(fields, service, body) -> Payload              what becomes of the body; Refused for what cannot be signed anew
    sign(request..., key, scope, now) -> Signed            target, fields, and the seed of a body in signed chunks
    Chunks(signed).receive(data) -> bytes                  the same chunks, each with another signature of the same length

What the guest's signature says is not verified: the policy and the grant decide, and nothing of it goes on. A body's digest is the guest's
word where it says one (the service compares it), and made of the whole body where it says none.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

from space.core.credentials.slots import Field

MOST_BODY = 1024 * 1024  # that is held to make its digest
MOST_CHUNK = 1024 * 1024  # that is held to sign it; SDKs make them of 64 KiB to 128 KiB
_MOST_LINE = 128
UNSIGNED = b"UNSIGNED-PAYLOAD"
_TRAILER = b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_CHUNKS = b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
_NOTHING = hashlib.sha256(b"").hexdigest().encode()
_DIGEST = re.compile(rb"[0-9a-f]{64}\Z")
_LINE = re.compile(rb"([0-9a-fA-F]{1,8});chunk-signature=[0-9a-f]{64}\Z")
# Said anew, or the guest's own signature's.
ANEW = frozenset({b"authorization", b"x-amz-date", b"x-amz-content-sha256", b"x-amz-security-token", b"date"})
_SIGNED = frozenset({b"content-type", b"content-md5"})
_PRESIGNED = ("x-amz-algorithm", "x-amz-signature", "x-amz-credential", "x-amz-signedheaders", "x-amz-expires", "x-amz-date")

Reason = Literal["sigv4_presigned", "sigv4_payload", "sigv4_path", "sigv4_query", "sigv4_chunk", "sigv4_body"]


class Unsignable(ValueError):
    """It cannot be signed anew. reason: a stable word."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


@dataclass(frozen=True, slots=True)
class Key:
    """An access key. token: of a session, or empty."""

    access: bytes
    secret: bytes = field(repr=False)
    token: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Signed:
    """target: as it is sent. fields: those that say who signs. The rest: for chunks."""

    target: bytes
    fields: tuple[Field, ...]
    seed: bytes
    key: bytes = field(repr=False)
    when: str
    scope: str


Payload = Literal["said", "digest", "chunks"]


def payload(fields: Iterable[Field], service: str, *, body: bool) -> tuple[Payload, bytes]:
    """What becomes of the body, and what its digest is said to be: `digest` when that has to be made of the whole of it. Unsignable."""
    said = [value for name, value in fields if name.replace(b"_", b"-") == b"x-amz-content-sha256"]
    if len(said) > 1:
        raise Unsignable("sigv4_payload", "two digests of one body")
    if not said:
        if not body:
            return "said", _NOTHING
        return ("said", UNSIGNED) if service == "s3" else ("digest", b"")
    (value,) = said
    if _DIGEST.match(value):
        return "said", value
    if service == "s3" and value in (UNSIGNED, _TRAILER):
        return "said", value
    if service == "s3" and value == _CHUNKS:
        return "chunks", value
    raise Unsignable("sigv4_payload", "a body that is signed in a way which cannot be repeated")


def sign(
    method: bytes,
    host: bytes,
    path: str,
    query: str | None,
    fields: Iterable[Field],
    digest: bytes,
    key: Key,
    service: str,
    region: str,
    now: float,
) -> Signed:
    """path, query: as they were judged. fields: those that go on. Unsignable."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    scope = f"{when[:8]}/{region}/{service}/aws4_request"
    sent = _path(path)
    parameters = _parameters(query)
    anew: list[Field] = [(b"x-amz-date", when.encode())]
    if service == "s3":
        anew.append((b"x-amz-content-sha256", digest))
    if key.token:
        anew.append((b"x-amz-security-token", key.token))
    named = [(name, value) for name, value in fields if name not in ANEW and (name in _SIGNED or name.startswith(b"x-amz-"))]
    names, canonical = _canonical([(b"host", host), *named, *anew])
    request = b"\n".join(
        (
            method,
            (sent if service == "s3" else quote_from_bytes(sent.encode(), safe="/~")).encode(),
            "&".join(sorted_pairs(parameters)).encode(),
            canonical,
            names,
            digest,
        )
    )
    signing = _signing_key(key.secret, when[:8], region, service)
    text = b"\n".join((b"AWS4-HMAC-SHA256", when.encode(), scope.encode(), hashlib.sha256(request).hexdigest().encode()))
    signature = hmac.new(signing, text, hashlib.sha256).hexdigest().encode()
    said = b"AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s" % (key.access, scope.encode(), names, signature)
    target = sent if query is None else sent + "?" + "&".join(f"{name}={value}" for name, value in parameters)
    return Signed(target.encode(), (*anew, (b"authorization", said)), signature, signing, when, scope)


def check(path: str, query: str | None) -> None:
    """Whether a target can be signed. Unsignable."""
    _path(path)
    _parameters(query)


def sorted_pairs(parameters: list[tuple[str, str]]) -> list[str]:
    """As a canonical query has them: by name, then by value."""
    return [f"{name}={value}" for name, value in sorted(parameters)]


class Chunks:
    """A body of `aws-chunked` coding, each chunk signed by the one before. One chunk is held at a time. ended: the last one has passed."""

    def __init__(self, signed: Signed, most: int = MOST_CHUNK) -> None:
        self._signed = signed
        self._last = signed.seed
        self._most = most
        self._buffer = bytearray()
        self._size: int | None = None
        self._said = b""
        self.ended = False

    def receive(self, data: bytes) -> bytes:
        """What may be sent of it. Unsignable: it is none, or a chunk is too large."""
        self._buffer += data
        out: list[bytes] = []
        while self._buffer:
            if self.ended:
                raise Unsignable("sigv4_chunk", "something behind the last chunk")
            if self._size is None and not self._line():
                break
            assert self._size is not None
            if len(self._buffer) < self._size + 2:
                break
            out.append(self._chunk(self._size))
        return b"".join(out)

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of their chunk."""
        return len(self._buffer)

    def _line(self) -> bool:
        end = self._buffer.find(b"\r\n", 0, _MOST_LINE)
        if end < 0:
            if len(self._buffer) >= _MOST_LINE:
                raise Unsignable("sigv4_chunk", "a chunk whose first line does not end")
            return False
        found = _LINE.match(bytes(self._buffer[:end]))
        if found is None:
            raise Unsignable("sigv4_chunk", "a chunk that does not begin with its size and signature")
        self._size, self._said = int(found[1], 16), found[1]
        if self._size > self._most:
            raise Unsignable("sigv4_chunk", f"a chunk of {self._size} bytes, at most {self._most} are signed")
        del self._buffer[: end + 2]
        return True

    def _chunk(self, size: int) -> bytes:
        data, end = bytes(self._buffer[:size]), bytes(self._buffer[size : size + 2])
        if end != b"\r\n":
            raise Unsignable("sigv4_chunk", "a chunk that does not end where it says")
        del self._buffer[: size + 2]
        signed = self._signed
        text = "\n".join(
            (
                "AWS4-HMAC-SHA256-PAYLOAD",
                signed.when,
                signed.scope,
                self._last.decode(),
                _NOTHING.decode(),
                hashlib.sha256(data).hexdigest(),
            )
        )
        self._last = hmac.new(signed.key, text.encode(), hashlib.sha256).hexdigest().encode()
        self._size, self.ended = None, not size
        return b"%s;chunk-signature=%s\r\n%s\r\n" % (self._said, self._last, data)


def _path(text: str) -> str:
    """In the one spelling that both sides sign. An escaped slash is one for some and none for others."""
    if "%2F" in text:
        raise Unsignable("sigv4_path", "a path with an escaped slash has two readings")
    return quote_from_bytes(unquote_to_bytes(text), safe="/~")


def _parameters(query: str | None) -> list[tuple[str, str]]:
    if not query:
        return []
    if "+" in query or ";" in query:
        raise Unsignable("sigv4_query", "a plus or a semicolon in a query has two readings: escape it")
    found = []
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            found.append((quote_from_bytes(unquote_to_bytes(name), safe="~"), quote_from_bytes(unquote_to_bytes(value), safe="~")))
    if any(name.lower() in _PRESIGNED for name, _ in found):
        raise Unsignable("sigv4_presigned", "a request that is signed in its query")
    return found


def _canonical(fields: list[Field]) -> tuple[bytes, bytes]:
    together: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        together.setdefault(name, []).append(b" ".join(value.split()))
    names = sorted(together)
    return b";".join(names), b"".join(b"%s:%s\n" % (name, b",".join(together[name])) for name in names)


def _signing_key(secret: bytes, day: str, region: str, service: str) -> bytes:
    made = b"AWS4" + secret
    for part in (day, region, service, "aws4_request"):
        made = hmac.new(made, part.encode(), hashlib.sha256).digest()
    return made
