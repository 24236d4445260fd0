"""What is asked of the keeper of the records, over SEQPACKET; MessagePack. (What sources send over theirs: `space.audit.records.Note`.)

| socket | who holds it | asks |
|---|---|---|
| control | the node and serve (peer's uid) | BindSource and BindBroker (with a socket), EndSource, Status |
| of a source | a worker for one life of its sandbox; the dialler | notes; one with an id is answered by Written or Refused |
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from space.rpc.asking import Refused
from space.rpc.broker_api import Generation, Id, WriterName


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    id: Id


class BindSource(_Question, frozen=True):
    """The socket beside it speaks for that life of that sandbox; without a sandbox: for all, and its records name theirs. Written."""

    writer: WriterName
    sandbox: Annotated[str, Meta(pattern=r"\A(sb-[a-z2-7]{20})?\Z")]
    generation: Generation


class EndSource(_Question, frozen=True):
    """Take what it has sent, then hang up. Idempotent. Written."""

    writer: WriterName
    sandbox: Annotated[str, Meta(pattern=r"\A(sb-[a-z2-7]{20})?\Z")]
    generation: Generation


class BindBroker(_Question, frozen=True):
    """The socket beside it leads to the broker, which takes it as its writer's. Written once the chains were compared."""


class Status(_Question, frozen=True):
    """Answer: Standing."""


class Written(msgspec.Struct, frozen=True, tag=True):
    """It is so; of a note: the record is in the file, or counted, if it is a denial above the rate."""

    id: int


class Chain(msgspec.Struct, frozen=True):
    """One chain. vouched: how many of its records the broker vouches for. broken: why none is vouched for any more, if so."""

    writer: str
    records: int
    vouched: int
    lost: int
    broken: str


class Standing(msgspec.Struct, frozen=True, tag=True):
    """How it stands."""

    id: int
    chains: list[Chain]
    sources: int


ToControl = BindSource | EndSource | BindBroker | Status
Answer = Written | Standing | Refused

WITH_SOCKET = (BindSource, BindBroker)
CONTROL = msgspec.msgpack.Decoder(ToControl)
encode = msgspec.msgpack.Encoder().encode
