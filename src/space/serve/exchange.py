"""Several directories, or single files, of an instance take the places of others as one: all of them, or, killed at any moment, all at
the next start.

A journal in the directory where the new ones stand names them with their inodes. While it is there the exchange is under way: `finish`,
which serve and restore call when they hold the instance, does what is left of it. Each single exchange is one step of the kernel, and an
inode says whether it was done. Records of the gateway that were there are never removed: their directory is put aside.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from space.config.instance import Instance
from space.host import syscalls
from space.serve.backup import sync_directory
from space.setup import shelf

STAGED = ".restore-"
_JOURNAL = "journal.json"


def commit(instance: Instance, staged: Path, names: Sequence[str]) -> None:
    """Give what `names` names in `staged`, which is on the disk, its place below the instance's data. staged is gone then."""
    aside = f"{instance.audit_data.name}-before-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"
    journal = {"inodes": {name: (staged / name).stat().st_ino for name in names}, "aside": aside}
    draft = staged / f".{_JOURNAL}"
    with draft.open("x") as file:
        json.dump(journal, file)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(staged / _JOURNAL)
    sync_directory(staged)
    sync_directory(instance.data)
    _carry_out(instance, staged)


def is_begun(staged: Path) -> bool:
    """Whether what stands there is on its way, and is to be left for `finish`."""
    return (staged / _JOURNAL).is_file()


def finish(instance: Instance) -> bool:
    """Do what a killed `commit` left to be done; whether there was any. The caller holds the instance, and no service of it runs."""
    begun = [staged for staged in instance.data.glob(f"{STAGED}*") if is_begun(staged)]
    for staged in begun:
        _carry_out(instance, staged)
    return bool(begun)


def _carry_out(instance: Instance, staged: Path) -> None:
    journal = json.loads((staged / _JOURNAL).read_text())
    for name, inode in journal["inodes"].items():
        place = instance.data / name
        if not os.path.lexists(place):
            (staged / name).rename(place)
            sync_directory(place.parent)
        elif place.lstat().st_ino != inode:
            syscalls.exchange(str(staged / name), str(place))
            sync_directory(place.parent)
    records = staged / instance.audit_data.name
    if any(records.glob("*.jsonl")):
        records.rename(instance.data / journal["aside"])
    sync_directory(instance.data)
    (staged / _JOURNAL).unlink()
    with suppress(OSError):  # the next restore does it
        shelf.remove(staged)
