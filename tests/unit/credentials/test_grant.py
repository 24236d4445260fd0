"""Whose a grant is and what it permits: tables, and properties of every verdict."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.credentials.grant import (
    Grant,
    GrantRefused,
    Life,
    Outline,
    Use,
    decode,
    encode,
    expiry,
    is_for,
    parse,
    permits,
    target,
)
from space.core.credentials.secret import check, packed, unpacked

HOST = "api.example.com"
ONE, OTHER = "sb-" + "a" * 20, "sb-" + "b" * 20
NOW = 1_780_000_000.0


def grant(**said: Any) -> Grant:
    row: dict[str, Any] = {"name": "g", "secret": "s", "where": {"host": HOST}, "slot": {"kind": "header"}, "who": {"all": True}}
    return parse(row | said)


def use(path: str = "/a", **said: Any) -> Use:
    found = target(path)
    assert found is not None
    fields: dict[str, Any] = {"host": HOST, "port": 443, "method": "GET", "path": found}
    return Use(**(fields | said))


@pytest.mark.parametrize(
    ("tenant", "life", "who", "forks", "has"),
    [
        ("acme", {}, {"all": True}, False, True),
        ("acme", {"tenant": "other"}, {"all": True}, False, False),
        ("acme", {"tenant": "other", "attached": ("g",)}, {"sandboxes": [ONE]}, True, False),
        ("acme", {}, {}, False, False),
        ("acme", {"attached": ("g",)}, {}, False, True),
        ("acme", {"attached": ("h",)}, {}, False, False),
        ("acme", {"attached": ("g",), "forked": True}, {}, False, True),
        ("acme", {"forked": True}, {"all": True}, False, False),
        ("acme", {"forked": True}, {"all": True}, True, True),
        ("acme", {"forked": True}, {"templates": ["t"]}, False, False),
        ("acme", {"forked": True}, {"sandboxes": [ONE]}, False, True),
        ("acme", {"sandbox": OTHER}, {"sandboxes": [ONE]}, False, False),
        ("acme", {"labels": {"a": "1"}}, {"labels": {}}, False, False),
        ("acme", {"template": ""}, {"templates": ["t"]}, False, False),
    ],
)
def test_whose_a_grant_is(tenant: str, life: dict[str, Any], who: dict[str, Any], forks: bool, has: bool) -> None:
    asked = Life(**({"tenant": "acme", "sandbox": ONE, "template": "t"} | life))
    assert is_for(grant(who=who, forks=forks), tenant, asked) is has


@pytest.mark.parametrize(
    ("said", "asked", "reason"),
    [
        ({}, use(), None),
        ({}, use(host="b.example.com"), "grant_scope"),
        ({}, use(host="x.api.example.com"), "grant_scope"),
        ({}, use(port=80), "grant_scope"),
        ({"where": {"host": HOST, "port": 8443}}, use(), "grant_scope"),
        ({}, use(method="TRACE"), "grant_scope"),
        ({}, use(method="CONNECT"), "grant_scope"),
        ({"where": {"host": HOST, "methods": ["GET"]}}, use(method="get"), "grant_scope"),
        ({"where": {"host": HOST, "paths": ["/a"]}}, use("/a/"), "grant_scope"),
        ({"where": {"host": HOST, "paths": ["/a/**"]}}, use("/a/b"), None),
        ({"where": {"host": HOST, "paths": ["/a/*"]}}, use("/a/b%2Fc"), "grant_scope"),  # to some servers it is another path
        ({"where": {"host": HOST, "paths": ["/a/*", "/a/b/c"]}}, use("/a/b%2Fc"), None),
        ({"until": "2026-01-01T00:00:00Z"}, use(), "grant_expired"),
        ({"until": "2027-01-01T00:00:00+02:00"}, use(), None),
        ({"who": {}}, use(), "grant_unknown"),
        ({"who": {}, "until": "2026-01-01T00:00:00Z"}, use(host="b.example.com"), "grant_unknown"),
    ],
)
def test_what_a_grant_permits(said: dict[str, Any], asked: Use, reason: str | None) -> None:
    assert permits(grant(**said), "acme", Life("acme", ONE), asked, NOW) == reason


def test_the_moment_of_its_end_is_past() -> None:
    end = expiry("2026-06-01T00:00:00Z")
    assert end is not None
    one = grant(until="2026-06-01T00:00:00Z")
    assert permits(one, "acme", Life("acme", ONE), use(), end) == "grant_expired"
    assert permits(one, "acme", Life("acme", ONE), use(), end - 0.001) is None


_METHODS = st.sampled_from(["GET", "POST", "PUT", "TRACE"])
_PATHS = st.sampled_from(["/", "/a", "/a/b", "/a%2Fb", "/a/b/c", "//a"])
_PATTERNS = st.sampled_from(["/**", "/a", "/a/**", "/*", "/a/*"])


@given(
    methods=st.none() | st.lists(st.sampled_from(["GET", "POST"]), min_size=1, max_size=2),
    patterns=st.none() | st.lists(_PATTERNS, min_size=1, max_size=3),
    host=st.sampled_from([HOST, "b.example.com"]),
    port=st.sampled_from([443, 8443]),
    method=_METHODS,
    path=_PATHS,
)
def test_the_outline_covers_exactly_what_the_grant_permits_and_narrowing_never_widens(
    methods: list[str] | None, patterns: list[str] | None, host: str, port: int, method: str, path: str
) -> None:
    where: dict[str, Any] = {"host": HOST}
    wide = grant(where=dict(where))
    if methods is not None:
        where["methods"] = methods
    if patterns is not None:
        where["paths"] = patterns
    narrow = grant(where=where)
    asked = use(path, host=host, port=port, method=method)
    life = Life("acme", ONE)
    allowed = permits(narrow, "acme", life, asked, NOW) is None
    outline = Outline("g", HOST, 443, narrow.where.methods, narrow.where.paths, narrow.slot)
    assert outline.covers(host, port, method, asked.path) is allowed
    if allowed:
        assert permits(wide, "acme", life, asked, NOW) is None
        assert (host, port) == (HOST, 443)
        assert method != "TRACE"


def test_what_is_written_is_read_again() -> None:
    one = grant(
        slot={"kind": "placeholder", "env": "TOKEN", "in": "basic", "prefix": "x_"},
        rate={"count": 3, "seconds": 60, "burst": 1},
        uses=4,
        keep=["cookie"],
        until="2027-01-01T00:00:00Z",
    )
    assert decode(encode(one)) == one
    assert b'"in":"basic"' in encode(one)


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_fail_in_another_way(data: bytes) -> None:
    try:
        parse(data)
    except GrantRefused:
        return


@pytest.mark.parametrize("path", ["", "a", "/a?x", "/a#b", "/a/../b", "/%61", "/a b", "/\u00e9", "/a%2e%2e", "/" + "a" * 20_000])
def test_a_path_that_is_not_in_its_normal_form_is_none(path: str) -> None:
    assert target(path) is None


@pytest.mark.parametrize(
    ("kind", "public", "secret", "word"),
    [
        ("static", {}, {}, "value"),
        ("static", {}, {"value": b""}, "value"),
        ("static", {"client_id": "x"}, {"value": b"v"}, "client_id"),
        ("static", {}, {"value": b"v" * 40_000}, "longer"),
        ("oauth_refresh", {"endpoint": "e"}, {"refresh_token": b"r"}, "client_id"),
        ("oauth_refresh", {"endpoint": "e", "client_id": "c", "auth": "jwt"}, {"refresh_token": b"r"}, "auth"),
        ("client_credentials", {"endpoint": "e", "client_id": "c"}, {}, "client_secret"),
        ("aws", {}, {"secret_access_key": b"k"}, "access_key_id"),
        ("aws", {"access_key_id": "a\nb"}, {"secret_access_key": b"k"}, "access_key_id"),
        ("paper", {}, {"value": b"v"}, "kind"),
    ],
)
def test_a_secret_that_is_none_of_its_kind_is_refused(kind: str, public: dict[str, Any], secret: dict[str, Any], word: str) -> None:
    with pytest.raises(GrantRefused, match=word):
        check(kind, public, secret)


def test_parts_come_back() -> None:
    assert unpacked(packed({"value": b"\x00\xff"})) == {"value": b"\x00\xff"}
