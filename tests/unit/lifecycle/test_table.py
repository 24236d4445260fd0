"""The transition table: whole for outside requests, and its promises."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.lifecycle.table import TABLE, Accept, Ignore, Refuse, Request, answer
from space.model.errors import Conflict, Gone
from space.model.sandbox import Phase

OUTSIDE = [
    Request.CREATE,
    Request.DELETE,
    Request.PAUSE,
    Request.RESUME,
    Request.SUSPEND,
    Request.STOP,
    Request.WAKE,
    Request.START,
    Request.CHECKPOINT,
    Request.ROLLBACK,
    Request.FORK,
    Request.USE,
    Request.POLICY,
]
ON_THE_WAY = (Phase.SUSPENDING, Phase.WAKING, Phase.STOPPING, Phase.STARTING)


@pytest.mark.parametrize(("phase", "request_"), list(itertools.product(Phase, OUTSIDE)))
def test_every_phase_answers_every_outside_request(phase: Phase, request_: Request) -> None:
    assert isinstance(answer(phase, request_), Accept | Ignore | Refuse)


@pytest.mark.parametrize("phase", list(Phase))
def test_delete_is_legal_in_every_phase(phase: Phase) -> None:
    verdict = answer(phase, Request.DELETE)
    assert verdict == (Ignore() if phase in (Phase.DELETING, Phase.GONE) else Accept(Phase.DELETING))


@pytest.mark.parametrize(
    ("phase", "request_", "error", "words"),
    [
        (Phase.PAUSED, Request.USE, Conflict, "is paused (resume it first)"),
        (Phase.PREPARING, Request.USE, Conflict, "still being prepared"),
        (Phase.FAILED, Request.USE, Gone, "has failed"),
        (Phase.SUSPENDED, Request.USE, Conflict, "is suspended (wake it first)"),
        (Phase.STOPPED, Request.FORK, Conflict, "is stopped (wake it first)"),
        (Phase.STOPPED, Request.SUSPEND, Conflict, "is stopped"),
        (Phase.FAILED, Request.STOP, Gone, "has failed"),
        (Phase.SUSPENDING, Request.WAKE, Conflict, "is being suspended (wait until it is suspended, then wake it)"),
        (Phase.WAKING, Request.ROLLBACK, Conflict, "is waking"),
        (Phase.GONE, Request.USE, Gone, "was deleted"),
        (Phase.DELETING, Request.PAUSE, Gone, "is being deleted"),
        (Phase.DELETING, Request.CREATE, Gone, "is being deleted"),
    ],
)
def test_refusals_say_what_and_how(phase: Phase, request_: Request, error: type[Exception], words: str) -> None:
    verdict = answer(phase, request_)
    assert isinstance(verdict, Refuse)
    fault = verdict.fault("sb-x")
    assert type(fault) is error
    assert words in str(fault)


def test_a_missing_pair_names_itself() -> None:
    with pytest.raises(KeyError, match=r"'ready' in phase 'gone'"):
        answer(Phase.GONE, Request.READY)


@given(st.lists(st.sampled_from(list(Request))))
def test_nothing_comes_back_from_gone_and_deleting_leads_only_there(requests: list[Request]) -> None:
    phase = Phase.REQUESTED
    deleting = False
    for request in requests:
        verdict = TABLE.get((phase, request))
        if isinstance(verdict, Accept):
            if deleting:
                assert verdict.phase is Phase.GONE
            assert phase is not Phase.GONE
            phase = verdict.phase
            deleting = deleting or phase is Phase.DELETING


def test_a_fault_frees_compute_from_every_phase_that_holds_it() -> None:
    for phase in (Phase.PREPARING, Phase.RUNNING, Phase.PAUSED, *ON_THE_WAY):
        assert answer(phase, Request.FAULT) == Accept(Phase.FAILED)


@pytest.mark.parametrize(
    ("phase", "wish", "found"),
    [
        (Phase.RUNNING, Request.SUSPEND, Accept(Phase.SUSPENDING)),
        (Phase.PAUSED, Request.SUSPEND, Accept(Phase.SUSPENDING)),
        (Phase.SUSPENDED, Request.STOP, Accept(Phase.STOPPING)),
        (Phase.PAUSED, Request.WAKE, Accept(Phase.RUNNING)),
        (Phase.SUSPENDED, Request.WAKE, Accept(Phase.WAKING)),
        (Phase.SUSPENDED, Request.START, Accept(Phase.STARTING)),
        (Phase.STOPPED, Request.WAKE, Accept(Phase.STARTING)),
        (Phase.FAILED, Request.WAKE, Accept(Phase.STARTING)),
        (Phase.RUNNING, Request.WAKE, Ignore()),
        (Phase.WAKING, Request.WAKE, Ignore()),
        (Phase.STARTING, Request.START, Ignore()),
        (Phase.SUSPENDED, Request.SUSPEND, Ignore()),
        (Phase.STOPPED, Request.STOP, Ignore()),
        (Phase.FAILED, Request.ROLLBACK, Accept(Phase.WAKING)),
        (Phase.SUSPENDED, Request.POLICY, Accept(Phase.SUSPENDED)),
    ],
)
def test_a_sandbox_is_stored_and_brought_back_by_the_table(phase: Phase, wish: Request, found: Accept | Ignore) -> None:
    assert answer(phase, wish) == found


@pytest.mark.parametrize(
    ("phase", "happened", "then"),
    [
        (Phase.SUSPENDING, Request.STORED, Phase.SUSPENDED),
        (Phase.SUSPENDING, Request.WENT_ON, Phase.RUNNING),
        (Phase.SUSPENDING, Request.STOOD, Phase.PAUSED),
        (Phase.WAKING, Request.READY, Phase.RUNNING),
        (Phase.WAKING, Request.UNWOKEN, Phase.SUSPENDED),
        (Phase.STARTING, Request.READY, Phase.RUNNING),
        (Phase.STARTING, Request.UNSTARTED, Phase.STOPPED),
        (Phase.STARTING, Request.UNWOKEN, Phase.SUSPENDED),
        (Phase.STOPPING, Request.HALTED, Phase.STOPPED),
        (Phase.STOPPING, Request.UNWOKEN, Phase.SUSPENDED),
    ],
)
def test_whatever_is_on_its_way_arrives_or_falls_back_to_what_is_stored(phase: Phase, happened: Request, then: Phase) -> None:
    assert answer(phase, happened) == Accept(then)


def test_what_is_on_its_way_lets_nobody_but_a_deletion_and_a_policy_in_between() -> None:
    for phase, wish in itertools.product(ON_THE_WAY, OUTSIDE):
        if wish in (Request.DELETE, Request.POLICY):
            continue
        assert isinstance(answer(phase, wish), Ignore | Refuse), (phase, wish)
