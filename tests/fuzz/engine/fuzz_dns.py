"""Guests' DNS messages: what ours takes, dnspython reads the same; what it says, dnspython understands."""

from __future__ import annotations

import struct
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Any

import dns.message
from tests.fuzz.engine.cuts import Pieces, same
from tests.fuzz.engine.guided import Target

from space.core.policy import names
from space.core.wire import dns as dnswire


def fuzz_dns(data: bytes) -> None:
    found = dnswire.parse(data)
    if isinstance(found, dnswire.Malformed):
        if found.answer is not None:
            assert len(found.answer) <= 512
            answer = dns.message.from_wire(found.answer)
            assert answer.id == int.from_bytes(data[:2], "big")
            assert answer.flags & 0x8000
            assert not answer.answer
    else:
        again = b"".join(bytes([len(label)]) + label for label in found.labels) + b"\0"
        assert found.question == again + struct.pack("!HH", found.qtype, 1)
        assert 512 <= found.udp_limit <= 1232
        other = dns.message.from_wire(data, question_only=True)  # a lenient reader takes whatever a strict one does, and reads the same
        assert [(question.name.labels[:-1], question.rdtype) for question in other.question] == [(found.labels, found.qtype)]
        if found.name is not None:
            with suppress(names.NameRefused):
                name = names.canon(found.name)
                assert name == names.canon(name)
        reply = dnswire.reply(found, dnswire.Rcode.NOERROR, (IPv4Address("198.18.0.1"),), ttl=5, error=dnswire.Extended.FILTERED)
        told = dns.message.from_wire(reply)
        assert (told.id, len(told.answer), told.rcode()) == (found.id, 1, 0)
        assert told.answer[0].name.labels[:-1] == found.labels
        assert dns.message.from_wire(dnswire.truncated(found)).flags & 0x0200
    same(_dns_stream, data)


def _dns_stream(pieces: Pieces) -> Any:
    stream, found = dnswire.Stream(), list[bytes]()
    for piece in pieces:
        try:
            found += stream.receive(piece)
        except ValueError:
            return "refused"  # what came before it is not compared: it depends on the pieces
    return found


def _question(*labels: bytes, qtype: int = 1, more: bytes = b"", counts: tuple[int, ...] = (1, 0, 0, 0), flags: int = 0x0100) -> bytes:
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack("!HHHHHH", 7, flags, *counts) + name + struct.pack("!HH", qtype, 1) + more


_OPT = b"\0" + struct.pack("!HHBBHH", 41, 4096, 0, 0, 0x8000, 0)
_COOKIE = b"\0" + struct.pack("!HHBBHH", 41, 1400, 0, 0, 0, 12) + struct.pack("!HH", 10, 8) + bytes(8)
_DNS = (
    _question(b"a", b"example", b"com"),
    _question(b"WwW", b"xn--bcher-kva", b"example", qtype=28, more=_OPT, counts=(1, 0, 0, 1)),
    _question(b"a" * 63, b"b" * 63, b"c" * 63, b"d" * 61, qtype=65, more=_COOKIE, counts=(1, 0, 0, 1)),
    _question(b"a.b", b"com", qtype=255),
    len(_question(b"a", b"example", b"com")).to_bytes(2, "big") + _question(b"a", b"example", b"com"),
    _question(
        b"a", b"example", b"com", more=b"\xc0\x0c" + struct.pack("!HHIH4s", 1, 1, 60, 4, b"\1\2\3\4"), counts=(1, 1, 0, 0), flags=0x8180
    ),
)
_DNS_WORDS = (
    b"\xc0\x0c",
    b"\0",
    b"\x3f" + b"a" * 63,
    b"\0\1\0\1",
    _OPT,
    _COOKIE,
    b"\x03com\0",
    b"\x80",
    b"\0\x29",
    struct.pack("!HHHH", 1, 0, 0, 1),
)

TARGET = Target("dns", (dnswire, names), fuzz_dns, _DNS, _DNS_WORDS)
