"""What is said of a URL is what the verdicts say."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy.explain import account, outcome
from space.core.policy.model import Block, Mode, Policy, Rule
from space.core.policy.names import pattern
from space.core.policy.paths import PathPattern, normalise
from space.core.policy.url import UrlRefused, parse
from space.core.policy.verdict import Allow, Asked, Deny, Layer, Stack

RULES = (
    Rule("index", pattern("index.example.com"), 443, methods=frozenset({"GET"}), paths=(PathPattern.parse("/simple/**"),)),
    Rule("wild", pattern("*.example.com"), 443, ask=True),
    Rule("plain", pattern("plain.example.org"), 80, "http", foreign="refuse"),
    Rule("socket", pattern("socket.example.org"), 443, websocket=True),
    Rule("db", pattern("db.example.org"), 5432, "tcp"),
    Rule("pinned", pattern("pinned.example.org"), 443, "passthrough"),
)
BLOCKS = (Block("cidr[0]", IPv4Network("192.0.2.0/24"), frozenset({5432})),)


def stack(mode: Mode = "enforce") -> Stack:
    return Stack([Layer(Policy("operator", RULES, BLOCKS)), Layer(Policy("sandbox", RULES, BLOCKS, mode=mode))])


@pytest.mark.parametrize(
    ("text", "method", "expected"),
    [
        ("https://index.example.com/simple/x/", "GET", "allow"),
        ("https://INDEX.example.com./simple/x/", "GET", "allow"),
        ("https://index.example.com/simple/../upload", "GET", "ask"),
        ("https://a.b.example.com/", "GET", "name_not_allowed"),
        ("https://index.example.com:8443/", "GET", "port_not_allowed"),
        ("http://plain.example.org", "GET", "allow"),
        ("https://plain.example.org:80/", "GET", "scheme_not_allowed"),
        ("wss://socket.example.org/s?t=1", "GET", "allow"),
        ("https://socket.example.org/s", "TRACE", "trace"),
        ("tcp://db.example.org:5432", "GET", "allow"),
        ("tcp://index.example.com:443", "GET", "scheme_not_allowed"),
        ("tcp://pinned.example.org:443", "GET", "scheme_not_allowed"),
        ("https://pinned.example.org/anything", "POST", "allow"),
        ("http://pinned.example.org:443/", "GET", "scheme_not_allowed"),
        ("tcp://192.0.2.7:5432", "GET", "allow"),
        ("https://192.0.2.7/", "GET", "address_not_allowed"),
    ],
)
def test_a_url_has_one_outcome(text: str, method: str, expected: str) -> None:
    found = account(stack(), parse(text), method=method)
    assert outcome(found.verdict) == expected
    assert found.steps[-1].verdict == found.verdict
    assert all(len(step.lines) == 3 for step in found.steps)


def test_an_address_is_allowed_by_the_entry_that_holds_it_and_by_openness_where_none_does() -> None:
    found = account(stack(), parse("tcp://192.0.2.7:5432"))
    assert found.steps[-1].lines[1:] == tuple(
        f"{name}: allowed by {BLOCKS[0].name} (192.0.2.0/24 port 5432)" for name in ("sandbox", "result")
    )
    above = Layer(Policy("operator", open=True))
    below = Layer(Policy("sandbox", blocks=(Block("cidr[3]", IPv4Network("198.41.0.0/24")),)))
    lines = account(Stack([above, below]), parse("tcp://198.41.0.4:53")).steps[-1].lines
    assert lines == (
        "operator: allowed: the policy is open",
        "sandbox: allowed by cidr[3] (198.41.0.0/24)",
        "result: allowed by cidr[3] (198.41.0.0/24)",
    )
    lines = account(Stack([below, above]), parse("tcp://198.41.0.4:53")).steps[-1].lines
    assert lines[-1] == "result: allowed: the policy is open"


def test_a_mode_is_an_outcome_of_its_own() -> None:
    above = Layer(Policy("operator", open=True))
    for mode, expected in (("ask", "ask"), ("record", "record"), ("enforce", "name_not_allowed")):
        below = Layer(Policy("sandbox", mode=mode))  # type: ignore[arg-type]
        assert outcome(account(Stack([above, below]), parse("https://x.example.net/")).verdict) == expected


@pytest.mark.parametrize(
    "text",
    [
        "example.com",
        "ftp://example.com/",
        "HTTPS://example.com/",
        "https:///x",
        "https://user:s3cret@example.com/",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:/",
        "https://example.com/#fragment",
        "https://example.com/a b",
        "https://example.com\\@evil.example.net/",
        "https://0x7f.1/",
        "https://[::1]/",
        "https://127.1/",
        "https://ex%61mple.com/",
        "https://example.com/%2e%2e/%2e%2e/x",
        "https://example.com/é",
        "https://exämple.com/",
        "tcp://example.com",
        "tcp://example.com:1/x",
        "https://example.com\n",
    ],
)
def test_a_url_with_another_reading_is_refused_and_its_password_not_repeated(text: str) -> None:
    with pytest.raises(UrlRefused) as caught:
        parse(text)
    assert "s3cret" not in str(caught.value)


HOSTS = st.sampled_from(["index.example.com", "x.example.com", "plain.example.org", "socket.example.org", "db.example.org"])
PATHS = st.sampled_from(["/", "/simple/x", "/simple%2Fx", "//simple/x", "/simple/../x?y=/z"])
METHODS = st.sampled_from(["GET", "POST", "TRACE"])
MODES: st.SearchStrategy[Mode] = st.sampled_from(["enforce", "record", "ask"])


@given(HOSTS, st.sampled_from([443, 80, 5432]), st.sampled_from(["https", "http"]), PATHS, METHODS, st.booleans(), st.booleans(), MODES)
def test_the_account_ends_with_the_verdict_that_decides(
    host: str, port: int, scheme: str, path: str, method: str, websocket: bool, foreign: bool, mode: Mode
) -> None:
    layers = stack(mode)
    found = account(layers, parse(f"{scheme}://{host}:{port}{path}"), method=method, websocket=websocket, foreign=foreign)
    flow = layers.flow(host, port)
    if isinstance(flow, Allow) and flow.scheme == "tcp":
        assert found.verdict == flow  # nobody sees its requests
        return
    asked = Asked(host, port, "https" if scheme == "https" else "http", method, normalise(path.encode()), websocket, foreign)
    assert found.verdict == layers.request(asked)


@given(st.text(alphabet="htps:/@.#?\\[]%a1é \n", max_size=40) | st.text(max_size=40).map(lambda text: "https://" + text))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    try:
        url = parse(text)
    except UrlRefused:
        return
    assert isinstance(account(stack(), url).verdict, Allow | Deny)
