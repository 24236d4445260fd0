"""What is asked of the dialer, over SEQPACKET; MessagePack, tagged, every value bounded. (What a worker says: `space.core.wire.dialing`.)

| socket | who holds it | asks |
|---|---|---|
| control | the node (peer's uid) | everything here; PutPolicy comes with a sealed memfd, Bind, BindAudit and BindMinter with a socket |
| of a sandbox | that sandbox's workers, for one generation | connections |

A digest is that of a policy document (`space.core.policy.document`); the empty one stands for no policy, under which nothing is dialled.
The generation of a policy counts up in each sandbox: an older one than the one that is held is refused.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from space.rpc.asking import Refused
from space.rpc.broker_api import Generation, Id, Sandbox

Digest = Annotated[str, Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
MOST_KEPT = 1800  # digests in one DropPolicies: what one packet holds
PAGE = 256  # bindings in one Standing


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    id: Id


class PutPolicy(_Question, frozen=True):
    """The document of that digest is in the memfd beside it (sealed against writing, growing, shrinking). Done: it is held."""

    digest: Digest


class Bind(_Question, frozen=True):
    """The socket beside it speaks for that life of that sandbox, under that policy; an earlier is closed. NotFound: the digest. Done."""

    sandbox: Sandbox
    generation: Generation
    digest: Digest
    policy_generation: Generation


class SetPolicy(_Question, frozen=True):
    """That policy holds from now on. NotFound: the sandbox or the digest. Conflict: a newer one is held. Done."""

    sandbox: Sandbox
    generation: Generation
    digest: Digest
    policy_generation: Generation


class End(_Question, frozen=True):
    """That life has ended: its socket is closed, what is being dialled for it is given up. Idempotent. Done."""

    sandbox: Sandbox
    generation: Generation


class BindAudit(_Question, frozen=True):
    """The socket beside it leads to the keeper of the records, as the source `dialer`. Until there is one nothing is dialled. Done."""


class BindMinter(_Question, frozen=True):
    """The socket beside it is the minter's: connections to the token endpoints of the settings, and to nothing else. Done."""


class Describe(_Question, frozen=True):
    """Answer: Standing, with the bindings of sandboxes whose ids come after `after`."""

    after: Annotated[str, Meta(max_length=64)] = ""


class DropPolicies(_Question, frozen=True):
    """Every document is dropped that is not one of these and that no sandbox is bound to. Done."""

    keep: Annotated[tuple[Digest, ...], Meta(max_length=MOST_KEPT)]


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is so."""

    id: int


class Binding(msgspec.Struct, frozen=True):
    """One sandbox. dials: under way now. open: its socket is."""

    sandbox: str
    generation: int
    digest: str
    policy_generation: int
    dials: int
    open: bool


class Standing(msgspec.Struct, frozen=True, tag=True):
    """How it stands. policies: documents that are held. recorded: there is a keeper of records. more: there are bindings beyond these."""

    id: int
    policies: int
    bindings: list[Binding]
    recorded: bool
    resolvers: list[str]
    more: bool = False


ToControl = PutPolicy | Bind | SetPolicy | End | BindAudit | BindMinter | Describe | DropPolicies
Answer = Done | Standing | Refused

CONTROL = msgspec.msgpack.Decoder(ToControl)
encode = msgspec.msgpack.Encoder().encode
