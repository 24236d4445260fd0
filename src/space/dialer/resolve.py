"""Names to addresses, for the dialer alone: A and AAAA from the operator's resolvers, kept for as long as their TTL says, within bounds.

No search domains; no hosts file unless the operator gives its names. Nothing here is trusted to be public: every answer is vetted each
time it is used. DNSSEC is the resolvers' affair, nothing of it is claimed. Both types are asked and both must be answered: with one
missing nobody could say that the answer is not a mixed one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal

import dns.name
import dns.rdatatype

from space.core.policy.addresses import Address
from space.core.policy.names import NameRefused, canon
from space.dialer.answers import Bounds, Hostile, Section, Unusable, read
from space.dialer.exchange import Patience, Server, ask

Fault = Literal["name_not_found", "no_address", "answer_refused", "resolver_failed", "resolver_busy"]
_TYPES = (dns.rdatatype.A, dns.rdatatype.AAAA)


@dataclass(frozen=True, slots=True)
class Resolved:
    """addresses: all of them, or none and the reason."""

    addresses: tuple[Address, ...]
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Tuning:
    """rounds: over all resolvers. seconds: for a name, whatever happens. failure: seconds that a failure is kept (RFC 9520).

    kept: names in the cache. lookups: at once.
    """

    rounds: int = 2
    seconds: float = 8.0
    failure: float = 1.0
    kept: int = 4096
    lookups: int = 256
    bounds: Bounds = field(default_factory=Bounds)
    patience: Patience = field(default_factory=Patience)


class Share:
    """One sandbox's part of a resolver: so many names are looked up for it at once, and no more, however slow they are."""

    def __init__(self, resolver: Resolver, lookups: int) -> None:
        self._resolver = resolver
        self._turn = asyncio.Semaphore(lookups)

    async def resolve(self, name: str) -> Resolved:
        """As the resolver's own; an answer that is known waits for nobody."""
        known = self._resolver.known(name)
        if known is not None:
            return known
        async with self._turn:
            return await self._resolver.resolve(name)


class Resolver:
    """clock: seconds that only go forward. hosts: canonical names that the operator answers for, and no resolver is asked for."""

    def __init__(
        self,
        servers: Sequence[Server],
        clock: Callable[[], float],
        tuning: Tuning = Tuning(),
        hosts: Mapping[str, tuple[Address, ...]] | None = None,
    ) -> None:
        self._servers = tuple(servers)
        self._clock = clock
        self._tuning = tuning
        self._hosts = dict(hosts or {})
        self._first = 0  # the resolver that answered last is asked first
        self._kept: OrderedDict[str, tuple[float, Resolved]] = OrderedDict()
        self._running: dict[str, asyncio.Task[Resolved]] = {}

    async def resolve(self, name: str) -> Resolved:
        """The addresses of a canonical name. Questions for one name at the same time are one."""
        known = self.known(name)
        if known is not None:
            return known
        task = self._running.get(name)
        if task is None:
            if len(self._running) >= self._tuning.lookups:
                return Resolved((), "resolver_busy")
            task = asyncio.get_running_loop().create_task(self._look_up(name), name=f"resolve {name}")
            self._running[name] = task
            task.add_done_callback(lambda _: self._running.pop(name, None))
        return await asyncio.shield(task)  # one who gives up does not take the answer from the others; it ends by its own deadline

    def known(self, name: str) -> Resolved | None:
        """What needs no question: the operator's word, or an answer that is still good."""
        if name in self._hosts:
            return Resolved(self._hosts[name])
        kept = self._kept.get(name)
        if kept is None or kept[0] <= self._clock():
            return None
        self._kept.move_to_end(name)
        return kept[1]

    async def aclose(self) -> None:
        """End what is under way."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def use(self, servers: Sequence[Server]) -> None:
        """Ask these from now on. What others said is forgotten; what is under way ends with those that it began with."""
        if tuple(servers) != self._servers:
            self._servers, self._first = tuple(servers), 0
            self._kept.clear()

    @property
    def servers(self) -> tuple[Server, ...]:
        """Who is asked."""
        return self._servers

    @property
    def kept(self) -> int:
        """Names in the cache."""
        return len(self._kept)

    async def _look_up(self, name: str) -> Resolved:
        asked, servers = dns.name.from_text(name), self._servers
        ttl = self._tuning.failure
        try:
            async with asyncio.timeout(self._tuning.seconds):
                # Both to their end: the first failure must not leave the other question without a parent.
                sections = await asyncio.gather(*(self._section(asked, kind) for kind in _TYPES), return_exceptions=True)
            found, ttl = self._joined(sections)
        except Hostile:
            found = Resolved((), "answer_refused")
        except (Unusable, TimeoutError, OSError):
            found = Resolved((), "resolver_failed")
        if servers is self._servers:  # what others said than those that are asked now is used once, and not kept
            self._keep(name, ttl, found)
        return found

    def _joined(self, answered: Sequence[Section | BaseException]) -> tuple[Resolved, float]:
        faults = [one for one in answered if isinstance(one, BaseException)]
        if faults:
            raise next((fault for fault in faults if isinstance(fault, Hostile)), faults[0])
        sections = [one for one in answered if isinstance(one, Section)]
        addresses = tuple(dict.fromkeys(address for section in sections for address in section.addresses))
        if len(addresses) > self._tuning.bounds.addresses:
            raise Hostile(f"{len(addresses)} addresses")
        ttl = min(section.ttl for section in sections if section.addresses or not addresses)
        if addresses:
            return Resolved(addresses), ttl
        return Resolved((), "no_address" if any(section.exists for section in sections) else "name_not_found"), ttl

    def _keep(self, name: str, ttl: float, found: Resolved) -> None:
        if ttl > 0:
            self._kept[name] = (self._clock() + ttl, found)
            self._kept.move_to_end(name)
            while len(self._kept) > self._tuning.kept:
                self._kept.popitem(last=False)

    async def _section(self, name: dns.name.Name, kind: dns.rdatatype.RdataType) -> Section:
        """From the first resolver that answers. What an answer says is final: another resolver is asked for want of one only."""
        first, servers = self._first, self._servers
        why: Exception = Unusable("there is no resolver")
        for turn in range(self._tuning.rounds * len(servers)):
            at = (first + turn) % len(servers)
            try:
                section = read(await ask(servers[at], name, kind, self._tuning.patience), name, kind, self._tuning.bounds)
            except (Unusable, TimeoutError, OSError) as error:
                why = error
                continue
            if servers is self._servers:
                self._first = at
            return section
        raise why


def hosts_of(text: str) -> dict[str, tuple[Address, ...]]:
    """A hosts file by canonical name; lines and names that are none are left out."""
    found: dict[str, tuple[Address, ...]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        for word in words[1:]:
            try:
                address, name = ip_address(words[0]), canon(word)
            except (ValueError, NameRefused):
                continue
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), address)))
    return found
