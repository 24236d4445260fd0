"""What this face remembers of sandboxes: nothing that the node knows better, and nothing that outlives this control."""

from __future__ import annotations

from dataclasses import dataclass, field

from space.control.e2b.envd.roster import Roster
from space.control.e2b.envd.watchers import Watchers


@dataclass(frozen=True, slots=True)
class Memory:
    """Of all of them."""

    roster: Roster = field(default_factory=Roster)
    watchers: Watchers = field(default_factory=Watchers)

    def forget(self, sandbox: str) -> None:
        """The sandbox has ended."""
        self.roster.forget(sandbox)
        self.watchers.forget(sandbox)
