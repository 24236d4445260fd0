"""What a worker says to the dialer, and the answer, under arbitrary bytes: exactly what `encode` gives, or refused."""

from __future__ import annotations

import json
from ipaddress import IPv4Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy.names import canon
from space.core.wire import dialing
from space.core.wire.dialing import Answer, DialingRefused, Request, Took

_GOOD: dict[str, Any] = {"do": "dial", "id": 1, "generation": 2, "name": "a.example.com", "port": 443}
_ANSWER: dict[str, Any] = {"do": "answer", "id": 1, "name": "a.example.com", "port": 443, "reason": "no_policy", "denied": True}
_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.integers(), max_size=2)


def _must_be_canonical_or_refused(message: bytes) -> None:
    try:
        said = dialing.decode(message)
    except DialingRefused:
        return
    assert dialing.decode(dialing.encode(said)) == said
    if isinstance(said, Request):
        assert 1 <= said.port <= 65535
        assert said.literal == isinstance(said.target, IPv4Address)
        assert said.literal or canon(said.name) == said.name


@given(st.binary(max_size=600))
def test_bytes(message: bytes) -> None:
    _must_be_canonical_or_refused(message)
    with pytest.raises(DialingRefused):
        dialing.decode_answer(message)


@given(st.sampled_from([*_GOOD, "literal", "sandbox"]), _VALUES | st.sampled_from(["127.0.0.1", "0177.0.0.1", "A.example.com", "a..b"]))
def test_nearly_a_request(field: str, value: Any) -> None:
    _must_be_canonical_or_refused(json.dumps(_GOOD | {field: value}).encode())


@given(st.sampled_from([*_ANSWER, "address", "sandbox"]), _VALUES)
def test_nearly_an_answer(field: str, value: Any) -> None:
    try:
        said = dialing.decode_answer(json.dumps(_ANSWER | {field: value}).encode())
    except DialingRefused:
        return
    assert dialing.decode_answer(dialing.encode(said)) == said


def test_what_is_said_comes_back_as_it_was() -> None:
    for said in (Request(1, 2, "a.example.com", 443), Request(1, 2, "8.8.8.8", 53, literal=True), Took(7)):
        assert dialing.decode(dialing.encode(said)) == said
    for answer in (Answer(1, "a.example.com", 443, "192.0.2.1"), Answer(1, "a.example.com", 443, reason="no_policy", denied=True)):
        assert dialing.decode_answer(dialing.encode(answer)) == answer


@pytest.mark.parametrize(
    "wrong",
    [
        {"sandbox": "sb-x"},
        {"name": "127.0.0.1"},
        {"name": "A.example.com"},
        {"port": 0},
        {"literal": True},
        {"name": "x" * 600},
        {"id": -1},
        {"do": "answer"},
    ],
    ids=str,
)
def test_who_asks_is_no_field_and_names_are_canonical(wrong: dict[str, Any]) -> None:
    dialing.decode(json.dumps(_GOOD).encode())
    with pytest.raises(DialingRefused):
        dialing.decode(json.dumps(_GOOD | wrong).encode())
