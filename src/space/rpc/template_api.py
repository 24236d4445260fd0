"""What control asks of a node's templates, and what comes back: the verbs are in `rpc.node_api`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from space.rpc.asked import Asked


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
    name: instead of the recipe's. policies: digest of the document (put before) of each policy
    of its steps, by what they say.
    """

    tenant: str
    recipe: str
    base: str = ""
    inputs: dict[str, str] = msgspec.field(default_factory=dict)
    downloads: str = ""
    name: str = ""
    policies: dict[str, str] = msgspec.field(default_factory=dict)


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
