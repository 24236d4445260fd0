"""Paths have one form; what servers read in two ways is refused or judged in both."""

from __future__ import annotations

import time
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy.paths import MOST_TARGET, Path, PathPattern, PathRefused, normalise


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/", Path("/", None, ("/",))),
        (b"/a/b?x=1&y=%20", Path("/a/b", "x=1&y=%20", ("/a/b",))),
        (b"/a?", Path("/a", "", ("/a",))),
        (b"/%7ea/%41%62", Path("/~a/Ab", None, ("/~a/Ab",))),
        (b"/a%20b/%e2%82%ac", Path("/a%20b/%E2%82%AC", None, ("/a%20b/%E2%82%AC",))),
        (b"/a/./b/../c", Path("/a/c", None, ("/a/c",))),
        (b"/a/b/..", Path("/a/", None, ("/a/",))),
        (b"/a/.", Path("/a/", None, ("/a/",))),
        (b"/a/%2e%2e/b", Path("/b", None, ("/b",))),
        (b"/.well-known/x", Path("/.well-known/x", None, ("/.well-known/x",))),
        (b"/...", Path("/...", None, ("/...",))),
        (b"/@scope%2fpkg", Path("/@scope%2Fpkg", None, ("/@scope%2Fpkg", "/@scope/pkg"))),
        (b"//a///b", Path("//a///b", None, ("//a///b", "/a/b"))),
        (b"/a%2F%2Fb", Path("/a%2F%2Fb", None, ("/a%2F%2Fb", "/a//b", "/a/b"))),
        (b"/a;v=1/b", Path("/a;v=1/b", None, ("/a;v=1/b",))),
        (b"/100%25", Path("/100%25", None, ("/100%25",))),
        (b"/a?/../%2e%2e//", Path("/a", "/../%2e%2e//", ("/a",))),
    ],
)
def test_a_target_has_one_normal_form(target: bytes, path: Path) -> None:
    assert normalise(target) == path
    assert normalise(path.target.encode()).text == path.text


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        (b"", "form"),
        (b"a", "form"),
        (b"*", "form"),
        (b"http://example.com/", "form"),
        (b"example.com:443", "form"),
        (b"/a b", "character"),
        (b"/a\tb", "character"),
        (b"/a\0", "character"),
        (b"/a#b", "character"),
        (b'/a"b', "character"),
        (b"/\xc3\xa9", "character"),
        (b"/a?\xc3\xa9", "character"),
        (b"/a? ", "character"),
        (b"/a\\b", "backslash"),
        (b"/a%5cb", "backslash"),
        (b"/a%00", "control"),
        (b"/a%0d%0aX:1", "control"),
        (b"/a%7f", "control"),
        (b"/a%", "escape"),
        (b"/a%4", "escape"),
        (b"/a%zz", "escape"),
        (b"/a%+1", "escape"),
        (b"/..", "dots"),
        (b"/a/../../b", "dots"),
        (b"/%2e%2e/b", "dots"),
        (b"/a/..;/b", "dots"),
        (b"/a/.;x=1/b", "dots"),
        (b"/a/..%2fb", "dots"),
        (b"/a%2f../b%2f..", "dots"),
        (b"/a%2f..", "dots"),
        (b"/a%2f.%2fb", "dots"),
        (b"/a/..%3b/b", "dots"),
        (b"/a/%2e%3Bx/b", "dots"),
        (b"/a%2f..%3bx%2fb", "dots"),
        (b"/a/%252e%252e/b", "twice"),
        (b"/a/..%c0%afb", "overlong"),
        (b"/a/%c0%ae%C0%AE/b", "overlong"),
        (b"/a%e0%80%afb", "overlong"),
        (b"/a%f0%80%80%afb", "overlong"),
        (b"/a%252fb", "twice"),
        (b"/a%255cb", "twice"),
        (b"/a%2500", "twice"),
        (b"/a%25252e", "twice"),
        (b"/" + b"a" * MOST_TARGET, "too_long"),
    ],
)
def test_a_target_with_two_meanings_is_refused(target: bytes, fault: str) -> None:
    with pytest.raises(PathRefused) as caught:
        normalise(target)
    assert caught.value.fault == fault


@given(st.binary(max_size=60).map(lambda data: b"/" + data) | st.text("a./%2fFeE5cC;", max_size=30).map(lambda text: b"/" + text.encode()))
def test_no_reading_of_what_is_let_through_climbs_or_hides_anything(target: bytes) -> None:
    try:
        path = normalise(target)
    except PathRefused:
        return
    assert normalise(path.target.encode()) == path
    for reading in path.readings:
        assert reading.startswith("/")
        segments = unquote(reading).split("/")
        assert not {".", ".."} & {segment.partition(";")[0] for segment in segments}
        assert "\\" not in unquote(reading)
        assert all(letter >= " " for letter in unquote(reading, errors="replace"))
        twice = unquote(unquote(reading))
        assert ".." not in {segment.partition(";")[0] for segment in twice.split("/")}


@pytest.mark.parametrize(
    ("pattern", "path", "holds"),
    [
        ("/", "/", True),
        ("/", "/a", False),
        ("/**", "/", True),
        ("/**", "/a/b", True),
        ("/simple/*/", "/simple/requests/", True),
        ("/simple/*/", "/simple/requests", False),
        ("/simple/*/", "/simple//", True),
        ("/simple/*/", "/simple/a/b/", False),
        ("/simple/**", "/simple", False),
        ("/simple/**", "/simple/", True),
        ("/simple/**", "/simple/a/b", True),
        ("/simple/**", "/simpler/a", False),
        ("/*.whl", "/a.whl", True),
        ("/*.whl", "/.whl", True),
        ("/*.whl", "/a/b.whl", False),
        ("/a-*-b", "/a--b", True),
        ("/a-*-b", "/a-b", False),
        ("/%20", "/%20", True),
    ],
)
def test_a_pattern_is_segments_and_perhaps_everything_below(pattern: str, path: str, holds: bool) -> None:
    parsed = PathPattern.parse(pattern)
    assert str(parsed) == pattern
    assert parsed.matches(path) is holds


@pytest.mark.parametrize("text", ["", "a", "/**/a", "/a**", "/a/**b", "/*a*", "/a?b", "/a/../b", "/a b", "/é", "/%7e", "/a%2fb%2f.."])
def test_a_pattern_that_would_mean_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        PathPattern.parse(text)


def test_matching_is_linear() -> None:
    pattern = PathPattern.parse("/" + "/".join(["*a"] * 200))

    def seconds(length: int) -> float:
        path = "/" + "/".join(["a" * length + "b"] * 200)
        begun = time.process_time()
        for _ in range(20):
            pattern.matches(path)
        return time.process_time() - begun

    seconds(10)
    assert seconds(4000) < 400 * max(seconds(40), 1e-4)
