"""The transition table of a sandbox: `(phase, request) -> Accept | Ignore | Refuse`.

    requested -> preparing -> running <-> paused
    running, paused -> suspending -> suspended -> waking -> running
    running, paused, suspended -> stopping -> stopped -> starting -> running
    failed -> starting (from the disk)                any -> deleting -> gone          any but those at rest and gone -> failed

Requests come from outside; occurrences come from the sandbox's own task. Both stand in one table; a pair that is missing can only be
our own mistake and raises. Delete is legal in every phase. A life that cannot begin is `unwoken` or `unstarted`: the sandbox falls back
to what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from space.model.errors import Conflict, Gone, SpaceError
from space.model.sandbox import Phase


class Request(StrEnum):
    """What is asked of a sandbox, or what happened to it."""

    CREATE = "create"
    DELETE = "delete"
    PAUSE = "pause"
    RESUME = "resume"
    SUSPEND = "suspend"
    STOP = "stop"
    WAKE = "wake"  # whatever it takes until it runs
    START = "start"  # likewise, without a stored memory
    CHECKPOINT = "checkpoint"
    ROLLBACK = "roll back"
    FORK = "fork"
    USE = "use"  # exec, noop, metrics, trees: whatever needs the guest's daemon
    POLICY = "policy"  # another policy for its egress

    BEGIN = "begin"
    READY = "ready"
    STORED = "stored"  # its memory and disk are on stable storage
    WENT_ON = "went on"  # its suspension did not come to be
    STOOD = "stood"  # likewise, of one that was paused
    HALTED = "halted"  # its disk is at rest
    UNWOKEN = "unwoken"  # what is stored of memory and disk is all there is again
    UNSTARTED = "unstarted"  # its disk is
    FAULT = "fault"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Accept:
    """Do it; the sandbox is in `phase` then."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class Ignore:
    """It is so already: answer with the present state."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """It cannot be done in this phase. `why` completes "sandbox sb-... "."""

    error: type[SpaceError]
    why: str
    hint: str | None = None

    def fault(self, sandbox: str, reason: str | None = None) -> SpaceError:
        """The exception for a caller; `reason`: why the sandbox failed, where it did."""
        text = f"sandbox {sandbox} {self.why}" + (f": {reason}" if reason else "")
        return self.error(text, hint=self.hint)


Answer = Accept | Ignore | Refuse

_P = Phase
_R = Request

# What is said of a phase in which something cannot be done.
_WORDS: dict[Phase, Refuse] = {
    _P.REQUESTED: Refuse(Conflict, "is still being prepared", "wait until it is running"),
    _P.PREPARING: Refuse(Conflict, "is still being prepared", "wait until it is running"),
    _P.PAUSED: Refuse(Conflict, "is paused", "resume it first"),
    _P.SUSPENDING: Refuse(Conflict, "is being suspended", "wait until it is suspended, then wake it"),
    _P.SUSPENDED: Refuse(Conflict, "is suspended", "wake it first"),
    _P.WAKING: Refuse(Conflict, "is waking", "wait until it is running"),
    _P.STOPPING: Refuse(Conflict, "is being stopped", "wait until it is stopped, then wake it"),
    _P.STOPPED: Refuse(Conflict, "is stopped", "wake it first"),
    _P.STARTING: Refuse(Conflict, "is starting", "wait until it is running"),
    _P.FAILED: Refuse(Gone, "has failed", "wake it: that starts it from its disk, where it has one; or delete it"),
    _P.DELETING: Refuse(Gone, "is being deleted"),
    _P.GONE: Refuse(Gone, "was deleted"),
}
_ENDING = (_P.DELETING, _P.GONE)


def _row(request: Request, answers: dict[Phase, Phase | Ignore]) -> dict[tuple[Phase, Request], Answer]:
    """A request of everybody's: accepted or ignored where said, refused in the phase's words elsewhere."""
    row: dict[tuple[Phase, Request], Answer] = {}
    for phase in Phase:
        answer = answers.get(phase)
        row[phase, request] = Accept(answer) if isinstance(answer, Phase) else answer if answer is not None else _words(phase)
    return row


def _words(phase: Phase) -> Refuse:
    return _WORDS.get(phase, Refuse(Conflict, f"is {phase.value}"))


_BEGINS: dict[Phase, Phase | Ignore] = {
    _P.PAUSED: _P.RUNNING,
    _P.STOPPED: _P.STARTING,
    _P.FAILED: _P.STARTING,
    _P.RUNNING: Ignore(),
    _P.WAKING: Ignore(),
    _P.STARTING: Ignore(),
}

TABLE: dict[tuple[Phase, Request], Answer] = {
    # a repeated create joins the first, whatever became of it, except a deletion
    **_row(_R.CREATE, {phase: Ignore() for phase in Phase if phase not in _ENDING}),
    **_row(_R.DELETE, {phase: Ignore() if phase in _ENDING else _P.DELETING for phase in Phase}),
    **_row(_R.PAUSE, {_P.RUNNING: _P.PAUSED, _P.PAUSED: Ignore()}),
    **_row(_R.RESUME, {_P.PAUSED: _P.RUNNING, _P.RUNNING: Ignore()}),
    **_row(
        _R.SUSPEND,
        {_P.RUNNING: _P.SUSPENDING, _P.PAUSED: _P.SUSPENDING, _P.SUSPENDING: Ignore(), _P.SUSPENDED: Ignore()},
    ),
    **_row(
        _R.STOP,
        {
            _P.RUNNING: _P.STOPPING,
            _P.PAUSED: _P.STOPPING,
            _P.SUSPENDED: _P.STOPPING,
            _P.STOPPING: Ignore(),
            _P.STOPPED: Ignore(),
        },
    ),
    **_row(_R.WAKE, {**_BEGINS, _P.SUSPENDED: _P.WAKING}),
    **_row(_R.START, {**_BEGINS, _P.SUSPENDED: _P.STARTING}),
    **_row(_R.CHECKPOINT, {_P.RUNNING: _P.RUNNING, _P.PAUSED: _P.PAUSED}),
    **_row(
        _R.ROLLBACK,
        dict.fromkeys((_P.RUNNING, _P.PAUSED, _P.SUSPENDED, _P.STOPPED, _P.FAILED), _P.WAKING),
    ),
    **_row(_R.FORK, {_P.RUNNING: _P.RUNNING, _P.PAUSED: _P.PAUSED}),
    **_row(_R.USE, {_P.RUNNING: _P.RUNNING}),
    # another policy: in every phase in which it may come to speak, or does
    **_row(_R.POLICY, {phase: phase for phase in Phase if phase not in (*_ENDING, _P.FAILED)}),
    # what happens to it
    (_P.REQUESTED, _R.BEGIN): Accept(_P.PREPARING),
    (_P.PREPARING, _R.READY): Accept(_P.RUNNING),
    (_P.WAKING, _R.READY): Accept(_P.RUNNING),
    (_P.STARTING, _R.READY): Accept(_P.RUNNING),
    (_P.SUSPENDING, _R.STORED): Accept(_P.SUSPENDED),
    (_P.SUSPENDING, _R.WENT_ON): Accept(_P.RUNNING),
    (_P.SUSPENDING, _R.STOOD): Accept(_P.PAUSED),
    (_P.STOPPING, _R.HALTED): Accept(_P.STOPPED),
    (_P.STOPPING, _R.UNWOKEN): Accept(_P.SUSPENDED),  # it was suspended, and its disk could not be taken out
    (_P.WAKING, _R.UNWOKEN): Accept(_P.SUSPENDED),
    (_P.STARTING, _R.UNWOKEN): Accept(_P.SUSPENDED),
    (_P.STARTING, _R.UNSTARTED): Accept(_P.STOPPED),
    **{(phase, _R.FAULT): Accept(_P.FAILED) for phase in Phase if phase not in (*_ENDING, _P.FAILED)},
    (_P.FAILED, _R.FAULT): Ignore(),  # the first reason stands
    (_P.DELETING, _R.FAULT): Ignore(),  # a VMM that dies while it is deleted
    (_P.DELETING, _R.ENDED): Accept(_P.GONE),
}


def answer(phase: Phase, request: Request) -> Answer:
    """What the table says; KeyError names a pair that can only come from a mistake of ours."""
    try:
        return TABLE[phase, request]
    except KeyError:
        raise KeyError(f"no transition for {request.value!r} in phase {phase.value!r}") from None
