"""What a mux tells its owner, and the limits both sides of a link agree on."""

from __future__ import annotations

import msgspec

from space.core.wire.frames import BULK, CONTROL, JOINT, Pipe
from space.model.errors import ProtocolError

MAX_STREAMS = 1024
MAX_TEXT = 500  # characters of a RESET's message that are kept

Layout = tuple[Pipe, ...]
GUEST: Layout = (CONTROL, BULK)
NODE: Layout = (JOINT,)


class Greeted(msgspec.Struct, frozen=True):
    """Opener: this pipe's HELLO was acknowledged. ready: now every pipe's is."""

    pipe: int
    ready: bool


class Renewed(msgspec.Struct, frozen=True):
    """Acceptor: a new session began; every stream of the one before is dead."""

    generation: int


class Answer(msgspec.Struct, frozen=True):
    """Write these bytes on that pipe, before anything else."""

    pipe: int
    data: bytes


class Opened(msgspec.Struct, frozen=True):
    """Acceptor: the peer opened a stream."""

    stream: int
    verb: str
    request: bytes


class Data(msgspec.Struct, frozen=True, gc=False):
    """Bytes on a stream. lane: 0 main, 1 stderr."""

    stream: int
    payload: bytes
    lane: int = 0


class Message(msgspec.Struct, frozen=True, gc=False):
    """One typed message on a stream, still encoded."""

    stream: int
    payload: bytes


class Closed(msgspec.Struct, frozen=True):
    """The peer sends nothing more on this stream."""

    stream: int


class WasReset(msgspec.Struct, frozen=True):
    """The peer ended the stream in both directions."""

    stream: int
    code: str
    message: str
    hint: str = ""


class Credited(msgspec.Struct, frozen=True):
    """More may be sent on this stream."""

    stream: int


class Ponged(msgspec.Struct, frozen=True):
    """The answer to `send_ping(token)`."""

    token: bytes


class Broken(msgspec.Struct, frozen=True):
    """The peer broke the protocol: the session and all its streams are over. (An acceptor goes on to the next HELLO.)"""

    error: ProtocolError


Event = Greeted | Renewed | Answer | Opened | Data | Message | Closed | WasReset | Credited | Ponged | Broken
