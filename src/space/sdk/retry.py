"""When a request may be repeated, and after how long. Decisions only.

Repeated are GET, DELETE, a create or a fork that carries an idempotency key, a start that carries the process's id, and what sets a value
whole (a file's bytes, modes, a quota): a second arrival changes nothing. An attached command, input, an upload, a pause are never repeated
by the SDK: only the caller knows whether twice is right. docs/sdk.md has the table.
"""

from __future__ import annotations

from space.model.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    NoCapacity,
    ProtocolError,
    RateLimited,
    SpaceError,
    StreamCut,
    Unavailable,
)

ATTEMPTS = 4
# After these nobody knows whether the server has done it.
UNDECIDED = (ConnectionFailed, DeadlineExceeded, ProtocolError, StreamCut, Unavailable)
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0


def wait_before(attempt: int, fault: SpaceError, *, repeatable: bool, chance: float, retry_after: float | None = None) -> float | None:
    """Seconds to wait before the attempt that follows number `attempt` (1, 2, ...), or None to give up. chance: 0 to 1, random.

    No room is an answer, not an outage: it is told at once, so that the caller can decide.
    """
    if not repeatable or attempt >= ATTEMPTS or isinstance(fault, NoCapacity):
        return None
    if not isinstance(fault, (ConnectionFailed, StreamCut, Unavailable, RateLimited)):
        return None
    if retry_after is not None:
        return min(max(retry_after, 0.0), 30.0)
    longest: float = min(_LONGEST_DELAY, _FIRST_DELAY * 4 ** (attempt - 1))
    return longest * (0.5 + chance / 2)
