"""Files as a face with other customs than ours sees them (docs/protocol.md, section 2, "Entries"). `guest` has the decoders.

What is done is done as the guest's root, and what is made belongs to the named user, in whose home relative paths begin.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from space.core.wire.files import File, FileKind, Mode

Pair = tuple[bytes, bytes]


class EntryStat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """entry_stat: what a path is. A link itself, and what it leads to."""

    path: bytes
    user: str | None


class EntryList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """entry_list: a directory. depth: 1 is the directory itself. limit: so many at most."""

    path: bytes
    user: str | None
    depth: Annotated[int, Meta(ge=1, le=0xFFFFFFFF)]
    limit: Annotated[int, Meta(ge=1, le=1_000_000)]


class EntryMkdir(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """entry_mkdir: make a directory, and those above it."""

    path: bytes
    user: str | None


class EntryMove(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """entry_move: another name, whose directories are made."""

    path: bytes
    user: str | None
    to: bytes


class EntryRemove(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """entry_remove: with everything in it; nothing there is no error."""

    path: bytes
    user: str | None


class EntryWrite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """entry_write: write a file in its place. metadata: all that it has then."""

    path: bytes
    user: str | None
    metadata: Annotated[list[Pair], Meta(max_length=4096)]


class EntryWatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """entry_watch: as watch. A byte of the host's asks for everything that has happened before it."""

    path: bytes
    user: str | None
    recursive: bool


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a path is. path: absolute, links in it as they are. file: the link itself, if it is one, with its last name.

    leads: of a link that leads to something, where to and what that is. metadata: extended attributes `user.e2b.*` without that prefix.
    """

    file: File
    path: bytes
    leads: Leads | None
    metadata: Annotated[list[Pair], Meta(max_length=4096)]


class Leads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a link leads to. path: absolute, without links."""

    path: bytes
    kind: FileKind
    mode: Mode


class EntryAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="entry"):
    """An entry as it is."""

    entry: Entry


class Entries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="entries"):
    """Some of a directory, in order."""

    entries: list[Entry]


class Synced(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="t", tag="synced"):
    """Everything that had happened when the host asked was told."""
