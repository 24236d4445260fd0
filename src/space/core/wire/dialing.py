"""What a worker asks the dialer, and the answer beside which a socket may come: one JSON object a message. Bytes in, values out.

There is no field for who asks: that is the socket on which the message came.
"""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Annotated

import msgspec

from space.core.policy.names import NameRefused, canon

MOST_BYTES = 512
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class DialingRefused(ValueError):
    """Not a request; the message says why."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """id: given back. generation: of the policy by which it judged. name: canonical, or a dotted address where literal."""

    id: _Number
    generation: _Number
    name: Annotated[str, msgspec.Meta(max_length=253)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    literal: bool = False

    @property
    def target(self) -> str | IPv4Address:
        """What is dialled."""
        return IPv4Address(self.name) if self.literal else self.name


_DECODER = msgspec.json.Decoder(Request)


def encode(request: Request) -> bytes:
    """The message of a request."""
    return msgspec.json.encode(request)


def decode(message: bytes) -> Request:
    """The request of a message, whose target is canonical. DialingRefused for anything else."""
    if len(message) > MOST_BYTES:
        raise DialingRefused(f"a request has at most {MOST_BYTES} bytes")
    try:
        request = _DECODER.decode(message)
        written = str(request.target) if request.literal else canon(request.name)
    except (msgspec.MsgspecError, NameRefused, ValueError, RecursionError) as error:
        raise DialingRefused(str(error)[:200]) from None
    if written != request.name:
        raise DialingRefused(f"{request.name[:80]!r} is not in canonical form")
    return request
