"""Whether a request may go, and in which form: steps 7 to 9 of its order, without I/O.

judge(flow, stack, head, grants) -> Admitted | Refused
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec

from space.core.policy.agreement import STATUS, Flow, of_request
from space.core.policy.paths import Path
from space.core.policy.verdict import Allow, Asked, Deny, Stack
from space.core.wire.http1 import (
    CHUNKED,
    NO_BODY,
    BadHead,
    Field,
    Framing,
    RequestHead,
    request_end_to_end,
    write_request,
    write_response,
    written,
)
from space.core.wire.http2 import StreamHead
from space.gateway import telling
from space.gateway.budgets import Budget
from space.gateway.budgets import of_request as budgets_of
from space.gateway.loans import NONE, Grants, Loan, left

_WEBSOCKET_DROPPED = frozenset({b"sec-websocket-extensions"})  # compressed frames could not be judged by their size
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """It may go. websocket: what the upstream must accept with, if the guest asks for one. loan: which credential it gets."""

    asked: Asked
    verdict: Allow
    budgets: tuple[Budget, ...]
    websocket: bytes | None
    loan: Loan | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """It may not. close: nothing that follows on this connection can be believed. asked: what was judged, when it came so far. grant:
    whose credential it is about.
    """

    status: int
    reason: str
    rule: str | None = None
    close: bool = False
    error: Literal["egress_denied", "bad_request", "upstream_failed"] = "egress_denied"
    asked: Asked | None = None
    grant: str = ""


def judge(flow: Flow, stack: Stack, head: RequestHead, grants: Grants = NONE) -> Admitted | Refused:
    """The first thing that is wrong, or what is allowed."""
    path = of_request(flow, head)
    if isinstance(path, str):
        return Refused(STATUS[path], path, close=True, error="egress_denied" if STATUS[path] == 421 else "bad_request")
    websocket = head.upgrade == b"websocket"
    foreign, override = telling.of_fields(grants.foreign(head.fields))
    if path.query is not None:
        credential, other = telling.of_query(path.query)
        foreign, override = foreign or credential, override or other
    asked = Asked(flow.name, flow.port, "https" if flow.secure else "http", head.method.decode("ascii"), path, websocket, foreign)
    accept = None
    if websocket:
        accept = _accept(head)
        if accept is None:
            return Refused(400, "websocket_invalid", close=True, error="bad_request", asked=asked)
    verdict = stack.request(asked)
    if isinstance(verdict, Deny):
        return Refused(403, verdict.reason, verdict.rule, asked=asked)
    rule = None if verdict.rule is None else verdict.rule.name
    if override is not None and _narrowed(stack, asked):
        return Refused(403, override, rule, asked=asked)
    loan = grants.chosen(asked, verdict, head.fields)
    if grants.places and (grant := grants.misplaced(loan, head.fields, path)) is not None:
        return Refused(403, "placeholder_misplaced", rule, close=True, asked=asked, grant=grant)
    if loan is not None and (why := loan.unsignable(head, path)) is not None:
        return Refused(400, why, rule, error="bad_request", asked=asked, grant=loan.grant)
    return Admitted(asked, verdict, budgets_of(stack, asked, verdict), accept, loan)


def request_bytes(flow: Flow, head: RequestHead, path: Path, framing: Framing, *, websocket: bool, loan: Loan | None = None) -> bytes:
    """The head as it is sent on: for the flow's name, in the form that was judged, with what was lent. Unfit: that cannot stand there."""
    expects = head.expects_continue and framing.kind != "none" and not websocket
    if loan is None or loan.outline is None:
        fields = _sent_on(head.fields, head.options, websocket, expects)
        return write_request(head.method, path.target.encode("ascii"), flow.authority, fields, framing)
    fields = _sent_on(left(head.fields, loan.outline), head.options, websocket, expects)
    target, lent = loan.filled(head, flow, path)
    return write_request(head.method, target, flow.authority, fields + written(lent), framing)


@lru_cache(16)
def _sent_on(fields: tuple[Field, ...], options: frozenset[bytes], websocket: bool, expects: bool) -> bytes:
    """The fields of a request as they are sent on. A client says the same ones many a time."""
    dropped = _WEBSOCKET_DROPPED if websocket else frozenset()
    kept = [field for field in request_end_to_end(fields, options) if field[0] not in dropped and not telling.is_dropped(field[0])]
    if websocket:
        kept += [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    elif expects:
        kept.append((b"expect", b"100-continue"))
    return written(kept)


def stream_request(head: StreamHead, *, ended: bool) -> RequestHead:
    """A stream's head as the request that it is, to be judged like one of HTTP/1.1."""
    if head.length is not None and ended and head.length:
        raise BadHead("content_length", "a length, and no body")
    framing = NO_BODY if ended else CHUNKED if head.length is None else Framing("length", head.length)
    expects = [value.lower() for name, value in head.fields if name == b"expect"]
    if expects not in ([], [b"100-continue"]):
        raise BadHead("expect", "an expectation that nobody can meet", 417)
    return RequestHead(head.method, head.path, head.authority, head.fields, framing, frozenset(), bool(expects), None)


def request_fields(flow: Flow, head: RequestHead, path: Path, loan: Loan | None = None) -> list[Field]:
    """The same in HTTP/2."""
    said, target = head.fields, path.target.encode("ascii")
    lent: tuple[Field, ...] = ()
    if loan is not None and loan.outline is not None:
        said = left(head.fields, loan.outline)
        target, lent = loan.filled(head, flow, path)
    fields = [
        (b":method", head.method),
        (b":scheme", b"https"),
        (b":authority", flow.authority),
        (b":path", target),
        *[field for field in request_end_to_end(said, head.options) if not telling.is_dropped(field[0])],
        *lent,
    ]
    if head.framing.kind == "length":
        fields.append((b"content-length", b"%d" % (head.framing.length or 0)))
    if any(name == b"te" for name, _ in head.fields):
        fields.append((b"te", b"trailers"))
    return fields


def query_keys(path: Path) -> tuple[str, ...]:
    """The keys of a query, for records."""
    if not path.query:
        return ()
    return tuple(part.partition("=")[0][:64] if "=" in part else "(no key)" for part in path.query.split("&")[:32] if part)


def refusal(refused: Refused, host: str, request_id: str, *, close: bool, head: bool) -> bytes:
    """The answer to a guest: fixed words that a program can read, so that it does not try for ever. head: the method was HEAD."""
    body = refusal_body(refused, host, request_id)
    written = write_response(refused.status, _PHRASES[refused.status], REFUSAL_FIELDS, Framing("length", len(body)), close=close)
    return written if head else written + body


REFUSAL_FIELDS: tuple[Field, ...] = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


def refusal_body(refused: Refused, host: str, request_id: str) -> bytes:
    """Its words."""
    said = {"error": refused.error, "reason": refused.reason, "rule": refused.rule, "host": host, "request_id": request_id}
    return msgspec.json.encode(said)


_PHRASES = {
    400: b"Bad Request",
    403: b"Forbidden",
    408: b"Request Timeout",
    413: b"Content Too Large",
    417: b"Expectation Failed",
    421: b"Misdirected Request",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}


def _narrowed(stack: Stack, asked: Asked) -> bool:
    """Whether any layer looks at methods or paths of that host at all."""
    return any(
        rule.port == asked.port and (rule.methods is not None or rule.paths is not None)
        for layer in stack.layers
        for rule in layer.rules(asked.name)
    )


def _accept(head: RequestHead) -> bytes | None:
    """The answer to a handshake's key (RFC 6455, 4.2.2); None for what is no handshake."""
    keys = [value for name, value in head.fields if name == b"sec-websocket-key"]
    versions = [value for name, value in head.fields if name == b"sec-websocket-version"]
    if head.method != b"GET" or versions != [b"13"] or len(keys) != 1 or head.framing.kind != "none":
        return None
    try:
        if len(base64.b64decode(keys[0], validate=True)) != 16:
            return None
    except binascii.Error:
        return None
    return base64.b64encode(hashlib.sha1(keys[0] + _ACCEPT, usedforsecurity=False).digest())
