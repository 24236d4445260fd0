"""What the keeper of records is sent: a record with bounded values, or nothing."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.audit.chain import MOST_LINE, Writer
from space.audit.records import NameDecided, Note, RecordRefused, decode, encode
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
