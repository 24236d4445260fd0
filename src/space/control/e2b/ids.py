"""Names as E2B clients know them. A sandbox is `i` and the 20 characters behind our `sb-`; templates and snapshots have our names.

Older clients append `-<client id>` to a sandbox's id; what is in front of it counts.
"""

from __future__ import annotations

import re
from typing import Final

from space.model.errors import NotFound
from space.model.ids import SandboxId

# Which of E2B's daemons the in-sandbox API answers as: what the SDKs ask a minimum of.
ENVD_VERSION: Final = "0.6.13"
ENVD_PORT: Final = 49983
INTERPRETER_PORT: Final = 49999
# The SDKs read one and use it for nothing.
CLIENT_ID: Final = "space"

_OURS = re.compile(r"sb-([a-z2-7]{20})\Z")
_THEIRS = re.compile(r"i([a-z2-7]{20})(?:-[A-Za-z0-9]{1,64})?\Z")


def to_e2b(sandbox: str) -> str:
    """Our id as theirs. ValueError for what is none."""
    match = _OURS.match(sandbox)
    if match is None:
        raise ValueError(f"not a sandbox id: {sandbox[:64]!r}")
    return "i" + match[1]


def to_ours(sandbox: str) -> SandboxId:
    """Their id as ours. NotFound for what names no sandbox."""
    match = _THEIRS.match(sandbox)
    if match is None:
        raise NotFound(f'sandbox "{sandbox[:64]}" was not found', hint="GET /v2/sandboxes lists those of this key's tenant")
    return SandboxId("sb-" + match[1])
