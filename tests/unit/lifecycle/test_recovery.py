"""The plan after a crash: every row, sandbox and slot gets exactly one step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.lifecycle.recovery import (
    DISK_GONE,
    RESTARTED,
    SNAPSHOT_GONE,
    VMM_DIED,
    Adopt,
    Destroy,
    DestroyOrphan,
    Discard,
    Fail,
    Found,
    FreeSlot,
    Keep,
    Rest,
    Row,
    Step,
    plan,
)
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


SNAPSHOT = "sn-aaaaaaaaaaaaaaaaaaaa"
LATER = Found("sb-a", 2, 4, alive=True)


@pytest.mark.parametrize(
    ("phase", "snapshot", "found", "expected"),
    [
        # its snapshot is committed: suspended, whether its VMM was killed already or not
        (Phase.SUSPENDING, True, LIVE, lambda r: Rest(r, Phase.SUSPENDED)),
        (Phase.SUSPENDING, True, DEAD, lambda r: Rest(r, Phase.SUSPENDED)),
        (Phase.SUSPENDING, True, None, lambda r: Rest(r, Phase.SUSPENDED)),
        # it is not: the machine goes on, if there is one
        (Phase.SUSPENDING, False, LIVE, lambda r: Adopt(r)),
        (Phase.SUSPENDING, False, DEAD, lambda r: Fail(r, VMM_DIED)),
        (Phase.SUSPENDED, True, None, lambda r: Rest(r, Phase.SUSPENDED)),
        (Phase.SUSPENDED, False, None, lambda r: Fail(r, SNAPSHOT_GONE)),
        # a life that had begun is undone, in whatever generation it is
        (Phase.WAKING, True, LIVE, lambda r: Rest(r, Phase.SUSPENDED)),
        (Phase.WAKING, True, LATER, lambda r: Rest(replace(r, generation=2), Phase.SUSPENDED)),
        (Phase.WAKING, True, None, lambda r: Rest(r, Phase.SUSPENDED)),
        (Phase.WAKING, False, LIVE, lambda r: Fail(r, SNAPSHOT_GONE)),
        (Phase.STOPPING, False, LIVE, lambda r: Rest(r, Phase.STOPPED)),
        (Phase.STOPPING, False, DEAD, lambda r: Rest(r, Phase.STOPPED)),
        (Phase.STOPPING, False, None, lambda r: Fail(r, DISK_GONE)),
        (Phase.STOPPING, True, DEAD, lambda r: Rest(r, Phase.SUSPENDED)),
        (Phase.STOPPED, False, DEAD, lambda r: Rest(r, Phase.STOPPED)),
        (Phase.STOPPED, False, None, lambda r: Fail(r, DISK_GONE)),
        # a disk between two generations is nobody's orphan
        (Phase.STARTING, False, LATER, lambda r: Rest(replace(r, generation=2), Phase.STOPPED)),
        (Phase.STARTING, False, DEAD, lambda r: Rest(r, Phase.STOPPED)),
        (Phase.STARTING, True, LIVE, lambda r: Rest(r, Phase.SUSPENDED)),
        (Phase.STARTING, False, None, lambda r: Fail(r, DISK_GONE)),
    ],
)
def test_what_is_stored_is_never_lost_and_what_runs_goes_on(phase: Phase, snapshot: bool, found: Found | None, expected: object) -> None:
    it = replace(row(phase), snapshot=SNAPSHOT if snapshot else "sn-never")
    stored = [SNAPSHOT] if snapshot else []
    assert plan([it], [], [found] if found else [], stored) == [expected(it)]  # type: ignore[operator]


def test_a_snapshot_that_no_row_names_is_discarded_and_a_checkpoint_is_kept() -> None:
    it = replace(row(Phase.RUNNING), checkpoints=frozenset({"sn-cp"}))
    assert plan([it], [3], [LIVE], ["sn-cp", "sn-left"]) == [Adopt(it), Discard("sn-left")]


def test_a_snapshot_of_a_sandbox_that_is_being_deleted_goes_with_it() -> None:
    it = replace(row(Phase.DELETING), snapshot=SNAPSHOT, checkpoints=frozenset({"sn-cp"}))
    assert plan([it], [], [], [SNAPSHOT, "sn-cp"]) == [Destroy(it, None), Discard(SNAPSHOT), Discard("sn-cp")]


_names = st.sampled_from(["sb-a", "sb-b", "sb-c", "sb-d"])
_rows = st.lists(st.builds(Row, _names, st.integers(1, 2), st.sampled_from(list(Phase)), st.integers(0, 6)), unique_by=lambda r: r.sandbox)
_found = st.lists(st.builds(Found, _names, st.integers(1, 2), st.integers(0, 6), st.booleans()), unique_by=lambda f: f.sandbox)


@given(_rows, st.sets(st.integers(0, 6)), _found)
def test_everything_gets_one_step_and_only_known_living_ones_are_adopted(rows: list[Row], slots: set[int], found: list[Found]) -> None:
    steps: list[Step] = plan(rows, slots, found)
    about_rows = [step.row for step in steps if isinstance(step, Adopt | Fail | Keep | Rest | Destroy)]
    assert sorted(each.sandbox for each in about_rows) == sorted(each.sandbox for each in rows)
    orphans = [step.found for step in steps if isinstance(step, DestroyOrphan)]
    known = {(each.sandbox, each.generation) for each in about_rows}
    assert orphans == [each for each in found if (each.sandbox, each.generation) not in known]
    freed = {step.slot for step in steps if isinstance(step, FreeSlot)}
    assert freed == slots - {each.slot for each in rows} - {each.slot for each in found}
    for step in steps:
        if isinstance(step, Adopt):
            assert Found(step.row.sandbox, step.row.generation, 0, alive=True) in [
                Found(each.sandbox, each.generation, 0, each.alive) for each in found
            ]
