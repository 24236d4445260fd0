"""Figures are medians with the middle half, beside their baseline; the object has the shape that issue 10 names."""

from __future__ import annotations

import json

import pytest

from space.bench import figures, main
from space.bench.figures import Figure, Section


def test_a_difference_is_of_medians_and_its_spread_of_pairs() -> None:
    found = figures.difference([5.0, 6.0, 100.0], [1.0, 1.0, 3.0], "ms")
    assert (found.value, found.unit, found.baseline) == (5.0, "ms", {"raw": 1.0, "whole": 6.0})
    assert (found.low, found.high) == (4.0, 97.0)


def test_a_ratio_is_of_medians() -> None:
    found = figures.ratio([50.0, 60.0, 40.0, 50.0], [100.0, 100.0, 80.0, 100.0], raw_ms=100.0)
    assert found.value == 0.5
    assert found.low is not None
    assert found.high is not None
    assert 0.5 <= found.low <= found.high <= 0.6


def test_the_object_is_section_figure_value_unit_baseline() -> None:
    sections = {"exec": Section({"noop_over_raw_ms": Figure(1.23456, "ms", {"raw": 0.98765}, 1.0, 2.0)}, {"noop_ms": [1.0]})}
    assert json.loads(main._object(sections)) == {
        "exec": {"noop_over_raw_ms": {"value": 1.235, "unit": "ms", "baseline": {"raw": 0.9877}, "low": 1.0, "high": 2.0}}
    }


def test_an_unknown_section_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main.main(["warp"])
    assert refused.value.code == 2
    assert f"no such section: warp (there are {', '.join(main.sections())})" in capsys.readouterr().err
