"""Secrets and grants as the API tells of them: everything but the values, which nothing gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

SecretKind = Literal["static", "oauth_refresh", "client_credentials", "aws"]
SECRET_KINDS: tuple[SecretKind, ...] = get_args(SecretKind)
AlarmKind = Literal["tripwire", "misplaced", "rate", "revoked", "expired"]


@dataclass(frozen=True, slots=True)
class SecretInfo:
    """A secret without its value. version: counts its rotations, from 1. public: its parts that may be told, such as `client_id`.

    Times: UNIX seconds; None where it was never so. revoked_at: its value is gone, the name stays. grants: how many name it.
    """

    name: str
    kind: SecretKind
    version: int
    public: Mapping[str, str]
    labels: Mapping[str, str]
    description: str
    created_at: float
    rotated_at: float | None = None
    expires_at: float | None = None
    revoked_at: float | None = None
    grants: int = 0


@dataclass(frozen=True, slots=True)
class GrantInfo:
    """A grant. grant: all that it says (docs/howto/credentials.md). used: leases so far, of one with `uses`. attached: to how many
    sandboxes.
    """

    name: str
    secret: str
    grant: Mapping[str, Any]
    created_at: float
    revoked_at: float | None = None
    used: int = 0
    attached: int = 0


@dataclass(frozen=True, slots=True)
class CredentialAlarm:
    """What went wrong with a credential. count: how often since this was told last. secret: empty where only the grant is known.

    kind: `tripwire` (a reply held the secret, which was replaced), `misplaced` (a placeholder was elsewhere than in its slot), `rate`,
    `revoked`, `expired` (a use that was refused for that).
    """

    kind: AlarmKind
    grant: str
    secret: str
    host: str
    count: int
