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
| renew_sandbox | RenewSandbox | its disk is that of the next generation, which boots from it; refused (`conflict`) while the VMM lives |
| destroy_sandbox | SandboxOp | refused (`conflict`) while the VMM lives; files, sockets, cgroups gone after |
| keep_template | KeepTemplate | the sandbox's disk as it is now is a template of that digest; its processors are stopped |
| rebase_template | RebaseTemplate | a template's disk is one of another digest, which boots as `onto` does |
| stage_template | StageTemplate | an empty disk to write as descriptor, which is no template yet |
| seal_template | SealTemplate | what was written there is a template, which boots as `onto` does |
| open_template | OpenTemplate | its disk as descriptor, for reading |
| drop_template | DropTemplate | it is gone; refused (`conflict`) while a sandbox of it is there, unless forced |
| begin_snapshot | BeginSnapshot | two descriptors: the file for the device state (write only), and a conversation (below) |
| list_snapshots | ListSnapshots | snapshots: [the manifests' fields that `rpc.rootd_client.SnapshotOnHost` has, held: bool] |
| discard_snapshot | SnapshotOp | its files gone, its memory let go; `conflict` while a sandbox needs it (see `rootd.snapshots`) |
| open_snapshot | SnapshotOp | manifest: its own; descriptors of memory, device state and disk, for reading |
| stage_snapshot | StageSnapshot | descriptors: a lock (what is written belongs to who has it), memory, device state and disk |
| seal_snapshot | SealSnapshot | what was written there is a snapshot, durable, of that sandbox |
| hold_memory | SnapshotOp | a descriptor: one line once a shared snapshot's memory is held (sealed, charged to a cgroup of its own) |
| release_memory | SnapshotOp | its holder is dead; clones that live keep what they have mapped |
| usage | SandboxOp | memory_bytes, cpu_usec, oom_kills (processes that the kernel killed for want of memory) of the sandbox's cgroup |

A **snapshot** is a conversation over a SEQPACKET socket with a process of rootd's that is made for it. It begins with what need not
stand still (the disk's dirty pages go to the disk) and says {"step": "ready"}. The node stops the VM, lets it write its device state
into the file that it was given, and says `go`. {"step": "copied", "pages", "memory_ms", "disk_ms"}: memory and disk are taken, the VM
may run on.
{"step": "done", "memory_bytes", ...}: it is committed (and on stable storage if it is durable). {"step": "failed", "code", "message"},
or an end without either: there is no snapshot and nothing of it is left. A node that hangs up before `done` gives it up.
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
    snapshot: where disk and memory come from, which must be of that template, memory and number of CPUs; none: the template's disk.
    """

    sandbox: str
    generation: int
    slot: int
    template: str
    disk_mib: int
    memory_mib: int
    cpus: int
    snapshot: str = ""


@dataclass(frozen=True, slots=True)
class RenewSandbox:
    """A life after this one, on the same disk. What memory it was made of is dropped. following: its generation, which may be the same."""

    sandbox: str
    generation: int
    following: int


@dataclass(frozen=True, slots=True)
class StartVmm:
    """Boot it: kernel, initramfs and VMM are those of the sandbox's template. accelerator: `tcg`, `kvm`, or
    `firecracker`, which is KVM driven by the machine's Firecracker instead of the template's QEMU.

    restore: load the memory and state of the snapshot that the sandbox was made of, and stand still; otherwise boot from its disk.
    """

    sandbox: str
    generation: int
    accelerator: str
    restore: bool = False


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


@dataclass(frozen=True, slots=True)
class SnapshotOp:
    """A snapshot."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class ListSnapshots:
    """Every complete snapshot of this instance."""


@dataclass(frozen=True, slots=True)
class BeginSnapshot:
    """Take memory, device state and disk of a sandbox whose VM lives, under a new name.

    shared: many sandboxes will be made of it and map one sealed memory (templates); otherwise each gets a file of its own. durable:
    it is on stable storage, with digests, before it is `done` (suspend, checkpoint, template).
    """

    sandbox: str
    generation: int
    snapshot: str
    shared: bool
    durable: bool


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """Three empty files of these sizes, to be written by the caller and sealed: a snapshot that comes as a file."""

    snapshot: str
    memory_mib: int
    state_bytes: int
    disk_mib: int


@dataclass(frozen=True, slots=True)
class SealSnapshot:
    """The end of what was staged. facts: the manifest (JSON) of the one that it was when it went; names and sizes are those of this one."""

    snapshot: str
    sandbox: str
    generation: int
    facts: str


Shelving = OpenTemplate | KeepTemplate | RebaseTemplate | StageTemplate | SealTemplate | DropTemplate
Snapshots = SnapshotOp | ListSnapshots | BeginSnapshot | StageSnapshot | SealSnapshot
Operation = Shelving | Snapshots | Describe | SlotOp | EdgeOp | TemplateOp | SandboxOp | CreateSandbox | RenewSandbox | StartVmm
