"""Remove an instance whole: its services, its sandboxes, its files, its uid block. Idempotent, whatever state it is in."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from space.config.instance import Instance, instances, release
from space.model.errors import Conflict
from space.rootd.sweep import sweep
from space.serve import layout, records

_MARK = "ephemeral"  # serve --ephemeral puts it there


def remove(instance: Instance) -> None:
    """Everything of it is gone afterwards. The caller holds the instance's lock, or knows that nobody serves it."""
    records.kill_all(instance.services)
    sweep(instance)
    # The record and the uid block go last: until then a repeat after a crash finds the instance by its name.
    for entry in instance.data.iterdir() if instance.data.is_dir() else ():
        if entry.name != "instance.json":
            _delete(entry)
    _delete(instance.run)
    release(instance)
    _delete(instance.data)


def remove_abandoned(data_root: Path, run_root: Path) -> list[str]:
    """Remove the ephemeral instances whose serve was killed together with its owner; their names."""
    gone = []
    for instance in list(instances(data_root=data_root, run_root=run_root)):
        if not (instance.data / _MARK).exists():
            continue
        instance.run.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            held = layout.lock(instance)
        except Conflict:
            continue
        try:
            remove(instance)
        finally:
            os.close(held)
        gone.append(str(instance.name))
    return gone


def _delete(path: Path) -> None:
    with suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
