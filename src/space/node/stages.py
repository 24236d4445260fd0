"""The stages of a life's begin, in order, and the steps of its end. They are keys of `stages_ms` and places where a test can stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum

from space.model.errors import DeadlineExceeded, SpaceError
from space.node import limits


class Stage(StrEnum):
    """One stage of a create; its undo is what `releases` calls by the thing it made."""

    QUEUE = "queue"  # its turn among the boots
    SLOT = "slot"  # number and namespace
    DISK = "disk"  # files and cgroup
    CLONE = "clone"  # the same, of a snapshot's
    EGRESS = "egress"  # the services have what its traffic needs, its policy before all: begun beside the disk, this is what is left
    SPAWN = "spawn"  # the VMM
    LOAD = "load"  # of it: what it took to load the state that it goes on from
    BOOT = "boot"  # the channel: the guest's daemon said hello
    CONFIGURE = "configure"  # entropy, clock, name, environment
    # instead of the last two, where its memory comes from a snapshot:
    RESUME = "resume"  # its processors run
    HELLO = "hello"  # the channel
    IMPRINT = "imprint"  # entropy, names, the template's hooks: it is another machine than those of the same snapshot
    CLAIM = "claim"  # clock, environment, its life
    FIRST_EXEC = "first_exec"  # later: from the first command that is asked for to its begin
    # ends, and instants that are kept:
    SYNC = "sync"  # the guest has written its files
    SNAPSHOT = "snapshot"  # memory, devices and disk of one instant
    STOPPED = "stopped"  # of it: how long its processors stood still
    RECORD = "record"  # the ledger names it, on stable storage where that was promised
    HALT = "halt"  # the guest has shut down
    STORE = "store"  # its disk is on stable storage
    UNDO = "undo"  # what the life had on the host
    # of one at rest, as a file:
    SEND = "send"  # it goes out
    TAKE = "take"  # it has come, and becomes a snapshot with a row that names it


COLD = (Stage.QUEUE, Stage.SLOT, Stage.DISK, Stage.EGRESS, Stage.SPAWN, Stage.BOOT, Stage.CONFIGURE)  # a boot
RESTORED = (
    Stage.QUEUE, Stage.SLOT, Stage.CLONE, Stage.EGRESS, Stage.SPAWN, Stage.RESUME, Stage.HELLO, Stage.IMPRINT, Stage.CLAIM,
)  # fmt: skip
SUSPENSION = (Stage.SYNC, Stage.SNAPSHOT, Stage.RECORD, Stage.UNDO)
STOP = (Stage.HALT, Stage.UNDO, Stage.STORE, Stage.RECORD)

DEADLINES: dict[Stage, float] = {
    Stage.QUEUE: limits.QUEUE_WAIT,
    Stage.SLOT: limits.ROOTD_STEP,
    Stage.DISK: limits.ROOTD_STEP,
    Stage.CLONE: limits.ROOTD_STEP,
    Stage.EGRESS: limits.EGRESS,
    Stage.SPAWN: limits.ROOTD_STEP + limits.QMP,
    Stage.BOOT: limits.BOOT,
    Stage.CONFIGURE: limits.CONFIGURE,
    Stage.RESUME: limits.QMP,
    Stage.HELLO: limits.RECONNECT,
    Stage.IMPRINT: limits.IMPRINT,
    Stage.CLAIM: limits.CONFIGURE,
    Stage.SYNC: limits.SYNC + limits.QMP,  # one that is late is stored as it is
    Stage.SNAPSHOT: limits.SNAPSHOT_READY + limits.SNAPSHOT_COPY + limits.SNAPSHOT_DONE,
    Stage.RECORD: limits.ROOTD_STEP,
    Stage.HALT: limits.HALT + limits.QMP,
    Stage.STORE: limits.SNAPSHOT_DONE,
    Stage.UNDO: limits.UNDO,
}


@asynccontextmanager
async def timed(stage: Stage) -> AsyncIterator[Callable[[], float]]:
    """Within its deadline, its faults in its name. Gives what tells how many milliseconds it took."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(DEADLINES[stage]):
            yield lambda: round((time.monotonic() - started) * 1000, 3)
    except TimeoutError as error:
        raise DeadlineExceeded(f"{stage.value}: not done after {DEADLINES[stage]:.0f} s") from error
    except SpaceError as error:
        error.message = f"{stage.value}: {error.message}"
        raise


# A test's hook: awaited with (sandbox, stage, "before" or "after"). The product passes none, and no setting reaches it.
Trace = Callable[[str, Stage, str], Awaitable[None]]


async def no_trace(sandbox: str, stage: Stage, when: str) -> None:
    """What the product traces."""
