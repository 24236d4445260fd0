"""The plan after a crash: every row, sandbox and slot gets exactly one step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.lifecycle.recovery import RESTARTED, VMM_DIED, Adopt, Destroy, DestroyOrphan, Fail, Found, FreeSlot, Keep, Row, Step, plan
from space.model.sandbox import Phase


def row(phase: Phase, slot: int | None = 3, reason: str | None = None) -> Row:
    return Row("sb-a", 1, phase, slot, reason)


LIVE = Found("sb-a", 1, 3, alive=True)
DEAD = Found("sb-a", 1, 3, alive=False)


@pytest.mark.parametrize(
    ("phase", "found", "expected"),
    [
        (Phase.RUNNING, LIVE, lambda r: Adopt(r)),
        (Phase.PAUSED, LIVE, lambda r: Adopt(r)),
        (Phase.RUNNING, DEAD, lambda r: Fail(r, VMM_DIED)),
        (Phase.RUNNING, None, lambda r: Fail(r, VMM_DIED)),
        (Phase.PREPARING, LIVE, lambda r: Destroy(r, RESTARTED)),
        (Phase.PREPARING, None, lambda r: Destroy(r, RESTARTED)),
        (Phase.REQUESTED, None, lambda r: Destroy(r, RESTARTED)),
        (Phase.DELETING, LIVE, lambda r: Destroy(r, None)),
        (Phase.DELETING, None, lambda r: Destroy(r, None)),
        (Phase.FAILED, LIVE, lambda r: Fail(r, VMM_DIED)),
        (Phase.FAILED, DEAD, lambda r: Keep(r)),
        (Phase.FAILED, None, lambda r: Keep(r)),
    ],
)
def test_one_sandbox(phase: Phase, found: Found | None, expected: object) -> None:
    it = row(phase)
    assert plan([it], [3], [found] if found else []) == [expected(it)]  # type: ignore[operator]


def test_what_no_row_knows_is_destroyed() -> None:
    stranger = Found("sb-b", 1, 5, alive=True)
    assert plan([row(Phase.RUNNING)], [3, 5, 7], [LIVE, stranger]) == [Adopt(row(Phase.RUNNING)), DestroyOrphan(stranger), FreeSlot(7)]


def test_another_generation_is_an_orphan_and_the_row_has_failed() -> None:
    older = Found("sb-a", 0, 3, alive=True)
    assert plan([row(Phase.RUNNING)], [3], [older]) == [Fail(row(Phase.RUNNING), VMM_DIED), DestroyOrphan(older)]


_names = st.sampled_from(["sb-a", "sb-b", "sb-c", "sb-d"])
_rows = st.lists(st.builds(Row, _names, st.integers(1, 2), st.sampled_from(list(Phase)), st.integers(0, 6)), unique_by=lambda r: r.sandbox)
_found = st.lists(st.builds(Found, _names, st.integers(1, 2), st.integers(0, 6), st.booleans()), unique_by=lambda f: f.sandbox)


@given(_rows, st.sets(st.integers(0, 6)), _found)
def test_everything_gets_one_step_and_only_known_living_ones_are_adopted(rows: list[Row], slots: set[int], found: list[Found]) -> None:
    steps: list[Step] = plan(rows, slots, found)
    about_rows = [step.row for step in steps if isinstance(step, Adopt | Fail | Keep | Destroy)]
    assert sorted(about_rows, key=lambda r: r.sandbox) == sorted(rows, key=lambda r: r.sandbox)
    orphans = [step.found for step in steps if isinstance(step, DestroyOrphan)]
    known = {(each.sandbox, each.generation) for each in rows}
    assert orphans == [each for each in found if (each.sandbox, each.generation) not in known]
    freed = {step.slot for step in steps if isinstance(step, FreeSlot)}
    assert freed == slots - {each.slot for each in rows} - {each.slot for each in found}
    for step in steps:
        if isinstance(step, Adopt):
            assert Found(step.row.sandbox, step.row.generation, 0, alive=True) in [
                Found(each.sandbox, each.generation, 0, each.alive) for each in found
            ]
