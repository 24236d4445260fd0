"""What is asked of the minter, over SEQPACKET; MessagePack, tagged, every value bounded.

| socket | who holds it | asks |
|---|---|---|
| control | the node (peer's uid) | BindBroker and BindDialer, each with a socket; Describe |
| of the broker | the broker | Exchange |

An endpoint is a name of the operator's configuration (`token_endpoints`): nobody who speaks to the minter can name a host.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from space.rpc.asking import Refused
from space.rpc.broker_api import Id

MOST_FORM = 32_768  # bytes of what is posted: a client's assertion and a token that is a long one
MOST_TOKEN = 49_152  # bytes of what an endpoint answers
Endpoint = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9._-]{0,62}\Z")]


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    id: Id


class BindBroker(_Question, frozen=True):
    """The socket beside it is the broker's from now on; an earlier one is closed. Done."""


class BindDialer(_Question, frozen=True):
    """The socket beside it leads to the dialer, which dials the endpoints and nothing else for it. Done."""


class Describe(_Question, frozen=True):
    """Answer: Standing."""


class Exchange(_Question, frozen=True):
    """Post a form to an endpoint. basic: `client:secret` for the Authorization field, or empty. Answer: Token."""

    endpoint: Endpoint
    form: Annotated[bytes, Meta(max_length=MOST_FORM)]
    basic: Annotated[bytes, Meta(max_length=4096)] = b""

    def __repr__(self) -> str:
        return f"Exchange({self.id}, {self.endpoint!r})"


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is so."""

    id: int


class Standing(msgspec.Struct, frozen=True, tag=True):
    """How it stands. endpoints: names that are configured. broker, dialer: whether their sockets are open."""

    id: int
    endpoints: list[str]
    broker: bool
    dialer: bool


class Token(msgspec.Struct, frozen=True, tag=True):
    """What the endpoint answered, whatever it was."""

    id: int
    status: int
    body: bytes

    def __repr__(self) -> str:
        return f"Token({self.id}, {self.status})"


ToControl = BindBroker | BindDialer | Describe
Answer = Done | Standing | Token | Refused

CONTROL = msgspec.msgpack.Decoder(ToControl)
BROKER = msgspec.msgpack.Decoder(Exchange)
encode = msgspec.msgpack.Encoder().encode
