"""What a worker and the dialer say to each other: one JSON object a message. Bytes in, values out.

    Request  ->          dial that for me
             <- Answer   reason empty: the connected socket is beside it
    Took     ->          I have it (the dialer keeps a hold on it until then, so that one which nobody takes does not stay open)

There is no field for who asks: that is the socket on which the message came. A socket outlives workers, so an answer says again what was
asked: it is the next worker's only if number, name and port are.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated

import msgspec

from space.core.policy.names import NameRefused, canon

MOST_BYTES = 512
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Name = Annotated[str, msgspec.Meta(max_length=253)]
_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class DialingRefused(ValueError):
    """Not such a message; the message says why."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="dial"):
    """id: given back. generation: of the policy by which it judged. name: canonical, or a dotted address where literal."""

    id: _Number
    generation: _Number
    name: _Name
    port: _Port
    literal: bool = False

    @property
    def target(self) -> str | IPv4Address:
        """What is dialled."""
        return IPv4Address(self.name) if self.literal else self.name


class Took(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="took"):
    """The socket beside the answer of that id was received."""

    id: _Number


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="do", tag="answer"):
    """reason: why there is no socket, or empty. denied: by rule, rather than for want of success. address: that which was connected to."""

    id: _Number
    name: _Name
    port: _Port
    address: Annotated[str, msgspec.Meta(max_length=64)] = ""
    reason: Annotated[str, msgspec.Meta(max_length=64)] = ""
    denied: bool = False


_UP = msgspec.json.Decoder(Request | Took)
_DOWN = msgspec.json.Decoder(Answer)


def encode(message: Request | Took | Answer) -> bytes:
    """The bytes of a message."""
    return msgspec.json.encode(message)


def decode(message: bytes) -> Request | Took:
    """What a worker says; a request's target is canonical. DialingRefused for anything else."""
    if len(message) > MOST_BYTES:
        raise DialingRefused(f"a message has at most {MOST_BYTES} bytes")
    try:
        said = _UP.decode(message)
        written = "" if isinstance(said, Took) else str(said.target) if said.literal else canon(said.name)
    except (msgspec.MsgspecError, NameRefused, ValueError, RecursionError) as error:
        raise DialingRefused(str(error)[:200]) from None
    if isinstance(said, Request) and written != said.name:
        raise DialingRefused(f"{said.name[:80]!r} is not in canonical form")
    return said


def decode_answer(message: bytes) -> Answer:
    """What the dialer says. DialingRefused for anything else."""
    try:
        return _DOWN.decode(message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DialingRefused(str(error)[:200]) from None
