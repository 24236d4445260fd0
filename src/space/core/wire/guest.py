"""What a guest is asked and what it answers (docs/protocol.md, section 2). Paths, argv and environment are bytes, as Linux has them.

Answers come from a guest and are hostile: `decode` refuses unknown, missing and doubled fields, wrong types and values out of range.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeVar, get_args

import msgspec
from msgspec import Meta

from space.core.wire.entries import (
    Entries,
    EntryAnswer,
    EntryList,
    EntryMkdir,
    EntryMove,
    EntryRemove,
    EntryStat,
    EntryWatch,
    EntryWrite,
    Synced,
)
from space.core.wire.files import (
    Changes,
    Connect,
    Connected,
    Content,
    FileAnswer,
    FileChmod,
    FileChown,
    FileList,
    FileMkdir,
    FileMove,
    FileRead,
    FileRemove,
    Files,
    FileStat,
    FileSymlink,
    FileWrite,
    Listed,
    Overflow,
    Watch,
    Watching,
)
from space.core.wire.numbers import U8, U16, U32, U64
from space.model.errors import ProtocolError

Word = Annotated[str, Meta(max_length=128)]
Pair = tuple[bytes, bytes]
Name = Annotated[str, Meta(pattern="^[a-z0-9-]{1,64}$")]


class Empty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of noop, metrics, shutdown, echo and sink."""


class Configure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Give a machine its identity. realtime_ns: since 1970. entropy: 32 to 512 bytes. env: for every process that is started later."""

    realtime_ns: U64
    entropy: Annotated[bytes, Meta(min_length=32, max_length=512)]
    hostname: str
    env: list[Pair]
    generation: U64


class PrepareSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine will be stopped and copied: bring what was written to the disk. drop_caches: also give up what can be read again."""

    drop_caches: bool


class Imprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Make a restored machine another one than those of the same snapshot. machine_id: 32 hex digits. boot_id: a UUID."""

    entropy: Annotated[bytes, Meta(min_length=32, max_length=512)]
    hostname: str
    machine_id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    boot_id: Annotated[str, Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Give an imprinted machine to a sandbox: its clock, its life (`life`), its environment. resolv: the text of /etc/resolv.conf.

    hostname: of one that was imprinted before anybody knew whose it would be.
    """

    realtime_ns: U64
    generation: U64
    env: list[Pair]
    resolv: Annotated[bytes, Meta(max_length=4096)] | None
    hostname: str | None = None


class Grow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A restored machine's root disk is larger than its snapshot's, or is about to be seen so by its kernel: wait for that, and fill it."""

    disk_bytes: U64


class Window(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of a terminal, in lines and columns."""

    rows: U16
    cols: U16


class Exec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run a process. cwd: None for the user's home. user: None for the default. stdin: whether DATA will come.

    pty: a terminal for it. keep: the name under which it outlives stream and session.
    """

    argv: Annotated[list[bytes], Meta(min_length=1)]
    cwd: bytes | None
    env: list[Pair]
    user: str | None
    timeout_ms: U64 | None
    stdin: bool
    pty: Window | None = None
    keep: Name | None = None


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of tree_put and tree_get."""

    path: bytes
    user: str | None


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for that many zero bytes."""

    bytes: U64


class Attach(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Go on with a kept process. stdout, stderr: bytes of its output that this side holds."""

    process: Name
    stdout: U64
    stderr: U64


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name a kept process: the request of forget."""

    process: Name


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="done"):
    """It is done."""


class Configured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="configured"):
    """Entropy taken, pool reseeded, clock set, root file system as large as its device."""

    boot_id: Word
    kernel: Word
    uptime_ms: U64
    disk_bytes: U64
    version: Word


class Imprinted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="imprinted"):
    """It is another machine now. hooks: how many of /etc/space/restore.d were run. wall_ms: how long all of it took."""

    hooks: U16
    wall_ms: U64


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


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kept process."""

    process: Name
    pid: U32
    ended: bool


class Processes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="processes"):
    """Every kept process, oldest first."""

    processes: Annotated[list[Kept], Meta(max_length=1024)]


class Eof(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="eof"):
    """Of the host: the end of a kept process's stdin."""


class Resize(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="resize"):
    """Of the host: the terminal has this size now."""

    rows: U16
    cols: U16


class Signal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="signal"):
    """Of the host: signal a kept process's group, or with all everything in its cgroup."""

    signal: Annotated[int, Meta(ge=1, le=64)]
    all: bool


class StdinClosed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="stdin_closed"):
    """A kept process has closed its stdin, or its reader is gone: bytes came that nobody will read (EPIPE)."""


Request = (
    Empty | Configure | PrepareSnapshot | Imprint | Claim | Grow | Exec | Attach | Process | Tree | Source
    | FileStat | FileList | FileRead | FileWrite | FileMkdir | FileMove | FileRemove | FileChmod | FileChown | FileSymlink | Watch | Connect
    | EntryStat | EntryList | EntryMkdir | EntryMove | EntryRemove | EntryWrite | EntryWatch
)  # fmt: skip
Message = (
    Done | Configured | Imprinted | Started | Exited | TreeDone | Metrics | Processes | Eof | Resize | Signal | StdinClosed
    | FileAnswer | Files | Listed | Content | Watching | Changes | Overflow | Connected
    | EntryAnswer | Entries | Synced
)  # fmt: skip
REQUESTS: dict[str, type[msgspec.Struct]] = {
    "noop": Empty,
    "configure": Configure,
    "prepare_snapshot": PrepareSnapshot,
    "imprint": Imprint,
    "claim": Claim,
    "grow": Grow,
    "exec": Exec,
    "launch": Exec,
    "tree_put": Tree,
    "tree_get": Tree,
    "metrics": Empty,
    "shutdown": Empty,
    "echo": Empty,
    "sink": Empty,
    "source": Source,
    "attach": Attach,
    "processes": Empty,
    "forget": Process,
    "file_stat": FileStat,
    "file_list": FileList,
    "file_read": FileRead,
    "file_write": FileWrite,
    "file_mkdir": FileMkdir,
    "file_move": FileMove,
    "file_remove": FileRemove,
    "file_chmod": FileChmod,
    "file_chown": FileChown,
    "file_symlink": FileSymlink,
    "watch": Watch,
    "connect": Connect,
    "entry_stat": EntryStat,
    "entry_list": EntryList,
    "entry_mkdir": EntryMkdir,
    "entry_move": EntryMove,
    "entry_remove": EntryRemove,
    "entry_write": EntryWrite,
    "entry_watch": EntryWatch,
}

M = TypeVar("M", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

_MESSAGE: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_NAMES = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_FIELDS: dict[type, int] = {
    **{kind: len(kind.__struct_fields__) + 1 for kind in get_args(Message)},
    **{kind: len(kind.__struct_fields__) for kind in get_args(Request)},
}


def life(sandbox: str, generation: int) -> int:
    """The number of one life of a sandbox, with which its sessions begin. No two sandboxes share one: a daemon that was restored must
    see that its life is another now, also where both are somebody's first.
    """
    return int.from_bytes(hashlib.sha256(f"{sandbox} {generation}".encode()).digest()[:8], "little")


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
    if kind.__struct_defaults__ and len(_NAMES.decode(payload)) != _FIELDS[kind]:  # the number does not tell: one twice, one missing
        raise ProtocolError(f"{kind.__name__} has a field twice")
    return request


def _undoubled(payload: bytes, value: msgspec.Struct) -> None:
    """msgspec lets the last of two fields of one name win. All are required, so their number tells."""
    if payload[0] != 0x80 | _FIELDS[type(value)]:
        raise ProtocolError(f"{type(value).__name__} has a field twice or a length that is not in its shortest form")
