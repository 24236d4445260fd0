"""A wall of addresses learns what replies say of allowed names, and nothing else; whatever comes, it goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space_evaluate import inside
from space_evaluate.learner import told

NAMES = ["packages.example.com", "*.wild.example.com"]


def packet(name: str, *, port: int = 53) -> bytes:
    return inside.udp(inside.answer_of(name, "192.0.2.7"), to="10.0.0.2", port=4000, source_port=port)


@pytest.mark.parametrize(
    ("name", "port", "found"),
    [
        ("packages.example.com", 53, ["192.0.2.7"]),
        ("PACKAGES.example.com", 53, ["192.0.2.7"]),
        ("x.wild.example.com", 53, ["192.0.2.7"]),
        ("wild.example.com", 53, []),
        ("hidden.example.net", 53, []),
        ("packages.example.com", 5353, []),
    ],
)
def test_it_learns_of_allowed_names_from_replies(name: str, port: int, found: list[str]) -> None:
    assert told(packet(name, port=port), NAMES) == found


@given(st.binary(min_size=20, max_size=200))
def test_whatever_comes_it_goes_on(data: bytes) -> None:
    told(data, NAMES)
    told(packet("packages.example.com")[:28] + data, NAMES)
