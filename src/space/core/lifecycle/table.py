"""The transition table of a sandbox: `(phase, request) -> Accept | Ignore | Refuse`.

    requested -> preparing -> running <-> paused
    any -> deleting -> gone          any but gone -> failed

Requests come from outside (`create`, `delete`, `pause`, `resume`, `use`, `policy`); occurrences come from the sandbox's own task
(`begin`, `ready`, `fault`, `ended`). Both stand in one table; a pair that is missing can only be our own mistake and raises.
Delete is legal in every phase.
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
    USE = "use"  # exec, noop, metrics, trees: whatever needs the guest's daemon
    POLICY = "policy"  # another policy for its egress

    BEGIN = "begin"
    READY = "ready"
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

_PREPARING = Refuse(Conflict, "is still being prepared", "wait until it is running")
_PAUSED = Refuse(Conflict, "is paused", "resume it first")
_DELETING = Refuse(Gone, "is being deleted")
_GONE = Refuse(Gone, "was deleted")
_FAILED = Refuse(Gone, "has failed", "delete it and create another")

_P = Phase
_R = Request

TABLE: dict[tuple[Phase, Request], Answer] = {
    # a repeated create joins the first, whatever became of it, except a deletion
    (_P.REQUESTED, _R.CREATE): Ignore(),
    (_P.PREPARING, _R.CREATE): Ignore(),
    (_P.RUNNING, _R.CREATE): Ignore(),
    (_P.PAUSED, _R.CREATE): Ignore(),
    (_P.FAILED, _R.CREATE): Ignore(),
    (_P.DELETING, _R.CREATE): _DELETING,
    (_P.GONE, _R.CREATE): _GONE,
    # delete
    (_P.REQUESTED, _R.DELETE): Accept(_P.DELETING),
    (_P.PREPARING, _R.DELETE): Accept(_P.DELETING),
    (_P.RUNNING, _R.DELETE): Accept(_P.DELETING),
    (_P.PAUSED, _R.DELETE): Accept(_P.DELETING),
    (_P.FAILED, _R.DELETE): Accept(_P.DELETING),
    (_P.DELETING, _R.DELETE): Ignore(),
    (_P.GONE, _R.DELETE): Ignore(),
    # pause, resume
    (_P.RUNNING, _R.PAUSE): Accept(_P.PAUSED),
    (_P.PAUSED, _R.PAUSE): Ignore(),
    (_P.REQUESTED, _R.PAUSE): _PREPARING,
    (_P.PREPARING, _R.PAUSE): _PREPARING,
    (_P.DELETING, _R.PAUSE): _DELETING,
    (_P.GONE, _R.PAUSE): _GONE,
    (_P.FAILED, _R.PAUSE): _FAILED,
    (_P.PAUSED, _R.RESUME): Accept(_P.RUNNING),
    (_P.RUNNING, _R.RESUME): Ignore(),
    (_P.REQUESTED, _R.RESUME): _PREPARING,
    (_P.PREPARING, _R.RESUME): _PREPARING,
    (_P.DELETING, _R.RESUME): _DELETING,
    (_P.GONE, _R.RESUME): _GONE,
    (_P.FAILED, _R.RESUME): _FAILED,
    # use
    (_P.RUNNING, _R.USE): Accept(_P.RUNNING),
    (_P.PAUSED, _R.USE): _PAUSED,
    (_P.REQUESTED, _R.USE): _PREPARING,
    (_P.PREPARING, _R.USE): _PREPARING,
    (_P.DELETING, _R.USE): _DELETING,
    (_P.GONE, _R.USE): _GONE,
    (_P.FAILED, _R.USE): _FAILED,
    # another policy: in every phase in which it may come to speak, or does
    (_P.REQUESTED, _R.POLICY): Accept(_P.REQUESTED),
    (_P.PREPARING, _R.POLICY): Accept(_P.PREPARING),
    (_P.RUNNING, _R.POLICY): Accept(_P.RUNNING),
    (_P.PAUSED, _R.POLICY): Accept(_P.PAUSED),
    (_P.DELETING, _R.POLICY): _DELETING,
    (_P.GONE, _R.POLICY): _GONE,
    (_P.FAILED, _R.POLICY): _FAILED,
    # what happens to it
    (_P.REQUESTED, _R.BEGIN): Accept(_P.PREPARING),
    (_P.PREPARING, _R.READY): Accept(_P.RUNNING),
    (_P.REQUESTED, _R.FAULT): Accept(_P.FAILED),
    (_P.PREPARING, _R.FAULT): Accept(_P.FAILED),
    (_P.RUNNING, _R.FAULT): Accept(_P.FAILED),
    (_P.PAUSED, _R.FAULT): Accept(_P.FAILED),
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
