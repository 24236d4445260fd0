"""One canonical form of names; what has none is refused with the right word."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy.names import NameRefused, Pattern, canon, canon_written, pattern

LABELS = st.from_regex(r"\A[a-z0-9_]([a-z0-9_-]{0,20}[a-z0-9_])?\Z").filter(lambda label: not label.startswith("xn--"))
NAMES = st.lists(LABELS, min_size=1, max_size=5).map(".".join)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("example.com", "example.com"),
        ("EXAMPLE.com", "example.com"),
        ("example.com.", "example.com"),
        ("r3---sn-a.example.com", "r3---sn-a.example.com"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("1.example.com", "1.example.com"),
        ("0x7f.example", "0x7f.example"),
        ("localhost", "localhost"),
        ("a." * 126 + "b", "a." * 126 + "b"),
        ("a" * 63 + ".example", "a" * 63 + ".example"),
    ],
)
def test_a_name_has_one_canonical_form(text: str, name: str) -> None:
    assert canon(text) == name
    assert canon(name) == name


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        (".", "empty"),
        ("example.com..", "empty_label"),
        ("a..b", "empty_label"),
        (".example.com", "empty_label"),
        ("a" * 64 + ".example", "label_too_long"),
        ("a." * 126 + "bc", "too_long"),
        ("exa mple.com", "character"),
        ("example.com\0", "character"),
        ("example.com\n", "character"),
        ("example.com:443", "character"),
        ("user@example.com", "character"),
        ("example.com/", "character"),
        ("ex%61mple.com", "character"),
        ("bücher.example", "character"),
        ("ｅxample.com", "character"),
        ("example。com", "character"),
        ("*.example.com", "character"),
        ("-a.example", "hyphen"),
        ("a-.example", "hyphen"),
        ("127.0.0.1", "address"),
        ("127.1", "address"),
        ("2130706433", "address"),
        ("0x7f000001", "address"),
        ("0x7f.0.0.0x1", "address"),
        ("0177.0.0.01", "address"),
        ("example.1", "address"),
        ("example.0x", "address"),
        ("1.2.3.4.", "address"),
        ("[::1]", "character"),
        ("::1", "character"),
        ("fe80::1%eth0", "character"),
        ("xn--a.example", "idna"),
        ("xn--.example", "hyphen"),
        ("xn--example-.com", "hyphen"),
        ("xn--abc-.com", "hyphen"),
        ("xn--ls8h=.example", "character"),
    ],
)
def test_what_is_no_name_is_refused_with_its_reason(text: str, fault: str) -> None:
    with pytest.raises(NameRefused) as caught:
        canon(text)
    assert caught.value.fault == fault


@pytest.mark.parametrize(
    ("text", "name"), [("bücher.example", "xn--bcher-kva.example"), ("BÜCHER.example", "xn--bcher-kva.example"), ("a.example", "a.example")]
)
def test_a_person_may_write_international_names(text: str, name: str) -> None:
    assert canon_written(text) == name


@pytest.mark.parametrize(
    "text", ["１２７.０.０.１", "１２７。０。０。１", "a\u200b.example", "\u2024.example", "ex\u00adample..com", "☃.\u0000"]
)
def test_what_a_person_cannot_mean_is_refused(text: str) -> None:
    with pytest.raises(NameRefused):
        canon_written(text)


@given(NAMES)
def test_canonical_names_stay_as_they_are_in_any_case_and_with_a_dot(name: str) -> None:
    with suppress(NameRefused):
        found = canon(name)
        assert found == canon(found) == canon(name.upper()) == canon(name + ".")
        assert canon_written(name) == found


@given(st.text(max_size=40))
def test_nothing_that_is_canonical_is_an_address_to_anybody(text: str) -> None:
    try:
        name = canon(text)
    except NameRefused:
        return
    with pytest.raises(ValueError):
        ipaddress.ip_address(name)
    with pytest.raises(OSError):
        socket.inet_aton(name)
    assert name.isascii()
    assert name == name.lower()


@pytest.mark.parametrize(
    ("rule", "name", "holds"),
    [
        ("example.com", "example.com", True),
        ("example.com", "a.example.com", False),
        ("example.com", "badexample.com", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "a.b.example.com", False),
        ("*.example.com", "aexample.com", False),
        ("*.example.com", "example.com.evil.example", False),
        ("*.Bücher.example", "a.xn--bcher-kva.example", True),
    ],
)
def test_a_pattern_is_one_name_or_one_label_more(rule: str, name: str, holds: bool) -> None:
    assert pattern(rule).matches(name) is holds


@pytest.mark.parametrize("text", ["*", "**.example.com", "a.*.example", "*a.example", "*.*.example", "*.", "*.1.2.3.4", ""])
def test_other_wildcards_are_refused(text: str) -> None:
    with pytest.raises(NameRefused):
        pattern(text)


@given(NAMES, LABELS)
def test_a_wildcard_never_matches_apex_or_deeper(name: str, label: str) -> None:
    rule = Pattern(name, wildcard=True)
    assert rule.matches(f"{label}.{name}")
    assert not rule.matches(name)
    assert not rule.matches(f"{label}.{label}.{name}")
