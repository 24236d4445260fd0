"""Processes of a SimNode: programs that are coroutines, with spools, terminals, signals and readers at their own pace.

| program | what it does |
|---|---|
| echo WORD... | writes them |
| cat | stdin to stdout |
| exit N, true, false | writes `bye` to stderr, ends with N |
| sleep SECONDS | waits |
| spam BYTES | writes so many to stdout |
| stuck | reads no stdin |
| tell | writes each signal and size it gets (`signal 15`, `size 24 80`), ends with stdin |
| lie | says that it wrote more than it did |
| die | its sandbox ends in the middle |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from space.model.errors import Conflict, InvalidArgument, NotFound
from space.rpc import node_api as api
from space.rpc.session import Data, Message, Stream

PIECE = 64 * 1024
SPOOL = 1 << 20
STDIN = 64 * 1024
_FATAL = frozenset({1, 2, 3, 9, 15})
_INPUT = api.Eof | api.Resize | api.Signal


@dataclass(slots=True)
class _Output:
    """One output: what is kept of it, and where that begins."""

    kept: bytearray = field(default_factory=bytearray)
    first: int = 0

    @property
    def total(self) -> int:
        return self.first + len(self.kept)

    def drop(self, count: int) -> None:
        del self.kept[:count]
        self.first += count


@dataclass(slots=True, eq=False)
class _Reader:
    at: list[int]


class SimProcess:
    """One process. `lost` is set when its sandbox ends first."""

    def __init__(self, asked: api.Exec, pid: int) -> None:
        self.asked = asked
        self.pid = pid
        self.outputs = (_Output(), _Output())
        self.more = 0  # that it says it wrote
        self.readers: set[_Reader] = set()
        self.started_us = time.time_ns() // 1000
        self.ended_us: int | None = None
        self.code: int | None = None
        self.signal: int | None = None
        self.reason: str | None = None
        self.window = asked.pty
        self.task: asyncio.Task[None] | None = None
        self.signals: list[int] = []
        self.stdin = bytearray()
        self.stdin_bytes = 0
        self.stdin_open = asked.stdin
        self.watches_signals = False
        self._news: list[asyncio.Future[None]] = []

    # -- the program's side -------------------------------------------------------------------------------------------

    async def write(self, data: bytes, lane: int = 0) -> None:
        """Output. With `block` it waits while somebody is attached who has not read what is there."""
        out = self.outputs[lane if self.asked.pty is None else 0]
        most = self.asked.spool_bytes or SPOOL
        for at in range(0, len(data), PIECE):
            while self.asked.overflow == "block" and self.readers and len(out.kept) >= most:
                await self.news()
            out.kept += data[at : at + PIECE]
            if len(out.kept) > most:
                out.drop(len(out.kept) - most)
            self.tell()

    async def read(self) -> bytes:
        """stdin; empty at its end."""
        while not self.stdin and self.stdin_open:
            await self.news()
        data = bytes(self.stdin)
        self.stdin.clear()
        self.tell()
        return data

    # -- everybody's side ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return "running" if self.ended_us is None else "lost" if self.reason is not None else "exited"

    def is_of(self, asked: api.Exec) -> bool:
        """Whether this request has made it."""
        return msgspec.structs.replace(asked, request_id="") == msgspec.structs.replace(self.asked, request_id="")

    async def news(self) -> None:
        """Until something has changed."""
        waiter = asyncio.get_running_loop().create_future()
        self._news.append(waiter)
        await waiter

    def tell(self) -> None:
        """Something has changed."""
        waiters, self._news = self._news, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def end(self, *, code: int | None = None, signal: int | None = None, reason: str | None = None) -> None:
        """It is over. Idempotent."""
        if self.ended_us is None:
            self.ended_us = time.time_ns() // 1000
            self.code, self.signal, self.reason = code, signal, reason
            self.stdin_open = False
            if self.task is not None and self.task is not asyncio.current_task():
                self.task.cancel()
            self.tell()

    def info(self) -> api.ProcessInfo:
        """As it is now."""
        asked, (out, err) = self.asked, self.outputs
        stdin = "none" if not asked.stdin else "open" if self.stdin_open else "closed"
        return msgspec.convert(
            {
                "t": "process",
                "process": asked.process,
                "sandbox": asked.sandbox,
                "pid": self.pid,
                "argv": asked.argv,
                "cwd": asked.cwd,
                "user": asked.user,
                "pty": asked.pty is not None,
                "state": self.state,
                "started_us": self.started_us,
                "ended_us": self.ended_us,
                "stdout_bytes": out.total,
                "stderr_bytes": err.total,
                "stdout_first": out.first,
                "stderr_first": err.first,
                "stdin": stdin,
                "stdin_bytes": self.stdin_bytes,
                "code": self.code,
                "signal": self.signal,
                "wall_ms": None if self.ended_us is None else 1,
                "reason": self.reason,
            },
            api.ProcessInfo,
        )

    def exited(self) -> api.Exited:
        """How it ended."""
        out, err = self.outputs
        return api.Exited(self.code, self.signal, False, False, out.total + self.more, err.total, 1)

    # -- input --------------------------------------------------------------------------------------------------------

    async def take(self, stream: Stream, *, eof_at_close: bool) -> None:
        """Input from a stream of control's until it closes."""
        async for event in stream:
            if isinstance(event, Data):
                await self._take(event.payload)
            else:
                self._told(event)
        if eof_at_close:
            self.close_stdin()

    def close_stdin(self) -> None:
        """Its end."""
        self.stdin_open = False
        self.tell()

    async def _take(self, data: bytes) -> None:
        if not self.asked.stdin or not self.stdin_open:
            raise Conflict(f"process {self.asked.process} has no stdin that is open")
        while len(self.stdin) >= STDIN and self.stdin_open:
            await self.news()
        if not self.stdin_open:
            raise Conflict(f"process {self.asked.process} has ended or closed its stdin")
        self.stdin += data
        self.stdin_bytes += len(data)
        self.tell()

    def _told(self, event: Message) -> None:
        match msgspec.msgpack.decode(event.payload, type=_INPUT):
            case api.Eof():
                if not self.asked.stdin:
                    raise Conflict(f"process {self.asked.process} has no stdin")
                self.close_stdin()
            case api.Resize(rows, cols):
                if self.window is None:
                    raise Conflict(f"process {self.asked.process} has no terminal")
                self.window = api.Window(rows, cols)
                self.signals.append(28)
                self.tell()
            case api.Signal(number):
                if self.watches_signals and number != 9:
                    self.signals.append(number)
                    self.tell()
                elif number in _FATAL:
                    self.end(signal=number)

    # -- output -------------------------------------------------------------------------------------------------------

    def offsets(self, asked: api.Attach) -> list[int]:
        """Where the output begins; InvalidArgument for what was not produced yet."""
        found = []
        for name, wanted, out in (("stdout", asked.stdout, self.outputs[0]), ("stderr", asked.stderr, self.outputs[1])):
            at = out.first if wanted is None else wanted if wanted >= 0 else max(out.first, out.total + wanted)
            if at > out.total:
                raise InvalidArgument(f"{name}: {at} is beyond the {out.total} bytes that were produced")
            found.append(at)
        return found

    async def relay(self, stream: Stream, at: list[int], *, follow: bool) -> None:
        """Output from `at` on, then how it ended, or that it goes on."""
        reader = _Reader(at)
        self.readers.add(reader)
        try:
            while True:
                moved = False
                for lane, out in enumerate(self.outputs):
                    if reader.at[lane] < out.first:
                        missing = out.first - reader.at[lane]
                        await stream.send_message(api.Gap(lane, reader.at[lane], missing))
                        reader.at[lane] += missing
                        moved = True
                    if reader.at[lane] < out.total:
                        begin = reader.at[lane] - out.first
                        piece = bytes(out.kept[begin : begin + PIECE])
                        await stream.send(piece, lane)
                        reader.at[lane] += len(piece)
                        self._read_by_all(out, lane)
                        moved = True
                if moved:
                    continue
                if self.state == "exited":
                    await stream.send_message(self.exited())
                    return
                if self.state == "lost":
                    await stream.send_message(api.Lost(self.reason or ""))
                    return
                if not follow:
                    await stream.send_message(api.Paused(*reader.at))
                    return
                await self.news()
        finally:
            self.readers.discard(reader)
            self.tell()

    def _read_by_all(self, out: _Output, lane: int) -> None:
        """With `block`, what every reader has may go when room is wanted."""
        most = self.asked.spool_bytes or SPOOL
        if self.asked.overflow == "block" and len(out.kept) >= most:
            out.drop(min(one.at[lane] for one in self.readers) - out.first)
            self.tell()


async def run(process: SimProcess, lose: Callable[[], None]) -> None:
    """The program, to its end. lose: ends its sandbox."""
    name, *words = process.asked.argv
    code = 0
    match name.rpartition("/")[2]:
        case "echo":
            await process.write((" ".join(words) + "\n").encode())
        case "cat":
            while data := await process.read():
                await process.write(data)
        case "exit" | "true" | "false" as which:
            code = int(which == "false")
            if which == "exit":
                await process.write(b"bye\n", 1)
                code = int(words[0])
        case "sleep":
            await asyncio.sleep(float(words[0]))
        case "spam":
            for at in range(0, int(words[0]), PIECE):
                await process.write(b"x" * min(PIECE, int(words[0]) - at))
        case "stuck":
            await asyncio.Future()
        case "tell":
            await _tell(process)
        case "lie":
            await process.write(b"four")
            process.more = 1
        case "die":
            await process.write(b"half of the out")
            while process.readers and any(one.at[0] < process.outputs[0].total for one in process.readers):
                await process.news()
            lose()
    process.end(code=code)


async def _tell(process: SimProcess) -> None:
    process.watches_signals = True
    while process.stdin_open or process.signals:
        for number in process.signals:
            size = process.window
            words = f"size {size.rows} {size.cols}" if number == 28 and size is not None else f"signal {number}"
            await process.write(words.encode() + b"\n")
        process.signals.clear()
        process.stdin.clear()
        await process.news()


KNOWN = frozenset({"echo", "cat", "exit", "true", "false", "sleep", "spam", "stuck", "tell", "lie", "die"})


def check(asked: api.Exec) -> None:
    """NotFound when there is no such program."""
    if asked.argv[0].rpartition("/")[2] not in KNOWN:
        raise NotFound(f"there is no program {asked.argv[0]!r} in the sandbox")
