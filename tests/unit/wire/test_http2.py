"""Heads of HTTP/2 streams that h2 lets pass and nobody should, and floods."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.wire.http1 import MOST_FIELDS, BadHead, Field
from space.core.wire.http2 import LIMITS, Flood, FloodGuard, check_trailers, request_head, response_head

GOOD: list[Field] = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a.example"), (b":path", b"/x?y")]


def test_a_request_is_its_pseudo_fields_and_fields() -> None:
    head = request_head([*GOOD, (b"host", b"a.example"), (b"content-length", b"4"), (b"te", b"trailers"), (b"x", b"y")])
    assert (head.method, head.authority, head.path, head.length) == (b"POST", b"a.example", b"/x?y", 4)
    assert head.fields == ((b"te", b"trailers"), (b"x", b"y"))


def without(name: bytes) -> list[Field]:
    return [field for field in GOOD if field[0] != name]


REFUSED: dict[str, tuple[list[Field], str]] = {
    "nothing": ([], "pseudo"),
    "no authority": (without(b":authority"), "pseudo"),
    "no path": (without(b":path"), "pseudo"),
    "a path twice": ([*GOOD, (b":path", b"/")], "pseudo"),
    "a pseudo field behind a field": ([*GOOD[:3], (b"x", b"y"), GOOD[3]], "pseudo"),
    "a pseudo field of another kind": ([*GOOD, (b":protocol", b"websocket")], "pseudo"),
    "a status": ([*GOOD, (b":status", b"200")], "pseudo"),
    "another scheme": ([*without(b":scheme"), (b":scheme", b"http")], "scheme"),
    "CONNECT": ([*without(b":method"), (b":method", b"CONNECT")], "method"),
    "a method that is none": ([*without(b":method"), (b":method", b"G ET")], "method"),
    "a path with a space": ([*without(b":path"), (b":path", b"/a b")], "path"),
    "an absolute path": ([*without(b":path"), (b":path", b"https://b.example/")], "path"),
    "an empty path": ([*without(b":path"), (b":path", b"")], "path"),
    "another host": ([*GOOD, (b"host", b"b.example")], "host"),
    "two hosts": ([*GOOD, (b"host", b"a.example"), (b"host", b"a.example")], "host"),
    "two lengths": ([*GOOD, (b"content-length", b"4"), (b"content-length", b"4")], "content_length"),
    "a signed length": ([*GOOD, (b"content-length", b"+4")], "content_length"),
    "a coding": ([*GOOD, (b"transfer-encoding", b"chunked")], "connection"),
    "a connection": ([*GOOD, (b"connection", b"close")], "connection"),
    "an upgrade": ([*GOOD, (b"upgrade", b"websocket")], "connection"),
    "TE with more": ([*GOOD, (b"te", b"trailers, deflate")], "connection"),
    "an upper-case name": ([*GOOD, (b"X", b"y")], "field"),
    "a name with a colon": ([*GOOD, (b"x:y", b"z")], "field"),
    "a name with a line end": ([*GOOD, (b"x\r\nhost", b"z")], "field"),
    "a value with a line end": ([*GOOD, (b"x", b"y\r\nhost: b.example")], "field"),
    "a value with a NUL": ([*GOOD, (b"x", b"\0")], "field"),
    "a value with a space before": ([*GOOD, (b"x", b" y")], "field"),
    "an empty name": ([*GOOD, (b"", b"y")], "field"),
    "too many fields": ([*GOOD, *[(b"x", b"y")] * MOST_FIELDS], "too_large"),
    "too long a field": ([*GOOD, (b"x", b"y" * 70_000)], "too_large"),
}


@pytest.mark.parametrize(("fields", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_head_that_h1_could_not_say_is_refused(fields: list[Field], reason: str) -> None:
    with pytest.raises(BadHead) as caught:
        request_head(fields)
    assert caught.value.reason == reason


def test_a_response_is_its_status_and_fields() -> None:
    assert response_head([(b":status", b"200"), (b"content-length", b"3"), (b"x", b"y")]) == (200, ((b"x", b"y"),), 3)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [(b":status", b"101")],
        [(b":status", b"99")],
        [(b":status", b"200"), (b":path", b"/")],
        [(b":status", b"200"), (b"connection", b"x")],
    ],
)
def test_a_response_with_another_meaning_is_refused(fields: list[Field]) -> None:
    with pytest.raises(BadHead) as caught:
        response_head(fields)
    assert caught.value.status == 502


def test_trailers_change_nothing() -> None:
    check_trailers([(b"grpc-status", b"0")], 502)
    for fields in ([(b":status", b"200")], [(b"content-length", b"4")], [(b"set-cookie", b"a=b")]):
        with pytest.raises(BadHead):
            check_trailers(fields, 502)


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), max_size=6))
def test_any_fields_are_a_head_or_refused(fields: list[Field]) -> None:
    for form in (fields, [*GOOD, *fields]):
        try:
            head = request_head(form)
        except BadHead:
            continue
        assert all(b"\r" not in value and b"\n" not in value and b"\0" not in value for _, value in head.fields)


def test_a_flood_ends_and_a_steady_sender_does_not() -> None:
    guard = FloodGuard(0.0)
    burst, rate = LIMITS["reset"]
    for _ in range(int(burst)):
        guard.saw("reset", 0.0)
    with pytest.raises(Flood):
        guard.saw("reset", 0.0)
    steady, now = FloodGuard(0.0), 0.0
    for _ in range(2000):
        now += 1 / rate
        steady.saw("reset", now)
    for kind in LIMITS:
        FloodGuard(5.0).saw(kind, 4.0)  # a clock that goes back forgives nothing and breaks nothing
