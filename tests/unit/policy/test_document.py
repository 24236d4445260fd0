"""One document decides for control, worker and dialer: the same bytes, the same verdicts, and nothing else is taken for one."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy import document
from space.core.policy.document import DocumentRefused, Level, compose, digest, read
from space.core.policy.paths import normalise
from space.core.policy.verdict import Allow, Asked, Deny
from space.testing.certificates import certificate

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
PRESETS = {
    "pip": {"version": 1, "rule": [{"host": "index.example.com", "methods": ["GET"]}], "guest": {"environment": {"A": "b"}}},
    "apt": {"version": 1, "rule": [{"host": "packages.example.com", "ca": "company"}]},
}
OPEN: dict[str, Any] = {"version": 1, "open": True}


def policy(*hosts: str, **more: Any) -> dict[str, Any]:
    return {"version": 1, "rule": [{"host": host} for host in hosts], **more}


def may(data: bytes, host: str) -> bool:
    return isinstance(read(data).stack.request(Asked(host, 443, "https", "GET", normalise(b"/"))), Allow)


def test_a_document_has_one_digest_whatever_the_order_of_its_keys() -> None:
    one = compose({"sandbox": {"version": 1, "mode": "ask", "open": False}, "operator": OPEN})
    other = compose({"operator": {"open": True, "version": 1}, "sandbox": {"open": False, "mode": "ask", "version": 1}})
    assert one == other
    assert read(one).digest == digest(one)
    assert document.DIGEST.match(digest(one))


def test_layers_narrow_and_a_sandbox_without_policy_has_nothing_allowed() -> None:
    data = compose(
        {"operator": OPEN, "tenant": policy("a.example.com", "b.example.com"), "sandbox": policy("b.example.com", "c.example.com")}
    )
    assert [may(data, f"{one}.example.com") for one in "abc"] == [False, True, False]
    assert not may(compose({"operator": OPEN, "tenant": OPEN}), "a.example.com")
    denied = read(compose({})).stack.name("a.example.com")
    assert denied == Deny("name_not_allowed", "sandbox")


def test_presets_and_bundles_that_are_used_stand_in_it_and_others_do_not() -> None:
    data = compose({"sandbox": {"version": 1, "presets": ["apt"]}}, presets=PRESETS, bundles={"company": PEM, "other": PEM})
    content = json.loads(data)
    assert content["presets"] == {"apt": PRESETS["apt"]}
    assert read(data).bundles == {"company": PEM}
    without = json.loads(compose({"sandbox": {"version": 1, "presets": ["pip"]}}, presets=PRESETS))
    assert "guest" not in without["presets"]["pip"]


def test_a_real_certificate_is_a_bundle(tmp_path: Path) -> None:
    rule = {"host": "a.example.com", "ca": "company"}
    pem = certificate(tmp_path)[0].read_text()
    assert read(compose({"sandbox": {"version": 1, "rule": [rule]}}, bundles={"company": pem})).bundles["company"] == pem


def test_what_it_opens_is_told() -> None:
    assert read(compose({"sandbox": OPEN})).open
    assert read(compose({"sandbox": {"version": 1, "mode": "record"}})).open
    assert not read(compose({"operator": policy("a.example.com"), "sandbox": OPEN})).open
    assert not read(compose({"sandbox": policy("a.example.com")})).literals
    assert read(compose({"tenant": OPEN, "sandbox": policy(cidr=["192.0.2.0/24"])})).literals
    assert not read(compose({"tenant": policy(), "sandbox": OPEN})).literals


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"sandbox": {"version": 2}}, "the sandbox's policy: version: 2 is not 1"),
        ({"tenant": policy("com"), "sandbox": OPEN}, "the tenant's policy: rule[0].host: 'com' is a public suffix"),
        ({"sandbox": {"version": 1, "presets": ["npm"]}}, "there is no preset 'npm'"),
        ({"sandbox": {"version": 1, "presets": ["pip", "pip"]}}, "'pip' stands here twice"),
        ({"sandbox": {"version": 1, "rule": [{"host": "a.example.com", "ca": "lost"}]}}, "there is no bundle 'lost'"),
        ({"sandbox": {"version": 1, "open": float("nan")}}, "no JSON"),
        ({"sandbox": {"version": 1, "rule": [{"host": "h" * 80 + ".example.com"}] * 3}}, "and 2 more"),
    ],
    ids=str,
)
def test_layers_that_are_no_policies_make_no_document(layers: dict[Level, Any], said: str) -> None:
    with pytest.raises(DocumentRefused) as refused:
        compose(layers, presets=PRESETS)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 500


GOOD = {"version": 1, "layers": [{"level": "sandbox", "policy": {"version": 1}}], "presets": {}, "bundles": {}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"version": True},
        {"more": 1},
        {"layers": []},
        {"layers": {}},
        {"layers": [{"level": "operator", "policy": {"version": 1}}]},
        {"layers": [{"level": "sandbox", "policy": {"version": 1}}, {"level": "tenant", "policy": {"version": 1}}]},
        {"layers": [{"level": "sandbox", "policy": {"version": 1}}] * 2},
        {"layers": [{"level": ["sandbox"], "policy": {"version": 1}}]},
        {"layers": [{"level": "sandbox", "policy": []}]},
        {"layers": [{"level": "sandbox", "policy": {"version": 1}, "name": "x"}]},
        {"presets": {"pip": {"version": 1}}},
        {"presets": {"../x": {"version": 1}}},
        {"presets": []},
        {"bundles": {"company": PEM}},
        {"bundles": {"company": "x"}},
        {"bundles": []},
    ],
    ids=str,
)
def test_anything_but_what_compose_gives_is_refused(wrong: dict[str, Any]) -> None:
    assert read(json.dumps(GOOD, sort_keys=True, separators=(",", ":")).encode()).stack.layers
    with pytest.raises(DocumentRefused):
        read(json.dumps(GOOD | wrong, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(GOOD).encode(),
        json.dumps(GOOD, separators=(",", ":")).encode(),
        b'{"bundles":{},"bundles":{},"layers":[{"level":"sandbox","policy":{"version":1}}],"presets":{},"version":1}',
        b"[" * 100_000,
        b"9" * 5000,
        b"\xff\xfe",
        b"",
        b" " * (document.MOST_BYTES + 1),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_another_spelling_is_no_document(data: bytes) -> None:
    with pytest.raises(DocumentRefused):
        read(data)


_HOSTS = st.sampled_from(["a.example.com", "b.example.com", "*.example.com", "example.org"])
_POLICIES = st.fixed_dictionaries(
    {"version": st.just(1), "rule": st.lists(st.fixed_dictionaries({"host": _HOSTS}, optional={"ask": st.booleans()}), max_size=4)},
    optional={"open": st.booleans(), "mode": st.sampled_from(["enforce", "ask", "record"]), "presets": st.just(["pip"])},
)
_LAYERS = st.dictionaries(st.sampled_from(document.LEVELS), _POLICIES, max_size=3)


@given(_LAYERS, st.sampled_from(["a.example.com", "b.example.com", "c.example.com", "example.org", "index.example.com"]))
def test_a_layer_more_never_allows_more(layers: dict[Level, Any], host: str) -> None:
    data = compose(layers, presets=PRESETS)
    assert compose(layers, presets=PRESETS) == data
    for level in ("operator", "tenant"):
        fewer = {one: policy for one, policy in layers.items() if one != level}
        assert not may(data, host) or may(compose(fewer, presets=PRESETS), host)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DocumentRefused):
        read(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["version", "rule", "host", "presets", "level"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from([*GOOD, "policy"]), _JSON)
def test_nearly_a_document_is_one_or_is_refused(field: str, value: Any) -> None:
    content = GOOD | ({"layers": [{"level": "sandbox", "policy": value}]} if field == "policy" else {field: value})
    data = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    with suppress(DocumentRefused):
        found = read(data)
        assert found.digest == digest(data)
        assert found.stack.layers[-1].policy.name == "sandbox"
