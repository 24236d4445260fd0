"""Identifiers: made in one place, checked at every edge.

A sandbox id is `sb-` and 20 characters of base32 (100 random bits); it is safe as a file name, a cgroup name and a URL
segment. An instance name is short because the names of network interfaces hang on it.
"""

from __future__ import annotations

import base64
import re
import secrets
from typing import NewType

SandboxId = NewType("SandboxId", str)
TenantId = NewType("TenantId", str)
InstanceName = NewType("InstanceName", str)
TemplateName = NewType("TemplateName", str)

_SANDBOX = re.compile(r"sb-[a-z2-7]{20}\Z")
_TENANT = re.compile(r"[a-z][a-z0-9-]{0,38}\Z")
_INSTANCE = re.compile(r"[a-z][a-z0-9]{0,11}\Z")
_TEMPLATE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_PROCESS = re.compile(r"pr-[0-9a-f]{16}\Z")
_SNAPSHOT = re.compile(r"sn-[a-z2-7]{20}\Z")
_CHECKPOINT = re.compile(r"cp-[a-z2-7]{20}\Z")
_DIGEST = re.compile(r"[0-9a-f]{16,64}\Z")


def _random(characters: int) -> str:
    # One system call for all of it: `secrets.choice` makes one a character, 43 us for an id instead of 4 (measured).
    return base64.b32encode(secrets.token_bytes(-(-characters * 5 // 8))).decode().lower()[:characters]


def new_sandbox_id() -> SandboxId:
    """A fresh id with 100 random bits."""
    return SandboxId("sb-" + _random(20))


def new_request_id() -> str:
    """An id that joins an answer to its log lines."""
    return "req-" + _random(16)


def new_process_id() -> str:
    """A fresh process id with 64 random bits."""
    return "pr-" + secrets.token_hex(8)


def new_webhook_id() -> str:
    """A fresh webhook id with 100 random bits."""
    return "wh-" + _random(20)


def new_snapshot_id() -> str:
    """A fresh snapshot id with 100 random bits."""
    return "sn-" + _random(20)


def new_checkpoint_id() -> str:
    """A fresh id of a checkpoint, with 100 random bits."""
    return "cp-" + _random(20)


def checkpoint_id(text: str) -> str:
    """`text` as a checkpoint's id (`cp-` and 20 of base32); ValueError when it is not one."""
    if not _CHECKPOINT.match(text):
        raise ValueError(f"not a checkpoint id: {text[:64]!r}")
    return text


def snapshot_id(text: str) -> str:
    """`text` as a snapshot id (`sn-` and 20 of base32); ValueError when it is not one."""
    if not _SNAPSHOT.match(text):
        raise ValueError(f"not a snapshot id: {text[:64]!r}")
    return text


def process_id(text: str) -> str:
    """`text` as a process id (`pr-` and 16 hex digits); ValueError when it is not one."""
    if not _PROCESS.match(text):
        raise ValueError(f"not a process id: {text[:64]!r}")
    return text


def sandbox_id(text: str) -> SandboxId:
    """`text` as a sandbox id; ValueError when it is not one."""
    if not _SANDBOX.match(text):
        raise ValueError(f"not a sandbox id: {text[:64]!r}")
    return SandboxId(text)


def tenant_id(text: str) -> TenantId:
    """`text` as a tenant id (1 to 39 of a-z, 0-9 and -, a letter first); ValueError otherwise."""
    if not _TENANT.match(text):
        raise ValueError(f"not a tenant id: {text[:64]!r}")
    return TenantId(text)


def instance_name(text: str) -> InstanceName:
    """`text` as an instance name (1 to 12 of a-z and 0-9, a letter first); ValueError otherwise."""
    if not _INSTANCE.match(text):
        raise ValueError(f"not an instance name: {text[:64]!r} (1 to 12 of a-z and 0-9, a letter first)")
    return InstanceName(text)


def template_name(text: str) -> TemplateName:
    """`text` as a template name; ValueError otherwise."""
    if not _TEMPLATE.match(text):
        raise ValueError(f"not a template name: {text[:64]!r}")
    return TemplateName(text)


def digest(text: str) -> str:
    """`text` as an artefact digest (16 to 64 hex digits); ValueError otherwise."""
    if not _DIGEST.match(text):
        raise ValueError(f"not a digest: {text[:80]!r}")
    return text
