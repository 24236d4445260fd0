"""Readers that are not ours, and are asked what they make of the same bytes."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import ssl

import h11
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_NOBODY = "(none)"


class OpenSsl:
    """Which server name OpenSSL reads out of a ClientHello."""

    def __init__(self) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._seen = _NOBODY
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fuzz")])
        now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(days=9999)).sign(key, hashes.SHA256())
        fd = os.memfd_create("leaf")
        with os.fdopen(fd, "wb") as file:
            file.write(made.public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            self._context.load_cert_chain(f"/proc/self/fd/{fd}")
        self._context.sni_callback = self._named

    def server_name(self, data: bytes) -> str | None:
        """The name; None when it reads none, or does not take the hello at all."""
        self._seen = _NOBODY
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        incoming.write(data)
        tls = self._context.wrap_bio(incoming, outgoing, server_side=True)
        with contextlib.suppress(ssl.SSLError):
            tls.do_handshake()
        return None if self._seen in (_NOBODY, None) else self._seen

    def _named(self, _tls: object, name: str, _context: object) -> None:
        self._seen = name


def request_of_h11(head: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]] | None:
    """(method, target, fields) as h11 reads a request's head; None where it takes none."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    try:
        connection.receive_data(head)
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.Request):
        return None
    return event.method, event.target, [(name.lower(), value) for name, value in event.headers]


def body_of_h11(head: bytes, body: bytes) -> tuple[bytes, bytes] | None:
    """(content, what follows) as h11 reads a request; None where it takes none or it is not whole."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    content = b""
    try:
        connection.receive_data(head + body)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Data):
                content += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return content, connection.trailing_data[0]
            elif event is h11.NEED_DATA or event is h11.PAUSED:
                return None
    except h11.RemoteProtocolError:
        return None
