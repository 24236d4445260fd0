"""What to do about one sandbox, from what should be (the record) and what is (the node's level). Pure.

record            level                    step
none or ended     there                    delete it there
unwanted          there                    delete it there
unwanted          gone or absent           ended: gone
wanted            absent, create in hand   wait
wanted            absent                   ended: failed
wanted            failed, and it ran once  record the phase: its disk is kept, and wake starts it anew
wanted            failed, gone, deleting   ended: failed, with the node's reason
wanted            any other phase          record the phase
"""

from __future__ import annotations

from dataclasses import dataclass

from space.control.records import UNWANTED, Record
from space.model.sandbox import Phase
from space.rpc.node_api import SandboxState

LOST_IN_CREATE = "the node did not have it after the connection between control and node was lost during its creation"
LOST = "the node no longer has it"


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do."""


@dataclass(frozen=True, slots=True)
class DeleteThere:
    """The node has what nobody wants."""


@dataclass(frozen=True, slots=True)
class Note:
    """The phase moved."""

    phase: Phase
    isolation: str


@dataclass(frozen=True, slots=True)
class End:
    """It is over: gone as asked, or failed."""

    phase: Phase
    reason: str | None


Step = Wait | DeleteThere | Note | End


def decide(record: Record | None, level: SandboxState | None, *, creating: bool = False) -> Step:
    """The one step. creating: a create call of this process is in hand, so that absence proves nothing yet."""
    phase = None if level is None else _phase(level.phase)
    if record is None or record.ended:
        return Wait() if phase in (None, Phase.GONE, Phase.DELETING) else DeleteThere()
    if record.desired == UNWANTED:
        if phase in (None, Phase.GONE):
            return Wait() if creating else End(Phase.GONE, record.reason)
        return Wait() if phase is Phase.DELETING else DeleteThere()
    if level is None or phase is None:
        return Wait() if creating else End(Phase.FAILED, LOST_IN_CREATE if record.phase in (Phase.REQUESTED, Phase.PREPARING) else LOST)
    kept = level.phase == Phase.FAILED and not creating and record.phase not in (Phase.REQUESTED, Phase.PREPARING)
    if phase in (Phase.FAILED, Phase.GONE, Phase.DELETING) and not kept:
        return End(Phase.FAILED, level.reason or f"the node says {phase}")
    if (phase, level.isolation) == (record.phase, record.isolation):
        return Wait()
    return Note(phase, level.isolation)


def _phase(text: str) -> Phase:
    try:
        return Phase(text)
    except ValueError:
        return Phase.FAILED  # a phase of another version: not usable, and deleted on the node
