"""All processes of one sandbox: those that run, and those that have ended, until somebody forgets them or room is needed.

What has ended goes, oldest first, when there are more than `limits.ENDED` or all spools together have their quota; what a reader is
attached to stays. When the sandbox ends, those that run are lost; when it is gone, all are kept for a while (`archive`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from space.core.wire import guest as wire
from space.core.wire.spool import Head
from space.model.errors import Conflict, InvalidArgument, NoCapacity, NotFound, SandboxDied, SpaceError, Unsupported
from space.model.ids import new_process_id, process_id
from space.node import limits
from space.node.guest import Guest
from space.node.ledger import Kept
from space.node.process import NONE, Process
from space.node.spool import Account, Spool, spools_in
from space.rpc import node_api as api

log = logging.getLogger(__name__)
_MOST_U16 = 0xFFFF


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes of output on the disk: of a process, where its start asks for no other figure, and of all processes of a sandbox."""

    process: int = 16 << 20
    sandbox: int = 256 << 20


@dataclass(frozen=True, slots=True)
class Levels:
    """What of a sandbox's processes its state shows."""

    busy: bool = False
    oom_kills: int = 0
    last_oom: str | None = None


class Processes:
    """Of one sandbox, in this node's life. levels: see there; `watch_levels` tells of changes."""

    def __init__(self, sandbox: str, directory: Path, quota: Quota) -> None:
        self.sandbox = sandbox
        self.directory = directory
        self.account = Account()
        self.levels = Levels()
        self._quota = quota
        self._channel: Guest | None = None
        self._all: dict[str, Process] = {}  # in the order of their starts
        self._running: set[Process] = set()
        self._free: set[Process] = set()
        self._ended: dict[str, Process] = {}  # in the order of their ends
        self._tell: Callable[[], None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._forgotten: dict[str, None] = {}  # ids, the oldest first
        self._lazy: dict[str, Process] = {}  # ended, and in memory alone; the oldest first
        self._lazy_bytes = 0

    # -- the house of its processes ------------------------------------------------------------------------------

    @property
    def channel(self) -> Guest:
        if self._channel is None:
            raise SandboxDied(f"sandbox {self.sandbox} has no channel")
        return self._channel

    @property
    def full(self) -> bool:
        return self.account.bytes >= self._quota.sandbox

    def make_room(self) -> None:
        while self.full and self._evict():
            pass

    def changed(self, process: Process) -> None:
        """Its state is another one now."""
        if process.state == "running" and not process.removed:
            self._running.add(process)
            (self._free.add if process.free else self._free.discard)(process)
        else:
            self._running.discard(process)
            self._free.discard(process)
            if process.removed:
                self._all.pop(process.name, None)
            elif process.name in self._all:
                self._ended[process.name] = process
                while len(self._ended) > limits.ENDED and self._evict():
                    pass
        end = None if process.removed or process.state != "exited" else process.spool.end
        if end is not None and end.oom_killed:
            log.info("%s: %s was killed for want of memory", self.sandbox, process.name)
            self._level(Levels(bool(self._free), self.levels.oom_kills + 1, process.name))
        else:
            self._look()

    def keep_in_memory(self, process: Process) -> None:
        self._lazy[process.name] = process
        self._lazy_bytes += process.spool.unwritten
        while self._lazy_bytes > limits.LAZY_BYTES:
            self._write_lazy(next(iter(self._lazy)))

    def in_background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        if self._stopped:
            task.cancel()
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # whoever waits for it is told; its client may have left
            log.info("%s: %s: %s", self.sandbox, task.get_name(), error, exc_info=None if isinstance(error, SpaceError) else error)

    async def forget_in_guest(self, process: str) -> None:
        try:
            await self.channel.forget(process)
        except SpaceError as error:
            log.info("%s: %s is not forgotten there: %s", self.sandbox, process, error)

    # -- what control asks ---------------------------------------------------------------------------------------

    def start(self, asked: api.Exec, more: Mapping[str, str] = NONE) -> Process:
        """A new process, on its way, or the one that this request has made before; `started` says how that went. Nothing is awaited.

        more: variables that it has where the request does not name them.
        """
        there = self._all.get(asked.process)
        if there is not None and there.is_of(asked):
            return there
        name = self._checked(asked)
        process = Process(name, self, tied=asked.attach and asked.kill_on_disconnect)
        process.free = not asked.attach
        self._all[name] = process
        self._running.add(process)
        process.start(asked, min(asked.spool_bytes or self._quota.process, self._quota.sandbox), more)
        return process

    def get(self, name: str) -> Process:
        """NotFound when it is not here (any more)."""
        process = self._all.get(name)
        if process is None or not process.started.done():
            raise NotFound(f"sandbox {self.sandbox} has no process {name[:64]}")
        return process

    def infos(self) -> list[api.ProcessInfo]:
        """All, in the order of their starts."""
        return [process.info(self.sandbox) for process in self._all.values() if process.started.done()]

    async def forget(self, name: str) -> None:
        """Kill what is left of it and drop its output; idempotent. A start with that id which comes after this is refused."""
        self._remember_forgotten(name)
        process = self._all.get(name)
        if process is None:
            return
        if not process.started.done():  # the guest knows it by its name from its start on
            with suppress(SpaceError):
                try:
                    await process.running()
                except asyncio.CancelledError:
                    process.kill()
                    raise
        if process.state == "running" and not process.removed:
            await self.channel.forget(name)
        if self._all.get(name) is process:
            self._drop(process)

    def _remember_forgotten(self, name: str) -> None:
        self._forgotten[name] = None
        while len(self._forgotten) > limits.FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]

    def _checked(self, asked: api.Exec) -> str:
        try:
            name = process_id(asked.process) if asked.process else new_process_id()
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        if name in self._all:
            raise Conflict(
                f"sandbox {self.sandbox} has a process {name} already, of another request", hint="take another id, or attach to it"
            )
        if name in self._forgotten:
            raise Conflict(f"process {name} was deleted, maybe before it began", hint="take another id")
        if asked.pty is not None:
            if not asked.stdin:
                raise InvalidArgument("a process with a terminal has standard input: pty needs stdin")
            window(asked.pty.rows, asked.pty.cols)
        if asked.spool_bytes and not limits.MIN_SPOOL <= asked.spool_bytes <= self._quota.sandbox:
            raise InvalidArgument(
                f"spool_bytes is {limits.MIN_SPOOL} to {self._quota.sandbox} (or 0 for {self._quota.process}), not {asked.spool_bytes}"
            )
        if len(self._running) >= limits.PROCESSES:
            raise NoCapacity(
                f"{len(self._running)} processes run in sandbox {self.sandbox}, at most {limits.PROCESSES} can", hint="end or kill some"
            )
        return name

    # -- what its sandbox says -----------------------------------------------------------------------------------

    def watch_levels(self, tell: Callable[[], None]) -> None:
        """Call it at each change of the levels from now on."""
        self._tell = tell

    def connected(self, guest: Guest) -> None:
        """This is the guest."""
        self._channel = guest

    def parted(self) -> None:
        """There is no guest for now: those that run go on when there is one again."""
        self._channel = None

    def instant(self) -> list[Kept]:
        """Those that run, and what of their output is here: an instant of the guest's which is taken now has that, or more."""
        return [Kept(each.name, *each.spool.lanes) for each in self._running if each.started.done() and not each.removed]

    def go_back(self, kept: list[Kept], reason: str) -> None:
        """Be what they were at that instant: those that ran then run, with no output before it, and all others are lost."""
        self.lose(reason)
        for each in kept:
            if (process := self._all.get(each.process)) is not None:
                head = process.spool.head_at(each.stdout, each.stderr)
                self._drop(process)
                self._inherit(head)

    def heads(self, kept: list[Kept]) -> list[Head]:
        """What a machine that is made of that instant has of them."""
        there = [(self._all[each.process], each) for each in kept if each.process in self._all]
        return [process.spool.head_at(each.stdout, each.stderr) for process, each in there if not process.removed]

    def inherit(self, heads: list[Head]) -> None:
        """Have those of another sandbox, of which this one's machine is a copy."""
        for head in heads:
            self._inherit(head)

    def clear(self) -> None:
        """Drop all that run: the machine that was to have them has not come to be."""
        for process in list(self._running):
            self._drop(process)

    def _inherit(self, head: Head) -> None:
        head = msgspec.structs.replace(head, tied=False)  # whoever it was tied to is not there
        process = self._all[head.process] = Process(head.process, self, tied=False, spool=Spool.begin(self.directory, head, self.account))
        self._running.add(process)
        self.changed(process)

    @property
    def running(self) -> int:
        """How many have not ended, as far as is known."""
        return len(self._running)

    async def reattach(self, *, restarted: bool = True) -> None:
        """A guest that ran before: go on with those that it has kept, and kill there what nobody here knows. restarted: the node was, and
        with it went every client.
        """
        try:
            kept = {each.process: each for each in await self.channel.processes()}
        except Unsupported:
            kept = {}
        for process in list(self._running):
            if process.name in kept:
                del kept[process.name]
                process.resume(clients=not restarted)
            else:
                process.lose("its machine does not have it any more")
        for each in kept.values():
            self.in_background(self.forget_in_guest(each.process), f"forget {each.process}")

    def tidy(self) -> None:
        """The guest is talked to in another session: those that are over here, which it was not told, go there."""
        self.in_background(self._tidy(), "tidy")

    async def _tidy(self) -> None:
        with suppress(Unsupported):
            for each in await self.channel.processes():
                process = self._all.get(each.process)
                if process is None or process.state != "running":
                    await self.forget_in_guest(each.process)

    def lose(self, reason: str) -> None:
        """The sandbox has ended: nothing runs in it any more. Idempotent."""
        if self._stopped:
            return
        for process in list(self._running):
            process.lose(reason)
        self._channel = None

    def write(self) -> None:
        """Have the disk know what is in memory alone: records of short runs that were read by their client."""
        while self._lazy:
            self._write_lazy(next(iter(self._lazy)))

    # -- before and after ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find what an earlier node has written."""
        found = []
        for name, numbers in spools_in(self.directory).items():
            spool = Spool.load(self.directory, name, numbers, self.account)
            if spool is not None:
                found.append(Process(name, self, tied=spool.head.tied, spool=spool))
        for process in sorted(found, key=lambda each: each.spool.head.started_us):
            self._all[process.name] = process
        for process in sorted(found, key=_ended_us):
            self.changed(process)
            if process.state != "running":
                process.spool.light()

    def __len__(self) -> int:
        return len(self._all)

    def drop(self) -> None:
        """Drop everything."""
        self._tell = None
        for process in list(self._all.values()):
            self._drop(process)

    def stop(self) -> None:
        """The node is ending: nothing of this goes on; the next node finds it on the disk."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        for process in self._all.values():
            process.stop()

    def _write_lazy(self, name: str) -> None:
        process = self._lazy.pop(name)
        self._lazy_bytes -= process.spool.unwritten
        try:
            process.spool.flush()
            process.spool.light()
        except OSError as error:
            log.info("%s: the record of %s is in memory alone: %s", self.sandbox, name, error)

    def _evict(self) -> bool:
        oldest = next((each for each in self._ended.values() if not each.readers), None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _drop(self, process: Process) -> None:
        self._all.pop(process.name, None)
        self._ended.pop(process.name, None)
        if self._lazy.pop(process.name, None) is not None:
            self._lazy_bytes -= process.spool.unwritten
        if process.attached and process.state != "running" and self._channel is not None:
            self.in_background(self.forget_in_guest(process.name), f"forget {process.name}")
        process.remove()
        self._running.discard(process)
        self._free.discard(process)
        self._look()

    def _look(self) -> None:
        if self.levels.busy != bool(self._free):
            self._level(replace(self.levels, busy=bool(self._free)))

    def _level(self, levels: Levels) -> None:
        if levels != self.levels:
            self.levels = levels
            if self._tell is not None:
                self._tell()


def window(rows: int, cols: int) -> wire.Window:
    """A terminal's size; InvalidArgument when it cannot be one."""
    if not (1 <= rows <= _MOST_U16 and 1 <= cols <= _MOST_U16):
        raise InvalidArgument(f"a terminal has 1 to {_MOST_U16} rows and cols, not {rows} and {cols}")
    return wire.Window(rows, cols)


def _ended_us(process: Process) -> int:
    end = process.spool.end
    return end.ended_us if end is not None else 0
