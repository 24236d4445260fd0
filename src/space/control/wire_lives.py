"""Requests and answers of sandboxes' lives: wake, checkpoints, rollback, forks."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from msgspec import Meta, Struct

from space.control import limits
from space.control.wire import MAX_METADATA, GrantName, check_metadata, check_ttl
from space.model.sandbox import Checkpoint, SandboxInfo, SandboxSpec

CheckpointName = Annotated[str, Meta(pattern=r"^cp-[a-z2-7]{20}$")]


class WakeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """cold: boot a suspended sandbox from its disk, and give up its stored memory once it runs."""

    cold: bool = False


class RollbackRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """To which instant it goes back."""

    checkpoint: CheckpointName


class ForkRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """count: how many children. ttl_seconds: from now on; null: as the parent's. metadata: of each; null: the parent's. grants: names of
    grants that each has besides those that select it: the parent's are not theirs.
    """

    count: Annotated[int, Meta(ge=1, le=limits.CHILDREN)] = 1
    ttl_seconds: int | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=MAX_METADATA)] | None = None
    grants: Annotated[list[GrantName], Meta(max_length=64)] = []


class ForkedList(Struct, frozen=True):
    """The children, all of them running."""

    sandboxes: list[SandboxInfo]


class CheckpointList(Struct, frozen=True):
    """A sandbox's checkpoints, oldest first."""

    checkpoints: list[Checkpoint]


def child_spec(spec: SandboxSpec, asked: ForkRequest, *, max_ttl_seconds: int) -> SandboxSpec:
    """A child's specification; InvalidArgument names the field."""
    ttl = spec.ttl_seconds if asked.ttl_seconds is None else check_ttl(asked.ttl_seconds, max_ttl_seconds)
    metadata = spec.metadata if asked.metadata is None else check_metadata(asked.metadata)
    return replace(spec, ttl_seconds=min(ttl, max_ttl_seconds), metadata=metadata)
