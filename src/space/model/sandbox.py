"""What a sandbox is to everybody outside: its specification, its phase, its record, the result of a command.

Phase   requested -> preparing -> running <-> paused
running | paused -> suspending -> suspended -> waking -> running              memory and disk stored, no memory taken
running | paused | suspended -> stopping -> stopped -> starting -> running    the disk alone
failed -> starting -> running                                                 cold, from the disk that it left
any -> deleting -> gone ; any -> failed(reason)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from space.model.egress import PolicyStatus

MIB = 1 << 20

DEFAULT_TEMPLATE = "base"
DEFAULT_CPUS = 1
DEFAULT_MEMORY_MIB = 512
DEFAULT_DISK_MIB = 2048
DEFAULT_TTL_SECONDS = 3600
MAX_STDIN = 16 * MIB
# Bytes of arguments and environment that fit a frame of the guest's control pipe beside the rest; a variable takes VARIABLE_BYTES more.
MAX_ARGUMENTS = 60 * 1024
VARIABLE_BYTES = 8


# What becomes of a sandbox by a rule. pause: it keeps its memory. suspend: memory and disk are stored. stop: only its disk is kept.
Action = Literal["pause", "suspend", "stop", "delete"]


class Phase(StrEnum):
    """Where a sandbox is in its life."""

    REQUESTED = "requested"
    PREPARING = "preparing"
    RUNNING = "running"
    PAUSED = "paused"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    WAKING = "waking"
    STOPPING = "stopping"
    STOPPED = "stopped"
    STARTING = "starting"
    DELETING = "deleting"
    GONE = "gone"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """What becomes of a sandbox in which nothing has happened for `seconds`.

    Something happens while a process runs in it, while a file, a tree or a port is open through the API, and at each such call.
    Asking how it is (GET of it, lists, metrics, events) is nothing; a sandbox at rest is not idle, and waking it starts the clock anew.
    """

    seconds: int
    action: Action = "pause"


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What was asked for. cpus: whole virtual CPUs. memory, disk: MiB. ttl_seconds: from creation, or its last change, on.

    idle: None for no such rule. on_timeout: what becomes of it at the end of its time to live. wake_on_call: whether a call that needs it
    running wakes it when a rule had put it to rest; one that was paused, suspended or stopped by request stays so until it is woken.
    """

    template: str = DEFAULT_TEMPLATE
    cpus: int = DEFAULT_CPUS
    memory_mib: int = DEFAULT_MEMORY_MIB
    disk_mib: int = DEFAULT_DISK_MIB
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    ttl_seconds: int = DEFAULT_TTL_SECONDS
    idle: IdlePolicy | None = None
    on_timeout: Action = "delete"
    wake_on_call: bool = True


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox as the API shows it. Times are UNIX seconds; `revision` grows with every change.

    expires_at: None once its time to live has put it to rest, and while it is suspended or stopped by request: it is kept then until it is
    deleted, gets another one, or is woken, which starts its time to live anew. policy: which one says what may leave it.

    generation: counts its lives; each restore and each start begins one. start: how the present one began: `cold` (booted), `warm` or
    `pool` (cloned of its template), `restore` (of its own memory), `fork`; empty before the first. parent: of which it was forked.
    snapshot_bytes: what its stored memory and its checkpoints take on the disk. checkpoints: how many it has.
    """

    id: str
    phase: Phase
    spec: SandboxSpec
    created_at: float
    expires_at: float | None
    revision: int
    isolation: str
    reason: str | None = None
    policy: PolicyStatus = field(default_factory=PolicyStatus)
    generation: int = 1
    start: str = ""
    parent: str | None = None
    snapshot_bytes: int = 0
    checkpoints: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An instant of a sandbox, memory and disk, to which it can go back. bytes: of memory that it alone takes on the disk.

    stopped_ms: how long the sandbox stood still for it. created_at: UNIX seconds.
    """

    id: str
    created_at: float
    bytes: int
    stopped_ms: float


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: exactly one of `code` (0 to 255) and `signal` (1 to 64) is set. `*_bytes`: all that it wrote."""

    code: int | None
    signal: int | None
    oom_killed: bool
    timed_out: bool
    wall_ms: int
    stdout_bytes: int
    stderr_bytes: int
