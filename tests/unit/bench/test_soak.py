"""What a soak says is wrong."""

from __future__ import annotations

import pytest
from tests.soak.__main__ import FEWEST, Findings, report


@pytest.mark.parametrize(("last", "status"), [(0.1, 0), (0.25, 0), (0.9, 1)])
def test_a_soak_whose_calls_get_slower_fails(last: float, status: int) -> None:
    found = Findings()
    for number in range(3 * FEWEST):
        found.note("run", float(number), number + (last if number >= 2 * FEWEST else 0.1), calm=True)
    assert report(found) == status


def test_a_soak_that_lost_something_fails_and_calls_under_a_kill_are_not_compared() -> None:
    found = Findings()
    for number in range(3 * FEWEST):
        found.note("run", float(number), number + (9.0 if number >= 2 * FEWEST else 0.1), calm=False)
    assert report(found) == 0
    found.blame("sb-x is lost")
    assert report(found) == 1
