"""FakeVmm: the VMM seam over a `MemoryHost`, with a guest in this process behind each machine. It passes tests/contract/test_vmm.py.

A machine's bytes go through a valve that stands still while it is paused. The guest is any object with `serve(control, bulk)` and
`kill()`: a `FakeGuest`, or a hostile one of a test.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from space.model.errors import SandboxDied, SpaceError
from space.model.rootd import BeginSnapshot, StartVmm
from space.node.pidfd import Pidfd
from space.node.vmm.seam import SHUT_DOWN, Channel, MachinePlan, Pipe, SnapshotPlan, Taken
from space.testing.guest import FakeGuest
from space.testing.memoryhost import MemoryHost, MemoryVmm

_CHUNK = 256 * 1024


class AnyGuest(Protocol):
    """What can sit behind the pipes."""

    async def serve(self, control: socket.socket, bulk: socket.socket) -> None:
        """Serve on these from now on; returns at once."""

    def kill(self) -> None:
        """The VMM died."""


class _Stays:
    async def part(self) -> None:
        pass

    async def join(self) -> None:
        pass


NO_CHANNEL: Channel = _Stays()  # of whoever does not talk to the guest, or not over a driver whose snapshots end pipes


class FakeMachine:
    """A machine of a `FakeVmm`."""

    def __init__(self, host: MemoryHost, vmm: MemoryVmm, plan: tuple[str, int], descriptor: int, *, ends_pipes: bool) -> None:
        self.ends_pipes = ends_pipes
        self._host = host
        self._vmm = vmm
        self._plan = plan
        self._pidfd = Pidfd(descriptor)
        self._ours: tuple[Pipe, ...] = ()
        self._pumps: set[asyncio.Task[None]] = set()
        self.load_ms = 0.5

    async def connect(self) -> tuple[Pipe, Pipe]:
        """Fresh pipes, a valve in each."""
        self._hang_up()
        if not self._vmm.alive:
            raise SandboxDied(f"the VMM of {self._plan[0]} does not listen: {self._vmm.why}")
        control, guest_control = self._pipe()
        bulk, guest_bulk = self._pipe()
        self._ours = (control, bulk)
        await cast("AnyGuest", self._vmm.guest).serve(guest_control, guest_bulk)
        return control, bulk

    async def pause(self) -> None:
        """Nothing passes."""
        self._check()
        self._vmm.running.clear()

    async def resume(self) -> None:
        """Everything passes."""
        self._check()
        self._vmm.running.set()

    async def keep_going(self, stalled: Callable[[bool], object]) -> None:
        """Its disk is memory, unless a test says that it is full (`MemoryVmm.full`)."""
        while True:
            await self._vmm.full.wait()
            stalled(True)
            self._vmm.running.clear()
            try:
                await self._vmm.roomy.wait()
            finally:
                stalled(False)
            self._vmm.running.set()

    async def snapshot(self, plan: SnapshotPlan, channel: Channel) -> Taken:
        """A copy of the guest's files stands for its memory. A guest of a test's own is made anew."""
        self._check()
        ran = self._vmm.running.is_set()
        if self.ends_pipes:
            await channel.part()
        await self.pause()
        if self.ends_pipes:
            self._hang_up()
        guest = self._vmm.guest
        image = FakeGuest(guest) if isinstance(guest, FakeGuest) else None
        let_go = image.kill if image is not None else lambda: None
        try:
            await self._host.begin_snapshot(BeginSnapshot(*self._plan, plan.snapshot, plan.shared, plan.durable), image, let_go)
        except BaseException:
            let_go()
            if ran and self._vmm.alive:
                await self._run_on(channel)
            raise
        stages = {"ready": 0.1, "stop": 0.2, "state": 0.2, "copy": 0.4, "memory": 0.3, "disk": 0.1}
        if ran and plan.resume:
            await self._run_on(channel)
            stages["resume"] = 0.2
        return Taken(plan.snapshot, 1.0, 32 << 20, stages | {"done": 0.1})

    async def _run_on(self, channel: Channel) -> None:
        await self.resume()
        if self.ends_pipes and not isinstance(sys.exc_info()[1], asyncio.CancelledError):
            await channel.join()

    async def wait(self) -> str:
        """Until it is dead."""
        await self._pidfd.wait()
        return self._vmm.why

    async def kill(self) -> None:
        """Dead at once."""
        if self._vmm.alive:
            await self._host.kill_vmm(*self._plan)
        await self._pidfd.wait()

    def serial(self) -> bytes:
        """A line."""
        return b"fake console\r\n"

    async def aclose(self) -> None:
        """Let go."""
        self._hang_up()
        self._pidfd.close()

    def _check(self) -> None:
        if not self._vmm.alive:
            raise SandboxDied(f"the VMM of {self._plan[0]} is gone")

    def _hang_up(self) -> None:
        for pipe in self._ours:
            with suppress(OSError):
                pipe.shutdown(socket.SHUT_RDWR)
        self._ours = ()

    def _pipe(self) -> tuple[socket.socket, socket.socket]:
        ours, valve_ours = _pair()
        theirs, valve_theirs = _pair()
        task = asyncio.create_task(_pump(self._vmm, valve_ours, valve_theirs), name="valve")
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)
        self._vmm.on_death.append(task.cancel)
        return ours, theirs


class FakeVmm:
    """The driver. guests: makes the guest of each machine. ends_pipes: as Firecracker does, with each snapshot."""

    def __init__(self, host: MemoryHost, guests: Callable[[], AnyGuest] = FakeGuest, *, ends_pipes: bool = False) -> None:
        self._host = host
        self._ends_pipes = ends_pipes
        self._guests = guests

    async def boot(self, plan: MachinePlan) -> FakeMachine:
        """As the real one: after an error nothing is left."""
        return await self._start(StartVmm(plan.sandbox, plan.generation, plan.accelerator), self._guests)

    async def restore(self, plan: MachinePlan) -> FakeMachine:
        """A guest that is a copy of the one in the snapshot, standing still."""

        def copy() -> AnyGuest:
            image = self._host.image(plan.sandbox)
            return FakeGuest(image) if isinstance(image, FakeGuest) else self._guests()

        return await self._start(StartVmm(plan.sandbox, plan.generation, plan.accelerator, restore=True), copy)

    async def _start(self, op: StartVmm, guests: Callable[[], AnyGuest]) -> FakeMachine:
        try:
            descriptor = await self._host.start_vmm(op)
        except BaseException:
            with suppress(SpaceError):
                await self._host.kill_vmm(op.sandbox, op.generation)
            raise
        vmm = self._host.vmm(op.sandbox)
        assert vmm is not None, "it was started"
        if vmm.guest is None:
            guest = guests()
            vmm.guest = guest
            vmm.on_death.append(guest.kill)
            if isinstance(guest, FakeGuest):
                _watch(guest, vmm)
        return FakeMachine(self._host, vmm, (op.sandbox, op.generation), descriptor, ends_pipes=self._ends_pipes)

    async def adopt(self, sandbox: str, generation: int) -> FakeMachine | None:
        """The machine of an earlier driver."""
        descriptor = await self._host.adopt_vmm(sandbox, generation)
        vmm = self._host.vmm(sandbox)
        if descriptor is None or vmm is None:
            return None
        return FakeMachine(self._host, vmm, (sandbox, generation), descriptor, ends_pipes=self._ends_pipes)


_watches: set[asyncio.Task[None]] = set()


def _watch(guest: FakeGuest, vmm: MemoryVmm) -> None:
    """A guest that shuts down ends its VMM."""

    async def until_off() -> None:
        await guest.off.wait()
        vmm.die(SHUT_DOWN)

    task = asyncio.create_task(until_off(), name="fake guest's power")
    _watches.add(task)
    task.add_done_callback(_watches.discard)
    vmm.on_death.append(lambda: asyncio.get_running_loop().call_soon(task.cancel))


def _pair() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


async def _pump(vmm: MemoryVmm, ours: socket.socket, theirs: socket.socket) -> None:
    """Both directions, while the machine runs; the end of either ends both."""
    loop = asyncio.get_running_loop()

    async def move(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := await loop.sock_recv(source, _CHUNK):
                await vmm.running.wait()
                await loop.sock_sendall(sink, chunk)

    tasks = {asyncio.create_task(move(ours, theirs)), asyncio.create_task(move(theirs, ours))}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        ours.close()
        theirs.close()
