"""FakeGuest's processes (docs/protocol.md, section 2 "Processes"): kept ones, terminals and re-attach over coroutines for programs.

What a program writes waits in a pipe until a stream takes it; of a kept process the fake holds what the daemon would hold, and not more.
A terminal echoes its input, ends lines with CR LF, takes byte 3 for SIGINT and byte 4 for the end of input.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Iterable

from space.core.wire import guest
from space.core.wire.events import GUEST, Data
from space.model.errors import Conflict, InvalidArgument, NoCapacity, NotFound, SpaceError
from space.rpc.stream import Stream
from space.testing.guestprograms import NUMBERED, PROGRAMS, number

MAX_KEPT = 1024
BEHIND = 65_536  # bytes that are kept of what the host has returned credit for
_NAME = re.compile(r"[a-z0-9-]{1,64}")
_PIPE = 64 << 10
_STDIN = 1 << 20
_WINDOW = GUEST[0].window
_INTERRUPT, _END_OF_INPUT = b"\x03", b"\x04"
_PASSED_OVER = frozenset({17, 18, 23, 28})  # SIGCHLD, SIGCONT, SIGURG, SIGWINCH
_STOPS = frozenset({19, 20, 21, 22})
_CONTINUE = 18


class Output:
    """What a process wrote: a pipe of 64 KiB, and behind it what was sent and may be asked for again."""

    def __init__(self) -> None:
        self.written = [0, 0]
        self._pipe: deque[tuple[int, bytes]] = deque()
        self._waiting = 0
        self._ended = False
        self._taken = [0, 0]
        self._sent: deque[tuple[int, bytes]] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def write(self, data: bytes, lane: int = 0) -> None:
        """Into the pipe, as there is room."""
        for at in range(0, len(data), _PIPE):
            piece = data[at : at + _PIPE]
            while self._waiting and self._waiting + len(piece) > _PIPE:
                self._room.clear()
                await self._room.wait()
            self.put(piece, lane)

    def put(self, data: bytes, lane: int = 0) -> None:
        """Into the pipe, at once."""
        if data:
            self.written[lane] += len(data)
            self._waiting += len(data)
            self._pipe.append((lane, data))
            self._news.set()

    def end(self) -> None:
        """No more will be written."""
        self._ended = True
        self._news.set()

    async def take(self) -> tuple[int, bytes] | None:
        """The next piece, or None at the end. From then on it counts as sent."""
        while not self._pipe:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        lane, data = self._pipe.popleft()
        self._waiting -= len(data)
        self._room.set()
        self._taken[lane] += len(data)
        self._sent.append((lane, data))
        return lane, data

    def again(self, stdout: int, stderr: int) -> list[tuple[int, bytes]]:
        """What is to be sent to a host that holds this much; InvalidArgument when it is not there."""
        wanted = (stdout, stderr)
        for lane, name in enumerate(("stdout", "stderr")):
            first = self._taken[lane] - sum(len(data) for of, data in self._sent if of == lane)
            if not first <= wanted[lane] <= self._taken[lane]:
                raise InvalidArgument(f"{name} can be had from {first} to {self._taken[lane]}, not from {wanted[lane]}")
        held: list[tuple[int, bytes]] = []
        missing: list[tuple[int, bytes]] = []
        at = [self._taken[lane] - sum(len(data) for of, data in self._sent if of == lane) for lane in (0, 1)]
        for lane, data in self._sent:
            cut = min(max(wanted[lane] - at[lane], 0), len(data))
            at[lane] += len(data)
            held.append((lane, data[:cut]))
            missing.append((lane, data[cut:]))
        missing = [(lane, data) for lane, data in missing if data]
        self._sent = deque([(lane, data) for lane, data in held if data] + missing)
        self._drop(sum(len(data) for _, data in missing))
        return missing

    def credited(self, outstanding: int) -> None:
        """All was sent, and the host has returned credit for all but the last `outstanding` bytes."""
        self._drop(outstanding)

    def _drop(self, needed: int) -> None:
        spare = sum(len(data) for _, data in self._sent) - needed - BEHIND
        while spare > 0:
            lane, data = self._sent.popleft()
            if len(data) > spare:
                self._sent.appendleft((lane, data[spare:]))
            spare -= len(data)


class Process:
    """A running or ended program. The program itself sees `request`, `env`, `window`, `write` and `read`."""

    def __init__(self, pid: int, request: guest.Exec, env: dict[bytes, bytes], gone: Callable[[Process], None]) -> None:
        self.pid = pid
        self.request = request
        self.env = env
        self.window = request.pty
        self.output = Output()
        self.exited: guest.Exited | None = None
        self.stream: Stream | None = None
        self.resized = asyncio.Event()
        self._input: deque[bytes] = deque()
        self._input_ended = not request.stdin
        self.deaf = False  # it has closed its stdin
        self._greeted: Stream | None = None
        self._refused: Stream | None = None
        self._input_news = asyncio.Event()
        self._input_taken = asyncio.Event()
        self._runs = asyncio.Event()
        self._runs.set()
        self._killed_by = 0
        self._begun = time.monotonic()
        name = request.argv[0].rpartition(b"/")[2].decode("utf-8", "replace")
        if name not in PROGRAMS:
            raise NotFound(f"there is no program {name!r}")
        if name in NUMBERED:
            number(self)
        self.task = asyncio.create_task(self._run(name), name=f"program {name}")
        self.task.add_done_callback(self._ended)
        self.task.add_done_callback(lambda _: gone(self))

    # The program's side

    async def write(self, data: bytes, lane: int = 0) -> None:
        """To stdout (lane 0) or stderr; a terminal has one output."""
        await self._runs.wait()
        await self.output.write(data.replace(b"\n", b"\r\n") if self.request.pty else data, 0 if self.request.pty else lane)

    async def read(self) -> bytes | None:
        """Some of stdin; None at its end."""
        while not self._input:
            if self._input_ended:
                return None
            self._input_news.clear()
            await self._input_news.wait()
        await self._runs.wait()
        self._input_taken.set()
        return self._input.popleft()

    async def _run(self, name: str) -> tuple[int, bool]:
        limit = self.request.timeout_ms
        try:
            async with asyncio.timeout(None if limit is None else limit / 1000):
                return await PROGRAMS[name](self), False
        except TimeoutError:
            return -9, True

    def _ended(self, task: asyncio.Task[tuple[int, bool]]) -> None:
        status, timed_out = (-(self._killed_by or 9), False) if task.cancelled() else task.result()
        signal = -status if status < 0 else None
        wall = int((time.monotonic() - self._begun) * 1000)
        stdout, stderr = self.output.written
        self.exited = guest.Exited(None if signal else status, signal, False, timed_out, stdout, stderr, wall)
        self.output.end()
        self._input_taken.set()

    # The host's side

    async def feed(self, data: bytes) -> None:
        """Bytes for stdin; waits while very many are unread. Those for an input that has ended are dropped."""
        while sum(map(len, self._input)) > _STDIN and self.exited is None:
            self._input_taken.clear()
            await self._input_taken.wait()
        if self._input_ended or self.exited:
            return
        if not self.request.pty:
            self._put(data)
            return
        for piece in re.split(b"([\x03\x04])", data.replace(b"\r", b"\n")):
            if piece == _INTERRUPT:
                self.output.put(b"^C")
                self.signal(guest.Signal(2, all=False))
            elif piece == _END_OF_INPUT:
                self.end_input()
            else:
                self.output.put(piece.replace(b"\n", b"\r\n"))
                self._put(piece)

    def _put(self, data: bytes) -> None:
        if data:
            self._input.append(data)
            self._input_news.set()

    def end_input(self) -> None:
        """No more for stdin."""
        self._input_ended = True
        self._input_news.set()

    def resize(self, to: guest.Resize) -> None:
        """InvalidArgument without a terminal."""
        if self.window is None:
            raise InvalidArgument("the process has no terminal")
        self.window = guest.Window(to.rows, to.cols)
        self.resized.set()

    def signal(self, signal: guest.Signal) -> None:
        """As the kernel's defaults are; nothing for an ended process."""
        number = signal.signal
        if number == _CONTINUE:
            self._runs.set()
        if self.exited is not None or number in _PASSED_OVER:
            return
        if number in _STOPS:
            self._runs.clear()
        else:
            self._killed_by = number
            self.task.cancel()

    def kill(self) -> None:
        """End it, whatever it does."""
        self.signal(guest.Signal(9, all=True))

    async def send(self, stream: Stream, again: Iterable[tuple[int, bytes]], *, retain: bool) -> None:
        """All its output up to its exit, then CLOSE."""
        await stream.send_message(guest.Started(self.pid))
        self._greeted = stream
        for lane, data in again:
            await stream.send(data, lane)
        while piece := await self.output.take():
            await stream.send(piece[1], piece[0])
            self.output.credited(_WINDOW - stream.room if retain else 0)
        await asyncio.wait((self.task,))
        assert self.exited is not None, "it has ended"
        await stream.send_message(self.exited)
        await stream.close()

    async def _refuse(self, stream: Stream) -> None:
        """Say once on a stream that nobody reads."""
        if self._greeted is stream and self._refused is not stream and self.exited is None and not self.request.pty:
            self._refused = stream
            await stream.send_message(guest.StdinClosed())

    async def take(self, stream: Stream) -> None:
        """What the host sends, until it sends nothing more."""
        async for event in stream:
            if isinstance(event, Data) and self.deaf:
                await self._refuse(stream)
                continue
            if isinstance(event, Data):
                await self.feed(event.payload)
                continue
            match guest.decode(event.payload):
                case guest.Eof():
                    await (self.feed(_END_OF_INPUT) if self.request.pty else asyncio.sleep(0))
                    self.end_input()
                case guest.Resize() as to:
                    self.resize(to)
                case guest.Signal() as signal:
                    self.signal(signal)
                case other:
                    raise InvalidArgument(f"a process takes no message {type(other).__name__}")


class Processes:
    """The verbs exec, attach, processes and forget. running: argv of live programs by pid."""

    def __init__(self) -> None:
        self.running: dict[int, list[bytes]] = {}
        self.kept: dict[str, Process] = {}
        self._pids = itertools.count(100)
        self._live: set[Process] = set()

    def kill(self) -> None:
        """End every program, and forget the kept."""
        self.kept.clear()
        for process in list(self._live):
            process.kill()

    async def exec(self, stream: Stream, wanted: guest.Exec, base: list[guest.Pair]) -> None:
        """Run a program. base: the environment of configure."""
        keep = wanted.keep
        if keep is not None:
            if not _NAME.fullmatch(keep):
                raise InvalidArgument("keep must be 1 to 64 characters of a-z, 0-9 and '-'")
            if keep in self.kept:
                raise Conflict(f"there is a kept process {keep!r} already")
            if len(self.kept) >= MAX_KEPT:
                raise NoCapacity(f"{MAX_KEPT} processes are kept already")
        if wanted.pty and not wanted.stdin:
            raise InvalidArgument("a process with a terminal needs stdin")
        env = ({b"TERM": b"xterm-256color"} if wanted.pty else {}) | dict(base) | dict(wanted.env)
        process = Process(next(self._pids), wanted, env, self._gone)
        self._live.add(process)
        self.running[process.pid] = wanted.argv
        if keep is None:
            await self._run(process, stream)
        else:
            self.kept[keep] = process
            await self._serve(keep, process, stream, [])

    async def attach(self, stream: Stream, wanted: guest.Attach) -> None:
        """Go on with a kept process."""
        process = self._find(wanted.process)
        again = process.output.again(wanted.stdout, wanted.stderr)
        await self._serve(wanted.process, process, stream, again)

    async def processes(self, stream: Stream, _: guest.Empty) -> None:
        """Every kept process."""
        kept = [guest.Kept(name, process.pid, process.exited is not None) for name, process in self.kept.items()]
        await stream.send_message(guest.Processes(kept))

    async def forget(self, stream: Stream, wanted: guest.Process) -> None:
        """Kill it and drop its output."""
        process = self._find(wanted.process)
        del self.kept[wanted.process]
        process.kill()
        if process.stream is not None:
            process.stream.reset_now("conflict", f"the process {wanted.process!r} was forgotten")
        await stream.send_message(guest.Done())

    def _find(self, name: str) -> Process:
        process = self.kept.get(name)
        if process is None:
            raise NotFound(f"there is no kept process {name!r}")
        return process

    def _gone(self, process: Process) -> None:
        self._live.discard(process)
        self.running.pop(process.pid, None)

    async def _run(self, process: Process, stream: Stream) -> None:
        """The stream is the process."""

        async def listen() -> None:
            with contextlib.suppress(SpaceError):
                await process.take(stream)
                process.end_input()

        listener = asyncio.create_task(listen())
        try:
            await process.send(stream, [], retain=False)
        finally:
            listener.cancel()
            process.kill()
            await asyncio.wait((listener, process.task))

    async def _serve(self, name: str, process: Process, stream: Stream, again: list[tuple[int, bytes]]) -> None:
        """A stream of a kept process; the host's CLOSE after ours is the end of both."""
        if process.stream is not None:
            process.stream.reset_now("conflict", f"the process {name!r} was attached elsewhere")
        process.stream = stream
        sender = asyncio.create_task(process.send(stream, again, retain=True))
        try:
            await process.take(stream)
            if not sender.done():
                stream.reset_now("protocol_error", "the host closed the stream of a kept process before the guest did")
            elif self.kept.get(name) is process:
                del self.kept[name]
        finally:
            sender.cancel()
            await asyncio.wait((sender,))
            if process.stream is stream:
                process.stream = None
