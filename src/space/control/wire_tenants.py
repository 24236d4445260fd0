"""Requests and answers of events, webhooks, quotas, audit and metrics history, and of what may be changed of a sandbox."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from space.control.wire import IdleRequest, check_metadata, check_ttl, idle_policy
from space.model.errors import InvalidArgument
from space.model.events import EventKind
from space.model.sandbox import Action, SandboxSpec
from space.model.tenants import AuditRecord, Quota, WebhookInfo

_Amount = Annotated[int, Meta(ge=0, le=2**40)]


class ChangeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What to change; what is left out stays. ttl_seconds: from now on. metadata: merged, null removes a name. idle: null for none."""

    ttl_seconds: int | UnsetType = UNSET
    metadata: Annotated[dict[str, str | None], Meta(max_length=128)] | UnsetType = UNSET
    idle: IdleRequest | UnsetType | None = UNSET
    on_timeout: Action | UnsetType = UNSET
    wake_on_call: bool | UnsetType = UNSET


class QuotaRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant's quota, whole. null or left out: the server's default. requests_per_second: at least one in 100 seconds."""

    sandboxes: _Amount | None = None
    cpus: _Amount | None = None
    memory_mib: _Amount | None = None
    disk_mib: _Amount | None = None
    snapshot_mib: _Amount | None = None
    checkpoints: _Amount | None = None
    secrets: _Amount | None = None
    grants: _Amount | None = None
    requests_per_second: Annotated[float, Meta(ge=0.01, le=1e6)] | None = None
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class WebhookRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """url: https. kinds: of events; left out: all. secret: 16 to 128 characters; left out: made by the server."""

    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    kinds: Annotated[list[EventKind], Meta(min_length=1, max_length=16)] | None = None
    secret: Annotated[str, Meta(min_length=16, max_length=128, pattern=r"^[\x21-\x7e]+$")] | None = None

    def __repr__(self) -> str:
        return f"WebhookRequest(url={self.url!r})"


class WebhookList(Struct, frozen=True):
    """A tenant's webhooks, oldest first."""

    webhooks: list[WebhookInfo]


class AuditList(Struct, frozen=True):
    """Oldest first. next_after: ask for the rest with it; null when there is no more yet."""

    records: list[AuditRecord]
    next_after: int | None


class SampleInfo(Struct, frozen=True):
    """A sandbox's figures at one time (UNIX seconds); fields as in the metrics of now."""

    at: float
    memory_total: int
    memory_available: int
    cpu_user_ms: int
    cpu_system_ms: int
    disk_total: int
    disk_used: int
    processes: int
    host_memory_bytes: int
    host_cpu_ms: int


class HistoryInfo(Struct, frozen=True):
    """Oldest first. interval_seconds: between two."""

    interval_seconds: float
    samples: list[SampleInfo]


def changed_spec(spec: SandboxSpec, asked: ChangeRequest, *, max_ttl_seconds: int) -> tuple[SandboxSpec, list[str]]:
    """The specification as asked, and the names of what was asked for. InvalidArgument names the field."""
    fields = [name for name in asked.__struct_fields__ if getattr(asked, name) is not UNSET]
    if not fields:
        raise InvalidArgument("nothing is to be changed", hint="give some of " + ", ".join(asked.__struct_fields__))
    changes: dict[str, Any] = {}
    if asked.ttl_seconds is not UNSET:
        changes["ttl_seconds"] = check_ttl(asked.ttl_seconds, max_ttl_seconds)
    if asked.metadata is not UNSET:
        merged = {**spec.metadata, **asked.metadata}
        changes["metadata"] = check_metadata({name: value for name, value in merged.items() if value is not None})
    if asked.idle is not UNSET:
        changes["idle"] = idle_policy(asked.idle)
    for name in ("on_timeout", "wake_on_call"):
        if (value := getattr(asked, name)) is not UNSET:
            changes[name] = value
    return replace(spec, **changes), fields


def quota(asked: QuotaRequest) -> Quota:
    """The quota."""
    return msgspec.convert(asked, Quota, from_attributes=True)
