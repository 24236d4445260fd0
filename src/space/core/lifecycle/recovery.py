"""What a node does when it starts: its ledger against what rootd finds on the host. Values in, steps out.

| ledger says | VMM lives | files | step |
|---|---|---|---|
| running, paused | yes | yes | adopt |
| running, paused | no | yes or no | fail: compute is freed, the disk stays until deleted |
| requested, preparing | any | any | destroy, then failed: its caller is told |
| deleting | any | any | destroy, then gone |
| failed | yes | any | fail: what is left of its compute is freed |
| failed | no | any | keep the record |
| nothing | any | yes | destroy: an orphan |
| nothing | - | - | slot of nobody: free it |

A sandbox that rootd knows in another generation than the ledger is an orphan, and so is a slot that no row holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from space.model.sandbox import Phase


@dataclass(frozen=True, slots=True)
class Row:
    """What the ledger knows of a sandbox."""

    sandbox: str
    generation: int
    phase: Phase
    slot: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox on the host, as rootd sees it."""

    sandbox: str
    generation: int
    slot: int
    alive: bool


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take it over; it runs."""

    row: Row


@dataclass(frozen=True, slots=True)
class Fail:
    """Free its compute, keep record and disk."""

    row: Row
    reason: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing to do: a failed sandbox that waits for its deletion."""

    row: Row


@dataclass(frozen=True, slots=True)
class Destroy:
    """Undo everything of a row. reason: it is reported as failed with it; None: it is gone."""

    row: Row
    reason: str | None


@dataclass(frozen=True, slots=True)
class DestroyOrphan:
    """Undo a sandbox that no row knows."""

    found: Found


@dataclass(frozen=True, slots=True)
class FreeSlot:
    """Undo a slot that nobody holds."""

    slot: int


Step = Adopt | Fail | Keep | Destroy | DestroyOrphan | FreeSlot

RESTARTED = "the node was restarted while the sandbox was being prepared"
VMM_DIED = "its VM ended while the node was down"


def plan(rows: Iterable[Row], slots: Iterable[int], sandboxes: Iterable[Found]) -> list[Step]:
    """The steps, adoptions first because somebody may be using those sandboxes."""
    rows = list(rows)
    found = list(sandboxes)
    there = {(each.sandbox, each.generation): each for each in found}
    known = {(row.sandbox, row.generation) for row in rows}
    steps: list[Step] = [_step(row, there.get((row.sandbox, row.generation))) for row in rows]
    steps += [DestroyOrphan(each) for each in found if (each.sandbox, each.generation) not in known]
    spoken_for = {row.slot for row in rows} | {each.slot for each in found}
    steps += [FreeSlot(slot) for slot in slots if slot not in spoken_for]
    return sorted(steps, key=lambda step: not isinstance(step, Adopt))


def _step(row: Row, found: Found | None) -> Step:
    alive = found is not None and found.alive
    match row.phase:
        case Phase.RUNNING | Phase.PAUSED:
            return Adopt(row) if alive else Fail(row, VMM_DIED)
        case Phase.REQUESTED | Phase.PREPARING:
            return Destroy(row, RESTARTED)
        case Phase.DELETING | Phase.GONE:
            return Destroy(row, None)
        case Phase.FAILED:
            return Fail(row, row.reason or VMM_DIED) if alive else Keep(row)
