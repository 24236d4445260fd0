"""The QEMU driver of the VMM seam: rootd starts it in its jail, this connects to its sockets and watches its pidfd.

Sockets (in `Instance.vm_run(sandbox)`): qmp, serial, control, bulk. QEMU listens, one connection at a time on each; a driver that
died is replaced by connecting again. What comes over them is hostile.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from space.config.instance import Instance
from space.core.plan.machine import DISK_NODE
from space.host import files
from space.model.errors import DeadlineExceeded, SandboxDied, SpaceError
from space.model.rootd import SandboxOp, StartVmm
from space.node import limits
from space.node.ops import SnapshotRootd
from space.node.pidfd import Pidfd
from space.node.shield import to_the_end
from space.node.vmm import snapshot
from space.node.vmm.console import Console, last_lines
from space.node.vmm.qmp import Qmp
from space.node.vmm.seam import SHUT_DOWN, Channel, MachinePlan, Pipe, SnapshotPlan, Taken

log = logging.getLogger(__name__)

# Kernel buffer of a pipe: bulk frames are 256 KiB, and several should be on the way.
_PIPE_BUFFER = 1 << 20


class QemuMachine:
    """One QEMU process. Make it with `QemuVmm`."""

    ends_pipes = False

    def __init__(self, rootd: SnapshotRootd, op: SandboxOp, pidfd: Pidfd, instance: Instance) -> None:
        directory = instance.vm_run(op.sandbox)
        self._data = instance.data
        self._rootd = rootd
        self._op = op
        self._pidfd = pidfd
        self._directory = directory
        self._qmp: Qmp | None = None
        self._console: Console | None = None
        self._pipes: tuple[Pipe, ...] = ()
        self._unheard_hang_up = False
        self.load_ms = 0.0
        self._stands = False  # because it was asked to

    async def attach(self) -> None:
        """Connect monitor and console."""
        self._console = Console(await self._connect("serial"))
        self._qmp = await Qmp.open(await self._connect("qmp"))

    async def connect(self) -> tuple[Pipe, Pipe]:
        """Fresh pipes; SandboxDied when QEMU does not listen any more."""
        self._hang_up()
        if self._unheard_hang_up:
            # QEMU hears nothing of its sockets while the vCPUs stand still. If the driver before us died then, and the guest had more to
            # say than the socket took, the port waits for that socket for ever: only a hang-up that QEMU does hear lets it go on.
            for name in ("control", "bulk"):
                (await self._connect(name)).close()
            self._unheard_hang_up = False
        control = await self._connect("control")
        try:
            bulk = await self._connect("bulk")
        except BaseException:
            control.close()
            raise
        self._pipes = (control, bulk)
        return control, bulk

    async def pause(self) -> None:
        """Stop the vCPUs (QMP `stop` is idempotent)."""
        self._stands = True
        await self._monitor().execute("stop")

    async def resume(self) -> None:
        """Let them run (QMP `cont` is idempotent)."""
        self._stands = False
        await self._monitor().execute("cont")

    async def keep_going(self, stalled: Callable[[bool], object]) -> None:
        """See `seam.Machine`. QEMU stops a guest whose write finds no space (`werror=enospc`), and tries that again when it goes on."""
        qmp = self._monitor()
        while True:
            await qmp.stalled.wait()
            qmp.stalled.clear()
            if not await self._lacks_room():
                continue
            stalled(True)
            try:
                while await self._lacks_room():
                    await asyncio.sleep(limits.STALL_PAUSE)
                    if not self._stands and files.free_bytes(self._data) >= limits.STALL_ROOM:
                        await qmp.execute("cont")
                        await asyncio.sleep(limits.STALL_LOOK)
            finally:
                stalled(False)

    async def _lacks_room(self) -> bool:
        return bool((await self._monitor().execute("query-status")).get("status") == "io-error")

    async def snapshot(self, plan: SnapshotPlan, channel: Channel) -> Taken:
        """Take one; `vmm.snapshot` conducts it. The pipes stay."""
        del channel
        return await snapshot.take(self._monitor(), self._rootd, self._op, plan)

    async def until_loaded(self) -> None:
        """Until the state that it goes on from is loaded. SandboxDied, with what it said last, when it could not be."""
        began = time.monotonic()
        try:
            await self._monitor().until_loaded()
            self.load_ms = (time.monotonic() - began) * 1000
        except SandboxDied as error:
            raise SandboxDied(f"the VMM of {self._op.sandbox} could not load its state", hint="rootd's log has what it said") from error

    async def show_disk(self, mib: int) -> None:
        """The disk is that large now. The guest, which goes on from a state with a smaller one, hears of it when it runs."""
        await self._monitor().execute("block_resize", **{"node-name": DISK_NODE, "size": mib << 20})

    async def wait(self) -> str:
        """Until QEMU is gone, and why."""
        await self._pidfd.wait()
        return await self._epitaph()

    async def is_dead(self, *, within: float) -> bool:
        """Whether QEMU is gone, or ends within so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._pidfd.wait()
        return self._pidfd.exited

    async def kill(self) -> None:
        """SIGKILL, and return when it is dead; DeadlineExceeded when it is not."""
        if self._pidfd.exited:
            return
        await to_the_end(self._rootd.kill_vmm(self._op.sandbox, self._op.generation), f"kill the VMM of {self._op.sandbox}")
        try:
            async with asyncio.timeout(limits.DEATH):
                await self._pidfd.wait()
        except TimeoutError:
            raise DeadlineExceeded(f"the VMM of {self._op.sandbox} outlives SIGKILL by {limits.DEATH:.0f} s") from None

    def serial(self) -> bytes:
        """The console's last 64 KiB."""
        return self._console.tail() if self._console is not None else b""

    async def aclose(self) -> None:
        """Let go of sockets and pidfd; QEMU runs on. Idempotent."""
        self._hang_up()
        if self._qmp is not None:
            await self._qmp.aclose()
        if self._console is not None:
            await self._console.aclose()
        self._pidfd.close()

    def _monitor(self) -> Qmp:
        assert self._qmp is not None, "attach comes first"
        return self._qmp

    def _hang_up(self) -> None:
        for pipe in self._pipes:
            with suppress(OSError):  # closed by its owner, or by QEMU's end
                pipe.shutdown(socket.SHUT_RDWR)
        self._pipes = ()

    async def _connect(self, name: str) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if name in ("control", "bulk"):
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIPE_BUFFER)
            async with asyncio.timeout(limits.QMP):
                await asyncio.get_running_loop().sock_connect(link, str(self._directory / f"{name}.sock"))
        except TimeoutError:
            link.close()
            raise DeadlineExceeded(f"the VMM of {self._op.sandbox} does not accept on {name}.sock") from None
        except (FileNotFoundError, ConnectionError) as error:
            link.close()
            why = await self._epitaph() if self._pidfd.exited else error.strerror
            raise SandboxDied(f"the VMM of {self._op.sandbox} does not listen on {name}.sock: {why}") from error
        except BaseException:
            link.close()
            raise
        return link

    async def _epitaph(self) -> str:
        """Why QEMU ended: what its console and its last events say. None of it is sure: the guest writes both."""
        for source in (self._qmp, self._console):
            if source is not None:
                await source.drained(1.0)  # what it said before its end lies in the socket
        lines = last_lines(self.serial(), 400)  # a panic prints a trace, of any length, after its first line
        panic = next((line for line in lines if "Kernel panic" in line), None)
        if panic is not None:
            return f"the guest's kernel panicked: {panic[panic.index('Kernel panic') :]}"
        for event in reversed(self._qmp.events if self._qmp is not None else ()):
            if event.get("event") == "SHUTDOWN":
                data = event.get("data")
                why = str(data.get("reason", ""))[:40] if isinstance(data, dict) else ""
                # a microvm has no power switch: the guest's daemon, too, ends it by a reset
                return SHUT_DOWN if why.startswith("guest-") else "the VMM shut down"
        if await self._ran_out_of_memory():
            return "the kernel killed the VMM: it used all the memory that its cgroup allows"
        return "the VMM was killed or crashed"

    async def _ran_out_of_memory(self) -> bool:
        with suppress(SpaceError, OSError, TimeoutError):  # without an answer the reason is shorter
            async with asyncio.timeout(1.0):
                return (await self._rootd.usage(self._op.sandbox, self._op.generation)).oom_kills > 0
        return False


class QemuVmm:
    """The driver. `rootd` starts and kills; `instance` says where the sockets are."""

    def __init__(self, rootd: SnapshotRootd, instance: Instance) -> None:
        self._rootd = rootd
        self._instance = instance

    async def boot(self, plan: MachinePlan) -> QemuMachine:
        """Start QEMU. After an exception or a cancellation nothing of it is left."""
        return await self._start(plan, restore=False)

    async def restore(self, plan: MachinePlan) -> QemuMachine:
        """Start QEMU with the memory and state of the sandbox's snapshot; it stands still."""
        return await self._start(plan, restore=True)

    async def _start(self, plan: MachinePlan, *, restore: bool) -> QemuMachine:
        op = SandboxOp(plan.sandbox, plan.generation)
        try:
            descriptor = await self._rootd.start_vmm(StartVmm(plan.sandbox, plan.generation, plan.accelerator, restore))
            machine = QemuMachine(self._rootd, op, Pidfd(descriptor), self._instance)
        except BaseException:
            await self._no_rest(op)
            raise
        try:
            await machine.attach()
            if restore:
                await machine.until_loaded()
                if plan.disk_mib:
                    await machine.show_disk(plan.disk_mib)
        except BaseException:
            await to_the_end(self._end(machine), f"end the VMM of {plan.sandbox}")
            raise
        return machine

    async def adopt(self, sandbox: str, generation: int) -> QemuMachine | None:
        """Take over the QEMU that an earlier process started; None when it does not live."""
        descriptor = await self._rootd.adopt_vmm(sandbox, generation)
        if descriptor is None:
            return None
        machine = QemuMachine(self._rootd, SandboxOp(sandbox, generation), Pidfd(descriptor), self._instance)
        machine._unheard_hang_up = True
        try:
            await machine.attach()
        except BaseException as error:
            dying = isinstance(error, SandboxDied) and await machine.is_dead(within=limits.DEATH_AFTER_BREAK)
            await machine.aclose()
            if dying:
                return None  # it was killed before we came, and hung up on us
            raise
        return machine

    async def _no_rest(self, op: SandboxOp) -> None:
        """rootd may have started it although its answer did not come."""
        with suppress(SpaceError, OSError):
            await to_the_end(self._rootd.kill_vmm(op.sandbox, op.generation), f"kill what may be left of the VMM of {op.sandbox}")

    @staticmethod
    async def _end(machine: QemuMachine) -> None:
        try:
            await machine.kill()
        except (SpaceError, OSError) as error:
            log.warning("%s", error)  # the caller's release goes on until it is dead
        await machine.aclose()
