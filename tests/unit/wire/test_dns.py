"""The DNS of guests: one strict question, answers that say what was asked, and nothing for what is no query."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.wire import dns
from space.core.wire.dns import Extended, Malformed, Query, Rcode


def name(*labels: bytes) -> bytes:
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def query(
    *labels: bytes, qtype: int = 1, qclass: int = 1, flags: int = 0x0100, counts: tuple[int, ...] = (1, 0, 0, 0), more: bytes = b""
) -> bytes:
    return struct.pack("!HHHHHH", 0x1234, flags, *counts) + name(*labels) + struct.pack("!HH", qtype, qclass) + more


def option(data: bytes) -> bytes:
    return b"\0" + struct.pack("!HHBBHH", 41, 512, 0, 0, 0, len(data)) + data


ADDRESS = b"\xc0\x0c" + struct.pack("!HHIH4s", 1, 1, 60, 4, b"\1\2\3\4")
OPT = b"\0" + struct.pack("!HHBBHH", 41, 4096, 0, 0, 0x8000, 0)
COOKIE = b"\0" + struct.pack("!HHBBHH", 41, 1400, 0, 0, 0, 12) + struct.pack("!HH", 10, 8) + bytes(8)


def parsed(message: bytes) -> Query:
    found = dns.parse(message)
    assert isinstance(found, Query)
    return found


def refused(message: bytes) -> Malformed:
    found = dns.parse(message)
    assert isinstance(found, Malformed)
    return found


def test_a_question_is_its_labels_as_they_came() -> None:
    found = parsed(query(b"WwW", b"example", b"com"))
    assert (found.labels, found.name, found.qtype, found.recursion) == ((b"WwW", b"example", b"com"), "WwW.example.com", 1, True)
    assert (found.udp_limit, found.edns) == (512, False)


@pytest.mark.parametrize("option", [OPT, COOKIE])
def test_edns_is_understood_and_its_size_capped(option: bytes) -> None:
    found = parsed(query(b"a", counts=(1, 0, 0, 1), more=option))
    assert (found.udp_limit, found.edns) == (1232, True)


def test_a_label_with_a_dot_is_not_two_labels() -> None:
    assert parsed(query(b"www.example", b"com")).name is None
    assert parsed(query(b"\xc3\xa9", b"com")).name is None


SILENCE = {
    "nothing": b"",
    "half a header": b"\0" * 11,
    "an answer": query(b"a", flags=0x8180),
    "an answer with an address": query(
        b"a", flags=0x8180, counts=(1, 1, 0, 0), more=b"\xc0\x0c" + struct.pack("!HHIH4s", 1, 1, 60, 4, b"\1\2\3\4")
    ),
}
FORMERR = {
    "no question": query(b"a", counts=(0, 0, 0, 0)),
    "two questions": query(b"a", counts=(2, 0, 0, 0), more=name(b"b") + b"\0\1\0\1"),
    "an answer section": query(b"a", counts=(1, 1, 0, 0)),
    "an authority section": query(b"a", counts=(1, 0, 1, 0)),
    "two additional records": query(b"a", counts=(1, 0, 0, 2), more=OPT + OPT),
    "a record that is no OPT": query(b"a", counts=(1, 0, 0, 1), more=b"\0" + struct.pack("!HHIH", 1, 1, 0, 0)),
    "an OPT with a name": query(b"a", counts=(1, 0, 0, 1), more=name(b"a") + OPT[1:]),
    "an OPT cut short": query(b"a", counts=(1, 0, 0, 1), more=OPT[:-1]),
    "an option cut short": query(b"a", counts=(1, 0, 0, 1), more=b"\0" + struct.pack("!HHBBHH", 41, 512, 0, 0, 0, 3) + b"abc"),
    "an option longer than its record": query(
        b"a", counts=(1, 0, 0, 1), more=b"\0" + struct.pack("!HHBBHH", 41, 512, 0, 0, 0, 4) + b"\0\1\0\1"
    ),
    "bytes after it": query(b"a", more=b"\0"),
    "a name without end": struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + b"\3abc",
    "a label over 63": struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + b"\x40" + b"a" * 64 + b"\0\0\1\0\1",
    "a pointer": struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1",
    "a pointer after a label": struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + b"\1a\xc0\x0c\0\1\0\1",
    "a name over 255": query(*[b"a" * 63] * 4),
    "no type": struct.pack("!HHHHHH", 1, 0, 1, 0, 0, 0) + b"\1a\0\0\1\0",
    "the truncated flag": query(b"a", flags=0x0300),
    "the authority's flag": query(b"a", flags=0x0500),
    "recursion available": query(b"a", flags=0x0180),
    "the reserved flag": query(b"a", flags=0x0140),
    "a response code": query(b"a", flags=0x0103),
    "more than a query has": query(b"a", more=bytes(600)),
}


@pytest.mark.parametrize("message", SILENCE.values(), ids=SILENCE.keys())
def test_what_might_be_an_answer_gets_none(message: bytes) -> None:
    assert refused(message).answer is None


@pytest.mark.parametrize("message", FORMERR.values(), ids=FORMERR.keys())
def test_a_malformed_query_gets_a_format_error_and_nothing_of_itself(message: bytes) -> None:
    answer = refused(message).answer
    assert answer is not None
    ident, flags, *counts = struct.unpack("!HHHHHH", answer)
    assert ident == int.from_bytes(message[:2], "big")
    assert flags & 0x8000
    assert flags & 15 == Rcode.FORMERR
    assert counts == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("flags", "qclass", "rcode"),
    [(0x2000, 1, Rcode.NOTIMP), (0x2800, 1, Rcode.NOTIMP), (0x0100, 3, Rcode.REFUSED), (0x0100, 255, Rcode.REFUSED)],
)
def test_other_operations_and_classes_are_refused(flags: int, qclass: int, rcode: int) -> None:
    answer = refused(query(b"version", b"bind", qtype=16, qclass=qclass, flags=flags)).answer
    assert answer is not None
    assert answer[3] & 15 == rcode


def test_another_version_of_edns_is_told_so() -> None:
    answer = refused(query(b"a", counts=(1, 0, 0, 1), more=b"\0" + struct.pack("!HHBBHH", 41, 4096, 0, 1, 0, 0))).answer
    assert answer is not None
    assert answer[3] & 15 == 0
    assert answer[-6] == 1  # the upper bits of BADVERS, in the OPT record


def test_an_answer_holds_the_question_as_it_was_spelt_and_the_addresses() -> None:
    asked = parsed(query(b"WwW", b"example", counts=(1, 0, 0, 1), more=OPT))
    answer = dns.reply(asked, Rcode.NOERROR, (IPv4Address("198.18.0.7"),), ttl=60)
    head = struct.pack("!HHHHHH", 0x1234, 0x8180, 1, 1, 0, 1)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + bytes([198, 18, 0, 7])
    assert answer == head + asked.question + record + b"\0" + struct.pack("!HHBBHH", 41, 1232, 0, 0, 0, 0)


def test_a_refusal_says_why_to_who_can_read_it() -> None:
    blocked = dns.reply(parsed(query(b"a", counts=(1, 0, 0, 1), more=OPT)), Rcode.REFUSED, error=Extended.BLOCKED)
    assert blocked.endswith(struct.pack("!HHH", 15, 2, 15))
    plain = dns.reply(parsed(query(b"a")), Rcode.REFUSED, error=Extended.BLOCKED)
    assert plain == struct.pack("!HHHHHH", 0x1234, 0x8185, 1, 0, 0, 0) + name(b"a") + b"\0\1\0\1"


def test_a_truncated_answer_asks_for_tcp() -> None:
    assert dns.truncated(parsed(query(b"a")))[2:4] == b"\x83\x80"


@given(st.lists(st.binary(min_size=12, max_size=512), max_size=5), st.data())
def test_tcp_messages_come_whole_however_they_are_cut(messages: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(dns.Stream.send(message) for message in messages)
    stream, got, at = dns.Stream(), [], 0
    while at < len(whole):
        step = data.draw(st.integers(1, 200))
        got += stream.receive(whole[at : at + step])
        at += step
    assert got == messages


@pytest.mark.parametrize("length", [0, 11, 513, 65535])
def test_a_tcp_message_that_no_query_is_as_long_as_ends_the_connection(length: int) -> None:
    with pytest.raises(ValueError):
        dns.Stream().receive(length.to_bytes(2, "big"))


@given(st.binary(max_size=600))
def test_any_bytes_are_a_query_or_are_refused_and_an_answer_is_never_a_query(message: bytes) -> None:
    found = dns.parse(message)
    answer = dns.reply(found, Rcode.REFUSED, error=Extended.BLOCKED) if isinstance(found, Query) else found.answer
    if answer is not None:
        again = dns.parse(answer)
        assert isinstance(again, Malformed)
        assert again.answer is None
        assert len(answer) <= len(message) + 24  # nobody is flooded through us


@given(st.lists(st.binary(min_size=1, max_size=63), min_size=1, max_size=3), st.integers(0, 65535))
def test_every_question_is_read_back_as_it_was_written(labels: list[bytes], qtype: int) -> None:
    found = parsed(query(*labels, qtype=qtype))
    assert (found.labels, found.qtype) == (tuple(labels), qtype)
