"""What is asked of the broker, over three kinds of SEQPACKET sockets; MessagePack, tagged, every value bounded.

| socket | who holds it | asks |
|---|---|---|
| control | the node and set-up (peer's uid) | everything but AskLeaf and Vouch; BindSandbox, BindWriter and BindMinter come with a socket |
| of a sandbox | that sandbox's worker, for one generation | AskLeaf |
| of a writer | the keeper of the records | Vouch, GetHead, HeadKey |

No answer holds the key of a root, of an intermediate or of the audit heads.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from space.rpc.asking import Refused

Id = Annotated[int, Meta(ge=1, lt=1 << 53)]
Generation = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Sandbox = Annotated[str, Meta(pattern=r"\Asb-[a-z2-7]{20}\Z")]
Template = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9._-]{0,62}\Z")]
WriterName = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9-]{0,31}\Z")]
What = Literal["head", "base"]


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    id: Id


class MakeRoot(_Question, frozen=True):
    """The root of a generation of a template, made if it is not there. Answer: Certificate."""

    template: Template
    generation: Generation


class GetRoot(_Question, frozen=True):
    """The root that is there. Answer: Certificate."""

    template: Template
    generation: Generation


class ForgetRoot(_Question, frozen=True):
    """The template is gone. Answer: Done."""

    template: Template
    generation: Generation


class BindSandbox(_Question, frozen=True):
    """The socket beside it speaks for that life of that sandbox from now on; an earlier socket is closed, an earlier life ends. Done."""

    sandbox: Sandbox
    generation: Generation
    template: Template
    template_generation: Generation


class EndSandbox(_Question, frozen=True):
    """That life has ended: its keys are dropped, its socket closed. Idempotent. Done."""

    sandbox: Sandbox
    generation: Generation


class BindWriter(_Question, frozen=True):
    """The socket beside it speaks for those chains of records; earlier sockets of the same chains are closed. Done."""

    writers: Annotated[tuple[WriterName, ...], Meta(min_length=1, max_length=8)]


class BindMinter(_Question, frozen=True):
    """The socket beside it leads to the minter (`space.rpc.minter_api`); an earlier one is closed. Done."""


class HeadKey(_Question, frozen=True):
    """Answer: PublicKey, by which anybody can check a head."""


class GetHead(_Question, frozen=True):
    """How far a chain was vouched for. Answer: Head."""

    writer: WriterName
    what: What = "head"


class BeginAnew(_Question, frozen=True):
    """A chain of that name begins at nothing again (its files were set aside). Done."""

    writer: WriterName


class AskLeaf(_Question, frozen=True):
    """Answer: LeafOf, for exactly that canonical name."""

    name: Annotated[str, Meta(min_length=1, max_length=253)]


class Vouch(_Question, frozen=True):
    """Authenticate a chain's end (`head`) or what of its beginning was removed (`base`). Answer: Vouched."""

    writer: WriterName
    what: What
    count: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    last: Annotated[bytes, Meta(min_length=32, max_length=32)]


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is so."""

    id: int


class Certificate(msgspec.Struct, frozen=True, tag=True):
    """PEM."""

    id: int
    pem: bytes


class PublicKey(msgspec.Struct, frozen=True, tag=True):
    """Ed25519, 32 bytes."""

    id: int
    key: bytes


class Head(msgspec.Struct, frozen=True, tag=True):
    """count 0: nothing yet."""

    id: int
    count: int
    last: bytes


class Vouched(msgspec.Struct, frozen=True, tag=True):
    """A signature of `space.audit.chain.statement`."""

    id: int
    mac: bytes


class LeafOf(msgspec.Struct, frozen=True, tag=True):
    """chain: leaf and intermediate, PEM. key: the leaf's, PEM."""

    id: int
    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"LeafOf({self.id})"


ToControl = MakeRoot | GetRoot | ForgetRoot | BindSandbox | EndSandbox | BindWriter | BindMinter | HeadKey | GetHead | BeginAnew
ToWriter = Vouch | GetHead | HeadKey
Answer = Done | Certificate | PublicKey | Head | Vouched | LeafOf | Refused

WITH_SOCKET = (BindSandbox, BindWriter, BindMinter)
CONTROL = msgspec.msgpack.Decoder(ToControl)
SANDBOX = msgspec.msgpack.Decoder(AskLeaf)
WRITER = msgspec.msgpack.Decoder(ToWriter)
encode = msgspec.msgpack.Encoder().encode
