"""One exchange: a form is posted to a token endpoint over a socket that somebody else connected, and its answer comes back as it is.

    connected socket -> TLS, verified for the endpoint's name -> one request -> one reply, bounded -> closed

Nothing is followed (a redirect is an answer like any other), nothing is kept, and no word of a fault quotes what was sent or received.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from typing import Final

from space.config.egress import Endpoint
from space.core.wire.bodies import Body
from space.core.wire.http1 import BadHead, Field, Framing, HeadReader, ResponseHead, write_request
from space.model.errors import Unavailable
from space.model.secret import Secret
from space.rpc.minter_api import MOST_TOKEN

_PIECE: Final = 16_384
_MOST_INTERIM: Final = 16


def context(authorities: str) -> ssl.SSLContext:
    """TLS 1.2 and newer, verified by these authorities (PEM)."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # no create_default_context: it would obey SSLKEYLOGFILE
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    made.hostname_checks_common_name = False
    made.set_alpn_protocols(["http/1.1"])
    made.load_verify_locations(cadata=authorities)
    return made


def request(endpoint: Endpoint, form: Secret, basic: Secret | None) -> Secret:
    """Head and body. basic: `client:secret`."""
    body = form.reveal()
    fields: list[Field] = [
        (b"content-type", b"application/x-www-form-urlencoded"),
        (b"accept", b"application/json"),
        (b"connection", b"close"),
    ]
    if basic is not None:
        fields.append((b"authorization", b"Basic " + base64.b64encode(basic.reveal())))
    host = endpoint.host if endpoint.port == 443 else f"{endpoint.host}:{endpoint.port}"
    return Secret(write_request(b"POST", endpoint.target.encode(), host.encode(), fields, Framing("length", len(body))) + body)


class Reply:
    """Collects one reply. Unavailable: it is none, or a too long one."""

    def __init__(self) -> None:
        self._head: HeadReader[ResponseHead] = HeadReader(ResponseHead.parse_for(b"POST"))
        self._body: Body | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._interims = 0
        self.status = 0

    @property
    def ended(self) -> bool:
        """Whether it is whole."""
        return self._body is not None and self._body.ended

    @property
    def body(self) -> Secret:
        """What came."""
        return Secret(b"".join(self._pieces))

    def receive(self, data: bytes) -> None:
        """Take what came; nothing: the other side has closed."""
        try:
            if not data:
                self._end()
                return
            while self._body is None:
                head = self._head.receive(data)
                if head is None:
                    return
                data = self._head.rest
                if head.status == 101:
                    raise Unavailable("the endpoint changed the protocol")
                if head.interim:
                    self._interims += 1
                    if self._interims > _MOST_INTERIM:
                        raise Unavailable("the endpoint does not come to an answer")
                    continue
                self.status, self._body = head.status, Body(head.framing, extensions=True)
            self._take(self._body.receive(data) if data else [])
        except BadHead as error:
            raise Unavailable(f"the endpoint answered with what is no HTTP reply ({error.reason})") from None

    def _end(self) -> None:
        if self._body is None:
            raise Unavailable("the endpoint closed the connection without an answer")
        self._body.eof()

    def _take(self, pieces: list[bytes]) -> None:
        self._pieces += pieces
        self._size += sum(map(len, pieces))
        if self._size > MOST_TOKEN:
            raise Unavailable(f"the endpoint answered with more than {MOST_TOKEN} bytes")


async def exchange(
    sock: socket.socket, tls: ssl.SSLContext, endpoint: Endpoint, form: Secret, basic: Secret | None = None
) -> tuple[int, Secret]:
    """Status and body of the answer. It takes the socket over. Unavailable: there is none; cancelled: the connection is dropped."""
    try:
        reader, writer = await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=endpoint.host)
    except BaseException as error:
        sock.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise Unavailable(f"the endpoint's certificate is refused: {error.verify_message}") from None
        if isinstance(error, OSError):  # ssl.SSLError among them
            raise Unavailable(f"there is no TLS with the endpoint: {type(error).__name__}") from None
        raise
    reply = Reply()
    try:
        writer.write(request(endpoint, form, basic).reveal())
        while not reply.ended:
            reply.receive(await reader.read(_PIECE))
    except OSError as error:
        raise Unavailable(f"the connection to the endpoint broke: {type(error).__name__}") from None
    finally:
        writer.transport.abort()
    return reply.status, reply.body
