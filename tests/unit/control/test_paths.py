"""Paths by look-up find what patterns would find, however many there are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.control.paths import Paths
from space.control.routes import ROUTES

OURS = sorted({route.path for route in ROUTES})
SEGMENT = st.sampled_from(["", "v1", "sandboxes", "sb-1", "noop", "processes", "keys", "a b", "{id}", "."])


def by_pattern(path: str) -> list[tuple[str, dict[str, str]]]:
    found = []
    for template in OURS:
        match = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template), path)
        if match is not None:
            found.append((template, match.groupdict()))
    return found


@given(st.one_of(st.sampled_from(OURS), st.lists(SEGMENT, max_size=6).map(lambda parts: "/" + "/".join(parts)), st.text(max_size=20)))
def test_a_path_leads_where_its_pattern_says(path: str) -> None:
    wanted = by_pattern(path)
    found = Paths({template: template for template in OURS}).find(path)
    assert (found in wanted) if wanted else found is None


def test_what_is_spelled_out_goes_before_a_parameter() -> None:
    paths = Paths({"/a/{x}/c": 1, "/a/b/c": 2, "/a/{x}/{y}": 3, "/{x}/b/c": 4})
    assert paths.find("/a/b/c") == (2, {})
    assert paths.find("/a/q/c") == (1, {"x": "q"})
    assert paths.find("/a/q/r") == (3, {"x": "q", "y": "r"})
    assert paths.find("/q/b/c") == (4, {"x": "q"})
    assert paths.find("/a//c") is None
    assert paths.find("/a/b/c/") is None


@pytest.mark.parametrize("path", ["/a/{x", "/a/b{x}", "/a/{x:path}", "/a/{}"])
def test_a_parameter_is_one_whole_segment(path: str) -> None:
    with pytest.raises(ValueError, match="whole segments"):
        Paths({path: 1})
