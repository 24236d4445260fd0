"""A difference that is not called wider lets nothing out that did not get out before, no more of it, and not unasked."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.core.policy.difference import covers, described, difference
from space.core.policy.model import Block, Policy, Rule
from space.core.policy.names import pattern
from space.core.policy.paths import PathPattern, normalise
from space.core.policy.verdict import Allow, Asked, Layer, Stack


def rule(host: str, *paths: str, **more: Any) -> Rule:
    return Rule(more.pop("name", host), pattern(host), 443, paths=tuple(map(PathPattern.parse, paths)) or None, **more)


READ = frozenset({"GET", "HEAD"})


@pytest.mark.parametrize(
    ("narrow", "wide", "covered"),
    [
        (rule("a.example.com"), rule("a.example.com"), True),
        (rule("a.example.com"), rule("*.example.com"), True),
        (rule("*.example.com"), rule("a.example.com"), False),
        (rule("a.b.example.com"), rule("*.example.com"), False),
        (rule("a.example.com", methods=READ), rule("a.example.com"), True),
        (rule("a.example.com"), rule("a.example.com", methods=READ), False),
        (rule("a.example.com", "/a/b/**"), rule("a.example.com", "/a/**"), True),
        (rule("a.example.com", "/a/**"), rule("a.example.com", "/a/**"), True),
        (rule("a.example.com", "/a"), rule("a.example.com", "/a/**"), False),
        (rule("a.example.com", "/a/", "/b"), rule("a.example.com", "/a/**"), False),
        (rule("a.example.com", websocket=True), rule("a.example.com"), False),
        (rule("a.example.com", grant="x"), rule("a.example.com"), False),
        (rule("a.example.com"), rule("a.example.com", foreign="refuse"), False),
        (rule("a.example.com"), rule("a.example.com", ask=True), False),
        (rule("a.example.com", sent_limit=5), rule("a.example.com", sent_limit=9), True),
        (rule("a.example.com"), rule("a.example.com", sent_limit=9), False),
    ],
)
def test_a_rule_holds_another(narrow: Rule, wide: Rule, covered: bool) -> None:
    assert covers(wide, narrow) is covered
    assert difference(Policy("p", (wide,)), Policy("p", (narrow,))).widens is not covered


def test_what_opens_is_told() -> None:
    block = Block("b", IPv4Network("192.0.2.0/24"))
    narrower = Block("b", IPv4Network("192.0.2.0/25"), frozenset({443}))
    assert difference(Policy(), Policy(open=True)).wider
    assert difference(Policy(), Policy(blocks=(block,))).added_blocks == (block,)
    assert difference(Policy(blocks=(narrower,)), Policy(blocks=(block,))).widens
    assert not difference(Policy(blocks=(block,)), Policy(blocks=(narrower,))).widens
    assert difference(Policy(), Policy(mode="record")).mode == ("enforce", "record")
    assert difference(Policy(mode="ask"), Policy(mode="enforce")).wider == ()
    assert difference(Policy(), Policy(mode="ask")).widens


def test_a_rule_is_described_with_all_that_it_says() -> None:
    whole = rule("a.example.com", "/a/**", methods=READ, websocket=True, grant="t", ask=True, foreign="refuse", sent_limit=1, ca="c")
    words = described(whole)
    assert words == (
        "https://a.example.com:443 GET,HEAD /a/** websocket with credential t with bundle c asks refuses foreign credentials"
        " sends at most 1 bytes"
    )


RULES = st.builds(
    lambda host, paths, methods, websocket, ask, limit, foreign: rule(
        host, *paths, methods=methods, websocket=websocket, ask=ask, sent_limit=limit, foreign=foreign
    ),
    st.sampled_from(["a.example.com", "b.example.com", "*.example.com"]),
    st.lists(st.sampled_from(["/a/**", "/a/b", "/a/*", "/**"]), max_size=2),
    st.sampled_from([None, READ, frozenset({"POST"})]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 5, 9]),
    st.sampled_from(["forward", "refuse"]),
)
BLOCKS = st.builds(
    Block,
    st.just("b"),
    st.sampled_from([IPv4Network("192.0.2.0/24"), IPv4Network("192.0.2.0/25")]),
    st.sampled_from([None, frozenset({1}), frozenset({1, 2})]),
)
FIELDS: dict[str, Any] = {"open": st.booleans(), "mode": st.sampled_from(["enforce", "ask", "record"])}
POOL = st.lists(RULES, min_size=1, max_size=4)
ASKED = [
    Asked(name, 443, "https", method, normalise(path.encode()), websocket, foreign)
    for name in ("a.example.com", "b.example.com", "c.example.com", "d.example.org")
    for method in ("GET", "POST")
    for path in ("/", "/a/b", "/a/b/c", "/a%2Fb")
    for websocket in (False, True)
    for foreign in (False, True)
]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Policy, Policy]:
    """Two policies that share most of their rules, as an edited one does."""
    pool = draw(POOL)
    some = st.lists(st.sampled_from(pool), max_size=4).map(tuple)
    made = [Policy("p", draw(some), tuple(draw(st.lists(BLOCKS, max_size=1))), draw(FIELDS["open"]), draw(FIELDS["mode"])) for _ in "on"]
    return made[0], made[1]


def limit(verdict: Allow) -> float:
    return float("inf") if verdict.sent_limit is None else verdict.sent_limit


@settings(max_examples=400, deadline=None)
@given(pairs())
def test_what_is_not_called_wider_opens_nothing(both: tuple[Policy, Policy]) -> None:
    old, new = both
    if difference(old, new).widens:
        return
    before, after = Stack([Layer(old)]), Stack([Layer(new)])
    for asked in ASKED:
        now, then = after.request(asked), before.request(asked)
        if not isinstance(now, Allow):
            continue
        assert isinstance(then, Allow), described_all(old, new, asked)
        assert now.ask or not then.ask, described_all(old, new, asked)
        assert limit(now) <= limit(then), described_all(old, new, asked)
    for port in (1, 2, 3):
        for address in ("192.0.2.1", "192.0.2.200"):
            if isinstance(after.literal(IPv4Address(address), port), Allow):
                assert isinstance(before.literal(IPv4Address(address), port), Allow)


def described_all(old: Policy, new: Policy, asked: Asked) -> str:
    return f"{asked}: {[*map(described, old.rules)]} {old.mode} {old.open} -> {[*map(described, new.rules)]} {new.mode} {new.open}"


@given(st.lists(RULES, max_size=4))
def test_a_policy_is_no_wider_than_itself(rules: list[Rule]) -> None:
    policy = Policy("p", tuple(rules))
    assert not difference(policy, policy).widens
    assert not difference(policy, policy).added
