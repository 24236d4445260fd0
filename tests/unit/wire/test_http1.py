"""HTTP/1.1 heads have one reading or none; h11 is the oracle of what others would read."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.core.wire.http1 import (
    CHUNKED,
    MOST_FIELDS,
    MOST_HEAD,
    NO_BODY,
    UNTIL_CLOSE,
    BadHead,
    Framing,
    HeadReader,
    RequestHead,
    ResponseHead,
    write_request,
    write_response,
)

GET = b"GET /a?b HTTP/1.1\r\nHost: example.com\r\nAccept: */*\r\nX-Empty:\r\n\r\n"


def request(*lines: bytes, first: bytes = b"POST / HTTP/1.1", host: bytes = b"Host: a.example") -> bytes:
    return b"\r\n".join([first, *([host] if host else []), *lines]) + b"\r\n\r\n"


def read(data: bytes) -> RequestHead:
    head = HeadReader(RequestHead.parse).receive(data)
    assert head is not None
    return head


def answered(data: bytes, method: bytes = b"GET") -> ResponseHead:
    head = HeadReader(ResponseHead.parse_for(method)).receive(data)
    assert head is not None
    return head


def test_a_request_is_its_line_and_fields() -> None:
    head = read(GET)
    assert (head.method, head.target, head.host, head.framing) == (b"GET", b"/a?b", b"example.com", NO_BODY)
    assert head.fields == ((b"host", b"example.com"), (b"accept", b"*/*"), (b"x-empty", b""))
    assert (head.keep_alive, head.expects_continue, head.upgrade) == (True, False, None)


def test_a_head_cut_at_every_byte_says_the_same_and_keeps_what_follows() -> None:
    whole = GET + b"next"
    for at in range(1, len(GET)):
        reader = HeadReader(RequestHead.parse)
        assert reader.receive(whole[:at]) is None
        assert reader.receive(whole[at:]) == read(GET)
        assert reader.rest == b"next"


REFUSED = {
    "length and coding": (request(b"Content-Length: 4", b"Transfer-Encoding: chunked"), "both"),
    "coding and length": (request(b"Transfer-Encoding: chunked", b"Content-Length: 4"), "both"),
    "two lengths": (request(b"Content-Length: 4", b"Content-Length: 5"), "content_length"),
    "two lengths that agree": (request(b"Content-Length: 4", b"Content-Length: 4"), "content_length"),
    "a list of lengths": (request(b"Content-Length: 4, 4"), "content_length"),
    "a signed length": (request(b"Content-Length: +4"), "content_length"),
    "a negative length": (request(b"Content-Length: -4"), "content_length"),
    "a hexadecimal length": (request(b"Content-Length: 0x4"), "content_length"),
    "an empty length": (request(b"Content-Length:"), "content_length"),
    "an endless length": (request(b"Content-Length: " + b"9" * 19), "content_length"),
    "a length in other digits": (request("Content-Length: ٤".encode()), "content_length"),
    "an unknown coding": (request(b"Transfer-Encoding: gzip, chunked"), "transfer_encoding"),
    "identity": (request(b"Transfer-Encoding: identity"), "transfer_encoding"),
    "chunked twice": (request(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), "transfer_encoding"),
    "a coding with a parameter": (request(b"Transfer-Encoding: chunked;a"), "transfer_encoding"),
    "a coding with a vertical tab": (request(b"Transfer-Encoding: \x0bchunked"), "field"),
    "an empty coding": (request(b"Transfer-Encoding:"), "transfer_encoding"),
    "no host": (request(host=b""), "host"),
    "two hosts": (request(b"Host: b.example"), "host"),
    "a space before the colon": (request(b"Content-Length : 4"), "field"),
    "a tab before the colon": (request(b"Host\t: a"), "field"),
    "a folded field": (request(b"X: a", b" b"), "field"),
    "a fold at once": (request(host=b" Host: a.example"), "field"),
    "no colon": (request(b"Xa"), "field"),
    "no name": (request(b": a"), "field"),
    "a name with a space": (request(b"X Y: a"), "field"),
    "a name with UTF-8": (request("é: a".encode()), "field"),
    "a NUL in a value": (request(b"X: a\0b"), "field"),
    "a bare CR in a value": (request(b"X: a\rY: b"), "field"),
    "a bare LF in a value": (request(b"X: a\nTransfer-Encoding: chunked"), "field"),
    "an escape in a value": (request(b"X: \x1b[2J"), "field"),
    "DEL in a value": (request(b"X: \x7f"), "field"),
    "HTTP/1.0": (request(first=b"GET / HTTP/1.0"), "version"),
    "HTTP/2.0 in words": (request(first=b"GET / HTTP/2.0"), "version"),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "version"),
    "HTTP/0.9": (b"GET /\r\n\r\n", "request_line"),
    "two spaces": (request(first=b"GET  / HTTP/1.1"), "request_line"),
    "a tab in the line": (request(first=b"GET\t/ HTTP/1.1"), "request_line"),
    "a space in the target": (request(first=b"GET /a b HTTP/1.1"), "request_line"),
    "a space at the end": (request(first=b"GET / HTTP/1.1 "), "request_line"),
    "an empty line before": (b"\r\n" + GET, "request_line"),
    "lower-case http": (request(first=b"GET / http/1.1"), "request_line"),
    "a method that is no token": (request(first=b"G(T / HTTP/1.1"), "request_line"),
    "UTF-8 in the target": (request(first="GET /é HTTP/1.1".encode()), "request_line"),
    "an endless method": (request(first=b"G" * 33 + b" / HTTP/1.1"), "method"),
    "an expectation": (request(b"Expect: 200-ok"), "expect"),
    "two expectations": (request(b"Expect: 100-continue", b"Expect: 100-continue"), "expect"),
    "Connection names the host": (request(b"Connection: host"), "connection"),
    "Connection names the length": (request(b"Connection: close, Content-Length"), "connection"),
    "Connection names credentials": (request(b"Connection: Authorization"), "connection"),
    "Connection is no list": (request(b"Connection: a b"), "connection"),
    "two upgrades": (request(b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: h2c"), "upgrade"),
    "too many fields": (request(*[b"X: y"] * MOST_FIELDS), "too_many"),
    "an endless head": (b"GET / HTTP/1.1\r\nX: " + b"a" * MOST_HEAD, "too_large"),
    "a whole head that is too long": (request(b"X: " + b"a" * MOST_HEAD), "too_large"),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: a\n\n", "line_end"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", "line_end"),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_request_with_two_readings_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadHead) as caught:
        HeadReader(RequestHead.parse).receive(data)
    assert caught.value.reason == reason
    assert 400 <= caught.value.status < 600


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_is_the_same_however_the_bytes_come(data: bytes, reason: str) -> None:
    reader = HeadReader(RequestHead.parse)

    def feed() -> None:
        for at in range(0, len(data), 7):
            reader.receive(data[at : at + 7])

    with pytest.raises(BadHead) as caught:
        feed()
    assert caught.value.reason in (reason, "line_end")


@pytest.mark.parametrize(
    ("lines", "framing"),
    [
        ((b"Content-Length: 7",), Framing("length", 7)),
        ((b"Content-Length: 0",), NO_BODY),
        ((b"content-length:\t007 ",), Framing("length", 7)),
        ((b"TRANSFER-ENCODING: Chunked",), CHUNKED),
        ((), NO_BODY),
    ],
)
def test_a_request_says_how_long_its_body_is(lines: tuple[bytes, ...], framing: Framing) -> None:
    assert read(request(*lines)).framing == framing


def test_fields_of_the_connection_do_not_go_further() -> None:
    head = read(
        request(
            b"Connection: close, X-Mine, upgrade",
            b"X-Mine: 1",
            b"Keep-Alive: 5",
            b"Proxy-Authorization: Basic x",
            b"TE: trailers",
            b"Upgrade: WebSocket",
            b"Content-Length: 1",
            b"Expect: 100-continue",
            b"X-Kept: 2",
        )
    )
    assert head.end_to_end() == ((b"x-kept", b"2"),)
    assert (head.keep_alive, head.expects_continue, head.upgrade) == (False, True, b"websocket")
    assert read(request(b"Upgrade: h2c")).upgrade is None


@pytest.mark.parametrize(
    ("data", "method", "framing", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"GET", Framing("length", 3), True),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", b"GET", Framing("length", 0), True),
        (b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n", b"GET", CHUNKED, True),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"GET", UNTIL_CLOSE, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", b"GET", Framing("length", 3), False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n", b"GET", Framing("length", 3), True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", b"HEAD", NO_BODY, True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", b"GET", NO_BODY, True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"GET", NO_BODY, True),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"GET", NO_BODY, True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\n", b"GET", Framing("length", 3), False),
    ],
)
def test_a_response_says_how_long_its_body_is(data: bytes, method: bytes, framing: Framing, keep: bool) -> None:
    head = answered(data, method)
    assert (head.framing, head.keep_alive) == (framing, keep)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/1.1 600 OK\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n Folded: x\r\n\r\n",
        b"HTTP/1.1 200 \x1b[2J\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
    ],
)
def test_a_response_with_two_readings_is_refused(data: bytes) -> None:
    with pytest.raises(BadHead) as caught:
        answered(data)
    assert caught.value.status == 502


def test_heads_are_written_anew() -> None:
    head = read(request(b"X: 1", b"Content-Length: 4", first=b"PUT /x HTTP/1.1"))
    written = write_request(head.method, head.target, head.host, head.end_to_end(), head.framing)
    assert written == b"PUT /x HTTP/1.1\r\nhost: a.example\r\nx: 1\r\ncontent-length: 4\r\n\r\n"
    assert write_response(403, b"Forbidden", [(b"a", b"b")], CHUNKED, close=True) == (
        b"HTTP/1.1 403 Forbidden\r\na: b\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )


BYTES = st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b":", b"\0", b"a", b"\xff", b"\t", b","])
NAMES = st.text("abXY-_!", min_size=1, max_size=6).map(str.encode)
VALUES = st.text("ab ,;=\t\x80ÿ", max_size=10).map(lambda text: text.encode("latin-1").strip(b" \t"))


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8), st.sampled_from([NO_BODY, CHUNKED, Framing("length", 9)]))
def test_what_is_written_is_read_again_and_h11_reads_the_same(fields: list[tuple[bytes, bytes]], framing: Framing) -> None:
    written = write_request(b"GET", b"/x", b"a.example", fields, framing)
    head = read(written)
    assert head.framing == framing
    assert head.end_to_end() == tuple((name.lower(), value) for name, value in fields)
    oracle(written, head)


@settings(max_examples=400)
@given(st.data())
def test_a_head_with_bytes_changed_is_refused_or_read_as_h11_reads_it(data: st.DataObject) -> None:
    raw = bytearray(request(b"Content-Length: 4", b"X: y", b"Connection: close", first=b"POST /a HTTP/1.1"))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(BYTES)
    try:
        head = HeadReader(RequestHead.parse).receive(bytes(raw))
    except BadHead:
        return
    if head is not None:
        oracle(bytes(raw), head)


def oracle(raw: bytes, head: RequestHead) -> None:
    """h11 accepts more than we do; of what both accept it must read the same."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD + 1)
    connection.receive_data(raw)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return  # it refuses some that we take (a value with 0x80), none that we would read in another way
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (head.method, head.target)
    theirs = [(name, value) for name, value in event.headers if name not in (b"content-length", b"transfer-encoding")]
    ours = [(name, value) for name, value in head.fields if name not in (b"content-length", b"transfer-encoding")]
    assert theirs == ours
    lengths = [int(value) for name, value in event.headers if name == b"content-length"]
    chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
    if head.framing.kind == "chunked":
        assert chunked
    else:
        assert not chunked
        assert (lengths or [0]) == [head.framing.length]
