"""The evaluation's quick set against this version; and that its oracles see what gets through, where a policy is open on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import space
from space.testing import leaks
from space.testing.machine import Runtime
from space_evaluate import catalogue
from space_evaluate.ground import Place
from space_evaluate.lane import guest
from space_evaluate.outcome import Run
from space_evaluate.runner import run, stage, tried


@pytest.fixture(scope="module")
def staged(runtime: Runtime) -> Iterator[tuple[space.Client, Place]]:
    before = leaks.of_host()
    with stage(runtime) as found:
        yield found
    leaks.settle(leaks.of_host, before)


def test_nothing_of_the_quick_set_gets_through(staged: tuple[space.Client, Place]) -> None:
    found = run(*staged, catalogue.attempts(catalogue.entries(), quick=True), quick=True)
    print(found.as_json())
    assert [one.as_json() for one in found.outcomes if one.word != "stopped"] == []
    assert found.controls_ok
    assert found.passed


def test_what_a_policy_lets_out_is_reached(staged: tuple[space.Client, Place]) -> None:
    """The harness can fail: the same oracles, and a policy that allows what the techniques try."""
    client, place = staged
    told = place.told
    opened = {**(place.policy("narrow", {"host": told.callback}) or {}), "cidr": [f"{told.callback_at}/32"]}
    chosen = tuple(entry for entry in catalogue.entries() if entry.id in ("unlisted", "literal"))
    wanted = [one for one in catalogue.attempts(chosen) if (one.goal, one.policy) == ("callback", "narrow")]
    with guest(client, place) as here:
        here.hold_to("narrow", opened)
        found = Run(tried(here, wanted), {})
    words = {one.attempt.name: one.word for one in found.outcomes}
    assert words["unlisted callback narrow the name"] == "reached", words
    assert words["literal callback narrow the service"] == "reached", words
    assert words["unlisted callback narrow data in labels"] == "stopped", words
    assert not found.passed
