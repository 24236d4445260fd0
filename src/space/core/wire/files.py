"""Files, watches and ports of a guest (docs/protocol.md, section 2, "Files"). `guest` has the decoders."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from space.core.wire.numbers import I64, U32, U64

Mode = Annotated[int, Meta(ge=0, le=0o7777)]
Word = Annotated[str, Meta(max_length=128)]
FileKind = Literal["file", "directory", "symlink", "fifo", "socket", "character", "block"]
ChangeKind = Literal["created", "modified", "moved", "deleted", "attributes"]


class FileStat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file_stat: look at a path. follow: whether a link's target is meant."""

    path: bytes
    user: str | None
    follow: bool


class FileList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file_list: a page of a directory. depth: 1 is the directory itself. after: only names behind it."""

    path: bytes
    user: str | None
    depth: Annotated[int, Meta(ge=1, le=0xFFFFFFFF)]
    after: bytes | None
    limit: Annotated[int, Meta(ge=1, le=10_000)]


class FileRead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file_read: bytes of a file. length: None to its end."""

    path: bytes
    user: str | None
    offset: U64
    length: U64 | None


class FileWrite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file_write: a whole file, or more at its end. mode: None for those it has, or 0644."""

    path: bytes
    user: str | None
    mode: Mode | None
    append: bool
    parents: bool
    exclusive: bool


class FileMkdir(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file_mkdir: make a directory. mode: None for 0755. parents: those above as well."""

    path: bytes
    user: str | None
    mode: Mode | None
    parents: bool


class FileMove(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file_move: another name."""

    path: bytes
    user: str | None
    to: bytes
    replace: bool


class FileRemove(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file_remove: a path, recursive: with everything in it."""

    path: bytes
    user: str | None
    recursive: bool
    missing_ok: bool


class FileChmod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file_chmod: permission bits."""

    path: bytes
    user: str | None
    mode: Mode
    recursive: bool


class FileChown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file_chown: names or numbers; None leaves it."""

    path: bytes
    user: str | None
    owner: str | None
    group: str | None
    recursive: bool


class FileSymlink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file_symlink: a link that says target."""

    path: bytes
    user: str | None
    target: bytes
    replace: bool


class Watch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """watch: what happens to a path, recursive: and to everything below."""

    path: bytes
    user: str | None
    recursive: bool


class Connect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """connect: a port of the guest's loopback."""

    port: Annotated[int, Meta(ge=1, le=65535)]


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a path is. name: its own, or relative to what was listed. size, allocated: bytes. target: what a link says."""

    name: bytes
    kind: FileKind
    size: U64
    allocated: U64
    mode: Mode
    uid: U32
    gid: U32
    owner: Word
    group: Word
    mtime_ns: I64
    inode: U64
    links: U32
    target: bytes | None


class FileAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="file"):
    """A file as it is."""

    file: File


class Files(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="files"):
    """Some of a directory, in order."""

    files: list[File]


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="listed"):
    """The end of a listing. more: something comes behind its last name."""

    more: bool


class Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="content"):
    """What was sent, counted by its sender. crc32: IEEE."""

    bytes: U64
    crc32: U32


class Watching(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="watching"):
    """From now on nothing is missed."""


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"origin": "from"}):
    """Something happened. path: relative to what is watched, empty for itself. origin: where it was before it was moved."""

    kind: ChangeKind
    path: bytes
    origin: bytes | None
    directory: bool


class Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="changes"):
    """What happened, in order."""

    changes: list[Change]


class Overflow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="overflow"):
    """Some changes were lost: look again."""


class Connected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="connected"):
    """The connection stands."""
