"""What the node holds of a slot's edge: its listeners, and the way into its worker's cgroup."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from space.node.ops import Rootd
from space.rpc.rootd_client import Listeners


@dataclass(eq=False)
class Edge:
    """The descriptors of a slot's edge, owned: its listeners, and the cgroup files by which its worker puts itself into its cgroup.

    literal: the slot's filter lets TCP to addresses in that no name stands for.
    """

    transparent: int
    dns: int
    dns_tcp: int
    cgroups: tuple[int, ...]
    literal: bool

    @classmethod
    async def make(cls, rootd: Rootd, slot: int, synthetic: str, *, literal: bool) -> Self:
        """Make the slot, or make sure of it."""
        both = asyncio.gather(rootd.create_edge(slot, synthetic, literal=literal), rootd.worker_cgroup(slot), return_exceptions=True)
        try:
            listeners, cgroups = await asyncio.shield(both)
        except asyncio.CancelledError:
            both.add_done_callback(_close_results)  # rootd does what it was asked, and nobody is there for what it gives
            raise
        if isinstance(listeners, Listeners) and isinstance(cgroups, tuple):
            return cls(listeners.transparent, listeners.dns, listeners.dns_tcp, cgroups, literal)
        _close_results(both)
        raise next(one for one in (listeners, cgroups) if isinstance(one, BaseException))

    def close(self) -> None:
        """Let go of them. Idempotent."""
        held, self.cgroups = (self.transparent, self.dns, self.dns_tcp, *self.cgroups), ()
        self.transparent = self.dns = self.dns_tcp = -1
        _close(each for each in held if each >= 0)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _close_results(both: asyncio.Future[Any]) -> None:
    if not both.cancelled():
        for one in both.result():
            if isinstance(one, Listeners):
                one.close()
            elif isinstance(one, tuple):
                _close(one)
