"""A drafted policy loads whatever was seen, allows reading of what was asked for and its folders, and says the rest in comments."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from space.core.policy.draft import MOST_PATHS, Seen, draft, grouped
from space.core.policy.loader import load
from space.core.policy.paths import PathPattern, PathRefused, normalise
from space.core.policy.verdict import Allow, Asked, Layer, Stack

_SEGMENT = st.sampled_from(["a", "b", "simple", "x-1.0.tar.gz", "%2F", "*", "a*b", "..", "~u", "", "n" * 40]) | st.text(
    "abc-._~*", max_size=5
)
_PATHS = st.lists(_SEGMENT, max_size=5).map(lambda parts: "/" + "/".join(parts))
_HOSTILE = st.text(max_size=30) | st.sampled_from(
    ['a"\n[[rule]]\nhost = "evil.example.com', "a\\", "a.example.com\n", "\x7f", "\u2028", "com", "127.0.0.1", "*.example.com", "\ud800"]
)
_NAMES = st.sampled_from(["a.example.com", "A.example.com.", "*.a.example.com", "b.example.com", "xn--bcher-kva.example"]) | _HOSTILE
_SEEN = st.builds(
    Seen,
    _NAMES,
    st.sampled_from([443, 80, 8080, 0, 5432]),
    st.sampled_from(["https", "http", "tcp"]),
    st.sampled_from(["GET", "HEAD", "POST", "", "X\n"]),
    _PATHS | _HOSTILE,
    st.integers(1, 9),
)


def rules(text: str) -> list[dict[str, Any]]:
    found = tomllib.loads(text)
    load(found)
    given_rules: list[dict[str, Any]] = found.get("rule", [])
    return given_rules


@given(st.lists(_SEEN, max_size=30), _HOSTILE)
@settings(max_examples=300, deadline=None)
def test_it_loads_whatever_was_seen_and_never_allows_more_than_reading(seen: list[Seen], title: str) -> None:
    text = draft(seen, title=title)
    assert text.isascii()
    names = {one.name for one in seen}
    for rule in rules(text):
        assert "*" not in str(rule.get("host"))
        assert rule.get("host", rule.get("tcp", "").rpartition(":")[0]) in names
        assert "tcp" in rule or rule["methods"] == ["GET", "HEAD"]
    assert not tomllib.loads(text).get("open")
    assert "mode" not in tomllib.loads(text)


@given(st.lists(_SEEN, max_size=30))
@settings(max_examples=200, deadline=None)
def test_what_was_read_may_be_read(seen: list[Seen]) -> None:
    loaded = load(tomllib.loads(draft(seen))).policy
    stack = Stack([Layer(loaded)])
    hosts = {str(rule.host): rule for rule in loaded.rules if rule.scheme in ("https", "http")}
    for one in seen:
        rule = hosts.get(one.name)
        if rule is None or one.method not in ("GET", "HEAD") or (one.port, one.scheme) != (rule.port, rule.scheme):
            continue
        try:
            path = normalise(one.path.encode())
        except (PathRefused, UnicodeEncodeError):
            continue  # no request has it
        if path.text == one.path and "?" not in one.path:
            assert isinstance(stack.request(Asked(one.name, rule.port, rule.scheme, one.method, path)), Allow) or path.readings[1:]


@given(st.lists(_PATHS, min_size=1, max_size=80))
@settings(max_examples=200, deadline=None)
def test_grouped_paths_are_few_and_match_each(paths: list[str]) -> None:
    patterns = [PathPattern.parse(one) for one in grouped(paths)]
    assert len(patterns) <= MOST_PATHS * 4
    for path in paths:
        assert any(pattern.matches(path) for pattern in patterns), path


def test_few_paths_are_exact_and_many_become_their_folder() -> None:
    assert grouped(["/a", "/b/c"]) == ("/a", "/b/c")
    many = [f"/simple/p{number}/" for number in range(40)] + [f"/files/{number}/x.whl" for number in range(40)] + ["/robots.txt"]
    assert grouped(many) == ("/files/**", "/robots.txt", "/simple/**")


def test_the_text_is_for_a_person() -> None:
    seen = [
        Seen("index.example.com", method="GET", path="/simple/x/", count=12),
        Seen("index.example.com", method="POST", path="/upload", count=3),
        Seen("db.example.com", 5432, "tcp"),
        Seen("post.example.com", method="POST", path="/in"),
        Seen("looked.example.com", port=0, count=2),
        Seen("com", method="GET", path="/"),
    ]
    text = draft(seen, title="from sb-a")
    assert (
        text
        == """# from sb-a
# A draft: code in the sandbox asked for this, which is no reason to allow it. Read every rule, drop what is not needed.
version = 1

# 15 requests
# not in it: "POST" "/upload" (3 requests)
[[rule]]
host = "index.example.com"
methods = ["GET", "HEAD"]
paths = ["/simple/x/"]

# 1 request
# left out: 'com' is a public suffix: it stands for nobody's name
# [[rule]]
# host = "com"
# methods = ["GET", "HEAD"]
# paths = ["/"]

# 1 connection
[[rule]]
tcp = "db.example.com:5432"

# 1 request
# not in it: "POST" "/in" (1 request)
# left out: nothing but requests that do more than read was seen
# [[rule]]
# host = "post.example.com"
# methods = ["GET", "HEAD"]
# paths = ["/**"]

# 2 look-ups, and no request was seen, for the name was refused
[[rule]]
host = "looked.example.com"
methods = ["GET", "HEAD"]
"""
    )
