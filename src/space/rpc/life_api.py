"""What control asks of a node about the lives of a sandbox: stored, brought back, copied (verbs beside those of `rpc.node_api`).

| verb | request | comes back |
|---|---|---|
| suspend | Target | SandboxState for every phase; the last is suspended, or what it went back to. Stored before its memory is free |
| stop | Target | likewise; the last is stopped: its guest was synced and shut down, its disk is kept |
| wake | Wake | likewise; the last is running, or what it fell back to, with the reason |
| checkpoint | Checkpoint | Checkpointed; the same one again is the same answer |
| checkpoints | Target | CheckpointList, oldest first |
| drop_checkpoint | CheckpointTarget | Done; idempotent |
| rollback | Rollback | as wake: the sandbox is what it was at that instant, and its present is lost |
| fork | Fork | Forked, then SandboxState of every child as it goes through its phases; ends when each is running or failed |
| bake | Bake | Done: there is a warm snapshot of that size, of which the next sandboxes are cloned |
| template_snapshot | TemplateSnapshot | TemplateInfo: the disk of the sandbox, as it is, is a template now; it is warm once it was used |
| sandbox_export | Target | DATA is a suspended sandbox as a file (`core.template.bundle`, packed); Exported |
| sandbox_import | Import | control's DATA is such a file; Imported: there is a suspended sandbox of that id |

Every life begins with a generation that the sandbox has not had (control counts it up), and with the policy of now: what a snapshot
knows of either is not asked. A repeat with the generation that it has joins that life. A life that cannot begin leaves the sandbox as
it was: what is stored goes on being stored.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from space.rpc.node_api import Asked, Digest, PolicyGeneration

CheckpointId = Annotated[str, Meta(pattern=r"\Acp-[a-z2-7]{20}\Z")]
SandboxId = Annotated[str, Meta(pattern=r"\Asb-[a-z2-7]{20}\Z")]
Generation = Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]
MOST_CHILDREN = 64
MOST_CHECKPOINTS = 64


class Life(Asked, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a life begins with. env: None for what the sandbox was created with; labels: likewise (what grants select by)."""

    generation: Generation
    policy: Digest = ""
    policy_generation: PolicyGeneration = 0
    env: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Wake(Life, frozen=True, forbid_unknown_fields=True):
    """Whatever it takes until it runs: resumed when it is paused, restored when it is suspended, booted from its disk when it is stopped or
    has failed. Running already: nothing.

    cold: a suspended one is booted from its disk, and its stored memory is given up once it runs. Without it, Conflict (with the
    hint `cold`) when its snapshot cannot be gone on from on this host, as after another VMM was installed.
    """

    sandbox: str
    cold: bool = False


class CheckpointTarget(Asked, frozen=True, forbid_unknown_fields=True):
    """One checkpoint of a sandbox."""

    sandbox: str
    checkpoint: CheckpointId


class Checkpoint(CheckpointTarget, frozen=True, forbid_unknown_fields=True):
    """Keep the sandbox's memory and disk of this instant under that name. It goes on."""


class Checkpointed(msgspec.Struct, frozen=True, tag_field="t", tag="checkpointed"):
    """A checkpoint that is there. stopped_ms: how long the sandbox stood still for it. bytes: of memory that it alone takes."""

    checkpoint: str
    stopped_ms: float
    bytes: int
    taken_us: int


class CheckpointList(msgspec.Struct, frozen=True, tag_field="t", tag="checkpoints"):
    """A sandbox's checkpoints."""

    checkpoints: list[Checkpointed]


class Rollback(Life, frozen=True, forbid_unknown_fields=True):
    """The sandbox becomes what it was at that checkpoint, which stays."""

    sandbox: str
    checkpoint: CheckpointId


class Child(Life, frozen=True, forbid_unknown_fields=True):
    """A sandbox that a fork makes. grants: names of those that are attached to it before it runs; the parent's are not its own."""

    sandbox: SandboxId
    grants: Annotated[list[str], Meta(max_length=64)] = msgspec.field(default_factory=list)


class Fork(Asked, frozen=True, forbid_unknown_fields=True):
    """Children of one instant of a sandbox, which goes on. They have names, identity and policies of their own."""

    sandbox: str
    children: Annotated[list[Child], Meta(min_length=1, max_length=MOST_CHILDREN)]


class Forked(msgspec.Struct, frozen=True, tag_field="t", tag="forked"):
    """The instant is taken. stopped_ms: how long the parent stood still for it."""

    stopped_ms: float


class Bake(Asked, frozen=True, forbid_unknown_fields=True):
    """A warm snapshot of a template, of that size. template: its name; digest: which build of it, empty for a shipped one. disk_mib: 0
    for what a sandbox has that asks for no size.
    """

    tenant: str
    template: str
    cpus: int
    memory_mib: int
    digest: str = ""
    disk_mib: int = 0


class TemplateSnapshot(Asked, frozen=True, forbid_unknown_fields=True):
    """A running sandbox as a template of its tenant. name: of the template; digest: the id that it gets (32 hexadecimal digits)."""

    sandbox: str
    name: str
    digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class Import(Asked, frozen=True, forbid_unknown_fields=True):
    """A file becomes a suspended sandbox of the tenant's, with that id. most_mib: how large its disk may be."""

    sandbox: SandboxId
    tenant: str
    most_mib: Annotated[int, Meta(ge=0, le=1 << 20)] = 1 << 20


class Imported(msgspec.Struct, frozen=True, tag_field="t", tag="imported"):
    """It is there. template, digest: what it was made of. snapshot_bytes: what its memory takes."""

    template: str
    cpus: int
    memory_mib: int
    disk_mib: int
    env: dict[str, str]
    snapshot_bytes: int
    digest: str
