"""Messages of `filesystem.Filesystem`, and an entry of ours as one of theirs."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct

from space.core.wire.entries import Entry

_TYPES = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}
_LETTERS = {"directory": "d", "symlink": "L", "fifo": "p", "socket": "S", "character": "Dc", "block": "D"}
_SPECIAL = ((0o4000, "u"), (0o2000, "g"), (0o1000, "t"))
_BITS = "rwxrwxrwx"
_NANOSECONDS = 1_000_000_000
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds of the years 1 to 9999, which are all that a timestamp has


class PathRequest(Struct, rename="camel"):
    """Stat, MakeDir, Remove."""

    path: str = ""


class MoveRequest(Struct, rename="camel"):
    """Another name."""

    source: str = ""
    destination: str = ""


class ListDirRequest(Struct, rename="camel"):
    """depth: 0 is 1."""

    path: str = ""
    depth: int = 0


class WatchRequest(Struct, rename="camel"):
    """WatchDir, CreateWatcher."""

    path: str = ""
    recursive: bool = False
    include_entry: bool = False
    allow_network_mounts: bool = False


class WatcherRequest(Struct, rename="camel"):
    """GetWatcherEvents, RemoveWatcher."""

    watcher_id: str = ""


class EntryInfo(Struct, omit_defaults=True, rename="camel"):
    """What a path is. size: a 64-bit number, which the codec writes as text. modified_time: RFC 3339."""

    name: str
    type: str
    path: str
    size: str
    mode: int
    permissions: str
    owner: str
    group: str
    modified_time: str
    symlink_target: str | None = None
    metadata: dict[str, str] = {}


class EntryResponse(Struct, rename="camel"):
    """Stat, MakeDir, Move."""

    entry: EntryInfo


class ListDirResponse(Struct, rename="camel"):
    """In order."""

    entries: list[EntryInfo]


class FileEvent(Struct, omit_defaults=True, rename="camel"):
    """Something happened. name: below what is watched."""

    name: str
    type: str
    entry: EntryInfo | None = None


class WatchEvent(Struct, omit_defaults=True, rename="camel"):
    """One of these."""

    start: dict[str, object] | None = None
    filesystem: FileEvent | None = None
    keepalive: dict[str, object] | None = None


class CreateWatcherResponse(Struct, rename="camel"):
    """The watcher's name."""

    watcher_id: str


class WatcherEventsResponse(Struct, rename="camel"):
    """What happened since it was last asked."""

    events: list[FileEvent]


class WrittenFile(Struct, omit_defaults=True, rename="camel"):
    """A file of an upload."""

    path: str
    name: str
    type: str
    metadata: dict[str, str] = {}


def info_of(entry: Entry) -> EntryInfo:
    """As their clients read it: a link has the type of what it leads to, and says where that is."""
    file, leads = entry.file, entry.leads
    link = file.kind == "symlink"
    kind, mode = (leads.kind, leads.mode) if leads is not None else (file.kind, file.mode)
    unknown = link and leads is None
    return EntryInfo(
        name=text(file.name),
        type="FILE_TYPE_UNSPECIFIED" if unknown else _TYPES.get(kind, "FILE_TYPE_UNSPECIFIED"),
        path=text(entry.path),
        size=str(file.size),
        mode=0 if unknown else mode & 0o777,
        permissions=permissions(file.kind, file.mode),
        owner=file.owner,
        group=file.group,
        modified_time=timestamp(file.mtime_ns),
        symlink_target=(text(entry.path) if leads is None else text(leads.path)) if link else None,
        metadata=metadata_of(entry),
    )


def metadata_of(entry: Entry) -> dict[str, str]:
    """Names and values as text."""
    return {text(name): text(value) for name, value in entry.metadata}


def text(raw: bytes) -> str:
    """JSON has no bytes that are no text."""
    return raw.decode("utf-8", "replace")


def permissions(kind: str, mode: int) -> str:
    """`-rw-r--r--`, `drwxr-xr-x`, `Lrwxrwxrwx`, `urwxr-xr-x`."""
    special = "".join(letter for bit, letter in _SPECIAL if mode & bit)
    head = _LETTERS.get(kind, "") + special
    return (head or "-") + "".join(letter if mode & (1 << (8 - at)) else "-" for at, letter in enumerate(_BITS))


def timestamp(nanoseconds: int) -> str:
    """RFC 3339 in UTC; what lies beyond its years is their first or last moment."""
    seconds, rest = divmod(nanoseconds, _NANOSECONDS)
    seconds = min(max(seconds, _FIRST), _LAST)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    return f"{whole}.{rest:09d}Z"
