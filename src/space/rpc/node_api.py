"""What control asks of a node: the verbs, their requests and the messages that come back (docs/protocol.md, section 3).

| verb | request | comes back |
|---|---|---|
| info | Empty | NodeInfo |
| create | Create | SandboxState for every phase it goes through; the last is running or failed |
| delete | Target | SandboxState (gone); idempotent |
| list | Empty | SandboxList |
| watch | Empty | SandboxState, first for every sandbox there is, then at each change, until closed |
| pause, resume | Target | SandboxState |
| noop | Target | Done (a round trip to the guest's daemon) |
| metrics | Target | Metrics |
| exec | Exec | Started, DATA (lane 0 stdout, 1 stderr), Exited; control's DATA is stdin |
| tree_put | Tree | control's DATA is the tar stream; TreeDone |
| tree_get | Tree | DATA is the tar stream; TreeDone |

Faults come as RESET with a code of `space.model.errors`.
"""

from __future__ import annotations

import msgspec


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One sandbox. generation: which life of it, 0 for the current one."""

    sandbox: str
    generation: int = 0


class Create(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Make a sandbox and boot it. Repeating it for a sandbox that is there joins the first."""

    sandbox: str
    tenant: str
    generation: int
    template: str
    cpus: int
    memory_mib: int
    disk_mib: int
    env: dict[str, str]


class Exec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run a process. stdin: whether DATA will come."""

    sandbox: str
    argv: list[str]
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None
    timeout_ms: int | None = None
    stdin: bool = False


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tree in the guest. path: absolute, or relative to the user's home."""

    sandbox: str
    path: str
    user: str | None = None


class SandboxState(msgspec.Struct, frozen=True, tag_field="t", tag="state"):
    """What a sandbox is on this node. revision grows with every change of this node's life."""

    sandbox: str
    tenant: str
    generation: int
    phase: str
    revision: int
    isolation: str
    reason: str | None = None
    stages_ms: dict[str, float] = {}


class SandboxList(msgspec.Struct, frozen=True, tag_field="t", tag="list"):
    """Every sandbox of the node."""

    sandboxes: list[SandboxState]


class NodeInfo(msgspec.Struct, frozen=True, tag_field="t", tag="info"):
    """The node. isolation: what an operator reads, such as `emulated (development only)`."""

    isolation: str
    accelerator: str
    templates: list[str]
    sandboxes: int
    max_sandboxes: int
    memory_mib: int
    memory_used_mib: int


class Started(msgspec.Struct, frozen=True, tag_field="t", tag="started"):
    """The process runs."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag_field="t", tag="exited"):
    """The process ended. stdout_bytes, stderr_bytes: all that it wrote."""

    code: int | None
    signal: int | None
    oom_killed: bool
    timed_out: bool
    stdout_bytes: int
    stderr_bytes: int
    wall_ms: int


class TreeDone(msgspec.Struct, frozen=True, tag_field="t", tag="tree"):
    """The whole tree went over. bytes, crc32: of the tar stream, counted in the guest."""

    entries: int
    bytes: int
    crc32: int


class Metrics(msgspec.Struct, frozen=True, tag_field="t", tag="metrics"):
    """The guest's figures, bytes and milliseconds; `host_*` are the VMM's on the host."""

    memory_total: int
    memory_available: int
    cpu_user_ms: int
    cpu_system_ms: int
    disk_total: int
    disk_used: int
    processes: int
    uptime_ms: int
    load1_milli: int
    host_memory_bytes: int = 0
    host_cpu_ms: int = 0


class Done(msgspec.Struct, frozen=True, tag_field="t", tag="done"):
    """It is done."""
