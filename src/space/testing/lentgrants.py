"""A worker's grants and credentials without a broker: outlines and leases from plain values, refusals by name, alarms in a list."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from space.core.credentials.grant import Header, Outline, Slot
from space.gateway.lending import Lender
from space.gateway.loans import Grants
from space.model.errors import SpaceError
from space.rpc.broker_api import Credential

BEARER = Header("authorization", "Bearer {}")


@dataclass
class LentGrants:
    """values: by grant. refuses: what asking raises, by grant. changes: of `place`'s surroundings. asked: each with whether it was
    approved.
    """

    uses: int = 64
    seconds: float = 1.0
    values: dict[str, bytes] = field(default_factory=dict)
    more: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refuses: dict[str, SpaceError] = field(default_factory=dict)
    outlines: dict[str, Outline] = field(default_factory=dict)
    asked: list[tuple[str, str, str, bool]] = field(default_factory=list)
    alarms: list[tuple[str, str, str]] = field(default_factory=list)
    version: int = 1

    def __post_init__(self) -> None:
        self.grants = Grants()
        self.lender = Lender(self._ask, time.monotonic, 5.0)
        self.changes: dict[str, Any] = {
            "grants": lambda: self.grants,
            "lender": self.lender,
            "alarm": lambda kind, grant, host: self.alarms.append((kind, grant, host)),
        }

    def give(self, name: str, host: str, port: int, slot: Slot = BEARER, value: bytes = b"", **more: Any) -> None:
        """One more grant. more: of its outline."""
        self.outlines[name] = Outline(name, host, port, more.pop("methods", None), more.pop("paths", None), slot, **more)
        self.values[name] = value
        self._told()

    def take(self, name: str) -> None:
        """It is revoked."""
        del self.outlines[name]
        self._told()

    def _told(self) -> None:
        self.grants = Grants(self.outlines.values())
        self.lender.forget(self.outlines)

    async def _ask(self, grant: str, _host: str, _port: int, method: str, path: str, _request: str, approved: bool) -> Credential:
        self.asked.append((grant, method, path, approved))
        if grant in self.refuses:
            raise self.refuses[grant]
        one = self.outlines[grant]
        return Credential(1, grant, "secret", self.version, one.slot, self.values[grant], self.more.get(grant, {}), self.uses, self.seconds)
