"""What a node does when it starts: its ledger against what rootd finds on the host. Values in, steps out.

| ledger says | on the host | step |
|---|---|---|
| running, paused | a living VMM | adopt |
| running, paused | none | fail: compute is freed, the disk stays until deleted |
| suspending | its snapshot | rest: suspended; what its VMM left is undone |
| suspending | a living VMM, no snapshot | adopt: it goes on |
| suspending | neither | fail |
| suspended | its snapshot | rest |
| waking | anything | rest: suspended, the life that had begun is undone |
| stopping | a snapshot that it was suspended in | rest: suspended |
| stopping | its disk | rest: stopped; where its VMM lives, its guest is shut down first |
| stopped | its disk | rest |
| starting | a snapshot that it was suspended in | rest: suspended |
| starting | its disk | rest: stopped, in the generation that rootd knows |
| any of these at rest | not what it rests in | fail: that is gone |
| requested, preparing | any | destroy, then failed: its caller is told |
| deleting | any | destroy, then gone |
| failed | a living VMM | fail: what is left of its compute is freed |
| failed | none | keep the record |
| nothing | files | destroy: an orphan |
| nothing | a slot | of nobody: free it |
| nothing | a snapshot of a sandbox | discard it |

A sandbox that rootd knows in another generation than the ledger is an orphan, and so is a slot that no row holds; but a row between two
lives (waking, starting) owns whatever there is of its sandbox.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from space.model.sandbox import Phase


@dataclass(frozen=True, slots=True)
class Row:
    """What the ledger knows of a sandbox. A step has it in the generation that rootd knows, where it was between two."""

    sandbox: str
    generation: int
    phase: Phase
    slot: int | None
    reason: str | None = None
    snapshot: str = ""  # that it is, or is being, suspended in
    checkpoints: frozenset[str] = frozenset()  # snapshots


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
class Rest:
    """Undo what is left of a life, and be in `phase`: suspended or stopped."""

    row: Row
    phase: Phase


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


@dataclass(frozen=True, slots=True)
class Discard:
    """A snapshot of a sandbox that no row names: one that was taken, or given up, when the node died."""

    snapshot: str


Step = Adopt | Fail | Keep | Rest | Destroy | DestroyOrphan | FreeSlot | Discard

RESTARTED = "the node was restarted while the sandbox was being prepared"
VMM_DIED = "its VM ended while the node was down"
SNAPSHOT_GONE = "what it was suspended in is not on this host any more"
DISK_GONE = "its disk is not on this host any more"
_BETWEEN = (Phase.WAKING, Phase.STARTING)


def plan(rows: Iterable[Row], slots: Iterable[int], sandboxes: Iterable[Found], snapshots: Iterable[str] = ()) -> list[Step]:
    """The steps, adoptions first because somebody may be using those sandboxes. snapshots: those of sandboxes, not of templates."""
    found = list(sandboxes)
    stored = set(snapshots)
    there = {(each.sandbox, each.generation): each for each in found}
    rows = [_between(row, found) for row in rows]
    known = {(row.sandbox, row.generation) for row in rows}
    steps: list[Step] = [_step(row, there.get((row.sandbox, row.generation)), stored) for row in rows]
    steps += [DestroyOrphan(each) for each in found if (each.sandbox, each.generation) not in known]
    spoken_for = {row.slot for row in rows} | {each.slot for each in found}
    steps += [FreeSlot(slot) for slot in slots if slot not in spoken_for]
    kept = [row for row in rows if row.phase not in _ENDED]
    named = {row.snapshot for row in kept}.union(*(row.checkpoints for row in kept))
    steps += [Discard(each) for each in sorted(stored - named)]
    return sorted(steps, key=lambda step: not isinstance(step, Adopt))


_ENDED = (Phase.DELETING, Phase.GONE)


def _between(row: Row, found: list[Found]) -> Row:
    """A row between two lives, in the generation that the host has."""
    of_it = [each.generation for each in found if each.sandbox == row.sandbox]
    return replace(row, generation=of_it[0]) if of_it and row.phase in _BETWEEN else row


def _step(row: Row, found: Found | None, stored: set[str]) -> Step:
    alive = found is not None and found.alive
    in_snapshot = row.snapshot in stored
    match row.phase:
        case Phase.RUNNING | Phase.PAUSED:
            return Adopt(row) if alive else Fail(row, VMM_DIED)
        case Phase.SUSPENDING if not in_snapshot:
            return Adopt(row) if alive else Fail(row, VMM_DIED)
        case Phase.SUSPENDING | Phase.SUSPENDED | Phase.WAKING:
            return Rest(row, Phase.SUSPENDED) if in_snapshot else Fail(row, SNAPSHOT_GONE)
        case Phase.STOPPING | Phase.STOPPED | Phase.STARTING:
            if in_snapshot:
                return Rest(row, Phase.SUSPENDED)
            return Rest(row, Phase.STOPPED) if found is not None else Fail(row, DISK_GONE)
        case Phase.REQUESTED | Phase.PREPARING:
            return Destroy(row, RESTARTED)
        case Phase.DELETING | Phase.GONE:
            return Destroy(row, None)
        case Phase.FAILED:
            return Fail(row, row.reason or VMM_DIED) if alive else Keep(row)
