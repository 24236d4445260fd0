"""The transition table: whole for outside requests, and its promises."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.lifecycle.table import TABLE, Accept, Ignore, Refuse, Request, answer
from space.model.errors import Conflict, Gone
from space.model.sandbox import Phase

OUTSIDE = [Request.CREATE, Request.DELETE, Request.PAUSE, Request.RESUME, Request.USE]


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
    for phase in (Phase.PREPARING, Phase.RUNNING, Phase.PAUSED):
        assert answer(phase, Request.FAULT) == Accept(Phase.FAILED)
