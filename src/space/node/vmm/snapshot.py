"""A snapshot of a QEMU, as the driver conducts it: what stands still, and for how long (docs/adr/0009).

    begin -> ready -> stop -> device state -> go -> copied -> cont -> done

rootd's process copies memory and disk; this tells it when. Whatever fails, the machine runs again if it ran, and rootd's process,
which sees this side hang up, removes what it has made.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from contextlib import suppress
from typing import Any

from space.model.errors import DeadlineExceeded, Internal, ProtocolError, SpaceError, from_code
from space.model.rootd import BeginSnapshot, SandboxOp
from space.node import limits
from space.node.ops import SnapshotRootd
from space.node.shield import to_the_end
from space.node.vmm.qmp import Qmp
from space.node.vmm.seam import SnapshotPlan, Taken

_MESSAGE = 4096
_FDSET = 77  # of the device state; the command line has others


class Talk:
    """The conversation with rootd's process."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)

    async def hear(self, step: str, seconds: float) -> dict[str, Any]:
        """Its next words, which must be those of `step`; what it says failed is raised."""
        loop = asyncio.get_running_loop()
        there = asyncio.Event()
        loop.add_reader(self._socket, there.set)
        try:
            async with asyncio.timeout(seconds):
                await there.wait()
            words = self._socket.recv(_MESSAGE)
        except TimeoutError:
            raise DeadlineExceeded(f"the snapshot was not {step} within {seconds:.0f} s") from None
        except OSError as error:
            raise Internal(f"the snapshot's process broke off: {error.strerror}") from error
        finally:
            loop.remove_reader(self._socket)
        if not words:
            raise Internal(f"the snapshot's process ended before it was {step}", hint="rootd's log says why")
        said: dict[str, Any] = json.loads(words)
        if said.get("step") == "failed":
            raise from_code(str(said.get("code")), str(said.get("message")))
        if said.get("step") != step:
            raise ProtocolError(f"the snapshot's process said {said.get('step')!r:.40}, not {step!r}")
        return said

    def go(self) -> None:
        self._socket.send(b"go", socket.MSG_NOSIGNAL)

    def hang_up(self) -> None:
        self._socket.close()


class Clock:
    """Milliseconds of each stage."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.stages[stage] = round((now - self._last) * 1000, 3)
        self._last = now


async def take(qmp: Qmp, rootd: SnapshotRootd, op: SandboxOp, plan: SnapshotPlan) -> Taken:
    """Take it; see `seam.Machine.snapshot`."""
    clock = Clock()
    door = await rootd.begin_snapshot(BeginSnapshot(op.sandbox, op.generation, plan.snapshot, plan.shared, plan.durable))
    talk = Talk(door.talk)
    try:
        await talk.hear("ready", limits.SNAPSHOT_READY)
        clock.lap("ready")
        ran = (await qmp.execute("query-status")).get("running") is True
        began = time.perf_counter()
        private = await _window(qmp, talk, door.state, clock, ran=ran, resume=ran and plan.resume)
        stopped = (time.perf_counter() - began) * 1000
        try:
            await talk.hear("done", limits.SNAPSHOT_DONE)
        except BaseException:
            if ran and not plan.resume:
                await to_the_end(_run_again(qmp), f"let {op.sandbox} run again")
            raise
        clock.lap("done")
    finally:
        talk.hang_up()
        os.close(door.state)
    return Taken(plan.snapshot, round(stopped, 3), private, clock.stages)


async def _window(qmp: Qmp, talk: Talk, state: int, clock: Clock, *, ran: bool, resume: bool) -> int:
    """While nothing runs. The bytes of memory that were copied."""
    try:
        await qmp.execute("stop")
        clock.lap("stop")
        await qmp.send("add-fd", state, **{"fdset-id": _FDSET})
        try:
            # live: the disks stay this machine's
            await qmp.execute("xen-save-devices-state", filename=f"/dev/fdset/{_FDSET}", live=False)
        finally:
            with suppress(SpaceError):
                await qmp.execute("remove-fd", **{"fdset-id": _FDSET})
        clock.lap("state")
        talk.go()
        copied = await talk.hear("copied", limits.SNAPSHOT_COPY)
        clock.lap("copy")
        clock.stages |= {name: float(copied.get(f"{name}_ms", 0)) for name in ("memory", "disk")}
    except BaseException:
        if ran:
            await to_the_end(_run_again(qmp), "let a machine run again")
        raise
    if resume:
        await to_the_end(qmp.execute("cont"), "let a machine run on")
        clock.lap("resume")
    return int(copied.get("pages", 0)) * 4096


async def _run_again(qmp: Qmp) -> None:
    with suppress(SpaceError):  # it died: its owner hears of that
        await qmp.execute("cont")
