"""Files of a guest as everybody outside sees them. Names that are no UTF-8 hold surrogates (PEP 383), as Python shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FileKind = Literal["file", "directory", "symlink", "fifo", "socket", "character", "block"]
ChangeKind = Literal["created", "modified", "moved", "deleted", "attributes"]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What a path is. name: its own, or its path below what was listed.

    size, allocated (on the disk): bytes. mode: permission bits (at most 0o7777). modified_at: UNIX seconds. target: what a link says.
    """

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
    target: str | None = None


@dataclass(frozen=True, slots=True)
class FileChange:
    """Something happened to a path, which is relative to what is watched (empty: itself). origin: where it was before it was moved."""

    kind: ChangeKind
    path: str
    origin: str | None = None
    directory: bool = False
