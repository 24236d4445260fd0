"""Heads as they go on: a request's to a server in a sandbox or to control, a reply's to the client. Bytes and values, no I/O.

What tells of the way is written here and never taken from a client (`X-Forwarded-*`, `Forwarded`, `X-Real-IP`); what opens doors of ours
stays here (`E2b-*`, the access token of a sandbox's own API). A reply may not lead past the ingress (`Alt-Svc`), and its cookies are its
own origin's: a `Domain` would give them to every other sandbox of the same domain.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from space.core.wire.bodies import chunk
from space.core.wire.http1 import CHUNKED, Field, Framing, RequestHead, ResponseHead, write_request, write_response
from space.ingress.routing import ID_FIELD, INTERPRETER, PORT_FIELD, TOKEN_FIELD, ToPort

_ROUTING = frozenset({ID_FIELD, PORT_FIELD, TOKEN_FIELD})
_OF_THE_WAY = frozenset(
    b"forwarded x-forwarded-for x-forwarded-host x-forwarded-proto x-forwarded-port x-forwarded-server x-real-ip".split()
)
_STRIPPED = frozenset({b"alt-svc"})
_DOMAIN = re.compile(rb";[ \t]*domain[ \t]*(?:=[^;]*)?(?=;|\Z)", re.IGNORECASE)
_KEY = re.compile(rb"[A-Za-z0-9+/]{22}==\Z")
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Way:
    """How a request came. peer: the client's address."""

    peer: str
    secure: bool


def handshake(head: RequestHead) -> bytes | None:
    """What a server accepts this WebSocket with; None where none is asked for, or not as RFC 6455 (4.1) wants it."""
    if head.upgrade != b"websocket" or head.method != b"GET" or head.framing.kind != "none":
        return None
    keys = [value for name, value in head.fields if name == b"sec-websocket-key"]
    if len(keys) != 1 or not _KEY.match(keys[0]):
        return None
    return base64.b64encode(hashlib.sha1(keys[0] + _GUID).digest())  # noqa: S324 - as the standard has it


def to_guest(head: RequestHead, target: ToPort, way: Way, mask: str, *, websocket: bool) -> bytes:
    """A request as the server in the sandbox gets it. mask: the Host that it is to see, or empty."""
    dropped = _ROUTING | _OF_THE_WAY | (frozenset({b"x-access-token"}) if target.port == INTERPRETER else frozenset())
    kept = [field for field in head.end_to_end() if field[0] not in dropped]
    return _request(head, mask.encode() or head.host, [*kept, *_way(head, way)], websocket=websocket)


def to_control(head: RequestHead, way: Way, sandbox: str, *, envd: bool, websocket: bool) -> bytes:
    """A request as control gets it. envd: for a sandbox's own API, whatever host it was asked by. sandbox: named by the host, so it is
    said by a header there.
    """
    kept = [field for field in head.end_to_end() if field[0] not in _OF_THE_WAY and not (sandbox and field[0] in (ID_FIELD, PORT_FIELD))]
    if sandbox:
        kept += [(ID_FIELD, sandbox.encode()), (PORT_FIELD, b"49983")]
    return _request(head, b"localhost" if envd else head.host, [*kept, *_way(head, way)], websocket=websocket)


def _request(head: RequestHead, host: bytes, fields: list[Field], *, websocket: bool) -> bytes:
    if websocket:
        fields += [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    return write_request(head.method, head.target, host, fields, head.framing)


def _way(head: RequestHead, way: Way) -> list[Field]:
    return [
        (b"x-forwarded-for", way.peer.encode()),
        (b"x-forwarded-host", head.host),
        (b"x-forwarded-proto", b"https" if way.secure else b"http"),
    ]


def reply_framing(reply: ResponseHead) -> Framing:
    """How the client gets a body: one that ends with the connection gets an end of its own, so that a cut can be told from it."""
    return CHUNKED if reply.framing.kind == "close" else reply.framing


def to_client(reply: ResponseHead, *, bare: bool, close: bool) -> bytes:
    """The head of a reply. bare: to HEAD; its length is then of the body that is not there."""
    fields = list(_kept(reply))
    if bare or reply.status == 304:
        fields += [field for field in reply.fields if field[0] == b"content-length"]
    return write_response(reply.status, reply.reason, fields, reply_framing(reply), close=close)


def switched(reply: ResponseHead, accept: bytes | None) -> bytes | None:
    """The 101 as the client gets it; None where it was not asked for, or is not the answer to what was asked."""
    accepted = [value for name, value in reply.fields if name == b"sec-websocket-accept"]
    upgraded = [value.lower() for name, value in reply.fields if name == b"upgrade"]
    if accept is None or accepted != [accept] or upgraded != [b"websocket"] or b"upgrade" not in reply.options:
        return None
    return write_response(101, reply.reason, [*_kept(reply), (b"connection", b"upgrade"), (b"upgrade", b"websocket")], reply.framing)


def _kept(reply: ResponseHead) -> Iterable[Field]:
    for name, value in reply.end_to_end():
        if name == b"set-cookie":
            yield name, _DOMAIN.sub(b"", value)
        elif name not in _STRIPPED:
            yield name, value


def framed(pieces: list[bytes], framing: Framing, *, ended: bool) -> bytes:
    """Pieces of a body as they go on. All of one reading are one chunk, at once."""
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if framing.kind != "chunked":
        return data
    last = b"0\r\n\r\n" if ended else b""
    return chunk(data) + last if data else last
