"""What this face remembers of sandboxes: nothing that the node knows better, and nothing that outlives this control."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from space.control.e2b.envd.roster import Roster
from space.control.e2b.envd.watchers import Watchers

# Each may be large, and is larger here than in the guest.
_LISTS = 4


@dataclass(frozen=True, slots=True)
class Memory:
    """Of all of them. lists: held by whoever makes a list of a directory."""

    roster: Roster = field(default_factory=Roster)
    watchers: Watchers = field(default_factory=Watchers)
    lists: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LISTS))

    def forget(self, sandbox: str) -> None:
        """The sandbox has ended."""
        self.roster.forget(sandbox)
        self.watchers.forget(sandbox)
