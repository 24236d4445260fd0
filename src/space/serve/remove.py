"""Remove an instance whole: its services, its sandboxes, its files, its uid block. Idempotent, whatever state it is in."""

from __future__ import annotations

import os
from pathlib import Path

from space.config.instance import Instance, abandoned, is_abandoned
from space.model.errors import Conflict, Internal
from space.rootd.sweep import sweep
from space.serve import layout, records


def remove(instance: Instance) -> None:
    """Everything of it is gone afterwards, or Internal says what is not. The caller holds its lock, or knows that nobody serves it."""
    records.kill_all(instance.services)
    if left := sweep(instance, data=True):
        raise Internal(f"not everything of instance {instance.name} could be removed: {'; '.join(left)}", hint="repeat it")


def remove_abandoned(data_root: Path, run_root: Path) -> list[str]:
    """Remove the ephemeral instances whose serve was killed together with its owner; their names."""
    gone = []
    for instance in abandoned(data_root=data_root, run_root=run_root):
        instance.run.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            held = layout.lock(instance)
        except Conflict:
            continue
        try:
            if not is_abandoned(instance, held=True):  # another one came first, and the name may be in use again
                continue
            remove(instance)
        finally:
            os.close(held)
        gone.append(str(instance.name))
    return gone
