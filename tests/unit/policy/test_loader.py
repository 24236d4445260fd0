"""A policy is loaded whole or refused with every mistake and where it is."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy.loader import Loaded, PolicyRefused, load
from space.core.policy.model import Rule
from space.core.policy.names import Pattern
from space.core.policy.verdict import Layer

WHOLE = """
version = 1
mode = "ask"
open = false
cidr = ["192.0.2.0/24:5432", "198.51.100.0/24"]
presets = ["pip"]

[[rule]]
name = "index"
host = "*.Example.com"
methods = ["GET", "HEAD"]
paths = ["/simple/**", "/files/*.whl"]
foreign_credentials = "refuse"
received_limit = 1_000_000

[[rule]]
host = "intern.example.org"
port = 8443
ca = "company"
grant = "token"
websocket = true
ask = true

[[rule]]
host = "plain.example.org"
scheme = "http"

[[rule]]
tcp = "db.example.com:5432"

[[rule]]
passthrough = "pinned.example.org"
"""
PRESET = Rule("pip", Pattern("index.example.net"), 443, methods=frozenset({"GET", "HEAD"}))


def loaded(text: str) -> Loaded:
    return load(tomllib.loads(text), name="sandbox", presets={"pip": (PRESET,)}, bundles=frozenset({"company"}))


def test_a_whole_policy_is_what_it_says() -> None:
    policy = loaded(WHOLE).policy
    assert policy.mode == "ask"
    assert not policy.open
    assert [(str(rule.host), rule.port, rule.scheme) for rule in policy.rules] == [
        ("index.example.net", 443, "https"),
        ("*.example.com", 443, "https"),
        ("intern.example.org", 8443, "https"),
        ("plain.example.org", 80, "http"),
        ("db.example.com", 5432, "tcp"),
        ("pinned.example.org", 443, "passthrough"),
    ]
    index, intern = policy.rules[1:3]
    assert (index.name, index.foreign, index.received_limit) == ("index", "refuse", 1_000_000)
    assert sorted(index.methods or ()) == ["GET", "HEAD"]
    assert [str(path) for path in index.paths or ()] == ["/simple/**", "/files/*.whl"]
    assert (intern.ca, intern.grant, intern.websocket, intern.ask) == ("company", "token", True, True)
    assert [(str(block.network), block.ports) for block in policy.blocks] == [("192.0.2.0/24", {5432}), ("198.51.100.0/24", None)]


def test_nothing_is_allowed_by_nothing() -> None:
    policy = load({"version": 1}).policy
    assert (policy.rules, policy.blocks, policy.open, policy.mode) == ((), (), False, "enforce")


def rule(**fields: Any) -> dict[str, Any]:
    return {"version": 1, "rule": [{"host": "a.example.com", **fields}]}


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no version": ({}, "version"),
    "another version": ({"version": 2}, "version"),
    "an unknown key": ({"version": 1, "rules": []}, "rules"),
    "an unknown mode": ({"version": 1, "mode": "off"}, "mode"),
    "open that is a number": ({"version": 1, "open": 1}, "open"),
    "rules that are no list": ({"version": 1, "rule": {"host": "a.example.com"}}, "rule"),
    "a rule that is no table": ({"version": 1, "rule": ["a.example.com"]}, "rule[0]"),
    "an unknown preset": ({"version": 1, "presets": ["brew"]}, "presets[0]"),
    "an unknown key of a rule": (rule(method=["GET"]), "rule[0].method"),
    "no host": ({"version": 1, "rule": [{}]}, "rule[0]"),
    "two hosts": (rule(tcp="b.example.com:1"), "rule[0]"),
    "a host that is a number": (rule(host=1), "rule[0].host"),
    "an address": (rule(host="192.0.2.1"), "rule[0].host"),
    "a URL": (rule(host="https://a.example.com/"), "rule[0].host"),
    "a port in the host": (rule(host="a.example.com:443"), "rule[0].host"),
    "everything": (rule(host="*"), "rule[0].host"),
    "a wildcard in the middle": (rule(host="a.*.com"), "rule[0].host"),
    "a top level domain": (rule(host="com"), "rule[0].host"),
    "all of a top level domain": (rule(host="*.com"), "rule[0].host"),
    "all of a public suffix": (rule(host="*.co.uk"), "rule[0].host"),
    "a local name": (rule(host="localhost"), "rule[0].host"),
    "a port of 0": (rule(port=0), "rule[0].port"),
    "a port that is true": (rule(port=True), "rule[0].port"),
    "a scheme of another kind": (rule(scheme="ftp"), "rule[0].scheme"),
    "no methods": (rule(methods=[]), "rule[0].methods"),
    "a method in lower case": (rule(methods=["get"]), "rule[0].methods[0]"),
    "TRACE": (rule(methods=["GET", "TRACE"]), "rule[0].methods[1]"),
    "CONNECT": (rule(methods=["CONNECT"]), "rule[0].methods[0]"),
    "no paths": (rule(paths=[]), "rule[0].paths"),
    "a path that is no pattern": (rule(paths=["/a", "b"]), "rule[0].paths[1]"),
    "a path that climbs": (rule(paths=["/a/../b"]), "rule[0].paths[0]"),
    "a path that is a number": (rule(paths=[1]), "rule[0].paths[0]"),
    "a grant over plain HTTP": (rule(scheme="http", grant="token"), "rule[0].grant"),
    "a grant under a wildcard": (rule(host="*.example.com", grant="token"), "rule[0].grant"),
    "a grant that is no name": (rule(grant="../token"), "rule[0].grant"),
    "an unknown bundle": (rule(ca="other"), "rule[0].ca"),
    "a negative budget": (rule(sent_limit=-1), "rule[0].sent_limit"),
    "a budget in words": (rule(sent_limit="1G"), "rule[0].sent_limit"),
    "a foreign word": (rule(foreign_credentials="drop"), "rule[0].foreign_credentials"),
    "tcp without port": ({"version": 1, "rule": [{"tcp": "a.example.com"}]}, "rule[0].tcp"),
    "tcp with a port too high": ({"version": 1, "rule": [{"tcp": "a.example.com:65536"}]}, "rule[0].tcp"),
    "tcp with paths": ({"version": 1, "rule": [{"tcp": "a.example.com:1", "paths": ["/"]}]}, "rule[0].paths"),
    "tcp with a port besides": ({"version": 1, "rule": [{"tcp": "a.example.com:1", "port": 2}]}, "rule[0].port"),
    "passthrough with a grant": ({"version": 1, "rule": [{"passthrough": "a.example.com", "grant": "t"}]}, "rule[0].grant"),
    "a network with host bits": ({"version": 1, "cidr": ["192.0.2.1/24"]}, "cidr[0]"),
    "a network in another family": ({"version": 1, "cidr": ["2001:db8::/32"]}, "cidr[0]"),
    "a network's mask that is read in two ways": ({"version": 1, "cidr": ["192.0.2.0/0.0.0.255"]}, "cidr[0]"),
    "a network's port in other digits": ({"version": 1, "cidr": ["192.0.2.0/24:1_0"]}, "cidr[0]"),
    "a network's port with a sign": ({"version": 1, "cidr": ["192.0.2.0/24:+10"]}, "cidr[0]"),
    "a network that is no text": ({"version": 1, "cidr": [7]}, "cidr[0]"),
    "a network's port of 0": ({"version": 1, "cidr": ["192.0.2.0/24:0"]}, "cidr[0]"),
    "a port with two schemes": (
        {"version": 1, "rule": [{"host": "a.example.com", "port": 80}, {"host": "a.example.com", "scheme": "http", "name": "second"}]},
        "second",
    ),
    "a port with another scheme than the wildcard's": (
        {"version": 1, "rule": [{"host": "*.example.com"}, {"passthrough": "a.example.com", "name": "second"}]},
        "second",
    ),
    "two rules of one name": (
        {"version": 1, "rule": [{"host": "a.example.com", "name": "x"}, {"host": "b.example.com", "name": "x"}]},
        "x",
    ),
}


@pytest.mark.parametrize(("data", "path"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_with_its_path(data: dict[str, Any], path: str) -> None:
    with pytest.raises(PolicyRefused) as caught:
        load(data, presets={"pip": (PRESET,)})
    assert [note.path for note in caught.value.notes] == [path]
    assert str(caught.value.notes[0])


@pytest.mark.parametrize("version", [True, 1.0, "1", None])
def test_a_version_is_the_number_and_nothing_like_it(version: object) -> None:
    with pytest.raises(PolicyRefused):
        load({"version": version})


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(PolicyRefused) as caught:
        load({"mode": "off", "rule": [{"host": "com"}, {"host": "a.example.com", "port": 0}]})
    assert [note.path for note in caught.value.notes] == ["version", "mode", "rule[0].host", "rule[1].port"]


@pytest.mark.parametrize(
    ("row", "warned"),
    [
        ({"host": "upload.example.com"}, True),
        ({"host": "upload.example.com", "methods": ["GET"]}, False),
        ({"host": "*.example.com"}, True),
        ({"host": "*.example.com", "paths": ["/a"]}, False),
        ({"host": "a.example.com"}, False),
        ({"tcp": "a.example.com:1"}, True),
        ({"passthrough": "a.example.com"}, True),
        ({"host": "\u0430llowed.example.com"}, True),  # its first letter is not Latin
    ],
)
def test_what_is_risky_is_said(row: dict[str, Any], warned: bool) -> None:
    assert bool(load({"version": 1, "rule": [row]}).warnings) is warned
    assert load({"version": 1, "open": True}).warnings
    assert load({"version": 1, "mode": "record"}).warnings
    assert not load({"version": 1, "mode": "ask"}).warnings


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.sampled_from(["a.example.com", "*.example.com", "/a/**", "GET"])
)
KEYS = st.sampled_from(["version", "mode", "open", "cidr", "rule", "presets", "host", "tcp", "port", "scheme", "methods", "paths", "grant"])
ANY = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12)


@given(st.dictionaries(KEYS, ANY, max_size=6))
def test_any_data_is_a_policy_or_refused(data: dict[str, Any]) -> None:
    with suppress(PolicyRefused):
        Layer(load(data | {"version": 1}).policy)


def test_a_key_without_a_name_has_a_place_too() -> None:
    with pytest.raises(PolicyRefused) as refused:
        load({"version": 1, "": 1, ".open": 2})
    assert [note.path for note in refused.value.notes] == ['""', ".open"]
