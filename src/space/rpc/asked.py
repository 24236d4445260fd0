"""What requests of control's to a node have in common."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all requests about a sandbox hold. request_id: of the API request that this is done for, for the node's log; or empty."""

    request_id: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{0,64}\Z")] = ""


class Target(Asked, frozen=True, forbid_unknown_fields=True):
    """One sandbox. generation: which life of it, 0 for the current one."""

    sandbox: str
    generation: int = 0
