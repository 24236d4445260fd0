"""Clones made ahead: restored, imprinted, and standing still, so that a create only claims one.

    wanted -> (nothing boots) -> slot, files, VMM, channel, imprint, first command -> stands still -> taken, or let go

As many are kept of a size as were asked for within the last minute, at most the setting `clones_ahead`; none of a size that nobody asks
for. One is made at a time, and only while no sandbox is on its way. Their memory is counted, and gives way to sandboxes. A node that dies
leaves them to the next one, which finds them as nobody's and undoes them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

from space.core.plan.machine import VMM_OVERHEAD_MIB
from space.model.errors import SpaceError
from space.model.ids import new_sandbox_id
from space.model.rootd import CreateSandbox, SandboxOp
from space.node import limits
from space.node.guest import Guest, greeted
from space.node.ledger import Baked, Size
from space.node.life import Ahead
from space.node.surroundings import Surroundings
from space.node.vmm.seam import Machine, MachinePlan

log = logging.getLogger(__name__)
TENANT = "-pool"
_REHEARSALS = 3
_SOME = {"LANG": "C.UTF-8"}  # longer and shorter in turn: each is a way of its own


class Pool:
    """One a node. busy: whether a sandbox is on its way."""

    def __init__(self, around: Surroundings, busy: Callable[[], bool]) -> None:
        self._around, self._busy = around, busy
        self._ready: dict[Size, list[Ahead]] = {}
        self._baked: dict[Size, Baked] = {}
        self._asked: dict[Size, deque[float]] = {}
        self._filling: asyncio.Task[None] | None = None
        self._begin: asyncio.TimerHandle | None = None
        self._making: Size | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False

    @property
    def ready(self) -> int:
        """How many stand ready."""
        return sum(map(len, self._ready.values()))

    def wanted(self, baked: Baked) -> None:
        """A sandbox of that size is asked for."""
        self._baked[baked.size] = baked
        self._asked.setdefault(baked.size, deque(maxlen=self._around.clones_ahead)).append(_now())
        if self._rest is None:
            self._rest = asyncio.get_running_loop().call_later(limits.AHEAD_SECONDS, self._fewer)

    def take(self, size: Size) -> Ahead | None:
        """One that is ready, which is the caller's: its memory is no more counted here."""
        ready = self._ready.get(size)
        if not ready:
            return None
        ahead = ready.pop()
        self._around.gate.give_back(ahead.name)
        return ahead

    def look(self) -> None:
        """Something has changed: make what is missing, once nothing has been on its way for a moment."""
        if self._begin is not None:
            self._begin.cancel()
        self._begin = None if self._over else asyncio.get_running_loop().call_later(limits.AHEAD_QUIET, self._refill)

    def _refill(self) -> None:
        self._begin = None
        if not self._over and (self._filling is None or self._filling.done()) and not self._busy():
            self._filling = asyncio.create_task(self._fill(), name="clones made ahead")

    def let_go(self, size: Size | None = None) -> bool:
        """Undo those of a size, or of all. Whether there were any. Their memory counts no more at once."""
        sizes = [size] if size is not None else list(self._ready)
        gone = [ahead for each in sizes for ahead in self._ready.pop(each, [])]
        for each in sizes:
            self._asked.pop(each, None)
            self._baked.pop(each, None)
        for ahead in gone:
            self._around.gate.give_back(ahead.name)
            self.put_away(ahead)
        return bool(gone)

    def origins(self) -> list[str]:
        """Snapshots that they are made of."""
        sizes = {size for size, ready in self._ready.items() if ready} | ({self._making} if self._making else set())
        return [self._baked[size].snapshot for size in sizes if size in self._baked]

    def put_away(self, ahead: Ahead) -> None:
        """Undo one, soon."""
        self._in_background(self._undo(ahead))

    async def drain(self) -> None:
        """The node is ending."""
        self._over = True
        for timer in (self._rest, self._begin):
            if timer is not None:
                timer.cancel()
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait({self._filling})
        self.let_go()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    # -- making them ---------------------------------------------------------------------------------------------

    def _missing(self) -> Size | None:
        since = _now() - limits.AHEAD_SECONDS
        for size, asked in self._asked.items():
            while asked and asked[0] < since:
                asked.popleft()
            if len(self._ready.get(size, ())) < len(asked):
                return size
        return None

    async def _fill(self) -> None:
        while not self._over and not self._busy() and (size := self._missing()) is not None:
            self._making = size
            try:
                self._ready.setdefault(size, []).append(await self._make(self._baked[size]))
            except (SpaceError, OSError, TimeoutError) as error:
                log.info("no clone is made ahead: %s", error)
                self._asked.pop(size, None)
            finally:
                self._making = None

    async def _make(self, baked: Baked) -> Ahead:
        around, size, name = self._around, baked.size, new_sandbox_id()
        op = SandboxOp(name, 1)
        async with AsyncExitStack() as undo:
            around.gate.set_aside(name, size.memory_mib + VMM_OVERHEAD_MIB)
            undo.callback(around.gate.give_back, name)
            slot, edge = around.slots.take(name, 1, TENANT)
            undo.push_async_callback(around.releases.slot, slot)
            edge = edge or await around.slots.make(slot, literal=False)
            undo.callback(edge.close)
            undo.push_async_callback(around.releases.files, op)
            shape = CreateSandbox(name, 1, slot, size.digest, size.disk_mib, size.memory_mib, size.cpus, baked.snapshot)
            await around.rootd.create_sandbox(shape)
            undo.push_async_callback(around.releases.vmm, op)
            machine = await around.vmm.restore(MachinePlan(name, 1, size.cpus, size.memory_mib, size.accelerator))
            undo.push_async_callback(machine.aclose)
            async with asyncio.timeout(limits.RECONNECT):
                await machine.resume()
                guest = await greeted(machine, functools.partial(Guest.open, op=op, reconnect=True))
                undo.push_async_callback(guest.aclose)
                await guest.imprint(name)
                for user in ("root", None, None):
                    await _first_command(guest, user)
                await _rehearse(machine, guest)
            undo.pop_all()
        return Ahead(name, slot, edge, machine, guest)

    async def _undo(self, ahead: Ahead) -> None:
        op, releases = SandboxOp(ahead.name, 1), self._around.releases
        await ahead.guest.aclose()
        await ahead.machine.aclose()
        await releases.vmm(op)
        await releases.files(op)
        ahead.edge.close()
        await releases.slot(ahead.slot)

    def _fewer(self) -> None:
        """A minute later: those that nobody asked for go."""
        self._rest = None
        self._missing()
        for size in [each for each, asked in self._asked.items() if not asked]:
            self.let_go(size)
        if self._asked and not self._over:
            self._rest = asyncio.get_running_loop().call_later(limits.AHEAD_SECONDS, self._fewer)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="a clone is let go")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _rehearse(machine: Machine, guest: Guest) -> None:
    """For the translator of an emulated guest: who takes it has it resume and claims it just so, and the first times take longest.

    It stands still when this returns.
    """
    for number in range(_REHEARSALS):
        guest.hold()
        await machine.pause()
        await machine.resume()
        guest.release()
        # A name as long as the one that it gets: where a file is to be shorter, the kernel takes another way.
        await guest.claim(_SOME if number % 2 else {}, hostname=new_sandbox_id())
    guest.hold()
    await machine.pause()


async def _first_command(guest: Guest, user: str | None) -> None:
    """What a command needs of the guest's disk and of the translator is there then."""
    with suppress(SpaceError):  # it may have no shell, or no such account
        stream = await guest.open_unkept([b"/bin/sh", b"-c", b":"], user)
        async with stream:
            async for _ in stream:
                pass


def _now() -> float:
    return asyncio.get_running_loop().time()
