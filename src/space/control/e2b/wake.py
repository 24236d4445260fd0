"""Whether a sandbox answers, and waking one that traffic wakes."""

from __future__ import annotations

from space.control.e2b.seat import Seat
from space.control.lives import Wish
from space.control.services import Services
from space.core.lifecycle.table import Request
from space.model.errors import Conflict, Gone, NotFound
from space.model.sandbox import Phase

RESTS = frozenset({Phase.PAUSED, Phase.SUSPENDING, Phase.SUSPENDED, Phase.STOPPING, Phase.STOPPED})
_RUNS = frozenset({Phase.RUNNING, Phase.REQUESTED, Phase.PREPARING, Phase.WAKING, Phase.STARTING})


async def ready(services: Services, seat: Seat, *, wakes: bool) -> bool:
    """Whether it runs now. wakes: one that rests and is woken by traffic is woken, and waited for."""
    record = services.sandboxes.living(seat.sandbox)
    if record is None:
        return False
    if record.phase is Phase.RUNNING and not record.wish:
        return True  # nearly always
    extras = services.e2b.extras.of(seat.sandbox)
    try:
        if record.phase in RESTS or (record.wish and record.phase is Phase.RUNNING):
            if not (wakes and extras.auto_resume and extras.pause_memory):
                return False
            await services.sandboxes.live(seat.tenant, seat.sandbox, waking(record.phase))
        elif record.phase not in _RUNS:
            return False
        await services.sandboxes.usable(seat.tenant, seat.sandbox, wakes=wakes)
    except (Gone, NotFound, Conflict):
        return False
    return True


def waking(phase: Phase, *, cold: bool = False) -> Wish:
    """What wakes a sandbox of that phase. cold: from its disk alone."""
    if phase is Phase.PAUSED and not cold:
        return Wish(Request.RESUME)
    return Wish(Request.WAKE, "cold" if cold else "")
