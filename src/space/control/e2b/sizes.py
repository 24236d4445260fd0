"""How large a sandbox of a template is: E2B's clients say it when they build one, and never when they make a sandbox."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from space.model.errors import InvalidArgument, NotFound
from space.model.sandbox import DEFAULT_CPUS, DEFAULT_DISK_MIB, DEFAULT_MEMORY_MIB

if TYPE_CHECKING:
    from space.control.services import Services

# A shipped template's disk changes with set-up alone; what a digest names never does.
_KNOWN_SECONDS = 60.0
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Size:
    """name: as our own API takes it. user, cwd: of processes that say none; empty for the face's own."""

    name: str
    cpus: int
    memory_mib: int
    disk_mib: int
    user: str
    cwd: str


class Sizes:
    """Remembered for a while, so that a create asks the node once."""

    def __init__(self, asked: Mapping[tuple[str, str], tuple[int, int]] | None = None) -> None:
        """asked: processors and MiB of memory of a tenant's template, by its digest."""
        self._asked = {} if asked is None else asked
        self._found: dict[tuple[str, str], tuple[float, int, str, str]] = {}

    async def of(self, services: Services, tenant: str, template: str) -> Size:
        """NotFound, InvalidArgument for what is no template's name."""
        named = ours(template)
        try:
            name, digest = services.templates.resolve(tenant, named)
        except InvalidArgument as fault:
            raise NotFound(f"template {template[:128]!r} was not found: {fault.message}") from None
        key, now = (tenant if digest else "", digest or name), time.monotonic()
        known = self._found.get(key)
        if known is None or known[0] < now:
            found = await services.templates.find(tenant, named)
            if len(self._found) >= _MOST:
                self._found.clear()
            known = self._found[key] = (now + _KNOWN_SECONDS, found.disk_mib, found.user, found.cwd)
        cpus, memory = self._asked.get((tenant, digest), (DEFAULT_CPUS, DEFAULT_MEMORY_MIB))
        return Size(named, cpus, memory, max(known[1], DEFAULT_DISK_MIB), known[2], known[3])


def ours(template: str) -> str:
    """Without a namespace, of which there is one: the key's tenant."""
    return template.rpartition("/")[2]
