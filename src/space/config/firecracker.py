"""Firecrackers on this machine: artefacts `firecracker/<digest>/` of the two programs, of which one is what boots new sandboxes.

    <artefacts>/firecracker/<digest>/    firecracker, jailer, manifest.json {version, ...}
    <artefacts>/firecracker/.current     a symbolic link to one of them

A snapshot names the digest that made it and is restored by that one, whichever is current.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from space.config.artefacts import Store
from space.core.plan import firecracker
from space.model.errors import Conflict, NotFound
from space.model.ids import digest

KIND, CURRENT = "firecracker", ".current"
BINARY, JAILER = "firecracker", "jailer"  # the jailer wants the first name to begin so


@dataclass(frozen=True, slots=True)
class Firecracker:
    """One of them."""

    digest: str
    version: str
    directory: Path

    @property
    def binary(self) -> Path:
        """The VMM."""
        return self.directory / BINARY

    @property
    def jailer(self) -> Path:
        """What jails it."""
        return self.directory / JAILER


def current(store: Store) -> Firecracker:
    """The one that boots new sandboxes. NotFound without one; Conflict when it may not be used."""
    link = store.root / KIND / CURRENT
    if not link.is_symlink():
        raise NotFound("there is no Firecracker on this machine", hint="`space setup firecracker --from FILE|URL --sha256 D` adds one")
    return get(store, digest(link.readlink().name))


def get(store: Store, name: str) -> Firecracker:
    """The one of that digest. NotFound without it; Conflict when its version is refused."""
    directory = store.path(KIND, name)
    try:
        version = str(json.loads((directory / "manifest.json").read_text())["version"])
        known = firecracker.support(version)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise NotFound(
            f"the Firecracker {name} is not on this machine", hint="a sandbox boots from its disk on another VMM when it is woken cold"
        ) from None
    if known.state == "refused":
        raise Conflict(f"Firecracker {version} is not used: {known.why}", hint="`space setup firecracker` adds another version")
    return Firecracker(name, version, directory)
