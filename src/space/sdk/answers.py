"""The server's answers as values, and its problems as exceptions. An answer of another shape is a ProtocolError."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from space.model.egress import PolicyStatus
from space.model.errors import (
    Conflict,
    DeadlineExceeded,
    Gone,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ProtocolError,
    RateLimited,
    SpaceError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    from_code,
)
from space.model.files import FileChange, FileInfo
from space.model.process import ProcessInfo
from space.model.sandbox import ExitStatus, IdlePolicy, Phase, SandboxInfo, SandboxSpec
from space.model.tenants import Quota, QuotaInfo, Usage, WebhookCreated, WebhookInfo

T = TypeVar("T")

_BY_STATUS: dict[int, type[SpaceError]] = {
    400: InvalidArgument, 401: Unauthenticated, 403: PermissionDenied, 404: NotFound, 409: Conflict, 410: Gone,
    413: TooLarge, 429: RateLimited, 502: Unavailable, 503: Unavailable, 504: DeadlineExceeded,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metrics:
    """A sandbox's figures. memory, disk: bytes. cpu, uptime: milliseconds. load1_milli: thousandths. host_*: the VMM's, on the host."""

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


@dataclass(frozen=True, slots=True)
class Sample:
    """A sandbox's figures at one time, `at` in UNIX seconds; the rest as in `Metrics`."""

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


@dataclass(frozen=True, slots=True)
class MetricsHistory:
    """A sandbox's figures over time, oldest first; interval_seconds: between two samples."""

    interval_seconds: float
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """A tree that went over: how many entries, and the size and CRC-32 of its tar stream, equal on both sides."""

    entries: int
    bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Key:
    """An API key as the server lists it, without the secret."""

    id: str
    tenant: str
    scope: str
    name: str
    created_at: float
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True)
class KeyCreated:
    """A new API key. `key` is the secret: shown once, stored hashed; it stays out of `repr`."""

    id: str
    tenant: str
    scope: str
    name: str
    key: str = field(repr=False)


_LIFE = ("generation", "start", "parent", "snapshot_bytes", "checkpoints")


def sandbox_info(answer: Any) -> SandboxInfo:
    """A sandbox object."""
    try:
        spec = answer["spec"]
        known = {item.name for item in fields(SandboxSpec)}
        return SandboxInfo(
            id=str(answer["id"]),
            phase=Phase(answer["phase"]),
            spec=SandboxSpec(**{name: value for name, value in spec.items() if name in known} | _idle(spec)),
            created_at=float(answer["created_at"]),
            expires_at=None if answer["expires_at"] is None else float(answer["expires_at"]),
            revision=int(answer["revision"]),
            isolation=str(answer["isolation"]),
            reason=answer.get("reason"),
            policy=record(PolicyStatus, answer.get("policy") or {}),
            **{name: answer[name] for name in _LIFE if name in answer},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"the server's answer is no sandbox: {error!r}", hint="is the server of another version?") from error


def _idle(spec: Mapping[str, Any]) -> dict[str, IdlePolicy]:
    return {} if spec.get("idle") is None else {"idle": IdlePolicy(int(spec["idle"]["seconds"]), spec["idle"]["action"])}


def exit_status(answer: Any, request_id: str | None = None) -> ExitStatus:
    """How a process ended, from its exit frame or its object."""
    try:
        status = ExitStatus(
            code=answer["code"],
            signal=answer["signal"],
            oom_killed=bool(answer["oom_killed"]),
            timed_out=bool(answer["timed_out"]),
            wall_ms=int(answer["wall_ms"]),
            stdout_bytes=int(answer["stdout_bytes"]),
            stderr_bytes=int(answer["stderr_bytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the exit status is incomplete: {error!r}", request_id=request_id) from error
    if (status.code is None) == (status.signal is None):
        raise ProtocolError(f"the exit status holds code {status.code} and signal {status.signal}", request_id=request_id)
    return status


def process_info(answer: Any) -> ProcessInfo:
    """A process object."""
    if not isinstance(answer, dict):
        raise ProtocolError("the server's answer is no process", hint="is the server of another version?")
    ended = answer.get("exit")
    return record(ProcessInfo, answer | {"exit": None if ended is None else exit_status(ended)})


def process_infos(answer: Any) -> list[ProcessInfo]:
    """A list of processes."""
    try:
        return [process_info(item) for item in answer["processes"]]
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"the server's answer is no list of processes: {error!r}", hint="is the server of another version?") from error


def file_info(answer: Any) -> FileInfo:
    """A file object."""
    return record(FileInfo, answer)


def file_change(answer: Any) -> FileChange:
    """A line of a watch that tells a change."""
    if not isinstance(answer, dict) or not isinstance(answer.get("path"), str):
        raise ProtocolError("a line of the watch is no change", hint="is the server of another version?")
    return FileChange(answer["kind"], answer["path"], answer.get("from"), bool(answer.get("directory", False)))


def quota_info(answer: Any) -> QuotaInfo:
    """A tenant's quota object."""
    try:
        return QuotaInfo(
            tenant=str(answer["tenant"]),
            quota=record(Quota, answer["quota"]),
            effective=record(Quota, answer["effective"]),
            used=record(Usage, answer["used"]),
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"the server's answer is no quota: {error!r}", hint="is the server of another version?") from error


def webhook_created(answer: Any) -> WebhookCreated:
    """A new webhook, with its secret."""
    try:
        return WebhookCreated(record(WebhookInfo, answer["webhook"]), str(answer["secret"]))
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"the server's answer is no webhook: {error!r}", hint="is the server of another version?") from error


def metrics_history(answer: Any) -> MetricsHistory:
    """A sandbox's figures over time."""
    try:
        return MetricsHistory(float(answer["interval_seconds"]), tuple(record(Sample, item) for item in answer["samples"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the server's answer is no history: {error!r}", hint="is the server of another version?") from error


def record(cls: type[T], answer: Any) -> T:
    """`answer` as a value of `cls`, one of this module's: unknown fields are ignored, so that a newer server is understood."""
    try:
        return cls(**{item.name: answer[item.name] for item in fields(cls) if item.name in answer})  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"the server's answer is no {cls.__name__}: {error!r}", hint="is the server of another version?") from error


def by_status(status: int) -> type[SpaceError]:
    """What an answer that says no more than its status is."""
    return _BY_STATUS.get(status, ProtocolError)


def problem(status: int, body: bytes, headers: Mapping[str, str]) -> SpaceError:
    """The exception of an answer that is no success. A body that is no problem object (a proxy's page) goes by its status."""
    request_id = headers.get("x-request-id")
    try:
        document = json.loads(body)
        code = document["code"]
    except (ValueError, KeyError, TypeError):
        cls = by_status(status)
        return cls(f"the server answered {status} without saying why", hint="is it a `space` server?", request_id=request_id)
    return problem_document(document, str(code), request_id)


def problem_document(document: Mapping[str, Any], code: str, request_id: str | None = None) -> SpaceError:
    """The exception of a problem object (also of a process stream's error frame)."""
    text = document.get("detail") or document.get("title") or "the server gave no reason"
    hint = document.get("hint")
    fault = from_code(code, str(text), hint=str(hint) if hint else None, request_id=document.get("request_id") or request_id)
    details = document.get("details")
    fault.details = [one for one in details if isinstance(one, dict)] if isinstance(details, list) else ()
    return fault
