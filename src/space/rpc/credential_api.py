"""What control asks of a node about credentials (verbs beside those of `rpc.node_api`). The broker holds them all; the node passes on.

| verb | request | comes back |
|---|---|---|
| secret_put | SecretPut | SecretInfo: it is on the broker's disk |
| secret_get, secret_revoke | Named | SecretInfo; NotFound |
| secret_list | Listing | SecretPage messages, a page of names in order; the last says whether there are more |
| secret_delete | Named | Done; Conflict while grants name it; idempotent |
| grant_put | GrantPut | GrantInfo: it holds; InvalidArgument with the place of the mistake, NotFound (its secret), Conflict |
| grant_get, grant_revoke | Named | GrantInfo; NotFound |
| grant_list | Listing | GrantPage messages, likewise |
| grant_delete | Named | Done; idempotent |
| grants_attach | Attachment | Done: the sandbox has all of them as well, or none; NotFound |
| grant_detach | Attachment | Done; idempotent |
| grants_attached | Attachment | GrantNames |

A value comes in once, in SecretPut, and nothing gives it back.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from space.core.credentials.grant import MOST_GRANT, NAME, Kind
from space.rpc.node_api import Asked

MOST_VALUE = 49_152  # bytes of the secret parts of one, packed
MOST_PAGE = 32
MOST_NAMES = 64
Name = Annotated[str, Meta(pattern=NAME)]
Tenant = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9._-]{0,62}\Z")]
SandboxId = Annotated[str, Meta(pattern=r"\Asb-[a-z2-7]{20}\Z")]
Labels = Annotated[dict[Annotated[str, Meta(max_length=128)], Annotated[str, Meta(max_length=256)]], Meta(max_length=64)]


class SecretPut(Asked, frozen=True, forbid_unknown_fields=True):
    """Keep a secret. mode: `new` (Conflict if it is there), `rotate` (NotFound if it is not), `either`. value: packed parts
    (`core.credentials.secret`). public: parts that may be told. expires: RFC 3339, or empty.
    """

    tenant: Tenant
    name: Name
    kind: Kind
    value: Annotated[bytes, Meta(min_length=1, max_length=MOST_VALUE)]
    public: Annotated[dict[str, Annotated[str, Meta(max_length=1024)]], Meta(max_length=8)] = {}  # noqa: RUF012  # msgspec copies it
    labels: Labels = {}  # noqa: RUF012  # likewise
    description: Annotated[str, Meta(max_length=256)] = ""
    expires: Annotated[str, Meta(max_length=40)] = ""
    mode: Literal["new", "rotate", "either"] = "new"

    def __repr__(self) -> str:
        return f"SecretPut({self.tenant!r}, {self.name!r})"


class Named(Asked, frozen=True, forbid_unknown_fields=True):
    """A secret or a grant of a tenant."""

    tenant: Tenant
    name: Name


class Listing(Asked, frozen=True, forbid_unknown_fields=True):
    """A tenant's, behind that name. secret: only grants of that one."""

    tenant: Tenant
    after: Annotated[str, Meta(max_length=63)] = ""
    limit: Annotated[int, Meta(ge=1, le=MOST_PAGE)] = MOST_PAGE
    secret: Annotated[str, Meta(max_length=63)] = ""


class GrantPut(Asked, frozen=True, forbid_unknown_fields=True):
    """grant: JSON (`core.credentials.grant`). replace: whether one that is there gives way."""

    tenant: Tenant
    grant: Annotated[bytes, Meta(max_length=MOST_GRANT)]
    replace: bool = False


class Attachment(Asked, frozen=True, forbid_unknown_fields=True):
    """Grants and a sandbox of the same tenant."""

    tenant: Tenant
    sandbox: SandboxId
    names: Annotated[tuple[Name, ...], Meta(max_length=MOST_NAMES)] = ()


class SecretInfo(msgspec.Struct, frozen=True, tag_field="t", tag="secret"):
    """What may be told of a secret. version: counts its rotations, from 1. Times: RFC 3339, or empty. grants: how many name it."""

    tenant: str
    name: str
    kind: Kind
    version: int
    public: dict[str, str]
    labels: dict[str, str]
    description: str
    created: str
    rotated: str
    expires: str
    revoked: str
    grants: int


class SecretPage(msgspec.Struct, frozen=True, tag_field="t", tag="secrets"):
    """more: there are some behind the last one."""

    secrets: list[SecretInfo]
    more: bool = False


class GrantInfo(msgspec.Struct, frozen=True, tag_field="t", tag="grant"):
    """grant: JSON. used: leases so far, of one with `uses`. attached: to how many sandboxes. revoked: RFC 3339, or empty."""

    tenant: str
    grant: bytes
    created: str
    revoked: str
    used: int
    attached: int


class GrantPage(msgspec.Struct, frozen=True, tag_field="t", tag="grants"):
    """more: there are some behind the last one."""

    grants: list[GrantInfo]
    more: bool = False


class GrantNames(msgspec.Struct, frozen=True, tag_field="t", tag="names"):
    """In order."""

    names: list[str]
