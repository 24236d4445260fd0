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
| noop | Target | Done (a round trip to the guest's daemon) |
| metrics | Target | Metrics |
| exec | Exec | Started; when attached: DATA (lane 0 stdout, 1 stderr), Exited; control sends its input |
| attach | Attach | Attached, then DATA, Gap and at the end Exited, Lost or Paused; with `input` control sends its input |
| input | ProcessTarget | control's DATA is stdin, its messages Eof, Resize, Signal; InputDone once control has closed |
| processes | Target | ProcessList messages: also those that have ended, oldest first; also of a sandbox that is gone (retention) |
| process | ProcessTarget | ProcessInfo |
| forget | ProcessTarget | Done: what is left of it is killed, its output dropped; idempotent |
| history | History | MetricsHistory |
| file_* (ten verbs), watch, connect | Forward | as the guest's verb of that name, its messages unchanged (`core.wire.files`) |
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

MOST_POLICY = 8 << 20  # bytes of the document of a policy
Digest = Annotated[str, Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
PolicyGeneration = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Chain = Literal["gateway", "dialer", "broker"]
AlarmKind = Literal["tripwire", "rate", "revoked", "expired"]


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all requests about a sandbox hold. request_id: of the API request that this is done for, for the node's log; or empty."""

    request_id: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{0,64}\Z")] = ""


class Target(Asked, frozen=True, forbid_unknown_fields=True):
    """One sandbox. generation: which life of it, 0 for the current one."""

    sandbox: str
    generation: int = 0


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
    labels: dict[str, str] = {}
    grants: Annotated[list[str], Meta(max_length=64)] = []


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


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of a terminal, in lines and columns."""

    rows: int
    cols: int


class Exec(Asked, frozen=True, forbid_unknown_fields=True):
    """Run a process. stdin: whether it has one that control may write to.

    process: its id (`pr-...`), chosen by control; empty: the node chooses. named: the API's client chose it, and may ask again after a
    lost answer: the same start in the background answers the first process (Conflict when it is another, or attached, or when that
    process was forgotten since), and a start goes on without whoever asked. pty: a terminal, which needs stdin. attach: the answer goes
    on with the output, and control's CLOSE is the end of stdin; else the stream ends when it runs. kill_on_disconnect: whether an
    attached stream that ends before the process kills it. overflow: what happens when the spool holds `spool_bytes` (0: the node's
    setting) of output: `block` holds the process back while somebody is attached who has not read it, `drop_oldest` never does.
    """

    sandbox: str
    argv: list[str]
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None
    timeout_ms: int | None = None
    stdin: bool = False
    process: str = ""
    named: bool = False
    pty: Window | None = None
    attach: bool = True
    kill_on_disconnect: bool = True
    overflow: Literal["block", "drop_oldest"] = "block"
    spool_bytes: int = 0


class ProcessTarget(Asked, frozen=True, forbid_unknown_fields=True):
    """One process of a sandbox."""

    sandbox: str
    process: str


class Attach(Asked, frozen=True, forbid_unknown_fields=True):
    """Read a process's output, from offsets on: None from the oldest byte that is kept, negative that many bytes from the end.

    Offsets beyond what was produced are InvalidArgument; before the oldest byte kept, a Gap says what is missing. follow: until it ends;
    else the answer ends with Paused when it still runs. input: as in `input`. kill_on_disconnect: whether the end of this stream kills it.
    """

    sandbox: str
    process: str
    stdout: int | None = None
    stderr: int | None = None
    follow: bool = True
    input: bool = False
    kill_on_disconnect: bool = False


class History(Asked, frozen=True, forbid_unknown_fields=True):
    """A sandbox's figures over time, newer than since_us (microseconds since 1970)."""

    sandbox: str
    since_us: int = 0


class Forward(Asked, frozen=True, forbid_unknown_fields=True):
    """A request for the guest. request: the MessagePack of the guest verb's request, which the node decodes (`core.wire.guest`)."""

    sandbox: str
    request: bytes


class Tenant(Asked, frozen=True, forbid_unknown_fields=True):
    """One tenant's."""

    tenant: str


class TemplateTarget(Asked, frozen=True, forbid_unknown_fields=True):
    """One template of a tenant. force: also while sandboxes of it are there (template_drop)."""

    tenant: str
    digest: str
    force: bool = False


class TemplateBuild(Asked, frozen=True, forbid_unknown_fields=True):
    """Build a template. base: digest of the tenant's template that the recipe stands on; empty for a shipped one.

    inputs: digest of what came, by its path in the recipe. downloads: digest of all that was fetched for it, or empty.
    name: instead of the recipe's.
    """

    tenant: str
    recipe: str
    base: str = ""
    inputs: dict[str, str] = {}
    downloads: str = ""
    name: str = ""


class BuildStep(msgspec.Struct, frozen=True, tag_field="t", tag="step"):
    """A step of a build. number: from 1 of `of`. state: cached, begun or done. took_ms: of one that is done."""

    number: int
    of: int
    title: str
    state: Literal["cached", "begun", "done"]
    took_ms: int = 0


class TemplateInfo(msgspec.Struct, frozen=True, tag_field="t", tag="template"):
    """A template. tenant: empty for a shipped one. disk_mib: its disk's size; used_mib: what is written of it. problem: of using it."""

    digest: str
    name: str
    tenant: str
    disk_mib: int
    used_mib: int
    created_us: int
    source: str
    parent: str
    env: dict[str, str]
    user: str
    cwd: str
    start: list[str]
    ready: list[str]
    hooks: list[str]
    kernel_release: str
    problem: str = ""


class TemplateImport(Asked, frozen=True, forbid_unknown_fields=True):
    """A file becomes a template of the tenant's. name: instead of the file's. most_mib: how large its disk may be."""

    tenant: str
    name: str = ""
    most_mib: Annotated[int, Meta(ge=0, le=1 << 20)] = 1 << 20


class Exported(msgspec.Struct, frozen=True, tag_field="t", tag="exported"):
    """All of it was sent. content: SHA-256 of the disk's blocks. bytes, crc32: of what was sent."""

    content: str
    bytes: int
    crc32: int


class TemplateList(msgspec.Struct, frozen=True, tag_field="t", tag="templates"):
    """Some of them."""

    templates: list[TemplateInfo]


class Prune(Asked, frozen=True, forbid_unknown_fields=True):
    """Drop what builds keep to be faster. keep_seconds: what was used since then stays. dry_run: only say what would go."""

    keep_seconds: int = 0
    dry_run: bool = False


class Pruned(msgspec.Struct, frozen=True, tag_field="t", tag="pruned"):
    """steps: digests, least recently used first. freed_bytes: an estimate; disks share blocks."""

    steps: list[str]
    freed_bytes: int


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

    kind: `tripwire` (a reply held the secret, which was replaced), `rate`, `revoked`, `expired` (a use that was refused for that).
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


class Started(msgspec.Struct, frozen=True, tag_field="t", tag="started"):
    """The process runs. process: its id."""

    pid: int
    process: str = ""


class ProcessInfo(msgspec.Struct, frozen=True, tag_field="t", tag="process"):
    """A process. state: `running`, `exited`, or `lost` (its sandbox ended first, see reason). stdin: `none`, `open` or `closed`.

    stdout_bytes, stderr_bytes: produced so far; *_first: the oldest byte that is kept. Of a terminal all output is stdout.
    """

    process: str
    sandbox: str
    pid: int
    argv: list[str]
    cwd: str | None
    user: str | None
    pty: bool
    state: Literal["running", "exited", "lost"]
    started_us: int
    ended_us: int | None
    stdout_bytes: int
    stderr_bytes: int
    stdout_first: int
    stderr_first: int
    stdin: Literal["none", "open", "closed"]
    stdin_bytes: int
    code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    timed_out: bool = False
    wall_ms: int | None = None
    reason: str | None = None


class ProcessList(msgspec.Struct, frozen=True, tag_field="t", tag="processes"):
    """Some of a sandbox's processes."""

    processes: list[ProcessInfo]


class Attached(msgspec.Struct, frozen=True, tag_field="t", tag="attached"):
    """The process as it is now, and where the output begins."""

    info: ProcessInfo
    stdout: int
    stderr: int


class Gap(msgspec.Struct, frozen=True, tag_field="t", tag="gap"):
    """Output that is kept no longer. lane: 0 stdout, 1 stderr. offset: of the first byte that is missing. bytes: how many are."""

    lane: int
    offset: int
    bytes: int


class Paused(msgspec.Struct, frozen=True, tag_field="t", tag="paused"):
    """That is all so far; the process runs on. stdout, stderr: the offsets to ask from."""

    stdout: int
    stderr: int


class Lost(msgspec.Struct, frozen=True, tag_field="t", tag="lost"):
    """The process's sandbox ended before it did: nobody knows how it would have ended."""

    reason: str


class Eof(msgspec.Struct, frozen=True, tag_field="t", tag="eof"):
    """From control: the end of stdin."""


class Resize(msgspec.Struct, frozen=True, tag_field="t", tag="resize"):
    """From control: the terminal has this size now."""

    rows: int
    cols: int


class Signal(msgspec.Struct, frozen=True, tag_field="t", tag="signal"):
    """From control: a signal to the process's group, or with all to everything that it started."""

    signal: int
    all: bool = False


class InputDone(msgspec.Struct, frozen=True, tag_field="t", tag="input"):
    """Everything went to the process. stdin_bytes: taken so far, over its whole life."""

    stdin_bytes: int


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
