"""What the dialer knows of the machine: its own addresses, and who resolves names; both as they are now, by notices of the kernel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from space.config import egress
from space.core.policy.addresses import Address
from space.dialer.exchange import Server
from space.dialer.resolve import Resolver
from space.host.filewatch import FileWatch
from space.host.netlink import OwnAddresses

log = logging.getLogger("space.dialer")


class Own:
    """The machine's addresses at the time of each call: the subscription is made anew after a failure, and until then nothing is known.

    A lookup per dial rather than a table that a reader keeps current: the kernel queues a notice before an address can be used, so asking
    whether there is one (a system call) leaves no moment in between.
    """

    def __init__(self) -> None:
        self._addresses: OwnAddresses | None = OwnAddresses()

    def now(self) -> frozenset[Address]:
        """OSError when they cannot be known."""
        if self._addresses is None:
            self._addresses = OwnAddresses()
        try:
            return self._addresses.now()
        except BaseException:
            self._addresses.close()
            self._addresses = None
            raise

    def close(self) -> None:
        """Let go."""
        if self._addresses is not None:
            self._addresses.close()
            self._addresses = None


def servers(listed: Sequence[str], resolv_conf: Path) -> tuple[Server, ...]:
    """Those of the setting, else the machine's."""
    return tuple(Server(address, port) for address, port in egress.resolvers(listed) or egress.machine_resolvers(resolv_conf))


class Following:
    """Has a resolver ask whom the machine's resolv.conf names, also after that has changed. Within the event loop."""

    def __init__(self, resolver: Resolver, resolv_conf: Path) -> None:
        self._resolver = resolver
        self._path = resolv_conf
        self._watch = FileWatch(resolv_conf)
        asyncio.get_running_loop().add_reader(self._watch.fileno(), self._look)
        resolver.use(servers((), resolv_conf))  # it may have changed before it was watched

    def close(self) -> None:
        """Follow no more."""
        asyncio.get_running_loop().remove_reader(self._watch.fileno())
        self._watch.close()

    def _look(self) -> None:
        if self._watch.changed():
            found = servers((), self._path)
            if found != self._resolver.servers:
                log.info("%s names other resolvers now: %s", self._path, ", ".join(str(one.address) for one in found) or "none")
                self._resolver.use(found)
