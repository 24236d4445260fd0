"""Steps side by side."""

from __future__ import annotations

import threading

import pytest

from space.setup.graph import Step, run


def test_steps_get_the_results_they_wait_for() -> None:
    steps = {"a": Step(lambda: 2), "b": Step(lambda: 3), "c": Step(lambda one, two: one * two, after=("a", "b"))}
    assert run(steps) == {"a": 2, "b": 3, "c": 6}


def test_independent_steps_run_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=10)
    assert set(run({"a": Step(together.wait), "b": Step(together.wait)}).values()) == {0, 1}


def test_a_failure_is_raised_after_what_does_not_hang_on_it_has_ended() -> None:
    ran: list[str] = []

    def fail() -> None:
        raise ValueError("disk full")

    steps = {
        "bad": Step(fail),
        "after": Step(ran.append, after=("bad",)),
        "further": Step(ran.append, after=("after",)),
        "good": Step(lambda: ran.append("good")),
    }
    with pytest.raises(ValueError, match="disk full"):
        run(steps)
    assert ran == ["good"]
