"""What ingress and control say to each other at the begin of a connection, over UNIX sockets that only the other one's uid may open.

| socket | listens | first word | then |
|---|---|---|---|
| `ports.sock` | control | Resolve | Stands, and bytes to and from a port of the guest's loopback; or Refused, and the end |
| `ports.sock` | control | Api | HTTP of a client, which control reads as it reads those of its own listener |
| `relay.sock` | the ingress | Relayed | HTTP of a client of control's that asked for a port of a sandbox |

A word is four bytes of length (big-endian) and MessagePack, tagged, every value bounded. Who may reach which port is control's decision
alone: the ingress passes on what the client said and learns a yes or a reason.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

MOST = 4096  # bytes of a word
_LENGTH = 4

# What the ingress answers with; the sentence beside it is for whoever reads the answer.
Reason = Literal["not_found", "closed", "token", "hidden", "busy", "failed"]
Client = Annotated[str, Meta(max_length=64)]


class Resolve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A connection to a port. sandbox: as the client wrote it; token: its traffic token, or empty. Answer: Stands or Refused."""

    sandbox: Annotated[str, Meta(pattern=r"\A[a-z0-9]{1,40}\Z")]
    port: Annotated[int, Meta(ge=1, le=65_535)]
    token: Annotated[str, Meta(max_length=256)] = ""

    def __repr__(self) -> str:
        return f"Resolve({self.sandbox!r}, {self.port})"


class Api(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """HTTP for control follows. client: the address of who asks. secure: over TLS. No answer."""

    client: Client
    secure: bool = False


class Relayed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """One client's HTTP follows, from its request's first byte. No answer."""

    client: Client
    secure: bool = False


class Stands(msgspec.Struct, frozen=True, tag=True):
    """The connection to the guest stands. host: what the server in the sandbox is to see as Host; empty: what the client said.
    tls: that server speaks TLS.
    """

    host: Annotated[str, Meta(max_length=300)] = ""
    tls: bool = False


class Refused(msgspec.Struct, frozen=True, tag=True):
    """There is none."""

    reason: Reason
    message: Annotated[str, Meta(max_length=1000)] = ""


TO_CONTROL = msgspec.msgpack.Decoder(Resolve | Api)
TO_INGRESS = msgspec.msgpack.Decoder(Relayed)
ANSWER = msgspec.msgpack.Decoder(Stands | Refused)
_encode = msgspec.msgpack.Encoder().encode
T = TypeVar("T")


class BadWord(ValueError):
    """Not what may stand at the begin of a connection."""


def word(value: msgspec.Struct) -> bytes:
    """As it goes over the socket."""
    body = _encode(value)
    return len(body).to_bytes(_LENGTH, "big") + body


class WordReader:
    """Bytes in, a word out once it is whole; `rest` is what came behind it."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.rest = b""

    def receive(self, data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
        """The word, or None while it is not whole. BadWord."""
        self._buffer += data
        if len(self._buffer) < _LENGTH:
            return None
        size = int.from_bytes(self._buffer[:_LENGTH], "big")
        if not 0 < size <= MOST:
            raise BadWord(f"a word of {size} bytes")
        if len(self._buffer) < _LENGTH + size:
            return None
        self.rest = bytes(self._buffer[_LENGTH + size :])
        try:
            return decoder.decode(memoryview(self._buffer)[_LENGTH : _LENGTH + size])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError) as error:
            raise BadWord(f"a word that means nothing: {type(error).__name__}") from None
