"""The routes of files, watches and ports."""

from __future__ import annotations

from space.control import files, ports, watches
from space.control.problems import PreconditionFailed, RangeNotSatisfiable
from space.control.route import GUEST, JSON, NDJSON, SANDBOX, TEXT, USER, Access, Body, Query, Reply, Route
from space.control.wire_files import (
    ChmodRequest,
    ChownRequest,
    FileList,
    FileWritten,
    MkdirRequest,
    MoveRequest,
    RemoveRequest,
    SymlinkRequest,
    WatchLine,
)
from space.model.errors import InvalidArgument, NoCapacity, SpaceError, Unsupported
from space.model.files import FileInfo

_BOOLEAN = {"type": "boolean", "default": False}
_PATH = Query(
    "path", "Absolute, or below the user's home; percent escapes may be any bytes", {"type": "string", "minLength": 1}, True, True
)
_WHERE = (_PATH, USER)
_BYTES = {"application/octet-stream": None}
_INFO = {JSON: FileInfo}
_ERRORS: tuple[type[SpaceError], ...] = (*GUEST, NoCapacity, Unsupported)
_CONDITIONS = (
    Query("If-Match", "Only if the file's ETag is one of these", TEXT),
    Query("If-None-Match", "304 if the file's ETag is one of these", TEXT),
)


def _change(name: str, body: type, about: str) -> Route:
    return Route(
        "POST",
        f"{SANDBOX}/files/{name}",
        f"{name}_file" if name != "mkdir" else "make_directory",
        about,
        Access.TENANT,
        files.CHANGES[name],
        (Reply(204, "It is gone", {}),) if name == "remove" else (Reply(200, "As it is now", _INFO),),
        errors=_ERRORS,
        body=Body({JSON: body}),
    )


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        SANDBOX + "/files/content",
        "read_file",
        "A file's bytes; a connection that closes early means a fault",
        Access.TENANT,
        files.read,
        (
            Reply(200, "All of it", _BYTES),
            Reply(206, "The range", _BYTES),
            Reply(304, "If-None-Match names it as it is", {}),
        ),
        errors=(*_ERRORS, PreconditionFailed, RangeNotSatisfiable),
        query=_WHERE,
        headers=(
            *_CONDITIONS,
            Query("Range", "One range of bytes", TEXT),
            Query("If-Range", "The range only if this is its ETag, else all of it", TEXT),
        ),
    ),
    Route(
        "HEAD",
        SANDBOX + "/files/content",
        "head_file",
        "What GET says before the bytes",
        Access.TENANT,
        files.head,
        (Reply(200, "ETag, and Content-Length of a file that says its size", {}), Reply(304, "If-None-Match names it as it is", {})),
        errors=(*_ERRORS, PreconditionFailed),
        query=_WHERE,
        headers=_CONDITIONS,
    ),
    Route(
        "PUT",
        SANDBOX + "/files/content",
        "write_file",
        "Write a file, of any size: others see the old or the new whole, never a part, unless it is appended to",
        Access.TENANT,
        files.write,
        (Reply(200, "It arrived whole: the guest counted what was sent", {JSON: FileWritten}),),
        errors=_ERRORS,
        query=(
            *_WHERE,
            Query(
                "mode",
                "Permission bits, octal, with a leading 0; missing: as they are, or 0644",
                {"type": "string", "pattern": "^0[0-7]{1,4}$"},
            ),
            Query("append", "1: more at its end", _BOOLEAN),
            Query("parents", "1: make missing directories", _BOOLEAN),
            Query("exclusive", "1: conflict when it exists", _BOOLEAN),
        ),
        body=Body(_BYTES, required=False),
    ),
    Route(
        "GET",
        SANDBOX + "/files/stat",
        "stat_file",
        "What a path is",
        Access.TENANT,
        files.stat,
        (Reply(200, "As it is now", _INFO),),
        errors=_ERRORS,
        query=(*_WHERE, Query("follow", "1: what a link leads to, not the link", _BOOLEAN)),
    ),
    Route(
        "GET",
        SANDBOX + "/files",
        "list_files",
        "A directory, in the byte order of names",
        Access.TENANT,
        files.listed,
        (Reply(200, "A page", {JSON: FileList}),),
        errors=_ERRORS,
        query=(
            *_WHERE,
            Query("depth", "1: the directory itself", {"type": "integer", "minimum": 1, "maximum": 65535, "default": 1}),
            Query("limit", "At most so many", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1000}),
            Query("cursor", "next_cursor of the page before", TEXT),
        ),
    ),
    _change("mkdir", MkdirRequest, "Make a directory"),
    _change("move", MoveRequest, "Give a path another name, within its file system"),
    _change("remove", RemoveRequest, "Remove a path"),
    _change("chmod", ChmodRequest, "Set permission bits"),
    _change("chown", ChownRequest, "Set owner and group"),
    _change("symlink", SymlinkRequest, "Make a symbolic link"),
    Route(
        "GET",
        SANDBOX + "/files/watch",
        "watch_files",
        "What happens to a path, until the client leaves or the path is gone",
        Access.TENANT,
        watches.watch,
        (Reply(200, "Lines: watching first, then each change; heartbeats; an error ends it", {NDJSON: None}, lines=WatchLine),),
        errors=_ERRORS,
        query=(*_WHERE, Query("recursive", "1: and to everything below", _BOOLEAN)),
    ),
    Route(
        "GET",
        SANDBOX + "/ports/{port}",
        "connect_port",
        "A WebSocket to a port of the sandbox's loopback",
        Access.TENANT,
        ports.connect,
        (Reply(101, "The connection's bytes", {}),),
        errors=(*GUEST, InvalidArgument),
        socket="Binary messages are the bytes, both ways; an empty one is the end of that direction; 1000 when both have ended",
    ),
)
