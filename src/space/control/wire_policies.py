"""Requests and answers of policies, layers, asks and explanations."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from space.control.wire import PolicyName
from space.model.egress import Ask, NamedPolicy, Permission


class SandboxPolicyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What may leave a sandbox from now on: a policy (docs/policy.md), the name of a stored one, or null for nothing."""

    policy: dict[str, Any] | PolicyName | None


class PolicyRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy (docs/policy.md)."""

    policy: dict[str, Any]


class LayerRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A layer, whole. policy: null narrows nothing."""

    policy: dict[str, Any] | None = None


class TenantLayerRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant's layer, whole. policy: null narrows nothing. default: the stored policy that its sandboxes follow when they name
    none. permits: what the policies of its sandboxes may have.
    """

    policy: dict[str, Any] | None = None
    default: PolicyName | None = None
    permits: Annotated[list[Permission], Meta(max_length=8)] = []


class PolicyList(Struct, frozen=True):
    """A tenant's stored policies, by name, without what they say."""

    policies: list[NamedPolicy]


class AskList(Struct, frozen=True):
    """Requests that wait for a person's word, the oldest first."""

    asks: list[Ask]


class AskAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """The word: exactly the request that was asked about goes, or not."""

    allow: bool


class ExplainRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """url: absolute; `ws`, `wss` and `tcp` are schemes too. method: as it is sent. websocket: it asks for one. foreign: it carries a
    credential of the guest's own.
    """

    url: Annotated[str, Meta(min_length=1, max_length=8192)]
    method: Annotated[str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}$")] = "GET"
    websocket: bool = False
    foreign: bool = False
