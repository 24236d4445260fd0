"""Requests and answers about templates and their builds."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from space.core.template.recipe import MOST_BYTES, TAG

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{16,64}$")]
Tag = Annotated[str, Meta(pattern="^" + TAG.removesuffix(r"\Z") + "$")]


class PlanRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """recipe: the text of a recipe file."""

    recipe: Annotated[str, Meta(max_length=MOST_BYTES)]


class DownloadInfo(Struct, frozen=True):
    """Something that a recipe lists. kind: deb, wheel, npm or file. what: a package, or an address. sha256, name: of the file."""

    kind: str
    what: str
    sha256: str
    name: str


class PlanInfo(Struct, frozen=True):
    """What has to come along. inputs: paths below the recipe's directory. name: as the recipe says."""

    name: str
    inputs: list[str]
    downloads: list[DownloadInfo]
    steps: list[str]


class BuildRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Build a template. name: instead of the recipe's. inputs: digests of what comes, by path. downloads: one of all that was fetched."""

    recipe: Annotated[str, Meta(max_length=MOST_BYTES)]
    name: Annotated[str, Meta(max_length=63)] = ""
    tag: Tag = "latest"
    inputs: dict[str, Annotated[str, Meta(max_length=128)]] = {}
    downloads: Annotated[str, Meta(max_length=128)] = ""


class BuildInfo(Struct, frozen=True):
    """A build. state: `waiting` for its files, `building`, `done` or `failed`. step: the one that is being done, from 1; of `steps`.

    digest: of the template, once it is done. reason: why it failed. lines: of its log so far. Times are UNIX seconds.
    """

    id: str
    name: str
    tag: str
    state: Literal["waiting", "building", "done", "failed"]
    step: int
    steps: int
    lines: int
    created_at: float
    digest: str | None = None
    reason: str | None = None


class BuildList(Struct, frozen=True):
    """The tenant's builds, oldest first: those under way, and the last ones."""

    builds: list[BuildInfo]


class TemplateInfo(Struct, frozen=True):
    """A template that can be booted. shipped: set-up made it. tags: that lead to this build of it. problem: why it cannot be used, and the
    way out. start: what a sandbox of it runs from the beginning. Times are UNIX seconds; sizes MiB.
    """

    name: str
    digest: str = ""
    tags: list[str] = []
    shipped: bool = True
    disk_mib: int = 0
    used_mib: int = 0
    created_at: float | None = None
    source: str = ""
    parent: str = ""
    env: dict[str, str] = {}
    user: str = ""
    cwd: str = ""
    start: list[str] = []
    ready: list[str] = []
    hooks: list[str] = []
    kernel_release: str = ""
    problem: str = ""


class TemplateList(Struct, frozen=True):
    """What this tenant can boot: the shipped templates, then its own."""

    templates: list[TemplateInfo]


class TagRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """digest: the build that the tag leads to from now on."""

    digest: Digest


class KeepRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A sandbox's disk as a template: its name, and the tag that leads to it."""

    name: str
    tag: str = "latest"


class PruneRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """keep_seconds: what builds used since then stays. dry_run: only say what would go."""

    keep_seconds: Annotated[int, Meta(ge=0, le=10**9)] = 0
    dry_run: bool = False


class PruneInfo(Struct, frozen=True):
    """steps: whose kept disks went, least recently used first. freed_bytes: at most; disks share blocks."""

    steps: list[str]
    freed_bytes: int
