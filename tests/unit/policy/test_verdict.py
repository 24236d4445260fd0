"""Verdicts: deny unless a rule of every layer allows, and a lower layer only narrows."""

from __future__ import annotations

import time
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy.difference import difference
from space.core.policy.explain import explain
from space.core.policy.model import Block, Mode, Policy, Rule, Scheme
from space.core.policy.names import pattern
from space.core.policy.paths import PathPattern, normalise
from space.core.policy.verdict import Allow, Asked, Deny, Layer, Stack

READ = frozenset({"GET", "HEAD"})


def rule(host: str, port: int = 443, scheme: Scheme = "https", paths: tuple[str, ...] | None = None, **more: Any) -> Rule:
    patterns = None if paths is None else tuple(map(PathPattern.parse, paths))
    return Rule(more.pop("name", host), pattern(host), port, scheme, paths=patterns, **more)


def stack(*rules: Rule, **more: Any) -> Stack:
    return Stack([Layer(Policy("sandbox", rules, **more))])


def asked(name: str, target: str = "/", method: str = "GET", port: int = 443, scheme: Scheme = "https", **more: Any) -> Asked:
    return Asked(name, port, scheme, method, normalise(target.encode()), **more)


def reason(verdict: object) -> str | None:
    return verdict.reason if isinstance(verdict, Deny) else None


INDEX = rule("index.example.com", methods=READ, paths=("/simple/**", "/files/*.whl"))
ALL = stack(
    INDEX,
    rule("*.cdn.example.com", methods=READ),
    rule("api.example.com", paths=("/v1/**",), grant="token"),
    rule("api.example.com", paths=("/socket",), websocket=True),
    rule("intern.example.com", 8443),
    rule("plain.example.com", 80, "http"),
    rule("db.example.com", 5432, "tcp"),
    rule("mine.example.com", foreign="refuse"),
)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asked("index.example.com", "/simple/x/"), None),
        (asked("index.example.com", "/files/a.whl", "HEAD"), None),
        (asked("index.example.com", "/simple/x/", "POST"), "method_not_allowed"),
        (asked("index.example.com", "/simple/x/", "get"), "method_not_allowed"),
        (asked("index.example.com", "/upload"), "path_not_allowed"),
        (asked("index.example.com", "/simple/../upload"), "path_not_allowed"),
        (asked("index.example.com", "/simple%2F..x"), "path_not_allowed"),
        (asked("index.example.com", "//simple/x"), "path_not_allowed"),
        (asked("index.example.com", "/files/a%2Fb.whl"), "path_not_allowed"),
        (asked("index.example.com", "/simple/", port=8443), "port_not_allowed"),
        (asked("index.example.com", "/simple/", port=80, scheme="http"), "port_not_allowed"),
        (asked("other.example.com"), "name_not_allowed"),
        (asked("a.cdn.example.com", "/x"), None),
        (asked("cdn.example.com", "/x"), "name_not_allowed"),
        (asked("a.b.cdn.example.com", "/x"), "name_not_allowed"),
        (asked("api.example.com", "/v1/x", "POST"), None),
        (asked("api.example.com", "/v2/x"), "path_not_allowed"),
        (asked("api.example.com", "/v1/x", websocket=True), "websocket_not_allowed"),
        (asked("api.example.com", "/socket", websocket=True), None),
        (asked("api.example.com", "/v1/x", "TRACE"), "trace"),
        (asked("api.example.com", "/v1/x", "Trace"), "trace"),
        (asked("intern.example.com", port=8443), None),
        (asked("plain.example.com", port=80, scheme="http"), None),
        (asked("plain.example.com", port=80), "scheme_not_allowed"),
        (asked("db.example.com", port=5432), "scheme_not_allowed"),
        (asked("mine.example.com"), None),
        (asked("mine.example.com", foreign=True), "foreign_credentials"),
    ],
    ids=str,
)
def test_a_request_is_allowed_by_a_rule_or_denied_with_the_reason(request_: Asked, expected: str | None) -> None:
    verdict = ALL.request(request_)
    assert reason(verdict) == expected
    assert explain(ALL, request_).verdict == verdict
    assert len(explain(ALL, request_).lines) == 2


def test_the_credential_is_the_matching_rules() -> None:
    with_token, without = ALL.request(asked("api.example.com", "/v1/x")), ALL.request(asked("api.example.com", "/socket", websocket=True))
    assert isinstance(with_token, Allow)
    assert isinstance(without, Allow)
    assert (with_token.grant, without.grant) == ("token", None)


def test_without_a_policy_nothing_leaves() -> None:
    nothing = Stack([])
    assert {reason(nothing.name("a.example")), reason(nothing.flow("a.example", 443)), reason(nothing.request(asked("a.example")))} == {
        "no_policy"
    }
    assert reason(nothing.literal(IPv4Address("8.8.8.8"), 53)) == "no_policy"
    assert reason(stack().name("a.example")) == "name_not_allowed"


def test_a_flow_is_what_its_port_speaks() -> None:
    for name, port, scheme in [("index.example.com", 443, "https"), ("plain.example.com", 80, "http"), ("db.example.com", 5432, "tcp")]:
        verdict = ALL.flow(name, port)
        assert isinstance(verdict, Allow)
        assert verdict.scheme == scheme
    assert reason(ALL.flow("db.example.com", 443)) == "port_not_allowed"


def test_open_allows_public_names_and_holds_named_ones_to_their_rules() -> None:
    opened = stack(INDEX, open=True)
    assert reason(opened.request(asked("any.example.org", "/x", "POST"))) is None
    assert reason(opened.request(asked("index.example.com", "/upload"))) == "path_not_allowed"
    flow = opened.flow("any.example.org", 22)
    assert isinstance(flow, Allow)
    assert flow.scheme == "tcp"
    assert reason(opened.literal(IPv4Address("8.8.8.8"), 53)) is None
    assert reason(opened.literal(IPv4Address("10.0.0.1"), 53)) == "address_not_allowed"
    assert reason(opened.literal(IPv4Address("169.254.169.254"), 80)) == "address_not_allowed"


def test_a_block_allows_its_addresses_on_its_ports() -> None:
    some = stack(blocks=(Block("b", IPv4Network("192.0.2.0/24"), frozenset({5432})),))
    assert reason(some.literal(IPv4Address("192.0.2.7"), 5432)) is None
    assert reason(some.literal(IPv4Address("192.0.2.7"), 80)) == "address_not_allowed"
    assert reason(some.literal(IPv4Address("192.0.3.7"), 5432)) == "address_not_allowed"


def layers(operator: Policy, sandbox: Policy) -> Stack:
    return Stack([Layer(operator), Layer(sandbox)])


def test_a_lower_layer_narrows_and_never_widens() -> None:
    both = layers(
        Policy("operator", (rule("*.example.com", methods=READ),)), Policy("sandbox", (rule("a.example.com"), rule("b.example.org")))
    )
    assert reason(both.request(asked("a.example.com"))) is None
    denied = both.request(asked("a.example.com", "/", "POST"))
    assert denied == Deny("method_not_allowed", "operator", "*.example.com")
    assert both.request(asked("b.example.org")) == Deny("name_not_allowed", "operator")
    assert both.request(asked("c.example.com")) == Deny("name_not_allowed", "sandbox")


def test_an_open_operator_leaves_the_scheme_to_the_rule_below() -> None:
    both = layers(Policy("operator", open=True), Policy("sandbox", (rule("a.example.com", 8443), rule("b.example.com", 443, "tcp"))))
    assert reason(both.request(asked("a.example.com", port=8443))) is None
    flow = both.flow("b.example.com", 443)
    assert isinstance(flow, Allow)
    assert flow.scheme == "tcp"


def test_two_layers_that_see_two_schemes_allow_neither() -> None:
    both = layers(Policy("operator", (rule("a.example.com"),)), Policy("sandbox", (rule("a.example.com", 443, "passthrough"),)))
    assert both.flow("a.example.com", 443) == Deny("scheme_not_allowed", "operator", "a.example.com")


def test_the_smallest_budget_and_any_question_hold() -> None:
    above = Policy("operator", (rule("a.example.com", sent_limit=5, ask=True),))
    verdict = layers(above, Policy("sandbox", (rule("a.example.com", sent_limit=9, received_limit=3),))).request(asked("a.example.com"))
    assert isinstance(verdict, Allow)
    assert (verdict.sent_limit, verdict.received_limit, verdict.ask) == (5, 3, True)


@pytest.mark.parametrize(("mode", "ask", "recorded"), [("record", False, True), ("ask", True, False)])
def test_a_mode_makes_something_of_a_denial_within_what_those_above_allow(mode: Mode, ask: bool, recorded: bool) -> None:
    both = layers(Policy("operator", (rule("*.example.com"),)), Policy("sandbox", mode=mode))
    verdict = both.request(asked("a.example.com"))
    assert isinstance(verdict, Allow)
    assert (verdict.rule, verdict.ask, verdict.recorded) == (None, ask, recorded)
    assert reason(both.request(asked("a.example.org"))) == "name_not_allowed"
    assert reason(both.request(asked("a.example.com", "/", "TRACE"))) == "trace"
    assert reason(both.literal(IPv4Address("8.8.8.8"), 53)) == "address_not_allowed"


HOSTS = st.sampled_from(["a.example.com", "b.example.com", "*.example.com", "c.d.example.com", "*.d.example.com"])
RULES = st.builds(
    rule,
    HOSTS,
    st.sampled_from([443, 8443]),
    methods=st.none() | st.frozensets(st.sampled_from(["GET", "POST"]), min_size=1),
    paths=st.none() | st.lists(st.sampled_from(["/a/**", "/b", "/**"]), min_size=1, max_size=2).map(tuple),
    ask=st.booleans(),
)
POLICIES = st.builds(Policy, st.just("p"), st.lists(RULES, max_size=5).map(tuple), open=st.booleans())
QUESTIONS = st.builds(
    asked,
    st.sampled_from(["a.example.com", "b.example.com", "x.example.com", "c.d.example.com", "example.com", "evil.example.org"]),
    st.sampled_from(["/", "/a/x", "/b", "/a%2Fx", "//b", "/a/../b"]),
    st.sampled_from(["GET", "POST", "TRACE"]),
    st.sampled_from([443, 8443, 80]),
)


@given(POLICIES, POLICIES, QUESTIONS)
def test_what_two_layers_allow_each_of_them_allows(above: Policy, below: Policy, question: Asked) -> None:
    verdict = layers(above, below).request(question)
    alone = [Stack([Layer(policy)]).request(question) for policy in (above, below)]
    assert isinstance(verdict, Allow) <= all(isinstance(one, Allow) for one in alone)


@given(POLICIES, QUESTIONS)
def test_what_goes_through_was_allowed_by_name_and_flow_as_well(policy: Policy, question: Asked) -> None:
    one = Stack([Layer(policy)])
    if isinstance(one.request(question), Allow):
        assert isinstance(one.flow(question.name, question.port), Allow)
        assert isinstance(one.name(question.name), Allow)


@given(POLICIES, QUESTIONS)
def test_an_allowance_names_a_rule_that_says_so(policy: Policy, question: Asked) -> None:
    verdict = Stack([Layer(policy)]).request(question)
    if isinstance(verdict, Allow) and verdict.rule is not None:
        found = verdict.rule
        assert found.host.matches(question.name)
        assert found.port == question.port
        assert found.methods is None or question.method in found.methods
        assert found.paths is None or all(any(path.matches(reading) for path in found.paths) for reading in question.path.readings)
    elif isinstance(verdict, Allow):
        assert policy.open


@given(st.lists(RULES, max_size=6), QUESTIONS, st.randoms())
def test_fewer_rules_never_allow_what_more_would_not(rules: list[Rule], question: Asked, random: Any) -> None:
    fewer = [one for one in rules if random.random() < 0.5]
    if isinstance(stack(*fewer).request(question), Allow):
        assert isinstance(stack(*rules).request(question), Allow)


def test_a_verdict_costs_the_same_with_five_thousand_rules() -> None:
    def seconds(count: int) -> float:
        many = stack(*[rule(f"h{at}.example.com", methods=READ, paths=("/a/**",)) for at in range(count)], rule("*.example.org"))
        question = asked(f"h{count // 2}.example.com", "/a/b/c")
        begun = time.process_time()
        for _ in range(3000):
            many.request(question)
        return time.process_time() - begun

    seconds(10)
    assert seconds(5000) < 3 * seconds(10)


def test_a_difference_is_told_by_what_rules_say() -> None:
    old, new = (
        Policy("p", (INDEX, rule("a.example.com"))),
        Policy("p", (rule("a.example.com", name="renamed"), rule("b.example.com")), open=True),
    )
    found = difference(old, new)
    assert [str(one.host) for one in found.added] == ["b.example.com"]
    assert [str(one.host) for one in found.removed] == ["index.example.com"]
    assert (found.opened, found.closed, found.widens) == (True, False, True)
    assert not difference(new, old).opened
