"""Fields that were read lately are not read again, and nobody can tell: what they say, and what is refused, is the same each time."""

from __future__ import annotations

import pytest

from space.core.wire import http1
from space.core.wire.http1 import BadHead, HeadReader, RequestHead, ResponseHead

_GOOD = b"GET /%d HTTP/1.1\r\nHost: a.example.com\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n"


def test_heads_with_known_fields_are_read_as_those_with_new_ones() -> None:
    http1._known_request_block.cache_clear()
    first, again = RequestHead.parse(_GOOD % 1), RequestHead.parse(_GOOD % 2)
    assert http1._known_request_block.cache_info().hits == 1
    assert (first.target, again.target) == (b"/1", b"/2")
    assert first.fields == again.fields
    assert first.end_to_end() == again.end_to_end() == ((b"accept", b"*/*"),)


@pytest.mark.parametrize(
    "bad",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX : 1\r\n\r\n",
    ],
)
def test_what_is_refused_is_refused_each_time(bad: bytes) -> None:
    for _ in range(3):
        with pytest.raises(BadHead):
            RequestHead.parse(bad)


def test_the_same_fields_in_another_answer_are_framed_by_its_own_status_and_method() -> None:
    fields = b"Content-Length: 5\r\n\r\n"
    assert ResponseHead.parse_for(b"GET")(b"HTTP/1.1 200 OK\r\n" + fields).framing.length == 5
    assert ResponseHead.parse_for(b"HEAD")(b"HTTP/1.1 200 OK\r\n" + fields).framing.kind == "none"
    assert ResponseHead.parse_for(b"GET")(b"HTTP/1.1 304 Not Modified\r\n" + fields).framing.kind == "none"


def test_long_fields_are_not_kept() -> None:
    http1._known_request_block.cache_clear()
    head = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * http1._MOST_KNOWN + b"\r\n\r\n"
    RequestHead.parse(head)
    assert http1._known_request_block.cache_info().currsize == 0


def test_a_head_in_one_piece_is_bounded_as_one_in_many() -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 200 + b"\r\n\r\n"
    for begun in (b"", head[:50]):
        reader = HeadReader(RequestHead.parse, most=100)
        assert reader.receive(begun) is None
        with pytest.raises(BadHead, match="more than 100"):
            reader.receive(head[len(begun) :])
