"""The Python SDK: sandboxes over the public HTTP API. It stands on `space.model`, httpx and the standard library alone.

`_async` is written by hand; `_sync` is generated from it by `tools/unasync.py`. What neither waits nor talks lives beside
them: where the server is (`endpoint`), the process stream (`output`), trees (`pack`, `tarstream`, `archive`), answers
(`answers`), when to repeat a request (`retry`). `testing` is an in-memory server for the tests of programs that use the SDK.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from space.model.sandbox import Phase, SandboxInfo, SandboxSpec
    from space.sdk._async.client import AsyncClient
    from space.sdk._async.sandbox import AsyncSandbox
    from space.sdk._sync.client import Client
    from space.sdk._sync.sandbox import Sandbox
    from space.sdk.answers import Key, KeyCreated, Metrics, TreeSummary
    from space.sdk.archive import Limits, Unpacked
    from space.sdk.output import CommandFailed, Result

# Looked up when first used: who works without asyncio does not import it.
_HOMES = {
    "space.model.sandbox": ("Phase", "SandboxInfo", "SandboxSpec"),
    "space.sdk._async.client": ("AsyncClient",),
    "space.sdk._async.sandbox": ("AsyncSandbox",),
    "space.sdk._sync.client": ("Client",),
    "space.sdk._sync.sandbox": ("Sandbox",),
    "space.sdk.answers": ("Key", "KeyCreated", "Metrics", "TreeSummary"),
    "space.sdk.archive": ("Limits", "Unpacked"),
    "space.sdk.output": ("CommandFailed", "Result"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AsyncClient",
    "AsyncSandbox",
    "Client",
    "CommandFailed",
    "Key",
    "KeyCreated",
    "Limits",
    "Metrics",
    "Phase",
    "Result",
    "Sandbox",
    "SandboxInfo",
    "SandboxSpec",
    "TreeSummary",
    "Unpacked",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'space.sdk' has no attribute {name!r}")
