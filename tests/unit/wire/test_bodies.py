"""Bodies come out of their framing whole, however they are cut, and never hold a second message."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.core.wire.bodies import BadBody, Body, chunk
from space.core.wire.http1 import CHUNKED, NO_BODY, UNTIL_CLOSE, BadHead, Framing


def taken(body: Body, data: bytes, step: int) -> bytes:
    return b"".join(piece for at in range(0, len(data), step) for piece in body.receive(data[at : at + step]))


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_a_body_of_known_length_ends_there(step: int) -> None:
    body = Body(Framing("length", 10))
    assert taken(body, b"0123456789GET /", step) == b"0123456789"
    assert (body.ended, body.rest, body.taken) == (True, b"GET /", 10)


def test_no_body_takes_nothing() -> None:
    for framing in (NO_BODY, Framing("length", 0)):
        body = Body(framing)
        assert body.ended
        assert body.receive(b"GET /") == []
        assert body.rest == b"GET /"


def test_a_body_until_the_end_ends_with_the_connection() -> None:
    body = Body(UNTIL_CLOSE)
    assert body.receive(b"abc") == [b"abc"]
    assert not body.ended
    body.eof()
    assert body.ended


@pytest.mark.parametrize("framing", [CHUNKED, Framing("length", 3)])
def test_a_body_that_is_cut_off_is_an_error(framing: Framing) -> None:
    body = Body(framing)
    body.receive(b"2\r")
    with pytest.raises(BadBody):
        body.eof()


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.integers(1, 40))
def test_chunks_come_out_as_they_went_in(pieces: list[bytes], step: int) -> None:
    body = Body(CHUNKED)
    raw = b"".join(map(chunk, pieces)) + chunk(b"") + b"GET /"
    assert taken(body, raw, step) == b"".join(pieces)
    assert (body.ended, body.rest) == (True, b"GET /")


def test_trailers_are_dropped() -> None:
    body = Body(CHUNKED)
    assert body.receive(b"1\r\na\r\n0\r\nX: y\r\nContent-Length: 4\r\n\r\nrest") == [b"a"]
    assert (body.ended, body.rest) == (True, b"rest")


def test_extensions_are_an_upstreams_and_dropped() -> None:
    raw = b'3;name="v;1"\r\nabc\r\n0;x\r\n\r\n'
    assert Body(CHUNKED, extensions=True).receive(raw) == [b"abc"]
    with pytest.raises(BadBody):
        Body(CHUNKED).receive(raw)


REFUSED = {
    "a sign": b"+1\r\na\r\n",
    "0x": b"0x1\r\na\r\n",
    "a space before": b" 1\r\na\r\n",
    "a space behind": b"1 \r\na\r\n",
    "an empty size": b"\r\na\r\n",
    "a size that overflows": b"1" * 16 + b"\r\n",
    "a bare LF after the size": b"1\na\r\n",
    "a bare CR in the size": b"1\r1\r\n",
    "a chunk longer than its size": b"1\r\nab\r\n",
    "a bare LF after the chunk": b"1\r\na\n0\r\n\r\n",
    "underscores": b"1_0\r\n",
    "other digits": "١\r\n".encode(),
    "an endless line": b"1" + b"0" * 2000,
    "an endless trailer": b"0\r\n" + b"X: " + b"a" * 2000,
    "many trailers": b"0\r\n" + (b"X: " + b"a" * 500 + b"\r\n") * 20,
    "a trailer that is no field": b"0\r\nnothing\r\n\r\n",
    "a folded trailer": b"0\r\nX: y\r\n z\r\n\r\n",
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("step", [1, 5000])
def test_chunks_with_two_readings_are_refused(raw: bytes, step: int) -> None:
    with pytest.raises(BadBody):
        taken(Body(CHUNKED), raw, step)


PARTS = st.sampled_from([b"1\r\na\r\n", b"0\r\n\r\n", b"\r\n", b"\n", b"\r", b"2", b"f", b"ab", b";x", b" ", b"G"])


@settings(max_examples=400)
@given(st.lists(PARTS, max_size=8), st.integers(1, 9))
def test_any_chunks_are_refused_or_read_as_h11_reads_them(parts: list[bytes], step: int) -> None:
    raw = b"".join(parts)
    body = Body(CHUNKED)
    try:
        ours = taken(body, raw, step)
    except BadHead:
        return
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + raw)
    connection.next_event()
    theirs, ended = b"", False
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            assert not body.ended  # it sees at once what we see at the end of the line
            return
        if isinstance(event, h11.Data):
            theirs += event.data
        elif isinstance(event, h11.EndOfMessage):
            ended = True
            break
        else:
            break
    assert (theirs, ended) == (ours, body.ended)
    if ended:
        assert connection.trailing_data[0] == body.rest
