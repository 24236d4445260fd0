r"""Requests and answers of the file routes. Names in a guest are bytes: what of them is no UTF-8 travels as surrogates (PEP 383).

In a query such a byte is its percent escape (`%ff`); in JSON it is the escape of its surrogate (`\udcff`), as Python's `json` writes and
reads it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from space.control import wire
from space.core.wire import files as guest
from space.model.errors import InvalidArgument
from space.model.files import FileChange, FileInfo, FileKind

T = TypeVar("T")
Mode = Annotated[int, Meta(ge=0, le=0o7777)]
Word = Annotated[str, Meta(min_length=1, max_length=32)]
_MAX_PATH = 4095


class FileList(Struct, frozen=True):
    """A page of a directory, in the byte order of names. next_cursor: ask for the rest with it; null on the last page."""

    files: list[FileInfo]
    next_cursor: str | None


class FileWritten(Struct, frozen=True):
    """The file as it is now, and what was written: bytes_written and its CRC-32, counted by the guest and equal to what was sent."""

    name: str
    kind: FileKind
    size: int
    allocated: int
    mode: int
    uid: int
    gid: int
    owner: str
    group: str
    modified_at: float
    inode: int
    links: int
    target: str | None
    bytes_written: int
    crc32: int


class MkdirRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A directory to make. mode: permission bits, missing: 0755 (493). parents: make those above it, and let it be there already."""

    path: str
    user: str | None = None
    mode: Mode | None = None
    parents: bool = False


class MoveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Another name for a path. replace: whether something may be there already."""

    path: str
    to: str
    replace: bool = False
    user: str | None = None


class RemoveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A path to remove. recursive: with everything in it. missing_ok: whether it may be missing."""

    path: str
    recursive: bool = False
    missing_ok: bool = False
    user: str | None = None


class ChmodRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Permission bits (0644 is 420)."""

    path: str
    mode: Mode
    recursive: bool = False
    user: str | None = None


class ChownRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """An owner and a group, by name or number; what is missing stays."""

    path: str
    owner: Word | None = None
    group: Word | None = None
    recursive: bool = False
    user: str | None = None


class SymlinkRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A link at path that says target. replace: whether something may be there already."""

    path: str
    target: str
    replace: bool = False
    user: str | None = None


class WatchLine(Struct, frozen=True, omit_defaults=True, rename={"origin": "from"}):
    """A line of a watch. path, from: relative to what is watched, empty for itself."""

    kind: Literal["watching", "created", "modified", "moved", "deleted", "attributes", "overflow", "heartbeat", "error"]
    path: str | None = None
    origin: str | None = None
    directory: bool | None = None
    problem: dict[str, Any] | None = None


def decode(body: bytes, cls: type[T]) -> T:
    """As `wire.decode`, for bodies that may hold names which are no UTF-8."""
    if b"\\ud" not in body.lower():
        return wire.decode(body, cls)
    try:
        return msgspec.convert(json.loads(body, parse_constant=_no_number), cls, strict=True)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"the body is not right: {_printable(str(error))}", hint=wire.BODY_HINT) from None
    except ValueError as error:
        raise InvalidArgument(f"the body is not JSON: {_printable(str(error))}", hint=wire.BODY_HINT) from None
    except RecursionError:
        raise InvalidArgument("the body is nested too deeply", hint=wire.BODY_HINT) from None


def encode(answer: Any) -> bytes:
    """An answer's body."""
    try:
        return wire.encode(answer)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(answer), separators=(",", ":")).encode()


def check_name(field: str, text: str | None, *, empty: bool = False) -> bytes:
    """A name or path in the guest as bytes; InvalidArgument when it is missing or none."""
    if not text and not empty:
        raise InvalidArgument(f"{field} is missing", hint="an absolute path, or one below the user's home")
    try:
        raw = (text or "").encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{field}: holds half a surrogate pair", hint="a byte that is no UTF-8 travels as U+DC80 to U+DCFF (PEP 383)"
        ) from None
    if b"\0" in raw:
        raise InvalidArgument(f"{field}: holds a NUL character", hint="no name has one")
    if len(raw) > _MAX_PATH:
        raise InvalidArgument(f"{field}: {len(raw)} bytes are more than {_MAX_PATH}", hint="the kernel takes no longer path")
    return raw


def text_of(raw: bytes) -> str:
    """A name as everybody outside sees it."""
    return raw.decode("utf-8", "surrogateescape")


def file_info(file: guest.File) -> FileInfo:
    """The guest's words as ours."""
    return FileInfo(
        name=text_of(file.name),
        kind=file.kind,
        size=file.size,
        allocated=file.allocated,
        mode=file.mode,
        uid=file.uid,
        gid=file.gid,
        owner=file.owner,
        group=file.group,
        modified_at=file.mtime_ns / 1e9,
        inode=file.inode,
        links=file.links,
        target=None if file.target is None else text_of(file.target),
    )


def file_change(change: guest.Change) -> FileChange:
    """The guest's words as ours."""
    return FileChange(change.kind, text_of(change.path), None if change.origin is None else text_of(change.origin), change.directory)


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")
