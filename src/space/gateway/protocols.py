"""What upstreams are known to speak, by name, port and the authorities that they were verified by; for some time, so many of them."""

from __future__ import annotations

from collections import OrderedDict

from space.gateway.tls import Protocol

_Key = tuple[str, int, str | None]


class Protocols:
    """most: how many are remembered. seconds: how long."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._known: OrderedDict[_Key, tuple[Protocol, float]] = OrderedDict()

    def known(self, name: str, port: int, ca: str | None, now: float) -> Protocol | None:
        """None: nobody has asked it, or that was too long ago."""
        found = self._known.get((name, port, ca))
        return None if found is None or now - found[1] > self._seconds else found[0]

    def learn(self, name: str, port: int, ca: str | None, protocol: Protocol, now: float) -> None:
        """It speaks that now; what was learnt longest ago goes."""
        key = (name, port, ca)
        self._known[key] = (protocol, now)
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
