"""Whether services may run from where this code lies: a root-owned runtime that nobody else can write, outside any home.

A checkout belongs to a developer and changes under a running service; `space serve --dev` says that this is meant.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import space

_HOMES = (Path("/root"), Path("/home"))


def locations() -> tuple[Path, ...]:
    """Where the interpreter's environment and the package are."""
    return Path(sys.prefix).resolve(), Path(next(iter(space.__path__))).resolve()


def objection(path: Path) -> str | None:
    """Why services must not run from `path`; None when they may. Looks at it and every directory above."""
    for place in (path, *path.parents):
        if place in _HOMES:
            return f"{path} lies in a home"
        if (place / ".git").exists():
            return f"{path} is in a checkout ({place})"
        found = os.lstat(place)
        if found.st_uid != 0:
            return f"{place} belongs to uid {found.st_uid}, not to root"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{place} can be written by others than root"
    return None


def build(settings: str) -> str:
    """Names the code and the settings that a service was started by: another build is replaced, not adopted."""
    return " ".join([*map(str, locations()), settings])
