"""What an operator and a tenant agree on beside sandboxes: quotas, webhooks, and the record of who did what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may have at once, over its live sandboxes (paused ones too), builders and templates (their disks), and how fast it
    may ask. None: no limit of this kind.

    A suspended, stopped or failed sandbox takes its disk and what is stored of it, but no CPUs and no memory; a paused one takes all.
    snapshot_mib: stored memory and checkpoints. checkpoints: how many. secrets, grants: how many are kept, counted when one is added.
    requests_per_second refills an allowance of `burst` requests (None: twice the rate, one at least); administration is not counted.
    """

    sandboxes: int | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    snapshot_mib: int | None = None
    checkpoints: int | None = None
    secrets: int | None = None
    grants: int | None = None
    requests_per_second: float | None = None
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tenant's live sandboxes and builders take together; disk_mib: also what its templates hold."""

    sandboxes: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    snapshot_mib: int = 0
    checkpoints: int = 0


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """quota: what was set for this tenant; effective: with the server's defaults where it says nothing; used: now."""

    tenant: str
    quota: Quota
    effective: Quota
    used: Usage


@dataclass(frozen=True, slots=True)
class WebhookInfo:
    """Where events are delivered. kinds: None for all. cursor: the id up to which everything was delivered. Times: UNIX seconds.

    failing_since, last_error: None when the last delivery was taken; else it is repeated with growing pauses until it is.
    """

    id: str
    tenant: str
    url: str
    kinds: Sequence[str] | None
    created_at: float
    cursor: int
    delivered: int
    failing_since: float | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class WebhookCreated:
    """A new webhook. secret: the key of its signatures, shown this once."""

    webhook: WebhookInfo
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A request that read or changed something of a sandbox, or the server. id grows. at: UNIX seconds, when its answer began.

    route: its name in the API's document. peer: the address that it came from. status: of the answer; 0: the client left before one.
    """

    id: int
    at: float
    request_id: str
    key_id: str
    tenant: str
    peer: str
    route: str
    sandbox: str | None
    status: int
