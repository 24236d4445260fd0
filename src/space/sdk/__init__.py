"""The Python SDK: sandboxes over the public HTTP API. It stands on `space.model`, httpx, websockets and the standard library alone.

`_async` is written by hand; `_sync` is generated from it by `tools/unasync.py`. What neither waits nor talks lives beside
them: where the server is (`endpoint`), the process stream (`output`) and how it goes on after a break (`follow`), files over several
connections (`content`), events (`eventlog`), trees (`pack`, `tarstream`, `archive`), answers (`answers`), when to repeat a request
(`retry`), WebSockets (`sockets`). `webhooks` checks deliveries. `testing` is a server for the tests of programs that use the SDK.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from space.model.credentials import CredentialAlarm, GrantInfo, SecretInfo
    from space.model.egress import (
        Ask,
        EgressCounters,
        ExplainStep,
        Explanation,
        NamedPolicy,
        PolicyLayer,
        PolicyNote,
        PolicyStatus,
        SandboxPolicy,
    )
    from space.model.egresslog import EgressRecord
    from space.model.events import Event
    from space.model.files import FileChange, FileInfo
    from space.model.ports import ExposedPort, IngressInfo
    from space.model.process import ProcessInfo, PtySize
    from space.model.sandbox import Checkpoint, ExitStatus, IdlePolicy, Phase, SandboxInfo, SandboxSpec
    from space.model.secret import Secret
    from space.model.tenants import AuditRecord, Quota, QuotaInfo, WebhookCreated, WebhookInfo
    from space.sdk._async.client import AsyncClient
    from space.sdk._async.files import AsyncFiles, AsyncWatch
    from space.sdk._async.forward import AsyncForward
    from space.sdk._async.ports import AsyncConnection
    from space.sdk._async.process import AsyncProcess
    from space.sdk._async.sandbox import AsyncSandbox
    from space.sdk._async.terminal import AsyncTerminal
    from space.sdk._sync.client import Client
    from space.sdk._sync.files import Files, Watch
    from space.sdk._sync.forward import Forward
    from space.sdk._sync.ports import Connection
    from space.sdk._sync.process import Process
    from space.sdk._sync.sandbox import Sandbox
    from space.sdk._sync.terminal import Terminal
    from space.sdk.answers import Key, KeyCreated, Metrics, MetricsHistory, Sample, TreeSummary
    from space.sdk.archive import Limits, Unpacked
    from space.sdk.code import CodeContext, CodeError, CodeResult, Execution
    from space.sdk.content import Overflow
    from space.sdk.eventlog import EventGap
    from space.sdk.output import CommandFailed, Gap, Output, OutputLost, Result, Text
    from space.sdk.recordlog import EgressGap

# Looked up when first used: who works without asyncio does not import it.
_HOMES = {
    "space.model.credentials": ("CredentialAlarm", "GrantInfo", "SecretInfo"),
    "space.model.secret": ("Secret",),
    "space.model.egress": (
        "Ask",
        "EgressCounters",
        "ExplainStep",
        "Explanation",
        "NamedPolicy",
        "PolicyLayer",
        "PolicyNote",
        "PolicyStatus",
        "SandboxPolicy",
    ),
    "space.model.egresslog": ("EgressRecord",),
    "space.model.events": ("Event",),
    "space.model.files": (
        "FileChange",
        "FileInfo",
    ),
    "space.model.ports": (
        "ExposedPort",
        "IngressInfo",
    ),
    "space.model.process": (
        "ProcessInfo",
        "PtySize",
    ),
    "space.model.sandbox": (
        "Checkpoint",
        "ExitStatus",
        "IdlePolicy",
        "Phase",
        "SandboxInfo",
        "SandboxSpec",
    ),
    "space.model.tenants": (
        "AuditRecord",
        "Quota",
        "QuotaInfo",
        "WebhookCreated",
        "WebhookInfo",
    ),
    "space.sdk._async.client": ("AsyncClient",),
    "space.sdk._async.files": (
        "AsyncFiles",
        "AsyncWatch",
    ),
    "space.sdk._async.forward": ("AsyncForward",),
    "space.sdk._async.ports": ("AsyncConnection",),
    "space.sdk._async.process": ("AsyncProcess",),
    "space.sdk._async.sandbox": ("AsyncSandbox",),
    "space.sdk._async.terminal": ("AsyncTerminal",),
    "space.sdk._sync.client": ("Client",),
    "space.sdk._sync.files": (
        "Files",
        "Watch",
    ),
    "space.sdk._sync.forward": ("Forward",),
    "space.sdk._sync.ports": ("Connection",),
    "space.sdk._sync.process": ("Process",),
    "space.sdk._sync.sandbox": ("Sandbox",),
    "space.sdk._sync.terminal": ("Terminal",),
    "space.sdk.answers": (
        "Key",
        "KeyCreated",
        "Metrics",
        "MetricsHistory",
        "Sample",
        "TreeSummary",
    ),
    "space.sdk.archive": (
        "Limits",
        "Unpacked",
    ),
    "space.sdk.code": (
        "CodeContext",
        "CodeError",
        "CodeResult",
        "Execution",
    ),
    "space.sdk.content": ("Overflow",),
    "space.sdk.eventlog": ("EventGap",),
    "space.sdk.recordlog": ("EgressGap",),
    "space.sdk.output": (
        "CommandFailed",
        "Gap",
        "Output",
        "OutputLost",
        "Result",
        "Text",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Ask",
    "AsyncClient",
    "AsyncConnection",
    "AsyncFiles",
    "AsyncForward",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncTerminal",
    "AsyncWatch",
    "AuditRecord",
    "Checkpoint",
    "Client",
    "CodeContext",
    "CodeError",
    "CodeResult",
    "CommandFailed",
    "Connection",
    "CredentialAlarm",
    "EgressCounters",
    "EgressGap",
    "EgressRecord",
    "Event",
    "EventGap",
    "Execution",
    "ExitStatus",
    "ExplainStep",
    "Explanation",
    "ExposedPort",
    "FileChange",
    "FileInfo",
    "Files",
    "Forward",
    "Gap",
    "GrantInfo",
    "IdlePolicy",
    "IngressInfo",
    "Key",
    "KeyCreated",
    "Limits",
    "Metrics",
    "MetricsHistory",
    "NamedPolicy",
    "Output",
    "OutputLost",
    "Overflow",
    "Phase",
    "PolicyLayer",
    "PolicyNote",
    "PolicyStatus",
    "Process",
    "ProcessInfo",
    "PtySize",
    "Quota",
    "QuotaInfo",
    "Result",
    "Sample",
    "Sandbox",
    "SandboxInfo",
    "SandboxPolicy",
    "SandboxSpec",
    "Secret",
    "SecretInfo",
    "Terminal",
    "Text",
    "TreeSummary",
    "Unpacked",
    "Watch",
    "WebhookCreated",
    "WebhookInfo",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'space.sdk' has no attribute {name!r}")
