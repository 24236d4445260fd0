"""Rates. Numbers in, yes or no out."""

from __future__ import annotations


class Bucket:
    """A token bucket: `burst` at once, `rate` a second."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._left = float(burst)
        self._at: float | None = None

    def take(self, now: float, count: int = 1) -> bool:
        """So many tokens, if there is one; those that are not there are owed."""
        if self._at is not None:
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= count
        return True
