"""The stages of a create, in order, each with its deadline. Their names are keys of `stages_ms` and places where a test can stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum

from space.node import limits


class Stage(StrEnum):
    """One stage of a create; its undo is what `releases` calls by the thing it made."""

    QUEUE = "queue"  # its turn among the boots
    SLOT = "slot"  # number and namespace
    DISK = "disk"  # files and cgroup
    SPAWN = "spawn"  # the VMM
    BOOT = "boot"  # the channel: the guest's daemon said hello
    CONFIGURE = "configure"  # entropy, clock, name, environment


DEADLINES: dict[Stage, float] = {
    Stage.QUEUE: limits.QUEUE_WAIT,
    Stage.SLOT: limits.ROOTD_STEP,
    Stage.DISK: limits.ROOTD_STEP,
    Stage.SPAWN: limits.ROOTD_STEP + limits.QMP,
    Stage.BOOT: limits.BOOT,
    Stage.CONFIGURE: limits.CONFIGURE,
}

# A test's hook: awaited with (sandbox, stage, "before" or "after"). The product passes none, and no setting reaches it.
Trace = Callable[[str, Stage, str], Awaitable[None]]


async def no_trace(sandbox: str, stage: Stage, when: str) -> None:
    """What the product traces."""
