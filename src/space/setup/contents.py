"""What an artefact holds, byte for byte: recorded when it is committed, verified by doctor.

An artefact's name is the digest of what it was made from; this is about what became of it since. A disk image is mostly holes, so a file's
digest is taken over its blocks that are not all zeros, each with its place: holes cost nothing and count as the zeros that they read as.
What only root may read (0400) is not recorded: the record is for everybody.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

NAME = "contents.json"
_BLOCK = 1 << 20
_SECRET = 0o400
_ZEROS = bytes(_BLOCK)


def record(directory: Path) -> None:
    """Write down what is in it now."""
    (directory / NAME).write_text(json.dumps(listed(directory), indent=1, sort_keys=True) + "\n")


def differences(directory: Path) -> list[str] | None:
    """What is not as it was recorded, in words; None when nothing was recorded."""
    try:
        known: dict[str, str] = json.loads((directory / NAME).read_text())
    except FileNotFoundError:
        return None
    found = listed(directory)
    words = [f"{name} is gone" for name in sorted(known.keys() - found.keys())]
    words += [f"{name} was added" for name in sorted(found.keys() - known.keys())]
    return words + [f"{name} was changed" for name in sorted(known.keys() & found.keys()) if known[name] != found[name]]


def listed(directory: Path) -> dict[str, str]:
    """Every file with its size and digest, every link with where it leads."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file() and name != NAME and path.stat().st_mode & 0o7777 != _SECRET:
            found[name] = f"{path.stat().st_size} {digest(path)}"
    return found


def digest(path: Path) -> str:
    """SHA-256 over the blocks that hold anything."""
    whole = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        for place in _blocks_with_data(descriptor):
            block = os.pread(descriptor, _BLOCK, place)
            if block != _ZEROS[: len(block)]:
                whole.update(place.to_bytes(8, "little"))
                whole.update(block)
    finally:
        os.close(descriptor)
    return whole.hexdigest()


def _blocks_with_data(descriptor: int) -> Iterator[int]:
    size, place = os.fstat(descriptor).st_size, 0
    while place < size:
        try:
            data = os.lseek(descriptor, place, os.SEEK_DATA)
        except OSError:  # ENXIO: holes to the end
            return
        end = os.lseek(descriptor, data, os.SEEK_HOLE)
        first = max(place, data // _BLOCK * _BLOCK)
        yield from range(first, end, _BLOCK)
        place = max(first, (end + _BLOCK - 1) // _BLOCK * _BLOCK)
