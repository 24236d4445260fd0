"""How often a secret may still be lent now: over all its sandboxes, and over the broker's own end.

What is taken is written down some ahead, so that most takes cost no write, and a broker that was killed begins with less, never with more
(a power cut may give back the last second's). A rate that is full again is not kept.
"""

from __future__ import annotations

from collections.abc import Callable

from space.broker.store import Store
from space.core.credentials.grant import Rate
from space.model.errors import Unavailable

_MOST = 65_536
_AHEAD = 64  # of a burst: a part of it that is written down as taken at once


class _Bucket:
    """left: tokens at a time, `written` of which are down as taken already."""

    __slots__ = ("at", "left", "written")

    def __init__(self, left: float, at: float) -> None:
        self.left, self.at, self.written = left, at, 0.0


class Rates:
    """now: seconds since 1970, for a broker may end on one boot of the machine and begin on the next."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store, self._now = store, now
        self._buckets: dict[tuple[str, str, str], _Bucket] = {}
        self._store.note("DELETE FROM spent WHERE full < ?", (now(),))

    def take(self, tenant: str, secret: str, rate: Rate) -> bool:
        """Whether one more may go out. Unavailable: nobody can count it."""
        burst = float(rate.count if rate.burst is None else rate.burst)
        speed, now = rate.count / rate.seconds, self._now()
        key = (tenant, secret, f"{rate.count}/{rate.seconds:g}/{burst:g}")
        bucket = self._buckets.get(key) or self._found(key, burst)
        bucket.left = min(burst, bucket.left + max(0.0, now - bucket.at) * speed)  # a clock that was put back gives nothing
        bucket.at = now
        if bucket.left < 1:
            return False
        if bucket.written < 1:
            ahead = max(1.0, burst // _AHEAD)
            left = bucket.left - ahead
            self._store.note("INSERT OR REPLACE INTO spent VALUES (?, ?, ?, ?, ?, ?)", (*key, left, now, now + (burst - left) / speed))
            bucket.written = ahead
        bucket.left -= 1
        bucket.written -= 1
        return True

    def forget(self, tenant: str, secret: str) -> None:
        """That secret is gone: one of its name is another."""
        self._buckets = {key: one for key, one in self._buckets.items() if key[:2] != (tenant, secret)}
        self._store.note("DELETE FROM spent WHERE tenant = ? AND secret = ?", (tenant, secret))

    def _found(self, key: tuple[str, str, str], burst: float) -> _Bucket:
        if len(self._buckets) >= _MOST:
            raise Unavailable("too many rates are counted")
        rows = self._store.read("SELECT left, at FROM spent WHERE tenant = ? AND secret = ? AND rate = ?", key)
        found = self._buckets[key] = _Bucket(*rows[0]) if rows else _Bucket(burst, self._now())
        return found
