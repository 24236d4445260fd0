"""Admission: which sandboxes a machine takes, and whose boot is next. Values in, values out.

A sandbox takes its memory and its place at once, or is refused at once: waiting for memory would mean waiting for somebody
else's deletion, and nobody promises one. Boots take turns, first come first served, because more at a time only make each
slower; the queue of boots is bounded, and every waiter has its own deadline (held by the caller).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from space.core.plan.machine import VMM_OVERHEAD_MIB

# What the services and the page cache keep of a machine's memory when no setting says otherwise.
_RESERVE_MIB = 1024


def memory_budget(setting_mib: int, total_mib: int) -> int:
    """What sandboxes may take together, in MiB, of a machine with `total_mib`; setting 0: all but a reserve."""
    return setting_mib or max(total_mib - max(_RESERVE_MIB, total_mib // 10), 0)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a machine has. memory_mib: for guests and their VMMs. queue: boots that may wait. disk_reserve_mib: stays free."""

    memory_mib: int
    sandboxes: int
    boots: int
    queue: int
    disk_reserve_mib: int = 0


@dataclass(frozen=True, slots=True)
class NoRoom:
    """It does not fit now; why, with values."""

    why: str
    hint: str


@dataclass(frozen=True, slots=True)
class Admission:
    """Who is in. held: memory of each sandbox, overhead included; booting and waiting: whose boot goes on, whose comes. aside: memory of
    warm templates, which gives way to sandboxes.
    """

    capacity: Capacity
    held: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    booting: frozenset[str] = frozenset()
    waiting: tuple[str, ...] = ()
    aside: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def memory_mib(self) -> int:
        """Memory that is taken."""
        return sum(self.held.values()) + sum(self.aside.values())

    def ask(self, sandbox: str, guest_mib: int, disk_free_mib: int | None = None) -> Admission | NoRoom:
        """A new sandbox that wants to boot: in, and booting or in the queue; or no room. One that is in already changes nothing.

        disk_free_mib: what the data directory's file system has left. A disk is a reflink and costs nothing until it is written, so
        what is asked for is no measure; the reserve is what those that are there need to go on.
        """
        if sandbox in self.held:
            return self
        capacity = self.capacity
        if len(self.held) >= capacity.sandboxes:
            return NoRoom(f"this machine runs {len(self.held)} sandboxes, as many as it may", "delete one, or raise max_sandboxes")
        wanted = guest_mib + VMM_OVERHEAD_MIB
        free = capacity.memory_mib - self.memory_mib
        if wanted > free:
            return NoRoom(
                f"it needs {wanted} MiB ({guest_mib} for the guest) and {max(free, 0)} of {capacity.memory_mib} MiB are free",
                "ask for less memory, or delete a sandbox",
            )
        if disk_free_mib is not None and disk_free_mib < capacity.disk_reserve_mib:
            return NoRoom(
                f"the data directory has {disk_free_mib} MiB free, and the last {capacity.disk_reserve_mib} MiB are kept for what is there",
                "`space prune` drops caches; delete sandboxes or templates, or grow the storage (`space setup --grow-storage GIB`)",
            )
        if len(self.booting) >= capacity.boots and len(self.waiting) >= capacity.queue:
            return NoRoom(f"{len(self.booting)} sandboxes boot and {len(self.waiting)} wait for it", "try again in a few seconds")
        held = MappingProxyType({**self.held, sandbox: wanted})
        return replace(self, held=held, waiting=(*self.waiting, sandbox))._advance()

    def adopted(self, sandbox: str, guest_mib: int) -> Admission:
        """A sandbox that runs already: counted, even beyond the capacity (it is there)."""
        return replace(self, held=MappingProxyType({**self.held, sandbox: guest_mib + VMM_OVERHEAD_MIB}))

    def setting_aside(self, name: str, mib: int) -> Admission:
        """That much for something that is no sandbox; 0 gives it back."""
        others = {each: amount for each, amount in self.aside.items() if each != name}
        return replace(self, aside=MappingProxyType({**others, name: mib} if mib else others))

    def booted(self, sandbox: str) -> Admission:
        """Its boot is over, well or not; the next ones begin."""
        return replace(
            self,
            booting=self.booting - {sandbox},
            waiting=tuple(other for other in self.waiting if other != sandbox),
        )._advance()

    def left(self, sandbox: str) -> Admission:
        """It holds no compute any more; idempotent."""
        held = MappingProxyType({name: memory for name, memory in self.held.items() if name != sandbox})
        return replace(self, held=held).booted(sandbox)

    def _advance(self) -> Admission:
        room = self.capacity.boots - len(self.booting)
        if room <= 0 or not self.waiting:
            return self
        return replace(self, booting=self.booting | set(self.waiting[:room]), waiting=self.waiting[room:])
