"""What the dialer gets of a policy decides connections as the policy itself does, and anything else is refused."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy import flows
from space.core.policy.flows import FlowsRefused
from space.core.policy.model import Block, Policy, Rule
from space.core.policy.names import Pattern
from space.core.policy.verdict import Allow, Deny, Layer, Stack

_NAMES = st.sampled_from(["a.example.com", "b.example.com", "example.com", "x.b.example.com", "other.example.org"])
_RULES = st.builds(
    lambda name, host, wildcard, port, scheme, ask: Rule(name, Pattern(host, wildcard), port, scheme, ask=ask),
    st.sampled_from(["one", "two", "three"]),
    _NAMES,
    st.booleans(),
    st.sampled_from([80, 443, 5432]),
    st.sampled_from(["https", "http", "tcp", "passthrough"]),
    st.booleans(),
)
_BLOCKS = st.builds(
    Block,
    st.just("block"),
    st.sampled_from([IPv4Network("8.8.8.0/24"), IPv4Network("8.8.0.0/16")]),
    st.none() | st.frozensets(st.sampled_from([53, 443])),
)
_POLICIES = st.builds(
    lambda name, rules, blocks, is_open, mode: Policy(name, tuple(rules), tuple(blocks), is_open, mode),
    st.sampled_from(["operator", "tenant"]),
    st.lists(_RULES, max_size=6),
    st.lists(_BLOCKS, max_size=2),
    st.booleans(),
    st.sampled_from(["enforce", "record", "ask"]),
)


def _said(verdict: Allow | Deny) -> tuple[Any, ...]:
    if isinstance(verdict, Deny):
        return (verdict.reason, verdict.layer, verdict.rule)
    return (verdict.scheme, verdict.recorded, None if verdict.rule is None else verdict.rule.name)


@given(st.lists(_POLICIES, max_size=3), _NAMES, st.sampled_from([80, 443, 5432, 22]), st.sampled_from(["8.8.8.8", "8.8.4.4", "9.9.9.9"]))
def test_plain_layers_decide_as_the_policies_they_were_made_from(policies: list[Policy], name: str, port: int, address: str) -> None:
    original, copied = Stack(map(Layer, policies)), Stack(flows.decode(flows.encode(policies)))
    assert _said(copied.flow(name, port)) == _said(original.flow(name, port))
    assert _said(copied.literal(IPv4Address(address), port)) == _said(original.literal(IPv4Address(address), port))


def test_nothing_of_requests_goes_along() -> None:
    rule = Rule("r", Pattern("example.com"), 443, grant="secret-grant", methods=frozenset({"GET"}), ca="bundle")
    data = flows.encode([Policy("p", (rule,))])
    assert json.loads(data)[0]["rules"] == [["r", "example.com", 443, "https"]]
    assert b"grant" not in data


_GOOD: dict[str, Any] = {"name": "p", "open": False, "mode": "enforce", "rules": [["r", "example.com", 443, "https"]], "blocks": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "allow"},
        {"more": 1},
        {"open": 1},
        {"rules": [["r", "EXAMPLE.com", 443, "https"]]},
        {"rules": [["r", "127.0.0.1", 443, "https"]]},
        {"rules": [["r", "*", 443, "https"]]},
        {"rules": [["r", "example.com", 0, "https"]]},
        {"rules": [["r", "example.com", 443, "gopher"]]},
        {"rules": [["r", "example.com", 443, "https", "more"]]},
        {"blocks": [["b", "8.8.8.8/8", None]]},
        {"blocks": [["b", "::/0", None]]},
        {"blocks": [["b", "8.8.8.0/24", [70000]]]},
    ],
    ids=str,
)
def test_anything_else_is_refused(wrong: dict[str, Any]) -> None:
    flows.decode(json.dumps([_GOOD]).encode())
    with pytest.raises(FlowsRefused):
        flows.decode(json.dumps([_GOOD | wrong]).encode())


@given(st.binary(max_size=200))
def test_bytes_are_layers_or_refused(data: bytes) -> None:
    try:
        assert isinstance(flows.decode(data), tuple)
    except FlowsRefused:
        return


@pytest.mark.parametrize("data", [json.dumps([_GOOD] * 4).encode(), b"[" * 100_000, b" " * (flows.MOST_BYTES + 1)])
def test_too_many_layers_too_deep_and_too_long_are_refused(data: bytes) -> None:
    with pytest.raises(FlowsRefused):
        flows.decode(data)
