"""The mock server's files: a sandbox's `files` and `members` behind the routes of single files."""

from __future__ import annotations

import json
import posixpath
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from space.model.errors import Conflict, InvalidArgument, NotFound

HOME = "/home/user"
_THERE = frozenset({"/", "/etc", "/home", HOME, "/opt", "/root", "/srv", "/tmp", "/usr", "/var"})  # noqa: S108  # names, not places
HEARTBEAT_SECONDS = 5.0
_MAX_LINKS = 40


def absolute(path: str) -> str:
    """A path of a request: one that is not absolute begins at the user's home."""
    return posixpath.normpath(posixpath.join(HOME, path))


@dataclass(slots=True)
class MockFiles:
    """The files of a sandbox. `files`: contents by absolute path. `members`: what else is known of a path: kind, mode, owner, target."""

    files: dict[str, bytes]
    members: dict[str, tarfile.TarInfo]
    changed: threading.Condition = field(default_factory=threading.Condition)
    changes: list[dict[str, Any]] = field(default_factory=list)
    _inodes: dict[str, int] = field(default_factory=dict)
    _next_inode: int = 1000

    # -- looking -------------------------------------------------------------------------------------------------------
    def kind(self, path: str) -> str | None:
        """What is at this path, links not followed; None for nothing."""
        member = self.members.get(path)
        if member is not None and member.issym():
            return "symlink"
        if path in self.files:
            return "file"
        known = (*self.files, *self.members)
        if path in _THERE or (member is not None and member.isdir()) or any(other.startswith(f"{path}/") for other in known):
            return "directory"
        return None

    def followed(self, path: str) -> str:
        """Where this path leads."""
        for _ in range(_MAX_LINKS):
            if self.kind(path) != "symlink":
                return path
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), self.members[path].linkname))
        raise InvalidArgument(f"{path} leads in circles")

    def stat(self, path: str, *, follow: bool, name: str | None = None) -> dict[str, Any]:
        """A file object. NotFound."""
        place = self.followed(path) if follow else path
        kind = self.kind(place)
        if kind is None:
            raise NotFound(f"there is no {path} in the sandbox")
        member = self.members.get(place)
        size = len(self.files.get(place, b"")) if kind == "file" else 4096
        owner, group = (member.uname, member.gname) if member is not None else ("", "")
        return {
            "name": posixpath.basename(path) if name is None else name, "kind": kind, "size": size, "allocated": -(-size // 4096) * 4096,
            "mode": member.mode if member is not None else 0o644 if kind == "file" else 0o755,
            "uid": member.uid if member is not None else 1000, "gid": member.gid if member is not None else 1000,
            "owner": owner or "user", "group": group or "user",
            "modified_at": float(member.mtime) if member is not None else 0.0, "inode": self._inode(place), "links": 1,
            "target": member.linkname if member is not None and kind == "symlink" else None,
        }  # fmt: skip

    def content(self, path: str) -> tuple[bytes, str]:
        """A file's bytes, and the tag that they have until they change."""
        place = self.followed(path)
        match self.kind(place):
            case None:
                raise NotFound(f"there is no {path} in the sandbox")
            case "directory":
                raise Conflict(f"{path} is a directory")
        data = self.files[place]
        return data, f'"{self._inode(place):x}-{len(data):x}-{zlib.crc32(data):x}"'

    def listed(self, path: str, depth: int) -> list[dict[str, Any]]:
        """What is below a directory, in byte order."""
        place = self.followed(path)
        if (kind := self.kind(place)) != "directory":
            raise NotFound(f"there is no {path} in the sandbox") if kind is None else Conflict(f"{path} is a {kind}, no directory")
        names = {
            "/".join(parts[: level + 1])
            for known in (*self.files, *self.members)
            if known.startswith(place.rstrip("/") + "/")
            for parts in [known[len(place.rstrip("/")) + 1 :].split("/")]
            for level in range(min(depth, len(parts)))
        }
        ordered = sorted(names, key=lambda name: [part.encode("utf-8", "surrogateescape") for part in name.split("/")])
        return [self.stat(posixpath.join(place, name), follow=False, name=name) for name in ordered]

    # -- changing ------------------------------------------------------------------------------------------------------
    def write(self, path: str, data: bytes, params: Mapping[str, str]) -> dict[str, Any]:
        """Write a file whole, or append to it."""
        place, flags = self.followed(path), {name for name in ("append", "parents", "exclusive") if params.get(name) in ("1", "true")}
        there = self.kind(place)
        if there == "directory":
            raise Conflict(f"{path} is a directory")
        if there is not None and "exclusive" in flags:
            raise Conflict(f"{path} is there already")
        self._parent(place, make="parents" in flags)
        if "append" not in flags:
            self._inodes.pop(place, None)
        self.files[place] = (self.files.get(place, b"") if "append" in flags else b"") + data
        member = self._member(place)
        if "mode" in params:
            member.mode = int(params["mode"], 8)
        self._tell("created" if there is None else "modified", place)
        return self.stat(place, follow=True) | {"bytes_written": len(data), "crc32": zlib.crc32(data)}

    def mkdir(self, path: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Make a directory."""
        kind = self.kind(path)
        if kind is not None and not (kind == "directory" and wanted.get("parents")):
            raise Conflict(f"{path} is there already")
        self._parent(path, make=bool(wanted.get("parents")))
        if kind is None:
            self._directory(path, wanted.get("mode") or 0o755)
        return self.stat(path, follow=False)

    def move(self, path: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Another name, for it and all below it."""
        to = absolute(wanted["to"])
        if self.kind(path) is None:
            raise NotFound(f"there is no {path} in the sandbox")
        if self.kind(to) == "directory" and self.kind(path) != "directory":
            raise Conflict(f"{to} is a directory")
        if self.kind(to) is not None:
            if not wanted.get("replace"):
                raise Conflict(f"{to} is there already")
            self.remove(to, {"recursive": True})
        self._parent(to, make=False)
        tables: tuple[dict[str, Any], ...] = (self.files, self.members, self._inodes)
        for table in tables:
            for known in [known for known in table if known == path or known.startswith(f"{path}/")]:
                table[to + known[len(path) :]] = table.pop(known)
        self._tell("moved", to, path)
        return self.stat(to, follow=False)

    def remove(self, path: str, wanted: Mapping[str, Any]) -> None:
        """Remove it."""
        kind = self.kind(path)
        if kind is None:
            if wanted.get("missing_ok"):
                return
            raise NotFound(f"there is no {path} in the sandbox")
        below = [known for known in {*self.files, *self.members} if known.startswith(f"{path}/")]
        if below and not wanted.get("recursive"):
            raise Conflict(f"{path} is not empty")
        for known in [*below, path]:
            self.files.pop(known, None)
            self.members.pop(known, None)
            self._inodes.pop(known, None)
        self._tell("deleted", path, directory=kind == "directory")

    def change(self, verb: str, path: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """chmod, chown, symlink."""
        if verb == "symlink":
            if self.kind(path) is not None and not wanted.get("replace"):
                raise Conflict(f"{path} is there already")
            self._parent(path, make=False)
            member = self._member(path)
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, wanted["target"], 0o777
            self.files.pop(path, None)
            self._tell("created", path)
            return self.stat(path, follow=False)
        place = self.followed(path)
        self.stat(place, follow=False)
        below = [known for known in {*self.files, *self.members} if known.startswith(f"{place}/")] if wanted.get("recursive") else []
        for known in [*below, place]:
            member = self._member(known, is_directory=self.kind(known) == "directory")
            if verb == "chmod":
                member.mode = wanted["mode"]
            else:
                member.uname, member.gname = wanted.get("owner") or member.uname, wanted.get("group") or member.gname
        self._tell("attributes", place)
        return self.stat(place, follow=False)

    def _parent(self, path: str, *, make: bool) -> None:
        parent = self.followed(posixpath.dirname(path))
        kind = self.kind(parent)
        if kind is None:
            if not make:
                raise NotFound(f"there is no {parent} in the sandbox", hint="parents makes it")
            self._parent(parent, make=True)
            self._directory(parent, 0o755)
        elif kind != "directory":
            raise Conflict(f"{parent} is a {kind}, no directory")

    def _directory(self, path: str, mode: int) -> None:
        self._member(path, is_directory=True).mode = mode
        self._tell("created", path, directory=True)

    def _member(self, path: str, *, is_directory: bool = False) -> tarfile.TarInfo:
        member = self.members.get(path)
        if member is None:
            member = self.members[path] = tarfile.TarInfo(path)
            member.uid = member.gid = 1000
            member.uname = member.gname = "user"
            member.mode = 0o755 if is_directory else 0o644
            member.type = tarfile.DIRTYPE if is_directory else tarfile.REGTYPE
        member.mtime = time.time()
        return member

    def _inode(self, path: str) -> int:
        if path not in self._inodes:
            self._inodes[path] = self._next_inode
            self._next_inode += 1
        return self._inodes[path]

    # -- watching ------------------------------------------------------------------------------------------------------
    def _tell(self, kind: str, path: str, origin: str | None = None, *, directory: bool | None = None) -> None:
        with self.changed:
            is_directory = self.kind(path) == "directory" if directory is None else directory
            self.changes.append({"kind": kind, "path": path, "from": origin, "directory": is_directory})
            self.changed.notify_all()

    def watch(self, path: str, closed: Callable[[], bool], *, recursive: bool) -> Iterator[bytes]:
        """Lines of what happens from now on at and below a path."""
        place = self.followed(path)
        self.stat(place, follow=False)
        seen = len(self.changes)
        return self._watch(place, seen, closed, recursive=recursive)

    def _happened(self, seen: int, closed: Callable[[], bool]) -> bool:
        return bool(self.changed.wait_for(lambda: closed() or len(self.changes) > seen, HEARTBEAT_SECONDS))

    def _watch(self, place: str, seen: int, closed: Callable[[], bool], *, recursive: bool) -> Iterator[bytes]:
        yield _line({"kind": "watching"})
        while not closed():
            with self.changed:
                is_new = self._happened(seen, closed)
                new, seen = self.changes[seen:], len(self.changes)
            if not is_new:
                yield _line({"kind": "heartbeat"})
            for change in new:
                told = _seen_from(place, change, recursive=recursive)
                if told is not None:
                    yield _line(told)
                    if told["kind"] == "deleted" and not told["path"]:
                        return


def _seen_from(place: str, change: Mapping[str, Any], *, recursive: bool) -> dict[str, Any] | None:
    def below(path: str | None) -> str | None:
        if path == place:
            return ""
        inside = path[len(place.rstrip("/")) + 1 :] if path is not None and path.startswith(place.rstrip("/") + "/") else None
        return None if inside is None or ("/" in inside and not recursive) else inside

    path, origin = below(change["path"]), below(change["from"])
    told = {"directory": change["directory"]}
    if change["kind"] == "moved" and (path is None or origin is None):
        if path is None and origin is None:
            return None
        return {"kind": "deleted", "path": origin, **told} if path is None else {"kind": "created", "path": path, **told}
    if path is None:
        return None
    return {"kind": change["kind"], "path": path, **({"from": origin} if origin is not None else {}), **told}


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
