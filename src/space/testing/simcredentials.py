"""SimNode's credentials: the node's own verbs over a broker in memory.

node.credentials.held.value("acme", "token")     # the parts that were put
node.credentials.away = Unavailable("...")       # every question is answered so
node.credentials.environment("sb-...")           # what its commands would get
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from space.core.credentials.grant import Life
from space.model.errors import SpaceError
from space.model.sandbox import Phase
from space.testing.memorycredentials import MemoryCredentials


class SimCredentials:
    """A `node.credentials.House`."""

    def __init__(self, life: Callable[[str], tuple[Life, Phase, int]]) -> None:
        self._life = life
        self.held = MemoryCredentials()
        self.away: SpaceError | None = None

    def broker(self) -> Any:
        """The one in memory, which has BrokerControl's methods for credentials."""
        if self.away is not None:
            raise self.away
        return self.held

    def of(self, sandbox: str) -> tuple[str, Phase, int]:
        """Its tenant, phase and generation."""
        life, phase, generation = self._life(sandbox)
        return life.tenant, phase, generation

    def attaching(self, sandbox: str, tenant: str, generation: int) -> None:
        """Nothing is written down."""

    def changed(self, tenant: str) -> None:
        """Nothing is remembered."""

    def environment(self, sandbox: str) -> dict[str, str]:
        """Placeholders by variable."""
        life, _, generation = self._life(sandbox)
        return self.held.environment(life, generation)
