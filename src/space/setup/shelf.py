"""Shelves of finished things: staged under a random name, committed by rename, root-owned and read-only from then on.

A directory that has its final name is whole. What a crash leaves begins with `.stage-`, and the next set-up, which holds
the machine's lock, removes it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from space.setup import contents, mounts

STAGE = ".stage-"


@contextmanager
def staged(final: Path, *, recorded: bool = False) -> Iterator[Path]:
    """An empty directory beside `final` that becomes `final` when the block ends well, and is removed when it does not.

    recorded: its contents are written down in it, for doctor to verify.

    When somebody else committed the same name meanwhile, theirs stays: equal names are equal things.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    stage = final.parent / f"{STAGE}{final.name[:12]}-{secrets.token_hex(4)}"
    stage.mkdir(mode=0o755)
    try:
        yield stage
        if recorded:
            contents.record(stage)
        freeze(stage)
        try:
            stage.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        remove(stage)


def is_secret(mode: int) -> bool:
    """Whether a file was made for root's eyes alone: 0400, which nothing else on a shelf is."""
    return stat.S_ISREG(mode) and stat.S_IMODE(mode) == 0o400


def freeze(root: Path) -> None:
    """Take every write bit below `root`, let everybody read what is not secret, and make root the owner of all."""
    for path in [root, *root.rglob("*")]:
        os.chown(path, 0, 0, follow_symlinks=False)
        if not path.is_symlink():
            mode = path.stat().st_mode
            if is_secret(mode):
                continue
            path.chmod(0o555 if path.is_dir() or mode & 0o111 else 0o444)


def remove(root: Path) -> None:
    """Remove a tree, frozen or not, there or not (root needs no write bit).

    What is mounted below it is unmounted first: a killed mmdebstrap leaves the host's /dev and /sys there.
    """
    for point in reversed(mounts.below(root)):
        if point != root:
            mounts.unmount(point)
    if root.is_dir() and not root.is_symlink():
        shutil.rmtree(root)
    else:
        root.unlink(missing_ok=True)


def sweep_stages(shelf: Path) -> None:
    """Remove what a set-up that died left on a shelf. Only the holder of the machine's lock may call it."""
    for entry in shelf.iterdir() if shelf.is_dir() else ():
        if entry.name.startswith(STAGE):
            remove(entry)


def describe(stage: Path, **facts: Any) -> None:
    """Write manifest.json."""
    (stage / "manifest.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")


def manifest(artefact: Path) -> dict[str, Any]:
    """The manifest of a committed artefact."""
    facts: dict[str, Any] = json.loads((artefact / "manifest.json").read_text())
    return facts


def newest(shelf: Path, recipe: str) -> Path | None:
    """The latest artefact on a shelf that was made by this recipe, whichever package versions it found then."""
    made = [entry for entry in shelf.iterdir() if not entry.name.startswith(".")] if shelf.is_dir() else []
    fitting = [entry for entry in made if manifest(entry).get("recipe") == recipe]
    return max(fitting, key=lambda entry: entry.stat().st_mtime_ns, default=None)


def point(link: Path, target: str) -> bool:
    """Make `link` a symbolic link to `target` in one step; False when it already was."""
    if link.is_symlink() and str(link.readlink()) == target:
        return False
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh = link.with_name(f"{STAGE}{secrets.token_hex(4)}")
    fresh.symlink_to(target)
    fresh.rename(link)
    return True
