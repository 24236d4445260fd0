"""DNS for guests: strict queries in, answers out (RFC 1035, 6891, 8914). Bytes in, values out, no I/O.

Written by hand because the libraries are lenient where it matters: a label that holds a dot prints as two labels, two questions, a
set QR bit and NUL bytes pass. Here a query is one question of class IN in a message of its own, over labels and never over text:
nothing of it is looked up by anybody, it is only compared with names that a policy allows.

    parse(datagram) -> Query | Malformed(answer or None)        reply(query, ...) -> bytes
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address

_HEADER = struct.Struct("!HHHHHH")
_FIXED = struct.Struct("!HH")
MOST_UDP = 512  # of a client that says nothing else
MOST_QUERY = 512  # a question and an OPT record: more is nobody's query
_MOST_NAME = 255
_EDNS_UDP = 1232  # what we say that we take: no fragments
_QR, _TC, _AA, _RD, _RA, _CD = 0x8000, 0x0200, 0x0400, 0x0100, 0x0080, 0x0010
_OPCODE = 0x7800
_OPT = 41
_IN = 1


class Type(IntEnum):
    """Types that an answer may have. Everything else is empty or refused."""

    A = 1
    AAAA = 28


class Rcode(IntEnum):
    """How an answer ended."""

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


class Extended(IntEnum):
    """Extended errors (RFC 8914)."""

    BLOCKED = 15
    FILTERED = 17
    PROHIBITED = 18
    NOT_READY = 14


@dataclass(frozen=True, slots=True)
class Query:
    """One question. labels: as they came, case kept. udp_limit: bytes of an answer by UDP. edns: it came with an OPT record."""

    id: int
    labels: tuple[bytes, ...]
    qtype: int
    recursion: bool
    udp_limit: int
    edns: bool
    question: bytes

    @property
    def name(self) -> str | None:
        """The name as text for `policy.names.canon`, or None when a label holds what no text form can say (a dot, say)."""
        if any(b"." in label or not label.isascii() for label in self.labels):
            return None
        return b".".join(self.labels).decode("ascii")


@dataclass(frozen=True, slots=True)
class Malformed:
    """Not a query. answer: what may be sent back (a FORMERR or NOTIMP), or None for silence: answers to answers make loops."""

    why: str
    answer: bytes | None


def parse(message: bytes) -> Query | Malformed:
    """The query of a whole message (a datagram, or a TCP message without its length)."""
    if len(message) < _HEADER.size:
        return Malformed("shorter than a header", None)
    ident, flags, questions, answers, authorities, additionals = _HEADER.unpack_from(message)
    if flags & _QR:
        return Malformed("an answer, sent as a query", None)
    if len(message) > MOST_QUERY:
        return Malformed("longer than a query can be", _refusal(ident, flags, Rcode.FORMERR))
    if flags & _OPCODE:
        return Malformed("an operation that is no query", _refusal(ident, flags, Rcode.NOTIMP))
    malformed = _refusal(ident, flags, Rcode.FORMERR)
    if (questions, answers, authorities) != (1, 0, 0) or additionals > 1:
        return Malformed("not exactly one question", malformed)
    if flags & (_TC | _AA | _RA | 0x004F):
        return Malformed("flags that only an answer has", malformed)
    read = _labels(message, _HEADER.size)
    if read is None or read[1] + _FIXED.size > len(message):
        return Malformed("a name that is none", malformed)
    labels, at = read
    qtype, qclass = _FIXED.unpack_from(message, at)
    at += _FIXED.size
    question = message[_HEADER.size : at]
    if qclass != _IN:
        return Malformed("a class that is not IN", _refusal(ident, flags, Rcode.REFUSED, question))
    udp_limit, edns = MOST_UDP, False
    if additionals:
        option = _opt(message, at)
        if option is None:
            return Malformed("an additional record that is no OPT", malformed)
        size, version, at = option
        if version:
            return Malformed("another version of EDNS", _message(ident, flags & _RD, Rcode.BADVERS, question, edns=True))
        udp_limit, edns = max(MOST_UDP, min(size, _EDNS_UDP)), True
    if at != len(message):
        return Malformed("bytes after its end", malformed)
    return Query(ident, labels, qtype, bool(flags & _RD), udp_limit, edns, question)


def reply(query: Query, rcode: Rcode, addresses: tuple[IPv4Address, ...] = (), *, ttl: int = 0, error: Extended | None = None) -> bytes:
    """The answer. addresses: A records for the name that was asked, in its spelling. ttl: seconds. error: for clients with EDNS."""
    records = b"".join(b"\xc0\x0c" + struct.pack("!HHIH", Type.A, _IN, ttl, 4) + address.packed for address in addresses)
    flags = _RD if query.recursion else 0
    return _message(query.id, flags, rcode, query.question, records, len(addresses), edns=query.edns, error=error)


def truncated(query: Query) -> bytes:
    """An answer that says: ask again by TCP."""
    return _message(query.id, (_RD if query.recursion else 0) | _TC, Rcode.NOERROR, query.question, edns=query.edns)


class Stream:
    """Messages of one TCP connection: two bytes of length before each."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive(self, data: bytes) -> list[bytes]:
        """Whole messages. ValueError for a length that no query has: the connection is of no use then."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= 2:
            length = int.from_bytes(self._buffer[:2], "big")
            if not _HEADER.size <= length <= MOST_QUERY:
                raise ValueError(f"a query of {length} bytes")
            if len(self._buffer) < 2 + length:
                break
            messages.append(bytes(self._buffer[2 : 2 + length]))
            del self._buffer[: 2 + length]
        return messages

    @staticmethod
    def send(message: bytes) -> bytes:
        """A message as it goes over the connection."""
        return len(message).to_bytes(2, "big") + message


def _labels(message: bytes, at: int) -> tuple[tuple[bytes, ...], int] | None:
    """Labels from `at`, and where they end. No compression: there is nothing before a question that it could point to."""
    labels: list[bytes] = []
    start = at
    while at < len(message):
        length = message[at]
        at += 1
        if length == 0:
            return (tuple(labels), at) if at - start <= _MOST_NAME else None
        if length > 63 or at + length > len(message):
            return None
        labels.append(message[at : at + length])
        at += length
    return None


def _opt(message: bytes, at: int) -> tuple[int, int, int] | None:
    """(UDP size, version, end) of an OPT record."""
    if at + 11 > len(message) or message[at] != 0:
        return None
    kind, size, _, version, _, length = struct.unpack_from("!HHBBHH", message, at + 1)
    end = at + 11 + length
    if kind != _OPT or end > len(message):
        return None
    at += 11
    while at < end:  # options, each with its own length
        if at + 4 > end:
            return None
        at += 4 + int.from_bytes(message[at + 2 : at + 4], "big")
    return (size, version, end) if at == end else None


def _refusal(ident: int, flags: int, rcode: Rcode, question: bytes = b"") -> bytes:
    return _message(ident, flags & (_OPCODE | _RD), rcode, question)


def _message(
    ident: int,
    flags: int,
    rcode: Rcode,
    question: bytes = b"",
    records: bytes = b"",
    count: int = 0,
    *,
    edns: bool = False,
    error: Extended | None = None,
) -> bytes:
    option = b""
    if edns:
        data = b"" if error is None else struct.pack("!HHH", 15, 2, error)
        option = b"\0" + struct.pack("!HHBBHH", _OPT, _EDNS_UDP, rcode >> 4, 0, 0, len(data)) + data
    head = _HEADER.pack(ident, _QR | _RA | flags | (rcode & 15), 1 if question else 0, count, 0, 1 if option else 0)
    return head + question + records + option
