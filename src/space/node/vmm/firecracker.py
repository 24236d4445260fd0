"""The Firecracker driver of the VMM seam: rootd jails and starts it, this speaks to its API and connects to its guest by vsock.

In `Instance.vm_run(sandbox)`, which the jail sees as `/api`: api.sock, v.sock, serial (a pipe). The VMM may do there what it likes: what
is opened is checked to be what it should be (`fcapi.connect`). What comes back is hostile.

A pipe of the channel is a connection to v.sock over which `CONNECT port` was said and answered. Firecracker passes that on to the guest's
kernel: while none is there it does not answer, or hangs up; so each attempt has a short deadline of its own. The first connection after a
restore is accepted and then cut, when the guest's kernel hears that its transport was reset: what was cut so soon is made again. A
snapshot resets the vsock of the machine that it is taken of as well, so its pipes end when it runs on (`seam.Channel`).
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from space.config.instance import Instance
from space.core.plan import firecracker as plan
from space.model.errors import DeadlineExceeded, ProtocolError, SandboxDied, SpaceError
from space.model.rootd import BeginSnapshot, SandboxOp, StartVmm
from space.node import limits
from space.node.ops import SnapshotRootd
from space.node.pidfd import Pidfd
from space.node.shield import to_the_end
from space.node.vmm import fcapi
from space.node.vmm.console import PipeConsole, last_lines
from space.node.vmm.seam import SHUT_DOWN, Channel, MachinePlan, Pipe, SnapshotPlan, Taken
from space.node.vmm.snapshot import Clock, Talk

log = logging.getLogger(__name__)

_ATTEMPT = 1.0  # seconds for the answer to a CONNECT: under load a good one took half of that
_PAUSE = 0.01  # and between two: a boot takes seconds, and a refusal comes at once
_SETTLED, _LONGEST_MOMENT = 0.02, 0.5  # after a restore a connection that is cut was cut within 10 ms of its answer, nested in emulation
_BUFFER = 1 << 20
_ENDED = re.compile(rb"Firecracker exit\w* \w+\. exit_code=(\d+)")


class FirecrackerMachine:
    """One Firecracker process. Make it with `FirecrackerVmm`."""

    ends_pipes = True

    def __init__(self, rootd: SnapshotRootd, op: SandboxOp, pidfd: Pidfd, directory: Path, uid: int) -> None:
        self._rootd = rootd
        self._op = op
        self._pidfd = pidfd
        self._directory = directory
        self._uid = uid
        self._api = fcapi.Api(directory / plan.API_SOCKET, uid)
        self._console: PipeConsole | None = None
        self._pipes: tuple[Pipe, ...] = ()
        self._tracked = False  # what it wrote since its snapshot is known, all of it
        self._fresh = False  # its guest's kernel is told of a reset, and nobody has connected since
        self._runs = asyncio.Event()  # it has run once since its state was loaded
        self._runs.set()
        self.load_ms = 0.0

    async def attach(self) -> None:
        """Open the console, and wait until the API answers."""
        self._console = PipeConsole(_open_console(self._directory / plan.SERIAL))
        try:
            async with asyncio.timeout(limits.FIRECRACKER_START):
                await self._until_it_answers()
        except TimeoutError:
            raise DeadlineExceeded(f"the VMM of {self._op.sandbox} did not begin within {limits.FIRECRACKER_START:.0f} s") from None

    async def _until_it_answers(self) -> None:
        while True:
            try:
                await self._api.call(plan.look(), limits.API)
            except SandboxDied as error:
                if self._pidfd.exited:
                    raise SandboxDied(f"the VMM of {self._op.sandbox} ended before it began: {await self._epitaph()}") from error
                await asyncio.sleep(_PAUSE)  # the jailer is not through; it makes the socket when it is
            else:
                return

    async def boot(self, machine: MachinePlan) -> None:
        """From an API that answers to a guest that boots."""
        for call in plan.boot(machine.cpus, machine.memory_mib):
            await self._call(call)

    async def load(self, machine: MachinePlan) -> None:
        """Its state and memory; it stands still then."""
        began = time.monotonic()
        for call in plan.load():
            await self._call(call, limits.LOAD)
        self.load_ms = (time.monotonic() - began) * 1000
        self._tracked = self._fresh = True
        self._runs.clear()
        if machine.disk_mib:
            await self._call(plan.show_disk())

    async def connect(self) -> tuple[Pipe, Pipe]:
        """Fresh pipes, as soon as the guest takes them; SandboxDied when its VMM is gone."""
        self._hang_up()
        await self._while_alive(self._runs.wait())  # it answers nothing before, and what asked meanwhile would be cut
        while True:
            began = time.monotonic()
            control = await self._connect(plan.CONTROL_PORT)
            try:
                bulk = await self._connect(plan.BULK_PORT)
                if not self._fresh or await _stay((control, bulk), time.monotonic() - began):
                    self._fresh = False
                    self._pipes = (control, bulk)
                    return control, bulk
                bulk.close()
            except BaseException:
                control.close()
                raise
            control.close()

    async def pause(self) -> None:
        """Stop the vCPUs; twice is fine."""
        await self._call(plan.pause())

    async def resume(self) -> None:
        """Let them run; twice is fine."""
        await self._call(plan.resume())
        self._runs.set()

    async def snapshot(self, wanted: SnapshotPlan, channel: Channel) -> Taken:
        """Take one: Firecracker writes memory and state into its jail, rootd's process takes them from there with the disk."""
        clock = Clock()
        request = BeginSnapshot(self._op.sandbox, self._op.generation, wanted.snapshot, wanted.shared, wanted.durable)
        door = await self._rootd.begin_snapshot(request)
        os.close(door.state)  # of a VMM that writes by descriptor
        talk = Talk(door.talk)
        try:
            await talk.hear("ready", limits.SNAPSHOT_READY)
            clock.lap("ready")
            ran = (await self._api.call(plan.look(), limits.API)).get("state") == "Running"
            await channel.part()
            window = _Window(talk, clock, channel, ran=ran, resume=ran and wanted.resume)
            private = await self._window(window)
            try:
                await talk.hear("done", limits.SNAPSHOT_DONE)
            except BaseException:
                if ran and not wanted.resume:
                    await self._run_again(channel)
                raise
            clock.lap("done")
        finally:
            talk.hang_up()
        return Taken(wanted.snapshot, round(window.stopped_ms, 3), private, clock.stages)

    async def _window(self, window: _Window) -> int:
        """While nothing runs. The bytes of memory that were copied."""
        talk, clock, began = window.talk, window.clock, time.perf_counter()
        try:
            await self._call(plan.pause())
            clock.lap("stop")
            self._fresh = True  # Firecracker resets the vsock of the machine that it saves, too
            diff, self._tracked = self._tracked, False  # Firecracker begins to track anew: the next one is of all memory
            await self._call(plan.create_snapshot(diff=diff), limits.SNAPSHOT_COPY)
            clock.lap("state")
            talk.go()
            copied = await talk.hear("copied", limits.SNAPSHOT_COPY)
            clock.lap("copy")
            clock.stages |= {name: float(copied.get(f"{name}_ms", 0)) for name in ("memory", "disk")}
        except BaseException:
            if window.ran:
                await self._run_again(window.channel)
            raise
        if window.resume:
            await to_the_end(self._call(plan.resume()), "let a machine run on")
            clock.lap("resume")
        window.stopped_ms = (time.perf_counter() - began) * 1000
        if window.resume:
            await window.channel.join()
            clock.lap("join")
        return int(copied.get("pages", 0)) * 4096

    async def _run_again(self, channel: Channel) -> None:
        """There is no snapshot. After a cancellation nobody needs the channel: its sandbox is to go."""
        await to_the_end(self._resume_if_alive(), f"let {self._op.sandbox} run again")
        if not isinstance(sys.exc_info()[1], asyncio.CancelledError):
            await channel.join()

    async def _resume_if_alive(self) -> None:
        with suppress(SpaceError):  # it died: its owner hears of that
            await self._call(plan.resume())

    async def keep_going(self, stalled: Callable[[bool], object]) -> None:
        """Firecracker does not stop a guest whose write finds no space: the guest is told of an error, and nothing stands still."""
        del stalled
        await asyncio.get_running_loop().create_future()

    async def wait(self) -> str:
        """Until it is gone, and why."""
        await self._pidfd.wait()
        return await self._epitaph()

    async def is_dead(self, *, within: float) -> bool:
        """Whether it is gone, or ends within so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._pidfd.wait()
        return self._pidfd.exited

    async def kill(self) -> None:
        """SIGKILL, and return when it is dead; DeadlineExceeded when it is not."""
        if self._pidfd.exited:
            return
        await to_the_end(self._rootd.kill_vmm(self._op.sandbox, self._op.generation), f"kill the VMM of {self._op.sandbox}")
        if not await self.is_dead(within=limits.DEATH):
            raise DeadlineExceeded(f"the VMM of {self._op.sandbox} outlives SIGKILL by {limits.DEATH:.0f} s")

    def serial(self) -> bytes:
        """The console's last 64 KiB, with what Firecracker says itself."""
        return self._console.tail() if self._console is not None else b""

    async def aclose(self) -> None:
        """Let go of console, pipes and pidfd; it runs on. Idempotent."""
        self._hang_up()
        if self._console is not None:
            await self._console.aclose()
        self._pidfd.close()

    async def _call(self, call: plan.Call, seconds: float = limits.API) -> None:
        try:
            await self._api.call(call, seconds)
        except SandboxDied as error:
            why = await self._epitaph() if await self.is_dead(within=limits.DEATH_AFTER_BREAK) else error.message
            raise SandboxDied(f"the VMM of {self._op.sandbox} is gone: {why}") from error

    def _hang_up(self) -> None:
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.shutdown(socket.SHUT_RDWR)
        self._pipes = ()

    async def _connect(self, port: int) -> Pipe:
        """One pipe, however often it takes."""
        while True:
            if self._pidfd.exited:
                raise SandboxDied(f"the VMM of {self._op.sandbox} is gone: {await self._epitaph()}")
            try:
                link = await fcapi.connect(self._directory / plan.VSOCK_SOCKET, self._uid, _ATTEMPT)
            except (OSError, TimeoutError):
                await asyncio.sleep(_PAUSE)
                continue
            try:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
                async with asyncio.timeout(_ATTEMPT):
                    if await _say_connect(link, port):
                        return link
            except (OSError, TimeoutError):
                pass
            except BaseException:
                link.close()
                raise
            link.close()
            await asyncio.sleep(_PAUSE)

    async def _while_alive(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do it; SandboxDied as soon as the VMM ends."""
        tasks = {asyncio.ensure_future(work), asyncio.ensure_future(self._pidfd.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _epitaph(self) -> str:
        """Why it ended: what its console says last. None of it is sure: the guest writes there too."""
        if self._console is not None:
            await self._console.drained(1.0)
        said = self.serial()
        panic = next((line for line in last_lines(said, 400) if "Kernel panic" in line), None)
        if panic is not None:
            return f"the guest's kernel panicked: {panic[panic.index('Kernel panic') :]}"
        if (ended := _ENDED.search(said[-4096:])) is not None:
            return SHUT_DOWN if ended[1] == b"0" else f"the VMM ended with status {ended[1].decode()[:4]}"
        with suppress(SpaceError, OSError, TimeoutError):  # without an answer the reason is shorter
            async with asyncio.timeout(1.0):
                if (await self._rootd.usage(self._op.sandbox, self._op.generation)).oom_kills > 0:
                    return "the kernel killed the VMM: it used all the memory that its cgroup allows"
        return "the VMM was killed or crashed"


@dataclass(slots=True)
class _Window:
    """A snapshot's: who copies, who talks to the guest. ran, resume: whether it ran before, and is to run after it."""

    talk: Talk
    clock: Clock
    channel: Channel
    ran: bool
    resume: bool
    stopped_ms: float = 0.0


async def _say_connect(link: socket.socket, port: int) -> bool:
    """Whether the guest has accepted. The answer is a line; it is read byte by byte, for what follows it belongs to the guest."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(link, b"CONNECT %d\n" % port)
    line = b""
    while not line.endswith(b"\n") and len(line) < 32:
        byte = await loop.sock_recv(link, 1)
        if not byte:
            return False
        line += byte
    return line.startswith(b"OK ")


async def _stay(pipes: tuple[Pipe, Pipe], took: float) -> bool:
    """Whether both are still there a moment later, which is longer where it took longer to connect: the guest is slow there.

    A guest's kernel that has reset a connection says so only when something comes over it: a zero, which begins no frame.
    It says nothing before it is greeted, so what comes back is the end.
    """
    try:
        for pipe in pipes:
            pipe.send(b"\0")
    except OSError:
        return False
    await asyncio.sleep(min(_LONGEST_MOMENT, max(_SETTLED, 2 * took)))
    for pipe in pipes:
        try:
            if not pipe.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return False
        except BlockingIOError:
            continue
        except OSError:
            return False
    return True


def _open_console(path: Path) -> io.FileIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    there = os.fstat(descriptor)
    if not stat.S_ISFIFO(there.st_mode) or there.st_uid != 0:
        os.close(descriptor)
        raise ProtocolError(f"{path.name} is not the console that was made for the VMM")
    return io.FileIO(descriptor, "rb")


class FirecrackerVmm:
    """The driver. `rootd` starts and kills; `instance` says where the sockets are."""

    def __init__(self, rootd: SnapshotRootd, instance: Instance) -> None:
        self._rootd = rootd
        self.instance = instance

    async def boot(self, plan: MachinePlan) -> FirecrackerMachine:
        """Start it. After an exception or a cancellation nothing of it is left."""
        return await self._start(plan, restore=False)

    async def restore(self, plan: MachinePlan) -> FirecrackerMachine:
        """Start it with the memory and state of the sandbox's snapshot; it stands still."""
        return await self._start(plan, restore=True)

    async def _start(self, wanted: MachinePlan, *, restore: bool) -> FirecrackerMachine:
        op = SandboxOp(wanted.sandbox, wanted.generation)
        try:
            descriptor = await self._rootd.start_vmm(StartVmm(op.sandbox, op.generation, wanted.accelerator, restore))
            machine = self._machine(op, descriptor)
        except BaseException:
            with suppress(SpaceError, OSError):  # rootd may have started it although its answer did not come
                await to_the_end(self._rootd.kill_vmm(op.sandbox, op.generation), f"kill what may be left of the VMM of {op.sandbox}")
            raise
        try:
            await machine.attach()
            await (machine.load(wanted) if restore else machine.boot(wanted))
        except BaseException:
            await to_the_end(_end(machine), f"end the VMM of {op.sandbox}")
            raise
        return machine

    def knows(self, sandbox: str) -> bool:
        """Whether a VMM that runs for it is one of this driver's."""
        with suppress(FileNotFoundError, PermissionError):
            return stat.S_ISFIFO((self.instance.vm_run(sandbox) / plan.SERIAL).lstat().st_mode)
        return False

    async def adopt(self, sandbox: str, generation: int) -> FirecrackerMachine | None:
        """Take over the one that an earlier process started; None when it does not live."""
        descriptor = await self._rootd.adopt_vmm(sandbox, generation)
        if descriptor is None:
            return None
        machine = self._machine(SandboxOp(sandbox, generation), descriptor)
        machine._fresh = True  # the driver before us may have died within a snapshot
        try:
            await machine.attach()
        except BaseException as error:
            dying = isinstance(error, SandboxDied) and await machine.is_dead(within=limits.DEATH_AFTER_BREAK)
            await machine.aclose()
            if dying:
                return None  # it was killed before we came
            raise
        return machine

    def _machine(self, op: SandboxOp, descriptor: int) -> FirecrackerMachine:
        directory = self.instance.vm_run(op.sandbox)
        # the directory is the VMM's own, made by rootd in a directory of root's: its owner is the uid of the slot
        return FirecrackerMachine(self._rootd, op, Pidfd(descriptor), directory, directory.lstat().st_uid)


async def _end(machine: FirecrackerMachine) -> None:
    try:
        await machine.kill()
    except (SpaceError, OSError) as error:
        log.warning("%s", error)  # the caller's release goes on until it is dead
    await machine.aclose()
