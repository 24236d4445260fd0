"""What a bench says besides its table: what got slower than in an earlier run, and a picture of each section."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.bench import against, plot, tti
from space.model.errors import InvalidArgument

STEADY = [10.0, 10.2, 9.9, 10.1, 10.0, 9.8]
SERIES = st.lists(st.floats(0, 1e6, allow_nan=False), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("name", "before", "now", "factor"),
    [
        ("create_ms", STEADY, [20.0, 20.4, 19.8, 20.1], 2.0),
        ("create_ms", STEADY, STEADY, None),
        ("create_ms", STEADY, [5.0, 5.1, 4.9, 5.0], None),  # faster
        ("create_ms", STEADY, [9.0, 10.3, 30.0, 9.5], None),  # noise
        ("create_ms", STEADY, [10.3, 10.4, 10.35, 10.4], None),  # beyond noise, and not worth a word
        ("creates_per_s", [100.0, 101.0, 99.0], [50.0, 50.5, 49.5], 2.0),
        ("creates_per_s", [50.0, 50.5, 49.5], [100.0, 101.0, 99.0], None),
        ("create_ms", [10.0, 10.0], [20.0, 20.0], None),  # two are no spread
        ("displaced", [1.0, 1.0, 1.0], [9.0, 9.0, 9.0], None),  # nobody said which way is better
    ],
)
def test_worse_is_what_is_slower_than_before_and_beyond_noise(
    name: str, before: list[float], now: list[float], factor: float | None
) -> None:
    found = against.worse(name, before, now)
    assert found == (None if factor is None else pytest.approx(factor, rel=0.05))


@given(SERIES)
def test_a_series_is_never_worse_than_itself(series: list[float]) -> None:
    assert against.worse("x_ms", series, series) is None
    assert against.worse("x_per_s", series, series) is None


def test_what_got_worse_is_told_worst_first_and_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    path.write_text(json.dumps({"environment": {}, "samples": {"start": {"cold_ms": STEADY, "warm_ms": STEADY}, "gone": {"x_ms": STEADY}}}))
    before = against.load(path)
    said = against.lines(before, {"start": {"cold_ms": [30.0] * 4, "warm_ms": [90.0] * 4, "new_ms": [1.0] * 4}})
    assert [line.split(":")[0] for line in said] == ["start.warm_ms", "start.cold_ms"]
    assert against.lines(before, before) == ["nothing got slower beyond noise (3 series compared)"]
    for wrong in ("", "[]", '{"samples": 1}', '{"samples": {"a": {"b": ["x"]}}}'):
        path.write_text(wrong)
        with pytest.raises(InvalidArgument, match="no samples of a bench"):
            against.load(path)


@given(st.dictionaries(st.text("abc<&_", min_size=1, max_size=8), SERIES, max_size=6), st.lists(st.floats(1, 1e5), min_size=1, max_size=10))
def test_every_series_is_in_the_picture_and_inside_of_it(samples: dict[str, list[float]], population: list[float]) -> None:
    grown = {**samples, "grew": population, "population": population}
    root = ET.fromstring(plot.svg("s<", grown))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    words = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert set(samples) | {"grew", "s<"} <= set(words)
    for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height


@pytest.mark.parametrize(("percent", "right"), [(50, 50.0), (95, 95.0), (99, 99.0), (100, 100.0), (1, 1.0)])
def test_percentiles_are_samples_by_nearest_rank_and_the_ends_are_dropped_in_pairs(percent: float, right: float) -> None:
    hundred = [float(number) for number in range(1, 101)]
    assert tti.percentile(hundred, percent) == right
    assert tti.trimmed(list(reversed(hundred))) == hundred[5:-5]
    assert tti.trimmed([2.0, 1.0]) == [1.0, 2.0]
