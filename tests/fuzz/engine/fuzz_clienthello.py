"""ClientHellos: one reading however they are cut, and OpenSSL, which terminates, sees the name that was judged."""

from __future__ import annotations

import random
import struct
from typing import Any

from tests.fuzz.engine.cuts import FLOW, Pieces, same
from tests.fuzz.engine.guided import Target
from tests.fuzz.engine.oracles import OpenSsl

from space.core.policy import agreement
from space.core.wire import clienthello
from space.core.wire.clienthello import BadHello, ClientHello, HelloReader

OPENSSL = OpenSsl()


def fuzz_clienthello(data: bytes) -> None:
    found = same(_hello, data)
    if isinstance(found, ClientHello):
        assert found.server_name is None or (found.server_name.isascii() and found.server_name)
        assert len(set(found.alpn)) == len(found.alpn)
        agreement.of_hello(FLOW, found)
        other = OPENSSL.server_name(data)
        # Whoever terminates must not see another name than the one that was judged.
        assert other is None or other == found.server_name, (other, found.server_name)


def _hello(pieces: Pieces) -> Any:
    reader = HelloReader()
    for at, piece in enumerate(pieces):
        try:
            found = reader.receive(piece)
        except BadHello:
            return "refused"  # for another fault, it may be: bytes behind a whole hello can come in a later piece
        if found is not None:
            return found if not b"".join(pieces[at + 1 :]) else "refused"
    return None


def _vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size, "big") + data


def _extension(kind: int, data: bytes) -> bytes:
    return struct.pack("!H", kind) + _vector(2, data)


def _server_name(*given: bytes, kind: int = 0) -> bytes:
    return _extension(0, _vector(2, b"".join(bytes([kind]) + _vector(2, name) for name in given)))


_VERSIONS = _extension(43, _vector(1, b"\x03\x04\x03\x03"))
_ALPN = _extension(16, _vector(2, b"\x02h2\x08http/1.1"))
_GROUPS = _extension(10, _vector(2, b"\0\x1d\0\x17"))
_SIGNATURES = _extension(13, _vector(2, b"\x04\x03\x08\x04"))
_SHARE = _extension(51, _vector(2, b"\0\x1d" + _vector(2, b"\x09" + bytes(31))))
_PSK = _extension(41, _vector(2, _vector(2, b"ticket") + bytes(4)) + _vector(2, _vector(1, bytes(32))))
_ECH = _extension(0xFE0D, b"\0" + bytes(40))


def _record(message: bytes, cut: int = 16_384) -> bytes:
    return b"".join(b"\x16\x03\x01" + _vector(2, message[at : at + cut]) for at in range(0, len(message), cut))


def _client_hello(*extensions: bytes, session: bytes = b"", suites: bytes = b"\x13\x01\xc0\x2b", cut: int = 16_384) -> bytes:
    body = b"\x03\x03" + bytes(32) + _vector(1, session) + _vector(2, suites) + _vector(1, b"\0") + _vector(2, b"".join(extensions))
    return _record(b"\x01" + _vector(3, body), cut)


def make_hello(chance: random.Random) -> bytes:
    """Right lengths around anything."""
    label = chance.choice(
        (b"a.example.com", b"b.example.com", b"192.0.2.1", b"A.Example.Com.", b"a\0b", b"\xc3\xa4.example", b"x" * 300, b"")
    )
    names_ = [label for _ in range(chance.choice((1, 1, 1, 2)))]
    given = [
        _server_name(*names_, kind=chance.choice((0, 0, 0, 1))),
        _VERSIONS,
        _ALPN,
        _GROUPS,
        _SIGNATURES,
        _SHARE,
        _PSK,
        _ECH,
        _extension(chance.randrange(65_536), chance.randbytes(chance.randrange(20))),
        _extension(42, b""),
        _extension(35, b"t" * chance.randrange(3)),
        _extension(0, _vector(2, chance.randbytes(chance.randrange(9)))),
        _extension(16, _vector(2, chance.randbytes(chance.randrange(6)))),
        _extension(43, _vector(1, chance.randbytes(chance.randrange(6)))),
    ]
    chosen = [one for one in given if chance.random() < 0.6]
    chance.shuffle(chosen)
    return _client_hello(*chosen, session=bytes(chance.choice((0, 0, 32, 33))), cut=chance.choice((1, 7, 100, 16_384)))


_HELLOS = (
    _client_hello(_server_name(b"a.example.com"), _VERSIONS, _ALPN, _GROUPS, _SIGNATURES, _SHARE),
    _client_hello(_server_name(b"a.example.com"), _GROUPS, _SIGNATURES, session=bytes(32)),
    _client_hello(_server_name(b"a.example.com"), _VERSIONS, _ECH, _GROUPS, _SIGNATURES, _SHARE, _PSK, cut=50),
    b"\x16\x03\x01\0\x2d\x01\0\0\x29\x03\x03" + bytes(33) + b"\0\x02\x13\x01\x01\0",
    b"GET / HTTP/1.1\r\n\r\n",
)

_WORDS = (_server_name(b"b.example.com"), _VERSIONS, _PSK, _ECH, b"\x16\x03\x01")
TARGET = Target("clienthello", (clienthello,), fuzz_clienthello, _HELLOS, _WORDS, make_hello)
