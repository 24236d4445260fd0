"""The Python SDK: sandboxes over the public HTTP API. It stands on `space.model`, httpx and the standard library alone.

`_async` is written by hand; `_sync` is generated from it by `tools/unasync.py`. What neither waits nor talks lives beside
them: where the server is (`endpoint`), the process stream (`output`), trees (`pack`, `tarstream`, `archive`), answers
(`answers`), when to repeat a request (`retry`). `testing` is an in-memory server for the tests of programs that use the SDK.
"""

from space.model.sandbox import Phase, SandboxInfo, SandboxSpec
from space.sdk._async.client import AsyncClient
from space.sdk._async.sandbox import AsyncSandbox
from space.sdk._sync.client import Client
from space.sdk._sync.sandbox import Sandbox
from space.sdk.answers import Key, KeyCreated, Metrics, TreeSummary
from space.sdk.archive import Limits
from space.sdk.output import CommandFailed, Result

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
]
