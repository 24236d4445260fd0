"""Inspect AI, unmodified, for the tests of its provider: a directory below /opt/space, named by its lock's digest, made when first used."""

from __future__ import annotations

from pathlib import Path

from space.setup import deps, inputs, shelf

_BUILDER = 1


def place(root: Path) -> Path:
    """Where it lies for the checkout at `root`."""
    value = {"builder": _BUILDER, "python": deps.VERSION, "lock": _lock(root).read_text()}
    return deps.OPT / f"dev-inspect-{inputs.of_value(value)}"


def make(root: Path) -> Path:
    """Install it, unless it is there; what it is imported from."""
    made = place(root)
    if not made.is_dir():
        with shelf.staged(made) as stage:
            deps.environment(stage, below=None)
            deps.install(stage, _lock(root))
            deps.compile_all(stage, made)
            shelf.describe(stage, lock=_lock(root).name, python=deps.VERSION)
    return made / deps.SITE


def _lock(root: Path) -> Path:
    return root / "tests/inspect/requirements.lock"
