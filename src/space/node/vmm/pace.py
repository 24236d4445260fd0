"""A pace for reading what a VMM sends: so many units a second, with a burst of one second's worth. Idle, it costs nothing."""

from __future__ import annotations


class Pace:
    """A token bucket. Time is an argument."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens = rate
        self._at: float | None = None

    def spend(self, units: float, now: float) -> float:
        """Take `units`; the seconds to wait before the next reading (0 within the pace)."""
        if self._at is not None:
            self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= units
        return max(0.0, -self._tokens / self._rate)
