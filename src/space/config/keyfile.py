"""A new key file for the broker: whole and on the disk, or not there. Without the crypto library: serve makes it before the broker runs."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

STORE = "store.db"  # what it opens, in the broker's directory


def make(path: Path, owner: int | None = None, *, durable: bool = True) -> None:
    """A ring of one fresh key. owner: uid and gid, default who calls. FileExistsError: nothing is ever written over one.

    durable: on the disk when this returns.
    """
    write(path, secrets.token_hex(32).encode() + b"\n", owner, durable=durable)


def write(path: Path, text: bytes, owner: int | None = None, *, durable: bool = True, over: bool = False) -> None:
    """Such a file with that text. over: in the place of the one that is there."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.unlink(missing_ok=True)
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            if owner is not None:
                os.fchown(descriptor, owner, owner)
            if durable:
                os.fsync(descriptor)
        if over:
            staged.rename(path)
        else:
            os.link(staged, path, follow_symlinks=False)
    finally:
        staged.unlink(missing_ok=True)
    if durable:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def objection(place: Path, owner: int) -> str | None:
    """What is wrong with who may read it, in words."""
    try:
        facts = place.lstat()
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if not stat.S_ISREG(facts.st_mode):
        return "is no regular file"
    if facts.st_uid != owner or facts.st_mode & 0o177:
        return f"is mode {stat.S_IMODE(facts.st_mode):04o} of uid {facts.st_uid}, and has to be 0600 of uid {owner}"
    return None
