"""What a gateway's worker and the node say to each other, passed on by the zygote: MessagePack, tagged, every value bounded. Pure.

A worker may be taken: whatever `from_worker` returns has bounded values of these types, and concerns that worker's sandbox alone.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

MOST_BYTES = 4096
MOST_PATH = 2048
_Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Ask = Annotated[int, Meta(ge=1, lt=1 << 53)]


class TalkRefused(ValueError):
    """Not a message; the message says why."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ask"):
    """A request waits for a person. ask: a number that no other question of this sandbox has. path: as judged, cut; query: keys only."""

    ask: _Ask
    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    scheme: Annotated[str, Meta(max_length=16)]
    method: Annotated[str, Meta(max_length=64)]
    path: Annotated[str, Meta(max_length=MOST_PATH)]
    rule: Annotated[str, Meta(max_length=256)]


class AskOver(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ask_over"):
    """Nobody waits for that answer any more."""

    ask: _Ask


class Counted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="counted"):
    """Since this worker began: connections (ended), requests, denials, names decided, bytes as the guest's side saw them.

    open, upstreams: how many there are now.
    """

    connections: _Number = 0
    requests: _Number = 0
    denied: _Number = 0
    names: _Number = 0
    sent: _Number = 0
    received: _Number = 0
    open: _Number = 0
    upstreams: _Number = 0


Alarming = Literal["credential_echoed", "placeholder_misplaced"]


class Alarm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="alarm"):
    """Something that should not happen with a credential. host: of the request. count: how many since the last one of that kind."""

    kind: Alarming
    grant: Annotated[str, Meta(max_length=63)]
    host: Annotated[str, Meta(max_length=253)]
    count: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)] = 1


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="answer"):
    """What a person says."""

    ask: _Ask
    allow: bool


Up = Ask | AskOver | Counted | Alarm
Down = Answer
T = TypeVar("T")
_UP: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
_DOWN: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Up | Down) -> bytes:
    """As it goes over the sockets. TalkRefused: the other side would refuse it."""
    data = _ENCODER.encode(message)
    if isinstance(message, Answer):
        _decoded(_DOWN, data)
    else:
        _decoded(_UP, data)
    return data


def from_worker(data: bytes) -> Up:
    """What a worker says. TalkRefused for anything that is not exactly a message."""
    return _decoded(_UP, data)


def from_node(data: bytes) -> Down:
    """What the node says. TalkRefused likewise."""
    return _decoded(_DOWN, data)


def new_ask() -> int:
    """A number for a question: random, so that an answer to a question of an earlier worker means none of this one's."""
    return secrets.randbelow((1 << 53) - 1) + 1


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    if len(data) > MOST_BYTES:
        raise TalkRefused(f"a message of {len(data)} bytes, at most {MOST_BYTES} are possible")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
        raise TalkRefused(f"no message: {str(error)[:200]}") from None
