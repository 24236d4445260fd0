"""The broker's half of a backup: its store, sealed, and the key that opens it, which travels only when it is asked to.

A store without its key is nothing. So the key is not in the same file unless `--with-keyring` puts it there, and a restore that would
end with a store that nobody can open is refused before anything is changed.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from space.broker import keyring
from space.broker.keyring import Keyring, Sealed
from space.config import keyfile
from space.config.instance import SETTINGS_ROOT, Instance
from space.config.settings import load
from space.model.errors import Conflict, InvalidArgument
from space.serve.keyring import path as keyring_path

LARGEST_RING = 4096
_MOST = 16


def place(instance: Instance) -> Path:
    """Where the instance's keyring is."""
    return keyring_path(instance, load(SETTINGS_ROOT / f"{instance.name}.toml"))


def read_ring(path: Path) -> bytes | None:
    """A keyring's text; None when there is none. InvalidArgument: something else is there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"cannot read the keyring {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(LARGEST_RING + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    if not 0 < len(data) <= LARGEST_RING:
        raise InvalidArgument(f"{path} is no keyring: it is no file of 1 to {LARGEST_RING} bytes")
    return data


def merged(brought: bytes | None, there: bytes | None) -> bytes | None:
    """The keys of both, those that were brought first: no key that is there is lost, an older backup may need it."""
    if brought is None or there is None:
        return brought or there
    lines = list(dict.fromkeys(line.lower() for line in (brought + b"\n" + there).split()))
    if len(lines) > _MOST:
        raise InvalidArgument(
            f"the two keyrings have {len(lines)} keys together, {_MOST} are possible", hint="take keys away that nothing needs"
        )
    return b"".join(line + b"\n" for line in lines)


def parsed(data: bytes | None) -> Keyring | None:
    """A ring from its text."""
    if data is None:
        return None
    try:
        return keyring.parse(data.decode("ascii"))
    except UnicodeDecodeError:
        raise InvalidArgument("a keyring is text") from None


def need_opening(store: Path, ring: Keyring | None, where: Path) -> None:
    """Conflict unless that ring opens everything in a store (a copy that nobody writes to). With the rights of whoever owns it.

    InvalidArgument: it is no store of a broker.
    """
    remedy = (
        f"bring the key with --keyring FILE (on the machine of the backup it was {where}, unless the setting broker_keyring named "
        "another; a backup made with --with-keyring holds it), or restore the rest alone with --without-broker"
    )
    try:
        with closing(sqlite3.connect(f"file:{quote(str(store))}?immutable=1", uri=True)) as database:
            if database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise InvalidArgument("the broker's store in the backup is damaged", hint="take another copy")
            for kind, name, version, envelope in database.execute("SELECT kind, name, version, envelope FROM sealed"):
                if ring is None:
                    raise Conflict("the backup holds the broker's store, and there is no key that opens it", hint=remedy)
                ring.open(f"{kind}\0{name}\0{version}", envelope)
    except sqlite3.Error as error:
        raise InvalidArgument(f"the broker's store in the backup is no database: {error}") from None
    except Sealed as error:
        raise Conflict(f"the backup holds the broker's store, and the key at hand does not open it: {error.message}", hint=remedy) from None


def put_ring(instance: Instance, where: Path, text: bytes | None, there: bytes | None) -> None:
    """Write a keyring that is another than what is there. It opens what the former did: killed after this, nothing is lost."""
    if text is not None and text != there:
        keyfile.write(where, text, instance.broker_uid, over=True)
