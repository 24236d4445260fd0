"""What the keeper of records is sent: a record with bounded values, or nothing."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.audit.chain import MOST_LINE, Writer
from space.audit.records import (
    MOST_TOGETHER,
    Connected,
    CredentialRead,
    NameDecided,
    Note,
    RecordRefused,
    decode,
    decode_all,
    encode,
    encode_record,
    together,
)
from space.rpc import audit_api

_TEXT = st.text(max_size=20) | st.text(min_size=2040, max_size=2060)
_INTEGER = st.integers(-2, (1 << 64) - 1)
_RECORD = st.fixed_dictionaries(
    {"type": st.sampled_from(["name", "connection", "request", "repeated", "credential", "dial", "lost"]), "sandbox": _TEXT, "name": _TEXT},
    optional={
        "qtype": _INTEGER,
        "port": _INTEGER,
        "id": _TEXT,
        "grant": _TEXT,
        "reason": _TEXT,
        "seconds": st.floats() | _INTEGER,
        "query": st.lists(st.text(max_size=5), max_size=4) | st.just(["k"] * 300),
        "recorded": st.booleans() | _INTEGER,
        "n": _INTEGER,
        "h": st.text(max_size=3),
    },
)
_NAMED = st.fixed_dictionaries({"type": st.just("name"), "sandbox": _TEXT, "name": _TEXT, "qtype": _INTEGER})
_NOTE = st.fixed_dictionaries({"record": _RECORD}, optional={"id": _INTEGER, "at": _TEXT})


@settings(max_examples=600)
@given(_NOTE | st.binary(max_size=300))
def test_arbitrary_messages_are_bounded_records_or_refused(message: dict[str, Any] | bytes) -> None:
    data = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
    try:
        note = decode(data)
    except RecordRefused:
        return
    assert 0 <= note.id < 1 << 53
    fields = msgspec.to_builtins(note.record)
    for value in fields.values():
        if isinstance(value, str):
            assert len(value) <= 2048
        elif isinstance(value, float):
            assert math.isfinite(value)
    line = Writer("gateway").line({"at": "x", "sandbox": "s", "generation": 1, "claimed": fields.pop("sandbox"), **fields})
    assert line.count(b"\n") == 1
    assert len(line) <= MOST_LINE + 128
    assert decode(encode(note)) == note


@settings(max_examples=300)
@given(st.lists(_RECORD, max_size=4) | st.lists(_NAMED, max_size=4))
def test_arbitrary_records_together_are_bounded_or_refused_as_a_whole(said: list[dict[str, Any]]) -> None:
    try:
        records, number = decode_all(msgspec.msgpack.encode(said))
    except RecordRefused:
        return
    assert number == 0
    assert len(records) == len(said)
    for record in records:
        assert not isinstance(record, CredentialRead)
        assert decode(encode(Note(record))).record == record


@pytest.mark.parametrize("count", [1, 15, 16, MOST_TOGETHER])
def test_records_that_go_together_are_what_went(count: int) -> None:
    told = [Connected(sandbox="s", id=str(number), name="a.example.com", port=443, seconds=number / 3) for number in range(count)]
    assert decode_all(together([encode_record(one) for one in told])) == (told, 0)


def test_events_of_credentials_and_too_many_records_do_not_go_together() -> None:
    read = msgspec.msgpack.encode([CredentialRead(sandbox="s", id="1", grant="g", name="a.example.com", port=443)])
    many = together([encode_record(NameDecided(sandbox="s", name="a.example.com", qtype=1))] * (MOST_TOGETHER + 1))
    for message in (read, many, b"\x90"):
        with pytest.raises(RecordRefused):
            decode_all(message)


@pytest.mark.parametrize("depth", [10_000])
def test_depth_and_size_are_refused(depth: int) -> None:
    with pytest.raises(RecordRefused):
        decode(b"\x91" * depth)
    with pytest.raises(RecordRefused, match="16384"):
        decode(b"\x91" * 20_000)
    with pytest.raises(RecordRefused):
        encode(Note(NameDecided(sandbox="s", name="n" * 3000, qtype=1)))


@given(st.binary(max_size=200))
def test_arbitrary_questions_are_refused(data: bytes) -> None:
    try:
        question = audit_api.CONTROL.decode(data)
    except msgspec.MsgspecError:
        return
    assert question.id >= 1
