"""What a guest is asked and what it answers (docs/protocol.md, section 2). Paths, argv and environment are bytes, as Linux has them.

Answers come from a guest and are hostile: `decode` refuses unknown, missing and doubled fields, wrong types and values out of range.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from space.model.errors import ProtocolError

U8 = Annotated[int, Meta(ge=0, le=255)]
U32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
U64 = Annotated[int, Meta(ge=0)]  # MessagePack has no larger integer
Word = Annotated[str, Meta(max_length=128)]
Pair = tuple[bytes, bytes]


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of noop, metrics, shutdown, echo and sink."""


class Configure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Give a machine its identity. realtime_ns: since 1970. entropy: 32 to 512 bytes. env: for every process that is started later."""

    realtime_ns: U64
    entropy: Annotated[bytes, Meta(min_length=32, max_length=512)]
    hostname: str
    env: list[Pair]
    generation: U64


class Exec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run a process. cwd: None for the user's home. user: None for the default. stdin: whether DATA will come."""

    argv: Annotated[list[bytes], Meta(min_length=1)]
    cwd: bytes | None
    env: list[Pair]
    user: str | None
    timeout_ms: U64 | None
    stdin: bool


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of tree_put and tree_get."""

    path: bytes
    user: str | None


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for that many zero bytes."""

    bytes: U64


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="done"):
    """It is done."""


class Configured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="configured"):
    """Entropy taken, pool reseeded, clock set, root file system as large as its device."""

    boot_id: Word
    kernel: Word
    uptime_ms: U64
    disk_bytes: U64
    version: Word


class Started(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="started"):
    """The process runs. pid: in the guest."""

    pid: U32


class Exited(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="exited"):
    """The process ended: exactly one of code and signal is set. stdout_bytes, stderr_bytes: all that it wrote."""

    code: U8 | None
    signal: U8 | None
    oom_killed: bool
    timed_out: bool
    stdout_bytes: U64
    stderr_bytes: U64
    wall_ms: U64

    def __post_init__(self) -> None:
        if (self.code is None) == (self.signal is None):
            raise ValueError(f"code {self.code} and signal {self.signal}: exactly one must be set")


class TreeDone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="tree"):
    """The whole tree went over. bytes, crc32: of the tar stream."""

    entries: U64
    bytes: U64
    crc32: U32


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="metrics"):
    """The guest's figures: bytes, milliseconds, thousandths of a load."""

    memory_total: U64
    memory_available: U64
    cpu_user_ms: U64
    cpu_system_ms: U64
    disk_total: U64
    disk_used: U64
    processes: U64
    uptime_ms: U64
    load1_milli: U64


Request = Empty | Configure | Exec | Tree | Source
Message = Done | Configured | Started | Exited | TreeDone | Metrics
REQUESTS: dict[str, type[msgspec.Struct]] = {
    "noop": Empty,
    "configure": Configure,
    "exec": Exec,
    "tree_put": Tree,
    "tree_get": Tree,
    "metrics": Empty,
    "shutdown": Empty,
    "echo": Empty,
    "sink": Empty,
    "source": Source,
}

M = TypeVar("M", Done, Configured, Started, Exited, TreeDone, Metrics)
R = TypeVar("R", Empty, Configure, Exec, Tree, Source)

_MESSAGE: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_FIELDS: dict[type, int] = {
    **{kind: len(kind.__struct_fields__) + 1 for kind in (Done, Configured, Started, Exited, TreeDone, Metrics)},
    **{kind: len(kind.__struct_fields__) for kind in (Empty, Configure, Exec, Tree, Source)},
}


def decode(payload: bytes) -> Message:
    """The message of a MSG; ProtocolError when it is none of ours."""
    try:
        message = _MESSAGE.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the guest's message is not well formed: {str(error)[:200]}") from None
    _undoubled(payload, message)
    return message


def expect(kind: type[M], payload: bytes) -> M:
    """The message of a MSG, which must be of that kind; ProtocolError otherwise."""
    message = decode(payload)
    if not isinstance(message, kind):
        raise ProtocolError(f"the guest answered {type(message).__name__}, expected {kind.__name__}")
    return message


def decode_request(kind: type[R], payload: bytes) -> R:
    """The request of an OPEN, on the guest's side; ProtocolError when it is not well formed."""
    try:
        request = msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
        raise ProtocolError(f"not a request of {kind.__name__}: {str(error)[:200]}") from None
    _undoubled(payload, request)
    return request


def _undoubled(payload: bytes, value: msgspec.Struct) -> None:
    """msgspec lets the last of two fields of one name win. All are required, so their number tells."""
    if payload[0] != 0x80 | _FIELDS[type(value)]:
        raise ProtocolError(f"{type(value).__name__} has a field twice or a length that is not in its shortest form")
