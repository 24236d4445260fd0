"""What a request that was let in finds: its sandbox, the defaults that hold there, what this face remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from space.control.e2b.envd.memory import Memory
from space.control.e2b.seat import Seat, environment
from space.control.services import Services

_USER = "user"


@dataclass(frozen=True, slots=True)
class Room:
    """sandbox: our id. user: who a request without a user is. workdir: where processes begin, None for the home. env: of every process."""

    services: Services
    sandbox: str
    user: str
    workdir: str | None
    env: Mapping[str, str]

    @classmethod
    def of(cls, services: Services, seat: Seat) -> Room:
        """The room behind a seat."""
        extras = services.e2b.extras.of(seat.sandbox)
        record = services.sandboxes.living(seat.sandbox)
        env = {} if record is None else environment(record, extras)
        return cls(services, seat.sandbox, extras.user or _USER, extras.workdir, env)

    @property
    def memory(self) -> Memory:
        """What is remembered."""
        return self.services.e2b.envd
