"""One process of a sandbox: a task takes its output from the guest into its spool; readers and writers come and go beside it.

    start, resume -> running -> exited             (the guest's last word)
                             -> lost(reason)       (its sandbox ended first)

What the guest sends is put into the spool before the next piece is taken, so credit holds back a process whose output has no place: a full
disk, or with `block` a full spool that a reader has not read. The guest forgets the process (our CLOSE) only when its end is written, and
answers from the spool's offsets on after a restart of the node. A process that is killed with its client (`tied`) is killed then, too, so
its output is on the disk only when there is much of it, or when the node is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import msgspec

from space.core.wire import guest as wire
from space.core.wire.spool import End, Head
from space.model.errors import Conflict, NoCapacity, NotFound, ProtocolError, SandboxDied, SpaceError, Unavailable
from space.node import limits
from space.node import process_record as record
from space.node.guest import Guest
from space.node.house import House
from space.node.spool import Spool
from space.rpc import node_api as api
from space.rpc.session import Data, Parted, Stream
from space.rpc.stream import Gate

NONE: Mapping[str, str] = MappingProxyType({})

if TYPE_CHECKING:
    from space.node.reader import Reader

log = logging.getLogger(__name__)
Opening = Callable[[Guest], Awaitable[Stream]]
State = Literal["running", "exited", "lost"]
_KILL = wire.Signal(9, all=True)


class Process:
    """See the module. free: nobody's connection keeps it: started detached, or it has survived its client."""

    __slots__ = (
        "_asked", "_house", "_joining", "_killing", "_spool", "_stdin_bytes", "_stdin_closed", "_stream", "_task", "_turn", "fault", "free",
        "held", "name", "named", "news", "progress", "readers", "removed", "started", "tied",
    )  # fmt: skip

    def __init__(self, name: str, house: House, *, tied: bool, spool: Spool | None = None) -> None:
        self.name = name
        self.tied = tied
        self.named = False  # its client knows its id, and may come back for it before it has been told that it runs
        self.free = spool is not None and not tied
        self.readers: set[Reader] = set()
        self.news = Gate()  # opened whenever there is more to read, or its end
        self.progress = Gate()  # opened whenever a reader has read, or left
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.removed = False
        self.held: str | None = None  # why its output is not taken at the moment
        self.fault: SpaceError | None = None  # of its stream, when its sandbox ends of it or with it
        self._asked: bytes | None = None  # a digest of the request: in memory alone, for an environment may hold secrets
        self._house = house
        self._spool = spool
        self._stream: Stream | None = None
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # writers', piece by piece
        self._stdin_bytes = 0 if spool is None else spool.stdin.bytes
        self._stdin_closed = spool is not None and spool.stdin.closed
        self._killing = False
        self._joining: Gate | None = None  # while its stream has been cut, and another is on its way
        if spool is not None:
            self.started.set_result(None)

    # -- what it is ----------------------------------------------------------------------------------------------

    @property
    def spool(self) -> Spool:
        """Its spool, once it has started; NotFound when it was forgotten."""
        if self._spool is None or self.removed:
            raise NotFound(f"process {self.name} was forgotten")
        return self._spool

    @property
    def state(self) -> State:
        end = None if self._spool is None else self._spool.end
        return "running" if end is None else "exited" if end.reason is None else "lost"

    async def running(self) -> None:
        """Until it has started; raises why it has not."""
        while not self.started.done():
            await self.news.wait()
        self.started.result()

    @property
    def stdin_bytes(self) -> int:
        """Bytes of standard input that the guest has taken."""
        return self._stdin_bytes

    def info(self, sandbox: str) -> api.ProcessInfo:
        """As control sees it."""
        spool = self.spool
        head, end = spool.head, spool.end or End(0, 0, 0, 0)
        exited = self.state == "exited"
        return api.ProcessInfo(
            process=self.name,
            sandbox=sandbox,
            pid=head.pid,
            argv=[word.decode("utf-8", "surrogateescape") for word in spool.argv()],
            cwd=head.cwd,
            user=head.user,
            pty=head.pty,
            state=self.state,
            started_us=head.started_us,
            ended_us=end.ended_us or None,
            stdout_bytes=spool.lanes[0],
            stderr_bytes=spool.lanes[1],
            stdout_first=spool.first[0],
            stderr_first=spool.first[1],
            stdin="none" if not head.stdin else "closed" if self._stdin_closed or spool.end is not None else "open",
            stdin_bytes=self._stdin_bytes,
            code=end.code,
            signal=end.signal,
            oom_killed=end.oom_killed,
            timed_out=end.timed_out,
            wall_ms=end.wall_ms if exited else None,
            reason=end.reason or self.held,
        )

    # -- its life ------------------------------------------------------------------------------------------------

    def start(self, asked: api.Exec, quota: int, more: Mapping[str, str] = NONE) -> None:
        """Begin; `started` says how that went. more: variables beside those of the request, which is repeated without them."""
        if asked.named:
            self.named, self._asked = True, record.digest(asked)

        whole = msgspec.structs.replace(asked, env={**more, **asked.env}) if more else asked

        def begin(pid: int) -> Head:
            return record.head_of(self.name, pid, asked, tied=self.tied, quota=quota)

        self._task = asyncio.create_task(self._live(lambda guest: guest.open_exec(whole, keep=self.name), begin), name=self.name)

    def is_of(self, asked: api.Exec) -> bool:
        """Whether this request has made it. After a restart of the node its environment, time and quota are not compared."""
        if not asked.named or asked.attach:
            return False
        if self._asked is not None:
            return self._asked == record.digest(asked)
        return self._spool is not None and not self.removed and record.is_of(self._spool.head, self._spool.argv(), asked)

    def resume(self, *, clients: bool = False) -> None:
        """Go on with it in a new session. It is killed if that was asked for meanwhile, or if it is tied to a client and these are gone."""
        self._killing = self._killing or (self.tied and not clients)
        self.fault = None
        self._task = asyncio.create_task(self._live(self._attach, None), name=self.name)

    def lose(self, reason: str) -> None:
        """Its sandbox has ended; nothing happens to one that has ended before."""
        if self.state != "running" or self.removed:
            return
        if self._task is not None:
            self._task.cancel()
        if self._spool is None:
            self._not_started(SandboxDied(reason))
            return
        out, err = self._spool.lanes
        self._finish(End(record.now(), out, err, self._stdin_bytes, reason=reason[:1000]))
        self._house.in_background(self._write(), f"{self.name}: its end")

    def remove(self) -> None:
        """Drop everything of it here; readers are told NotFound."""
        if self._task is not None:
            self._task.cancel()
        self._not_started(NotFound(f"process {self.name} was forgotten"))
        self.removed = True
        if self._spool is not None:
            self._spool.remove()
        self.news.open()
        self.progress.open()

    def stop(self) -> None:
        """The node is ending: leave it as it is, here and in the guest."""
        if self._task is not None:
            self._task.cancel()

    @property
    def attached(self) -> bool:
        """Whether the guest still has it, as far as we know."""
        return self._task is not None and not self._task.done()

    def left(self, *, kill: bool) -> None:
        """A client of it has left before its end."""
        if self.state != "running" or self.removed:
            return
        if kill or not (self.started.done() or self.named):
            self.kill()
        elif not self.free:
            self.free = True
            self._house.changed(self)

    def kill(self) -> None:
        """SIGKILL to everything of it, soon, whatever stands before it in its standard input."""
        if not self._killing:
            self._killing = True
            self._house.in_background(self._kill(), f"{self.name}: kill")

    async def _kill(self) -> None:
        await asyncio.wait({self.started})
        if self.started.exception() is not None or self._stream is None:
            return
        if self._stdin_bytes or self._turn.locked():
            # The guest reads our messages in order with the input, which may be stuck before a process that does not read. A new
            # stream has none before it.
            self._stream.reset_now("unavailable", "attached again for a signal")
        else:
            try:
                await self._stream.send_message(_KILL)
            except SpaceError as error:
                log.info("%s: not signalled: %s", self.name, error)

    async def _live(self, opening: Opening, begin: Callable[[int], Head] | None) -> None:
        try:
            while not await self._follow(opening, begin):
                if self._spool is not None:
                    opening, begin = self._attach, None
                elif await self._is_there():
                    opening = self._attach_first
        except (SandboxDied, ProtocolError) as error:
            self.fault = error
            self._not_started(error)  # else the sandbox's end is the process's, see `lose`
        except SpaceError as error:
            await self._failed(error)
        except Exception:
            log.exception("%s: a fault of the node", self.name)
            await self._failed(Unavailable("a fault of the node; its log says which"))
        finally:
            self._stream = self._task = None  # an ended process is to be small: there may be a thousand of them
            self._is_joined()

    async def _follow(self, opening: Opening, begin: Callable[[int], Head] | None) -> bool:
        """One stream of it. False: attach again."""
        guest = self._house.channel
        with guest.held_to_protocol():
            try:
                stream = self._stream = await opening(guest)
            except Parted:
                self._is_cut()
                return False
            if begin is None and self._killing:
                await stream.send_message(_KILL)
            self._is_joined()
            try:
                async with stream:
                    await self._take(stream, begin)
            except Parted:
                self._is_cut()
                return False
            except Unavailable:
                if self._spool is None or not self._killing:
                    raise
                return False
        return True

    def _is_cut(self) -> None:
        """Its session was parted with. Another follows, in which the process goes on: the guest keeps it."""
        self._stream = None
        self._joining = self._joining or Gate()

    def _is_joined(self) -> None:
        gate, self._joining = self._joining, None
        if gate is not None:
            gate.open()

    async def _is_there(self) -> bool:
        """Whether the guest has begun it, though it could not say so."""
        while True:
            try:
                return any(each.process == self.name for each in await self._house.channel.processes())
            except Parted:
                continue  # there was another snapshot; the channel waits for its end

    async def _take(self, stream: Stream, begin: Callable[[int], Head] | None) -> None:
        began, exited = False, None
        async for event in stream:
            if exited is not None:
                raise ProtocolError("the guest sent more after the end of its answer")
            if isinstance(event, Data):
                if not began:
                    raise ProtocolError("the guest sent output of a process before its start")
                await self._store(event.lane, event.payload)
            elif not began:
                began = True
                self._begun(wire.expect(wire.Started, event.payload), begin)
            else:
                said = wire.decode(event.payload)
                if isinstance(said, wire.StdinClosed) and self.spool.head.stdin:
                    self._refused_input()
                else:
                    exited = wire.expect(wire.Exited, event.payload)
        if exited is None:
            raise ProtocolError("the guest closed the stream before the end of its answer")
        self._exited(exited)
        if self.removed:
            return
        spool = self.spool
        if self.tied and spool.unwritten == spool.size:
            self._house.keep_in_memory(self)
            return
        await self._write()  # before our CLOSE, which the end of the stream's context sends
        if not self.removed:
            spool.light()

    def _begun(self, said: wire.Started, begin: Callable[[int], Head] | None) -> None:
        if begin is None or self._spool is not None:
            return
        self._spool = Spool.begin(self._house.directory, begin(said.pid), self._house.account)
        self._spool.watched = bool(self.readers)
        if not self.tied:
            try:
                self._spool.flush()
            except OSError as error:
                raise NoCapacity(f"the host's disk does not take the process's record: {error.strerror}", hint="free space") from error
        self.started.set_result(None)
        self.news.open()
        if self.free:
            self._house.changed(self)

    def _refused_input(self) -> None:
        """Nobody in the guest reads stdin any more (EPIPE): later writers are told."""
        self._stdin_closed = True
        self.note_input()
        self.news.open()

    def _exited(self, said: wire.Exited) -> None:
        out, err = self.spool.lanes
        self._finish(record.end_of(said, out, err, self._stdin_bytes))

    def _finish(self, end: End) -> None:
        self.spool.finish(end)
        self.news.open()
        self.progress.open()
        self._house.changed(self)

    async def _failed(self, error: SpaceError) -> None:
        """The guest refused, or has it no more; or we cannot keep it."""
        had = self._spool is not None
        self._task = None
        if not self.started.done():
            self._not_started(error)
        else:
            self.lose(f"it was given up: {error.message}")
        if had:
            await self._house.forget_in_guest(self.name)

    def _not_started(self, error: SpaceError) -> None:
        if not self.started.done():
            self.started.set_exception(error)
            self.started.exception()  # its caller may have left
            self.news.open()
            if self._spool is not None:
                self._spool.remove()
            self.removed = True
            self._house.changed(self)

    async def _attach(self, guest: Guest) -> Stream:
        out, err = self.spool.lanes
        return await guest.open_attach(self.name, out, err)

    async def _attach_first(self, guest: Guest) -> Stream:
        return await guest.open_attach(self.name, 0, 0)

    # -- its output ----------------------------------------------------------------------------------------------

    async def _store(self, lane: int, payload: bytes) -> None:
        spool = self.spool
        if self._house.full or spool.size + len(payload) > spool.head.quota:
            await self._make_room(len(payload))
        spool.output(lane, payload)
        self.news.open()
        if not self.tied or spool.unwritten > limits.UNWRITTEN:
            await self._write()

    async def _make_room(self, size: int) -> None:
        spool = self.spool
        while True:
            if self._house.full:
                self._house.make_room()
            if not self._house.full and spool.size + size <= spool.head.quota:
                return
            if spool.head.block and any(reader.position < spool.oldest_end for reader in self.readers):
                await self.progress.wait()
            elif not spool.drop_oldest():
                return

    async def _write(self) -> None:
        """Until the disk has everything."""
        pause = limits.DISK_PAUSE_FIRST
        while not self.removed:
            try:
                self.spool.flush()
            except OSError as error:
                if self.held is None:
                    log.warning("%s: its output waits: %s", self.name, error)
                self.held = f"its output waits: the host's disk does not take it: {error.strerror or error}"
            else:
                self.held = None
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, limits.DISK_PAUSE_LAST)

    # -- its input -----------------------------------------------------------------------------------------------

    async def feed(self, data: bytes) -> None:
        """Standard input, when the guest takes it; a caller that is cancelled tears no piece. Conflict when there is none (any more)."""
        self._check_input()
        await self._in_turn(data)

    async def eof(self) -> None:
        """The end of standard input; in a terminal the end-of-file character."""
        self._check_input()
        if self.spool.head.pty:
            await self._in_turn(wire.Eof())
        else:
            self._stdin_closed = True  # from now on, so it comes about also when its caller leaves before its turn
            await asyncio.shield(self._house.in_background(self._in_turn(wire.Eof()), f"{self.name}: end of input"))
        self.note_input()

    async def resize(self, rows: int, cols: int) -> None:
        """A new size of its terminal; Conflict when it has none."""
        self._check_running()
        if not self.spool.head.pty:
            raise Conflict(f"process {self.name} has no terminal")
        await self._in_turn(wire.Resize(rows, cols))

    async def signal(self, number: int, *, everything: bool) -> None:
        """A signal to its group, or to everything of it. Conflict when it has ended."""
        self._check_running()
        if everything and number == _KILL.signal:
            self.kill()
        else:
            await self._in_turn(wire.Signal(number, everything))

    def note_input(self) -> None:
        """Have the disk know what was taken; a disk or a quota that is full learns it with the output."""
        spool = self.spool
        known = (spool.stdin.bytes, spool.stdin.closed) == (self._stdin_bytes, self._stdin_closed)
        if spool.end is None and not known and spool.size < spool.head.quota:
            spool.input(self._stdin_bytes, closed=self._stdin_closed)
            try:
                if not self.tied:
                    spool.flush()
            except OSError as error:
                log.info("%s: %s", self.name, error)

    def _check_running(self) -> None:
        if self.spool.end is not None:
            raise Conflict(f"process {self.name} has ended")

    def _check_input(self) -> None:
        self._check_running()
        if not self.spool.head.stdin:
            raise Conflict(f"process {self.name} has no standard input", hint="start it with stdin")
        if self._stdin_closed:
            raise Conflict(f"the standard input of process {self.name} is closed", hint="its end was sent, or the process closed it")

    async def _in_turn(self, what: bytes | msgspec.Struct) -> None:
        # Who leaves while others are before it leaves nothing behind; what has its turn goes on without its caller.
        await self._turn.acquire()
        putting = self._house.in_background(self._put(what), f"{self.name}: input")
        putting.add_done_callback(lambda _: self._turn.release())
        await asyncio.shield(putting)

    async def _put(self, what: bytes | msgspec.Struct) -> None:
        rest = memoryview(what) if isinstance(what, bytes) else what
        while True:
            self._check_running()
            if self._joining is not None:
                await self._joining.wait()
                continue
            if (stream := self._stream) is None or self._killing:
                raise Conflict(f"process {self.name} is about to end, or not attached yet")
            try:
                if not isinstance(rest, memoryview):
                    await stream.send_message(rest)
                while isinstance(rest, memoryview) and rest:
                    sent = await stream.send_some(rest)
                    self._stdin_bytes += sent
                    rest = rest[sent:]
            except Parted:
                if self._stream is stream:  # its own task has not heard yet
                    self._is_cut()
            except SandboxDied:
                raise
            except SpaceError:
                raise Conflict(f"process {self.name} has ended") from None
            else:
                return
