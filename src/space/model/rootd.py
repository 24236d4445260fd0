"""rootd's typed operations: the real privilege boundary. No path, argv or environment ever comes from the caller.

One operation is one SEQPACKET message (JSON object: `op` and the record's fields) from the node, answered by one (JSON
object: `ok` and fields, or `error`, `code`, `message`), with descriptors
beside it where said. Every operation is idempotent by (sandbox, generation).

| op | record | answer |
|---|---|---|
| describe | Describe | slots: [int], sandboxes: [{sandbox, generation, slot, alive}] |
| create_slot | SlotOp | namespace with TAP and ruleset (read back) |
| create_edge | EdgeOp | slot that admits what the egress gateway serves; descriptors of its listeners: transparent TCP, DNS, DNS over TCP |
| destroy_slot | SlotOp | refused (`conflict`) while a VMM of it lives; its worker is killed and an edge's flows are aborted first |
| slot_counters | SlotOp | counters: {name: packets} of the slot's filter |
| worker_cgroup | SlotOp | 1 to 4 descriptors, open for writing: who writes 0 there is in the cgroup of the slot's gateway worker |
| provide_root | TemplateOp | the template's root is in the broker's directory; refused (`not_found`) when it has none |
| create_sandbox | CreateSandbox | directory, reflinked disk of that size, cgroups |
| start_vmm | StartVmm | pidfd as descriptor; sockets in Instance.vm_run() listen before the answer |
| adopt_vmm | SandboxOp | alive, and a pidfd as descriptor if alive |
| kill_vmm | SandboxOp | everything in the sandbox's cgroup is sent SIGKILL; returns at once |
| destroy_sandbox | SandboxOp | refused (`conflict`) while the VMM lives; files, sockets, cgroups gone after |
| keep_template | KeepTemplate | the sandbox's disk as it is now is a template of that digest; its processors are stopped |
| rebase_template | RebaseTemplate | a template's disk is one of another digest, which boots as `onto` does |
| stage_template | StageTemplate | an empty disk to write as descriptor, which is no template yet |
| seal_template | SealTemplate | what was written there is a template, which boots as `onto` does |
| open_template | OpenTemplate | its disk as descriptor, for reading |
| drop_template | DropTemplate | it is gone; refused (`conflict`) while a sandbox of it is there, unless forced |
| usage | SandboxOp | memory_bytes, cpu_usec, oom_kills (processes that the kernel killed for want of memory) of the sandbox's cgroup |
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Describe:
    """What of this instance is on the host."""


@dataclass(frozen=True, slots=True)
class SlotOp:
    """A slot by number."""

    slot: int


@dataclass(frozen=True, slots=True)
class EdgeOp:
    """A slot with egress. synthetic: the addresses that stand for names (`198.18.0.0/15`). literal: TCP to any other address
    reaches the listener as well; asked again with the other value, this alone changes, while the slot is in use.
    """

    slot: int
    synthetic: str
    literal: bool


@dataclass(frozen=True, slots=True)
class TemplateOp:
    """A template by digest."""

    template: str


@dataclass(frozen=True, slots=True)
class SandboxOp:
    """A sandbox of one generation."""

    sandbox: str
    generation: int


@dataclass(frozen=True, slots=True)
class CreateSandbox:
    """Files and cgroup of a sandbox.

    template: digest. disk_mib: at least the template's size, at most 1 TiB. memory_mib: guest memory, for the cgroup's limit.
    """

    sandbox: str
    generation: int
    slot: int
    template: str
    disk_mib: int
    memory_mib: int
    cpus: int


@dataclass(frozen=True, slots=True)
class StartVmm:
    """Boot it: kernel, initramfs and VMM are those of the sandbox's template. accelerator: `tcg` or `kvm`."""

    sandbox: str
    generation: int
    accelerator: str


@dataclass(frozen=True, slots=True)
class OpenTemplate:
    """A template of the instance by its digest."""

    digest: str


@dataclass(frozen=True, slots=True)
class KeepTemplate:
    """settings: JSON of how a sandbox of it begins (`config.manifest.settings`), which reaches nothing but guests."""

    sandbox: str
    generation: int
    digest: str
    settings: str


@dataclass(frozen=True, slots=True)
class RebaseTemplate:
    """onto: a template whose kernel, initramfs and VMM it boots with."""

    template: str
    onto: str
    digest: str
    settings: str


@dataclass(frozen=True, slots=True)
class StageTemplate:
    """A disk of that size, to be written by the caller and sealed."""

    digest: str
    disk_mib: int


@dataclass(frozen=True, slots=True)
class SealTemplate:
    """The end of what was staged under that digest."""

    digest: str
    onto: str
    settings: str


@dataclass(frozen=True, slots=True)
class DropTemplate:
    """force: also while sandboxes of it are there; their disks are their own."""

    digest: str
    force: bool


Shelving = OpenTemplate | KeepTemplate | RebaseTemplate | StageTemplate | SealTemplate | DropTemplate
Operation = Shelving | Describe | SlotOp | EdgeOp | TemplateOp | SandboxOp | CreateSandbox | StartVmm
