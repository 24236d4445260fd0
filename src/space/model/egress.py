"""What may leave a sandbox, to everybody outside: which policy holds for it, what waits for a person's word, named policies and layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# applied: the node decides by it. pending: it does not yet. cut: it could not be told in time, so nothing leaves until it is.
# refused: its layers make no document any more (reason), so nothing leaves.
PolicyState = Literal["applied", "pending", "cut", "refused"]
Permission = Literal["open", "record"]


@dataclass(frozen=True, slots=True)
class PolicyNote:
    """Something about a policy. path: where, such as `rule[3].paths[0]`. hint: what to do, or empty."""

    path: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """A sandbox's policy. name: of the stored one that it follows; None: one of its own, or none at all.

    digest: of the document that its layers make; empty: nothing may leave. generation: counted up with each change of it;
    applied_generation: the one that the node decides by. open: any public name may be reached.
    """

    name: str | None = None
    digest: str = ""
    generation: int = 0
    applied_generation: int = 0
    open: bool = False
    state: PolicyState = "applied"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxPolicy:
    """A sandbox's policy, whole: its status, what it says (None where it has none), and the layers above that narrow it."""

    status: PolicyStatus
    policy: Mapping[str, Any] | None
    layers: Sequence[str] = ()
    warnings: Sequence[PolicyNote] = ()


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A tenant's stored policy. revision: counted up with each change. rules: how many. sandboxes: how many live ones follow it;
    pending: of how many the machine does not decide by it yet.
    """

    name: str
    revision: int
    bytes: int
    rules: int
    open: bool
    updated_at: float
    sandboxes: int = 0
    pending: int = 0
    policy: Mapping[str, Any] | None = None
    warnings: Sequence[PolicyNote] = ()


@dataclass(frozen=True, slots=True)
class PolicyLayer:
    """The operator's layer, or a tenant's. policy: None where it does not narrow. default: the tenant's stored policy that
    its sandboxes follow when they name none. permits: what the operator lets the tenant's sandboxes have.
    """

    revision: int = 0
    policy: Mapping[str, Any] | None = None
    default: str | None = None
    permits: Sequence[Permission] = ()
    warnings: Sequence[PolicyNote] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that waits for a person's word: exactly this one. method, path: empty where it is no HTTP. asked_at: UNIX seconds."""

    ask: str
    sandbox: str
    host: str
    port: int
    scheme: str
    method: str
    path: str
    rule: str
    asked_at: float


@dataclass(frozen=True, slots=True)
class ExplainStep:
    """One of the questions that a request meets. step: name, flow, request or address. outcome: allow, ask, record, or why not."""

    step: str
    outcome: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What becomes of a URL by the layers that hold now. rule: which decides, or came nearest."""

    outcome: str
    rule: str | None
    digest: str
    generation: int
    steps: Sequence[ExplainStep] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class EgressCounters:
    """Over this life of a sandbox. drops: packets by kind that its slot's filter refused. connections, requests, denied, names: that
    were served, or refused for the policy, and names that were answered. sent_bytes, received_bytes: to and from upstreams.
    """

    drops: Mapping[str, int]
    connections: int
    requests: int
    denied: int
    names: int
    sent_bytes: int
    received_bytes: int
    worker: bool
    worker_restarts: int
