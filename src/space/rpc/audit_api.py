"""What is asked of the keeper of the records, over SEQPACKET; MessagePack. (What sources send over theirs: `space.audit.records.Note`.)

| socket | who holds it | asks |
|---|---|---|
| control | the node and serve (peer's uid) | BindSource and BindBroker (with a socket), EndSource, Status, Read, Follow |
| of a source | a worker for one life of its sandbox; the dialler | notes; one with an id is answered by Written or Refused |
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from space.rpc.asking import Refused
from space.rpc.broker_api import Generation, Id, WriterName

Sandbox = Annotated[str, Meta(pattern=r"\A(sb-[a-z2-7]{20})?\Z")]


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    id: Id


class BindSource(_Question, frozen=True):
    """The socket beside it speaks for that life of that sandbox; without a sandbox: for all, and its records name theirs. Written."""

    writer: WriterName
    sandbox: Sandbox
    generation: Generation


class EndSource(_Question, frozen=True):
    """Take what it has sent, then hang up. Idempotent. Written."""

    writer: WriterName
    sandbox: Sandbox
    generation: Generation


class BindBroker(_Question, frozen=True):
    """The socket beside it leads to the broker, which takes it as its writer's. Written once the chains were compared."""


class Status(_Question, frozen=True):
    """Answer: Standing."""


MOST_RECORDS = 1000
MOST_PAGE = 65_536  # bytes of records after which a page is over; the last one may go beyond
MOST_ANSWER = 2 * MOST_PAGE + 16_384
MOST_SECONDS = 30


class Read(_Question, frozen=True):
    """Records of a chain behind number `after`, oldest first. Answer: Records.

    sandbox: only its, empty for all. since: RFC 3339 in UTC, as in the records; what is older is passed over. denied: only refusals.
    """

    writer: WriterName
    sandbox: Sandbox = ""
    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_RECORDS)] = 100
    since: Annotated[str, Meta(pattern=r"\A([0-9TZ:.-]{20,30})?\Z")] = ""
    denied: bool = False


class Follow(_Question, frozen=True):
    """As Read, but when there is nothing yet the answer waits for it, or for so many seconds and is empty. after None: from now on.

    The asker asks again from the answer's place. So whoever is slow holds nothing up and misses nothing that the files still have.
    """

    writer: WriterName
    sandbox: Sandbox = ""
    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST_RECORDS)] = 100
    seconds: Annotated[float, Meta(ge=0, le=MOST_SECONDS)] = 5.0
    denied: bool = False


class Records(msgspec.Struct, frozen=True, tag=True):
    """A page. records: lines of the chain as they are in its files, without their ends. place: what to ask behind for the next page.

    more: whether there is something behind `place` already, looked through or not. removed: records behind the `after` of the question
    up to this one are kept no longer (0: none is missing).
    """

    id: int
    records: list[bytes]
    place: int
    more: bool
    removed: int = 0


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


ToControl = BindSource | EndSource | BindBroker | Status | Read | Follow
Answer = Written | Standing | Records | Refused

WITH_SOCKET = (BindSource, BindBroker)
CONTROL = msgspec.msgpack.Decoder(ToControl)
encode = msgspec.msgpack.Encoder().encode
