"""What control asks of a node: the verbs, their requests and the messages that come back (docs/protocol.md, section 3).

| verb | request | comes back |
|---|---|---|
| info | Empty | NodeInfo |
| create | Create | SandboxState for every phase it goes through; the last is running or failed |
| delete | Target | SandboxState (gone); idempotent |
| list | Empty | SandboxList messages |
| watch | Empty | SandboxState, first for every sandbox there is, then at each change, until closed |
| pause, resume | Target | SandboxState |
| suspend, stop, wake, checkpoint, checkpoints, drop_checkpoint, rollback, fork, bake, template_snapshot | `rpc.life_api` | what it says |
| sandbox_export, sandbox_import | `rpc.life_api` | what it says |
| noop | Target | Done (a round trip to the guest's daemon) |
| metrics | Target | Metrics |
| exec | Exec | Started; when attached: DATA (lane 0 stdout, 1 stderr), Exited; control sends its input |
| attach | Attach | Attached, then DATA, Gap and at the end Exited, Lost or Paused; with `input` control sends its input |
| input | ProcessTarget | control's DATA is stdin, its messages Eof, Resize, Signal; InputDone once control has closed |
| processes | Target | ProcessList messages: also those that have ended, oldest first; also of a sandbox that is gone (retention) |
| process | ProcessTarget | ProcessInfo |
| forget | ProcessTarget | Done: what is left of it is killed, its output dropped; idempotent |
| history | History | MetricsHistory |
| file_* (ten verbs), entry_* (seven), watch, connect | Forward | as the guest's verb, messages unchanged (`core.wire.files`, `entries`) |
| template_build | TemplateBuild | control's DATA is a tar of what came along; DATA is the log (lanes as in exec), BuildStep, TemplateInfo |
| templates | Tenant | TemplateList messages: the tenant's own and the shipped ones |
| template_drop | TemplateTarget | Done; idempotent |
| template_rebake | TemplateTarget | TemplateInfo of the new one |
| template_export | TemplateTarget | DATA is a template as a file (`core.template.bundle`, packed); Exported |
| template_import | TemplateImport | control's DATA is such a file; TemplateInfo |
| prune | Prune | Pruned |
| tree_put | Tree | control's DATA is the tar stream; TreeDone |
| tree_get | Tree | DATA is the tar stream; TreeDone |
| policy_put | PolicyPut | control's DATA is the document of a policy; Done: the node has it by its digest |
| set_policy | SetPolicy | Done once everybody who decides of that sandbox's traffic has it; NotFound: put the policy first, then again |
| egress_answer | EgressAnswer | Done; NotFound: nobody waits for that (any more) |
| egress_counters | Target | EgressCounters |
| egress_log | EgressLog | EgressRecords messages: what the gateway decided, of one sandbox or all, also of those that are gone |
| set_labels | SetLabels | Done: grants that select by labels see these |
| secret_*, grant_*, grants_* | `rpc.credential_api` | what it says |

`watch` means a sandbox's files when its request is a Forward. A create whose policy the node does not have is NotFound as well.
Input is DATA (stdin) and the messages Eof, Resize and Signal. Faults come as RESET with a code of `space.model.errors`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# Their names are here as well: whoever speaks this protocol knows one module.
from space.rpc.asked import Asked as Asked
from space.rpc.asked import Empty as Empty
from space.rpc.asked import Target as Target
from space.rpc.process_api import Attach as Attach
from space.rpc.process_api import Attached as Attached
from space.rpc.process_api import Eof as Eof
from space.rpc.process_api import Exec as Exec
from space.rpc.process_api import Exited as Exited
from space.rpc.process_api import Gap as Gap
from space.rpc.process_api import InputDone as InputDone
from space.rpc.process_api import Lost as Lost
from space.rpc.process_api import Paused as Paused
from space.rpc.process_api import ProcessInfo as ProcessInfo
from space.rpc.process_api import ProcessList as ProcessList
from space.rpc.process_api import ProcessTarget as ProcessTarget
from space.rpc.process_api import Resize as Resize
from space.rpc.process_api import Signal as Signal
from space.rpc.process_api import Started as Started
from space.rpc.process_api import Window as Window
from space.rpc.template_api import BuildStep as BuildStep
from space.rpc.template_api import Exported as Exported
from space.rpc.template_api import Prune as Prune
from space.rpc.template_api import Pruned as Pruned
from space.rpc.template_api import TemplateBuild as TemplateBuild
from space.rpc.template_api import TemplateImport as TemplateImport
from space.rpc.template_api import TemplateInfo as TemplateInfo
from space.rpc.template_api import TemplateList as TemplateList
from space.rpc.template_api import TemplateTarget as TemplateTarget
from space.rpc.template_api import Tenant as Tenant

MOST_POLICY = 8 << 20  # bytes of the document of a policy
Digest = Annotated[str, Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
PolicyGeneration = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Chain = Literal["gateway", "dialer", "broker"]
AlarmKind = Literal["tripwire", "misplaced", "rate", "revoked", "expired"]


class Create(Asked, frozen=True, forbid_unknown_fields=True):
    """Make a sandbox and boot it. Repeating it for a sandbox that is there joins the first.

    template: its name; digest: which build of it, empty for a shipped one.
    policy: the digest of what it may reach, which was put before; empty: nothing at all. policy_generation: control counts it up with
    every policy of the sandbox. labels: what grants select by. grants: names of those that it has besides, attached before it runs
    (`rpc.credential_api`); NotFound when one is not there.
    """

    sandbox: str
    tenant: str
    generation: int
    template: str
    cpus: int
    memory_mib: int
    disk_mib: int
    env: dict[str, str]
    policy: Digest = ""
    policy_generation: PolicyGeneration = 0
    digest: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    grants: Annotated[list[str], Meta(max_length=64)] = msgspec.field(default_factory=list)


class PolicyPut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """digest: the first 32 hexadecimal digits of the document's SHA-256. bytes: its size."""

    digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
    bytes: Annotated[int, Meta(ge=1, le=MOST_POLICY)]


class SetPolicy(Asked, frozen=True, forbid_unknown_fields=True):
    """Another policy for a sandbox, also a paused one. generation: of the sandbox, 0 for the current one. A policy generation that is
    below the one that holds is ignored: it was overtaken.
    """

    sandbox: str
    policy: Digest
    policy_generation: PolicyGeneration
    generation: int = 0


class SetLabels(Asked, frozen=True, forbid_unknown_fields=True):
    """Other labels for a sandbox, which hold for the life that it has."""

    sandbox: str
    labels: dict[str, str]


class EgressAnswer(Asked, frozen=True, forbid_unknown_fields=True):
    """What a person says to a request that waits. ask: of PendingAsk."""

    sandbox: str
    ask: str
    allow: bool


class History(Asked, frozen=True, forbid_unknown_fields=True):
    """A sandbox's figures over time, newer than since_us (microseconds since 1970)."""

    sandbox: str
    since_us: int = 0


class Forward(Asked, frozen=True, forbid_unknown_fields=True):
    """A request for the guest. request: the MessagePack of the guest verb's request, which the node decodes (`core.wire.guest`)."""

    sandbox: str
    request: bytes


class Tree(Asked, frozen=True, forbid_unknown_fields=True):
    """A tree in the guest. path: absolute, or relative to the user's home."""

    sandbox: str
    path: str
    user: str | None = None


class PendingAsk(msgspec.Struct, frozen=True):
    """A request that waits for a person's word. ask: the node's name for it. rule: that says to ask. method, path: of HTTP, else empty."""

    ask: str
    host: str
    port: int
    scheme: str
    method: str
    path: str
    rule: str
    asked_us: int


class EgressLog(Asked, frozen=True, forbid_unknown_fields=True):
    """Records of the gateway's decisions. sandbox: one, or empty for all. after: by chain, what is known already; None: from the oldest,
    or with follow from now on. limit: so many records, 0 for no end. since: RFC 3339 in UTC, older ones are passed over. chains: of
    these writers; `broker` tells of each credential that was asked for.
    """

    sandbox: str = ""
    after: dict[str, int] | None = None
    follow: bool = False
    limit: Annotated[int, Meta(ge=0, le=100_000)] = 0
    since: str = ""
    denied: bool = False
    chains: tuple[Chain, ...] = ("gateway", "dialer")


class EgressRecord(msgspec.Struct, frozen=True):
    """One record. chain: whose it is (`gateway`, `dialer`, `broker`). n: its number there. line: JSON, as it is in the chain's file."""

    chain: str
    n: int
    line: bytes


class EgressRecords(msgspec.Struct, frozen=True, tag_field="t", tag="egress_records"):
    """Some of them, oldest first; none as a sign of life. places: by chain, what was looked through when these are told.

    removed: by chain, up to which number records that were asked for are kept no longer.
    """

    records: list[EgressRecord]
    places: dict[str, int]
    removed: dict[str, int] = {}


class CredentialAlarm(msgspec.Struct, frozen=True):
    """What went wrong with a credential of a sandbox. count: how often in this node's life; at_us: the last time.

    kind: `tripwire` (a reply held the secret, which was replaced), `misplaced` (a placeholder was elsewhere than in its slot), `rate`,
    `revoked`, `expired` (a use that was refused for that).
    """

    kind: AlarmKind
    grant: str
    secret: str
    host: str
    count: int
    at_us: int


class EgressState(msgspec.Struct, frozen=True):
    """How a sandbox's egress stands. policy, policy_generation: what holds. waiting_for: services that are away, in words (`broker`);
    until they are back, what needs them waits or is refused. worker_crashes: so far, and what is known of the last.
    """

    policy: str = ""
    policy_generation: int = 0
    waiting_for: list[str] = []
    worker_crashes: int = 0
    last_crash: str | None = None
    alarms: list[CredentialAlarm] = []


class SandboxState(msgspec.Struct, frozen=True, tag_field="t", tag="state"):
    """What a sandbox is on this node. revision grows with every change of this node's life.

    start: how its present life began: `cold` (booted), `warm` (a clone of its template), `pool` (one that was made ahead), `restore` (of
    its own snapshot), `fork`. snapshot_bytes: what its stored memory and its checkpoints take, beyond what they share with templates.
    """

    sandbox: str
    tenant: str
    generation: int
    phase: str
    revision: int
    isolation: str
    reason: str | None = None
    stages_ms: dict[str, float] = {}
    # whether a process runs in it that nobody need be attached to: it is not idle
    busy: bool = False
    # processes of it that the guest's kernel killed for want of memory, and the last of them
    oom_kills: int = 0
    last_oom: str | None = None
    egress: EgressState = EgressState()
    asks: list[PendingAsk] = []
    start: str = ""
    snapshot_bytes: int = 0
    checkpoints: int = 0


class SandboxList(msgspec.Struct, frozen=True, tag_field="t", tag="list"):
    """Some of the node's sandboxes."""

    sandboxes: list[SandboxState]


class NodeInfo(msgspec.Struct, frozen=True, tag_field="t", tag="info"):
    """The node. isolation: what an operator reads, such as `emulated (development only)`.

    warm: sizes of templates of which a guest is kept. ahead: clones that stand ready.
    """

    isolation: str
    accelerator: str
    templates: list[str]
    sandboxes: int
    max_sandboxes: int
    memory_mib: int
    memory_used_mib: int
    warm: int = 0
    ahead: int = 0


class Sample(msgspec.Struct, frozen=True):
    """A sandbox's figures at one time (microseconds since 1970); fields as in Metrics."""

    at_us: int
    memory_total: int
    memory_available: int
    cpu_user_ms: int
    cpu_system_ms: int
    disk_total: int
    disk_used: int
    processes: int
    host_memory_bytes: int
    host_cpu_ms: int


class MetricsHistory(msgspec.Struct, frozen=True, tag_field="t", tag="history"):
    """Oldest first. interval_ms: between two."""

    interval_ms: int
    samples: list[Sample]


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


class EgressCounters(msgspec.Struct, frozen=True, tag_field="t", tag="egress"):
    """Over this life of the sandbox. drops: packets by kind that its slot's filter refused, and `admitted_*` those that it let in.

    connections, requests, denied, names: that were served, or refused for the policy, and names that were answered; sent_bytes,
    received_bytes: to and from upstreams. worker: a process serves it now. worker_restarts: how often one was begun after the first.
    """

    drops: dict[str, int]
    connections: int
    requests: int
    denied: int
    names: int
    sent_bytes: int
    received_bytes: int
    worker: bool
    worker_restarts: int


class Done(msgspec.Struct, frozen=True, tag_field="t", tag="done"):
    """It is done."""
