"""What HTTP/2 adds to be judged: the fields of a stream's head (RFC 9113, 8), and floods of frames that cost nothing to send.

The `h2` library keeps the protocol's state; it takes a user name in :authority and spaces in :path, so nothing that it hands out is used
before it has passed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from space.core.wire.http1 import HOP_BY_HOP, MOST_FIELDS, MOST_HEAD, BadHead, Field

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+\Z")
_VALUE = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?\Z")
_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}\Z")
_TARGET = re.compile(rb"/[\x21-\x7e]*\Z")
_DIGITS = re.compile(rb"\d{1,18}\Z")
_STATUS = re.compile(rb"[1-5]\d\d\Z")
# `trailer` announces what comes behind a body in any version; gRPC servers send it.
_CONNECTION_ONLY = HOP_BY_HOP - {b"te", b"trailer"}
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})


@dataclass(frozen=True, slots=True)
class StreamHead:
    """A request's head. authority, path: as they came, not judged yet. length: what it says of its body, if anything."""

    method: bytes
    authority: bytes
    path: bytes
    fields: tuple[Field, ...]
    length: int | None


def request_head(fields: Iterable[Field]) -> StreamHead:
    """The head of a request that came over TLS. BadHead: reset the stream."""
    pseudo, rest = _sorted(fields, 400)
    if pseudo.keys() != _PSEUDO:
        raise BadHead("pseudo", "a request has :method, :scheme, :authority and :path, each once, and no other")
    if pseudo[b":scheme"] != b"https":
        raise BadHead("scheme", "the scheme is not https")
    if not _METHOD.match(pseudo[b":method"]) or pseudo[b":method"] == b"CONNECT":
        raise BadHead("method", "a method that is none, or CONNECT")
    if not _TARGET.match(pseudo[b":path"]):
        raise BadHead("path", "a path that does not begin with a slash, or holds what must be encoded")
    hosts = [value for name, value in rest if name == b"host"]
    if hosts and hosts != [pseudo[b":authority"]]:
        raise BadHead("host", "a host field that is not the authority")
    kept = tuple([field for field in rest if field[0] not in (b"host", b"content-length")])
    return StreamHead(pseudo[b":method"], pseudo[b":authority"], pseudo[b":path"], kept, _length(rest, 400))


def response_head(fields: Iterable[Field]) -> tuple[int, tuple[Field, ...], int | None]:
    """(status, fields, length) of a response. BadHead: reset the stream."""
    pseudo, rest = _sorted(fields, 502)
    status = pseudo.get(b":status", b"")
    if len(pseudo) != 1 or not _STATUS.match(status) or status == b"101":
        raise BadHead("pseudo", "a response has :status alone, and never 101", 502)
    return int(status), tuple([field for field in rest if field[0] != b"content-length"]), _length(rest, 502)


def check_trailers(fields: Iterable[Field], status: int) -> None:
    """BadHead for trailers that are no fields or hold pseudo fields. They are dropped, or sent on by who wants gRPC's."""
    pseudo, rest = _sorted(fields, status)
    if pseudo:
        raise BadHead("pseudo", "trailers with pseudo fields", status)
    if {name for name, _ in rest} & {b"host", b"content-length", b"authorization", b"cookie", b"set-cookie", b"trailer"}:
        raise BadHead("trailer", "trailers that change what the head said", status)


def _sorted(fields: Iterable[Field], status: int) -> tuple[Mapping[bytes, bytes], tuple[Field, ...]]:
    pseudo: dict[bytes, bytes] = {}
    rest: list[Field] = []
    size = 0
    for name, value in fields:
        size += len(name) + len(value) + 32
        if size > MOST_HEAD or len(rest) + len(pseudo) >= MOST_FIELDS:
            raise BadHead("too_large", f"a head of more than {MOST_HEAD} bytes or {MOST_FIELDS} fields", 431 if status == 400 else status)
        if not _VALUE.match(value):
            raise BadHead("field", "a value with control characters, or spaces at its ends", status)
        if name.startswith(b":"):
            if rest or name in pseudo:
                raise BadHead("pseudo", "a pseudo field twice, or behind a field", status)
            pseudo[name] = value
            continue
        if not _NAME.match(name):
            raise BadHead("field", "a name that is no lower-case token", status)
        if name in _CONNECTION_ONLY or (name == b"te" and value.lower() != b"trailers"):
            raise BadHead("connection", f"{name.decode()} is a field of HTTP/1.1 connections", status)
        rest.append((name, value))
    return pseudo, tuple(rest)


def _length(fields: tuple[Field, ...], status: int) -> int | None:
    lengths = [value for name, value in fields if name == b"content-length"]
    if not lengths:
        return None
    if len(lengths) > 1 or not _DIGITS.match(lengths[0]):
        raise BadHead("content_length", "a length that is none, or two", status)
    return int(lengths[0])


Kind = Literal["reset", "settings", "ping", "empty", "priority", "window", "refused"]
# How many of each are forgiven at once, and how many more a second. Rapid resets are the costly ones (CVE-2023-44487).
LIMITS: dict[Kind, tuple[float, float]] = {
    "reset": (100, 20),
    "settings": (20, 2),
    "ping": (50, 10),
    "empty": (200, 50),
    "priority": (500, 100),
    "window": (4000, 4000),
    "refused": (50, 10),
}


class Flood(Exception):
    """A connection sends too much of what costs its peer more than itself."""


class FloodGuard:
    """Counts a connection's frames. One bucket a kind; time comes in as an argument."""

    def __init__(self, now: float, limits: Mapping[Kind, tuple[float, float]] = LIMITS) -> None:
        self._limits = limits
        self._left = {kind: burst for kind, (burst, _) in limits.items()}
        self._at = dict.fromkeys(limits, now)

    def saw(self, kind: Kind, now: float) -> None:
        """One more. Flood: end the connection with ENHANCE_YOUR_CALM."""
        burst, rate = self._limits[kind]
        left = min(burst, self._left[kind] + max(0.0, now - self._at[kind]) * rate) - 1
        self._at[kind] = now
        self._left[kind] = left
        if left < 0:
            raise Flood(f"more than {burst:g} {kind} frames at once, or {rate:g} a second")
