"""The addresses that a sandbox is told for allowed names: one for each, from a range that leads nowhere.

What a guest believes of a name is of no consequence: it gets an address that means "this name" to this sandbox's listener, and the
gateway alone finds out where the name really is. An address is never given to another name while an answer's time to live or a flow
may still hold it; with `kept` that holds over the end of the process that gave it.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv4Address, IPv4Network

from space.core.policy.kept import Kept, NoRoom

DEFAULT_RANGE = IPv4Network("198.18.0.0/15")


class NoAddress(Exception):
    """Every address is held: the sandbox has used more distinct names at once than it may."""


class SyntheticAddresses:
    """The table of one sandbox. most: distinct names at a time. hold: seconds that an address stays its name's after its last use.

    kept: what an earlier worker of the sandbox gave, and where this one's are kept. first: where the addresses begin that are given when
    nothing was kept; by chance, they are not those of a table that was lost, which the guest may still hold for other names.
    """

    def __init__(
        self, network: IPv4Network = DEFAULT_RANGE, *, most: int = 4096, hold: float = 600.0, kept: Kept | None = None, first: int = 1
    ) -> None:
        if most > network.num_addresses - 2:
            raise ValueError(f"{network} has no {most} addresses")
        self._network = network
        self._most = most
        self._hold = hold
        self._next = (first - 1) % (network.num_addresses - 2) + 1  # the first address of the range is nobody's, nor the last
        self._names: dict[IPv4Address, str] = {}
        self._used: OrderedDict[str, tuple[IPv4Address, float]] = OrderedDict()  # by last use
        self._flows: dict[str, int] = {}
        self._kept = kept
        if kept is not None:
            self._take_over(kept)

    def __len__(self) -> int:
        return len(self._names)

    def address(self, name: str, now: float) -> IPv4Address:
        """The name's address, from now on held for `hold` seconds at least. NoAddress."""
        held = self._used.get(name)
        if held is not None:
            self._touch(name, held[0], now)
            return held[0]
        if len(self._names) >= self._most and not self._release_one(now):
            raise NoAddress(f"{self._most} names are in use")
        address = self._fresh()
        if self._kept is not None:
            try:
                self._kept.put(name, address, now)
            except NoRoom:
                raise NoAddress(f"{len(self._names)} names are in use") from None
        self._names[address] = name
        self._used[name] = (address, now)
        return address

    def name(self, address: IPv4Address) -> str | None:
        """Whose address it is; None for one that was never given, or is no longer."""
        return self._names.get(address)

    def flow_began(self, name: str) -> None:
        """A connection to the name stands: its address is held until `flow_ended`."""
        self._flows[name] = self._flows.get(name, 0) + 1

    def flow_ended(self, name: str, now: float) -> None:
        """One connection less."""
        left = self._flows[name] - 1
        if left:
            self._flows[name] = left
            return
        del self._flows[name]
        held = self._used.get(name)
        if held is not None:
            self._touch(name, held[0], now)

    def _take_over(self, kept: Kept) -> None:
        newest, size = None, self._network.num_addresses
        for name, address, used in kept.names():
            if address in self._network and len(self._names) < self._most:
                self._names[address] = name
                self._used[name] = (address, used)
                newest = address
            else:  # of another range, or more than there may be: nobody is told it any more
                kept.drop(name)
        if newest is not None:
            self._next = (int(newest) - int(self._network.network_address)) % (size - 2) + 1

    def _touch(self, name: str, address: IPv4Address, now: float) -> None:
        self._used[name] = (address, now)
        self._used.move_to_end(name)
        if self._kept is not None:
            self._kept.touch(name, now)

    def _release_one(self, now: float) -> bool:
        for name, (address, at) in self._used.items():  # the longest unused first
            if now - at < self._hold:
                return False
            if name not in self._flows:
                del self._used[name]
                del self._names[address]
                if self._kept is not None:
                    self._kept.drop(name)
                return True
        return False

    def _fresh(self) -> IPv4Address:
        """The next address of the range that is nobody's: an address that was given back is given out as late as can be."""
        size = self._network.num_addresses
        while True:
            address = self._network[self._next]
            self._next = self._next + 1 if self._next < size - 2 else 1
            if address not in self._names:
                return address
