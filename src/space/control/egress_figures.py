"""The node's egress as Prometheus sees it: sums over its sandboxes, which never go back while this control lives.

Figures of a sandbox end with it, so what was last seen of one that is gone stays in the sum. Kinds of drops are the filter's, a few; more
than a bounded number are one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from space.model.errors import SpaceError
from space.rpc.node_api import EgressCounters

MOST_KINDS = 64
_AT_ONCE = 16
_SECONDS = 5.0
_SUMS = ("connections", "requests", "denied", "names", "sent_bytes", "received_bytes", "worker_restarts")


class EgressFigures(Collector):
    """live: the sandboxes there are. ask: the node's counters of one; SpaceError."""

    def __init__(self, live: Callable[[], Iterable[str]], ask: Callable[[str], Awaitable[EgressCounters]]) -> None:
        self._live = live
        self._ask = ask
        self._last: dict[str, EgressCounters] = {}
        self._ended: Counter[str] = Counter()
        self._turn = asyncio.Lock()

    async def refresh(self) -> None:
        """Ask for all of them; what does not answer in time keeps its last figures."""
        async with self._turn:
            live = set(self._live())
            for sandbox in self._last.keys() - live:
                self._ended.update(_flat(self._last.pop(sandbox)))
            room = asyncio.Semaphore(_AT_ONCE)

            async def one(sandbox: str) -> None:
                async with room:
                    with suppress(SpaceError):
                        found = await self._ask(sandbox)
                        before = self._last.get(sandbox)
                        if before is not None and _went_back(before, found):  # the node began anew
                            self._ended.update(_flat(before))
                        self._last[sandbox] = found

            with suppress(TimeoutError):
                async with asyncio.timeout(_SECONDS):
                    await asyncio.gather(*map(one, live))

    def collect(self) -> Iterator[Metric]:
        sums = Counter(self._ended)
        for counters in self._last.values():
            sums.update(_flat(counters))
        decisions = CounterMetricFamily("space_egress_decisions", "What gateways decided of sandboxes' traffic", labels=("outcome",))
        for outcome in ("connections", "requests", "names", "denied"):
            decisions.add_metric((outcome,), sums[outcome])
        yield decisions
        sent = CounterMetricFamily("space_egress_bytes", "Bytes between guests and upstreams", labels=("direction",))
        sent.add_metric(("sent",), sums["sent_bytes"])
        sent.add_metric(("received",), sums["received_bytes"])
        yield sent
        packets = CounterMetricFamily("space_egress_packets", "Packets that slots' filters counted", labels=("kind",))
        for kind, count in sorted(_bounded(sums).items()):
            packets.add_metric((kind,), count)
        yield packets
        yield CounterMetricFamily("space_egress_worker_restarts", "Workers that were begun again", value=sums["worker_restarts"])
        working = sum(counters.worker for counters in self._last.values())
        yield GaugeMetricFamily("space_egress_workers", "Sandboxes that a worker serves now", value=working)


def _flat(counters: EgressCounters) -> dict[str, int]:
    return {name: getattr(counters, name) for name in _SUMS} | {f"drop {kind}": count for kind, count in counters.drops.items()}


def _went_back(before: EgressCounters, now: EgressCounters) -> bool:
    return any(getattr(now, name) < getattr(before, name) for name in _SUMS)


def _bounded(sums: Counter[str]) -> dict[str, int]:
    kinds = {name.removeprefix("drop "): count for name, count in sums.items() if name.startswith("drop ")}
    kept = dict(sorted(kinds.items())[:MOST_KINDS])
    if len(kinds) > MOST_KINDS:
        kept["other"] = kept.get("other", 0) + sum(kinds.values()) - sum(kept.values())
    return kept
