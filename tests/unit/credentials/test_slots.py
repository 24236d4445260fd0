"""Slots are emptied in every spelling that a server may read as theirs, and filled with one value in one spelling."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.credentials import placeholders, slots
from space.core.credentials.grant import Placeholder

SLOT = Placeholder(env="KEY", name="authorization", prefix="sk_", length=40)
STAND_IN, SECRET = b"sk_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789a", b"sk_live_0Pn2/DMIK+RiIj=IpZLtxvLqw9"


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("api_key=1", None),
        ("a=1&api_key=2&b=3", "a=1&b=3"),
        ("a=1;api-key=2;b=3", "a=1;b=3"),
        ("API_KEY=2&b", "b"),
        ("%61pi_ke%79=2&b", "b"),
        ("api_key[]=2&api_key[0]=3&b=", "b="),
        ("+api_key=2&%20api_key=3&api_key%00=4&b=5", "api_key%00=4&b=5"),
        ("a=1%26api_key=2&b=5", "b=5"),
        ("", None),
        ("&&a=1&", "a=1"),
        ("api_keys=1", "api_keys=1"),
    ],
)
def test_a_parameter_is_emptied_in_every_spelling(query: str, left: str | None) -> None:
    assert slots.without_keys(query, {"api-key"}.__contains__) == left


def test_a_field_is_emptied_in_every_spelling() -> None:
    fields = ((b"authorization", b"1"), (b"author_ization", b"2"), (b"x-api_key", b"3"), (b"x_api-key", b"4"), (b"accept", b"5"))
    assert slots.without(fields, {b"x-api-key"}.__contains__) == (fields[0], fields[1], fields[4])
    assert slots.without(fields, {b"author-ization", b"authorization"}.__contains__) == fields[2:]


def test_what_is_put_in_is_one_value() -> None:
    assert slots.header("Bearer {}", b"a b") == b"Bearer a b"
    assert slots.header("", b"x") == b"x"
    assert slots.basic(b"user", b"p:w") == b"Basic " + base64.b64encode(b"user:p:w")
    assert slots.parameter("a=1", "key", b"p/+ &") == "a=1&key=p%2F%2B%20%26"
    assert slots.parameter(None, "key", b"x") == "key=x"
    for bad in (b"a\r\nx: y", b"a\n", b"\x00", b" a", b"a ", b""):
        with pytest.raises(slots.Unfit):
            slots.header("{}", bad)
    with pytest.raises(slots.Unfit):
        slots.basic(b"a:b", b"c")


@given(st.binary(min_size=1, max_size=40))
def test_whatever_the_value_a_field_stays_one_field(value: bytes) -> None:
    try:
        made = slots.header("Bearer {}", value)
    except slots.Unfit:
        return
    assert made == b"Bearer " + value
    assert not {*made} & {0, 10, 13, 0x7F}


def test_a_placeholder_is_swapped_in_its_place_and_nowhere_else() -> None:
    swapped = placeholders.swapped_header
    assert swapped(b"Bearer " + STAND_IN, STAND_IN, SECRET) == b"Bearer " + SECRET
    assert swapped(b"Bearer other", STAND_IN, SECRET) is None
    assert swapped(b"basic " + base64.b64encode(b"u:" + STAND_IN), STAND_IN, SECRET) == b"basic " + base64.b64encode(b"u:" + SECRET)
    basic = placeholders.swapped_basic
    assert basic(b"Basic " + base64.b64encode(b"u:" + STAND_IN).rstrip(b"="), STAND_IN, SECRET) == b"Basic " + base64.b64encode(
        b"u:" + SECRET
    )
    assert basic(b"Basic " + base64.b64encode(b"u:x" + STAND_IN), STAND_IN, SECRET) is None
    assert basic(b"Basic ***", STAND_IN, SECRET) is None
    assert basic(b"Bearer " + STAND_IN, STAND_IN, SECRET) is None
    with pytest.raises(slots.Unfit):
        swapped(b"Bearer " + STAND_IN, STAND_IN, b"a\r\nb")
    query = placeholders.swapped_query
    text = STAND_IN.decode()
    assert query(f"a={text}&key={text}", "key", STAND_IN, b"p/ &") == f"a={text}&key=p%2F%20%26"
    escaped = "".join(f"%{byte:02x}" for byte in STAND_IN)
    assert query(f"k%65y={escaped}", "key", STAND_IN, SECRET) == "k%65y=sk_live_0Pn2%2FDMIK%2BRiIj%3DIpZLtxvLqw9"
    assert query(f"other={text}", "key", STAND_IN, SECRET) is None


def test_a_placeholder_has_the_shape_that_its_grant_says() -> None:
    made = placeholders.make(SLOT, lambda alphabet: alphabet[-1])
    assert made == "sk_" + "z" * 37
    assert placeholders.shaped(SLOT, made)
    assert not placeholders.shaped(SLOT, made + "z")
    assert not placeholders.shaped(SLOT, "sk_" + "-" * 37)


def test_placeholders_are_found_wherever_a_head_holds_them() -> None:
    places = placeholders.Places({"one": STAND_IN.decode(), "two": "x" * 40})
    assert places
    assert not placeholders.Places({})
    assert places.found([(b"accept", b"*/*")], b"/") == []
    found = places.found([(b"x_custom", base64.b64encode(b"ab" + STAND_IN)), (b"accept", b"*/*")], b"/?a=" + STAND_IN.hex().encode())
    assert found == [placeholders.Sighting("one", None), placeholders.Sighting("one", b"x-custom")]
    (sighting,) = places.found([(STAND_IN.lower(), b"1"), (b"cookie", b"a=" + b"x" * 40)], b"/")
    assert sighting == placeholders.Sighting("two", b"cookie")
