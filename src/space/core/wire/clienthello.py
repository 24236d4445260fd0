"""The ClientHello of a TLS connection (RFC 8446, 5246, 6066, 7301), read from raw bytes before any TLS library sees them.

What it names decides which certificate is minted and whether there is a handshake at all, so the reading is strict and our own: one
message, in as many records and pieces as it comes, every length exact, no extension twice, one name that is a name. The caller keeps
the bytes and hands them to the TLS library afterwards.

    reader.receive(data) -> None (more is needed) | ClientHello      BadHello: close
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MOST_BYTES = 65_536  # post-quantum key shares take a few thousand
_MOST_RECORD = 16_384
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME, _ALPN, _PRE_SHARED_KEY, _EARLY_DATA, _SUPPORTED_VERSIONS, _ECH = 0, 16, 41, 42, 43, 0xFE0D
TLS12, TLS13 = 0x0303, 0x0304

Fault = Literal["not_tls", "record", "too_large", "not_hello", "length", "twice", "server_name", "alpn", "versions"]


class BadHello(ValueError):
    """Not a ClientHello that anybody honest sends. fault: a stable word."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault: Fault = fault


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What a client asks for. server_name: as it came, not canonical; None when it names nobody. alpn: in the client's order.

    versions: protocol versions (0x0303 is TLS 1.2). ech: it carries an encrypted hello, or pretends to. resumes: it offers a session
    (id, ticket or key) of an earlier connection. early_data: it means to send data before the handshake is over.
    """

    server_name: str | None
    alpn: tuple[bytes, ...]
    versions: frozenset[int]
    ech: bool
    resumes: bool
    early_data: bool


class HelloReader:
    """Collects records until the message is whole."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._at = 0  # of the next record
        self._message = bytearray()
        self._taken = 0

    def receive(self, data: bytes) -> ClientHello | None:
        """The hello once it is whole; None before. BadHello. Not to be called after either."""
        self._taken += len(data)
        if self._taken > MOST_BYTES:
            raise BadHello("too_large", f"the hello has more than {MOST_BYTES} bytes")
        self._raw += data
        while self._record():
            if (hello := self._whole()) is not None:
                return hello
        return None

    def _record(self) -> bool:
        """Take one record's fragment, if it is there."""
        raw, at = self._raw, self._at
        head = len(raw) - at
        if head and raw[at] != _HANDSHAKE:
            raise BadHello("not_tls" if at == 0 else "record", f"a record of type {raw[at]} where a handshake's should be")
        if head > 1 and raw[at + 1] != 3:
            raise BadHello("not_tls", f"version {raw[at + 1]} in a record")
        if head < 5:
            return False
        length = int.from_bytes(raw[at + 3 : at + 5], "big")
        if not 0 < length <= _MOST_RECORD:
            raise BadHello("record", f"a handshake record of {length} bytes")
        if head < 5 + length:
            return False
        self._message += raw[at + 5 : at + 5 + length]
        self._at = at + 5 + length
        return True

    def _whole(self) -> ClientHello | None:
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise BadHello("not_hello", f"handshake message {message[0]} where a ClientHello should be")
        if len(message) < 4:
            return None
        length = int.from_bytes(message[1:4], "big")
        if length > MOST_BYTES:
            raise BadHello("too_large", f"the hello claims {length} bytes")
        if len(message) < 4 + length:
            return None
        if len(message) > 4 + length or len(self._raw) > self._at:
            raise BadHello("length", "bytes follow the hello before it was answered")
        return _hello(_Bytes(bytes(message[4:])))


class _Bytes:
    """Bytes from the front, every length exact."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise BadHello("length", f"{count} bytes are promised and {len(self._data) - self._at} are there")
        found = self._data[self._at : end]
        self._at = end
        return found

    def number(self, size: int) -> int:
        at = self._at
        if at + size > len(self._data):
            self.take(size)  # says what is wrong
        self._at = at + size
        return int.from_bytes(self._data[at : at + size], "big")

    def vector(self, size: int, least: int = 0, most: int = MOST_BYTES) -> _Bytes:
        """Bytes behind their length, which has `size` bytes."""
        length = self.number(size)
        if not least <= length <= most:
            raise BadHello("length", f"a length of {length}, not {least} to {most}")
        return _Bytes(self.take(length))

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def end(self) -> None:
        if self:
            raise BadHello("length", f"{len(self._data) - self._at} bytes too many")


def _hello(body: _Bytes) -> ClientHello:
    legacy = body.number(2)
    body.take(32)
    session = body.vector(1, 0, 32).rest()
    suites = body.vector(2, 2).rest()
    if len(suites) % 2:
        raise BadHello("length", "half a cipher suite")
    body.vector(1, 1)
    extensions = _extensions(body.vector(2)) if body else {}
    body.end()
    versions = _versions(extensions, legacy)
    return ClientHello(
        server_name=_server_name(extensions.get(_SERVER_NAME)),
        alpn=_alpn(extensions.get(_ALPN)),
        versions=versions,
        ech=_ECH in extensions,
        # TLS 1.3 clients send a session id for old middle boxes; only without 1.3 does it mean anything
        resumes=_PRE_SHARED_KEY in extensions or (bool(session) and TLS13 not in versions) or bool(extensions.get(35)),
        early_data=_EARLY_DATA in extensions,
    )


def _extensions(body: _Bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while body:
        kind = body.number(2)
        if kind in found:
            raise BadHello("twice", f"extension {kind} comes twice")
        if _PRE_SHARED_KEY in found:
            raise BadHello("length", "something follows the pre-shared keys, which are last")
        found[kind] = body.take(body.number(2))
    return found


def _versions(extensions: dict[int, bytes], legacy: int) -> frozenset[int]:
    data = extensions.get(_SUPPORTED_VERSIONS)
    if data is None:
        return frozenset({legacy})
    body = _Bytes(data)
    listed = body.vector(1, 2, 254).rest()
    body.end()
    if len(listed) % 2:
        raise BadHello("versions", "half a version")
    return frozenset(int.from_bytes(listed[at : at + 2], "big") for at in range(0, len(listed), 2))


def _server_name(data: bytes | None) -> str | None:
    if data is None:
        return None
    body = _Bytes(data)
    names = body.vector(2, 1)
    body.end()
    kind = names.number(1)
    name = names.vector(2, 1).rest()
    if kind != 0 or names:
        raise BadHello("server_name", "not exactly one host name")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise BadHello("server_name", "a server name that is not ASCII") from None


def _alpn(data: bytes | None) -> tuple[bytes, ...]:
    if data is None:
        return ()
    body = _Bytes(data)
    listed = body.vector(2, 2)
    body.end()
    protocols = []
    while listed:
        protocols.append(listed.vector(1, 1).rest())
    if len(set(protocols)) < len(protocols):
        raise BadHello("alpn", "a protocol that is offered twice")
    return tuple(protocols)
