"""The mock server's processes: what a program is given, what it answers, and what is kept of it for those who come later."""

from __future__ import annotations

import json
import posixpath
import shlex
import signal as signals
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from space.model.errors import Conflict, InvalidArgument, NotFound, SpaceError
from space.model.frames import Kind, encode
from space.model.ids import new_process_id
from space.model.process import PtySize

HEARTBEAT_SECONDS = 5.0
PIECE = 65536


@dataclass(frozen=True, slots=True)
class Process:
    """A command as the server got it. files: the sandbox's, by absolute path; a program may change them.

    stdin: what came with the request. incoming: all of stdin as it comes, to its end; of a process in the background it waits for
    what is written to it. pty: its terminal.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    user: str
    timeout_ms: int | None
    stdin: bytes
    files: dict[str, bytes]
    incoming: Iterable[bytes] = ()
    pty: PtySize | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a program does. pieces: further output in order, as ("stdout" or "stderr", bytes), taken one by one.

    cut: an attached stream ends without an exit frame, as when the server dies.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = 0
    signal: int | None = None
    oom_killed: bool = False
    timed_out: bool = False
    pieces: Iterable[tuple[str, bytes]] = ()
    cut: bool = False

    def output(self) -> Iterator[tuple[str, bytes]]:
        """All of it in order, in pieces that fit a frame."""
        first = (("stdout", self.stdout), ("stderr", self.stderr))
        for output in (first, self.pieces):
            for stream, data in output:
                for at in range(0, len(data), PIECE):
                    yield stream, data[at : at + PIECE]


Program = Callable[[Process], Reply | Generator[tuple[str, bytes], None, Reply]]


def perform(program: Program, process: Process) -> Generator[tuple[str, bytes], None, Reply]:
    """A program's output in order; the value at the end is how it ended. A program may itself be a generator of that kind."""
    reply = program(process)
    if not isinstance(reply, Reply):
        reply = yield from reply
    yield from reply.output()
    return reply


class MockProcess:
    """A process that is kept: its output with offsets, its input, how it ended. `changed` wakes whoever waits for any of it."""

    def __init__(
        self, sandbox: str, process: Process, *, stdin_open: bool, spool_bytes: int | None = None, wanted: Mapping[str, Any] | None = None
    ) -> None:
        """wanted: the request."""
        self.wanted = dict(wanted or {})
        self.id: str = self.wanted.get("id") or new_process_id()
        self.sandbox = sandbox
        self.process = process
        self.changed = threading.Condition()
        self.resized: list[PtySize] = []
        self.signals: list[int] = []
        self.exit: dict[str, Any] | None = None
        self.lost: str | None = None
        self.stdin_bytes = len(process.stdin)
        self._stdin_open = stdin_open
        self._incoming: deque[bytes] = deque()
        self._spool_bytes = spool_bytes
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self._first = {"stdout": 0, "stderr": 0}
        self._started_at = time.time()
        self._ended_at: float | None = None

    def start(self, program: Program) -> None:
        """Run it on a thread of its own."""
        live = replace(self.process, incoming=self._coming())
        threading.Thread(target=self._run, args=(program, live), name=f"mock {self.id}", daemon=True).start()

    def document(self) -> dict[str, Any]:
        """As the API shows it."""
        process = self.process
        return {
            "id": self.id, "sandbox": self.sandbox, "pid": 2, "argv": list(process.argv), "cwd": process.cwd, "user": process.user,
            "pty": process.pty is not None, "state": "lost" if self.lost else "running" if self.exit is None else "exited",
            "started_at": self._started_at, "ended_at": self._ended_at,
            "stdout_bytes": self._end("stdout"), "stderr_bytes": self._end("stderr"),
            "stdout_first": self._first["stdout"], "stderr_first": self._first["stderr"],
            "stdin": "open" if self._stdin_open and self.exit is None else "closed", "stdin_bytes": self.stdin_bytes,
            "exit": self.exit, "reason": self.lost,
        }  # fmt: skip

    # -- what the program does -----------------------------------------------------------------------------------------
    def _run(self, program: Program, process: Process) -> None:
        try:
            reply = self._performed(perform(program, process))
        except Exception as error:  # noqa: BLE001  # a program's failure is that program's end
            self.wrote("stderr", f"{type(error).__name__}: {error}\n".encode())
            reply = Reply(exit_code=1)
        self.finish(reply)

    def _performed(self, output: Generator[tuple[str, bytes], None, Reply]) -> Reply:
        while not self.ended:
            try:
                stream, data = next(output)
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            self.wrote(stream, data)
        return Reply()

    @property
    def ended(self) -> bool:
        return self.exit is not None or self.lost is not None

    def wrote(self, stream: str, data: bytes) -> None:
        """It wrote this; the oldest goes where the spool is full."""
        if self.process.pty is not None:
            stream = "stdout"
        with self.changed:
            kept = self._kept[stream]
            kept += data
            if self._spool_bytes is not None and (over := len(kept) - self._spool_bytes) > 0:
                del kept[:over]
                self._first[stream] += over
            self.changed.notify_all()

    def finish(self, reply: Reply) -> None:
        """It ended so, unless it has ended already."""
        with self.changed:
            if not self.ended:
                self._ended_at = time.time()
                self.exit = {
                    "code": reply.exit_code, "signal": reply.signal, "oom_killed": reply.oom_killed, "timed_out": reply.timed_out,
                    "wall_ms": 1, "stdout_bytes": self._end("stdout"), "stderr_bytes": self._end("stderr"),
                }  # fmt: skip
            self.changed.notify_all()

    def lose(self, reason: str) -> None:
        """Its sandbox ended first."""
        with self.changed:
            if not self.ended:
                self.lost, self._ended_at = reason, time.time()
            self.changed.notify_all()

    def _coming(self) -> Iterator[bytes]:
        if self.process.stdin:
            yield self.process.stdin
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._incoming or not self._stdin_open or self.ended)
                if self.ended or not self._incoming:
                    return
                piece = self._incoming.popleft()
            yield piece

    # -- what is done to it --------------------------------------------------------------------------------------------
    def feed(self, data: bytes, *, close: bool = False) -> int:
        """More of stdin; the bytes it has had in all."""
        with self.changed:
            self._still_runs()
            if not self._stdin_open:
                raise Conflict(f"stdin of {self.id} is not open", hint="start it with stdin_open")
            if data:
                self._incoming.append(data)
                self.stdin_bytes += len(data)
            self._stdin_open = not close or (self.process.pty is not None)
            if close and self.process.pty is not None:
                self._incoming.append(b"\x04")
            self.changed.notify_all()
        return self.stdin_bytes

    def signal(self, given: int | str) -> None:
        """A signal: it ends by it."""
        number = given if isinstance(given, int) else _signal(given)
        with self.changed:
            self._still_runs()
            self.signals.append(number)
        self.finish(Reply(exit_code=None, signal=number))

    def resize(self, rows: int, cols: int) -> None:
        """Another size of its terminal."""
        with self.changed:
            self._still_runs()
            if self.process.pty is None:
                raise Conflict(f"{self.id} has no terminal")
            self.resized.append(PtySize(rows, cols))

    def _still_runs(self) -> None:
        if self.ended:
            raise Conflict(f"process {self.id} has ended")

    # -- what is told of it --------------------------------------------------------------------------------------------
    def check(self, asked: Mapping[str, int | None]) -> None:
        """InvalidArgument for offsets that it has not reached."""
        for stream, offset in asked.items():
            self._begin(stream, offset)

    def frames(self, asked: Mapping[str, int | None], closed: Callable[[], bool], *, follow: bool) -> Iterator[bytes]:
        """What it wrote from these offsets on, and how it ended."""
        at = {stream: self._begin(stream, asked.get(stream)) for stream in self._kept}
        yield encode(Kind.START, json.dumps(self.document()).encode())
        while not closed():
            with self.changed:
                frames = [frame for stream in self._kept for frame in self._from(stream, at)]
                last = None if frames else self._last(at, follow=follow)
                if not frames and last is None:
                    happened = self.changed.wait_for(lambda: closed() or self.ended or self._has_more(at), HEARTBEAT_SECONDS)
                    frames = [] if happened else [encode(Kind.HEARTBEAT)]
            yield from frames
            if last is not None:
                yield last
                return

    def _last(self, at: Mapping[str, int], *, follow: bool) -> bytes | None:
        """The frame that ends an answer when there is nothing more to tell."""
        if self.exit is not None:
            return encode(Kind.EXIT, json.dumps(self.exit).encode())
        if self.lost is not None:
            return encode(Kind.ERROR, json.dumps({"code": "sandbox_died", "detail": self.lost}).encode())
        return None if follow else encode(Kind.PAUSE, json.dumps(at).encode())

    def _begin(self, stream: str, asked: int | None) -> int:
        end, first = self._end(stream), self._first[stream]
        if asked is None:
            return first
        if asked > end:
            raise InvalidArgument(f"{stream}: byte {asked} was asked for, and there are {end}")
        return asked if asked >= 0 else max(first, end + asked)

    def _from(self, stream: str, at: dict[str, int]) -> Iterator[bytes]:
        first, kept = self._first[stream], self._kept[stream]
        if at[stream] < first:
            gap = {"stream": stream, "offset": at[stream], "bytes": first - at[stream]}
            at[stream] = first
            yield encode(Kind.GAP, json.dumps(gap).encode())
        piece = bytes(kept[at[stream] - first : at[stream] - first + PIECE])
        if piece:
            kind = Kind.STDOUT if stream == "stdout" else Kind.STDERR
            frame = encode(kind, piece, at[stream])
            at[stream] += len(piece)
            yield frame

    def _has_more(self, at: Mapping[str, int]) -> bool:
        return any(self._end(stream) > at[stream] for stream in at)

    def _end(self, stream: str) -> int:
        return self._first[stream] + len(self._kept[stream])


@dataclass(slots=True)
class Programs:
    """The programs of a server, by name."""

    known: dict[str, Program] = field(default_factory=dict)

    def find(self, process: Process) -> tuple[Program, Process]:
        """The program that a command runs, and the command as it gets it. NotFound."""
        name = posixpath.basename(process.argv[0])
        if name == "sh" and len(process.argv) == 3:
            process = replace(process, argv=tuple(shlex.split(process.argv[2])))
            name = posixpath.basename(process.argv[0])
        program = self.known.get(name) or (self.shell if name in ("exec", "sh", "bash") else None)
        if program is None:
            raise NotFound(f"there is no program {process.argv[0]!r} in the sandbox")
        return program, process

    def shell(self, process: Process) -> Generator[tuple[str, bytes], None, Reply]:
        """A shell of its own: each line of input is a command of the server's programs; `exit N` ends it."""
        status = 0
        yield "stdout", b"$ "
        for line in _lines(process.incoming):
            words = line.split()
            if words[:1] == ["exit"]:
                return Reply(exit_code=int(words[1]) if words[1:] else status)
            if words:
                command = replace(process, argv=tuple(words), stdin=b"", incoming=())
                status = yield from self._in_shell(command, b"\n" if process.pty is None else b"\r\n")
            yield "stdout", b"$ "
        return Reply(exit_code=status)

    def _in_shell(self, process: Process, newline: bytes) -> Generator[tuple[str, bytes], None, int]:
        try:
            output = perform(*self.find(process))
            while True:
                try:
                    stream, data = next(output)
                except StopIteration as end:
                    reply: Reply = end.value
                    return reply.exit_code if reply.exit_code is not None else 128 + (reply.signal or 0)
                yield stream, data.replace(b"\n", newline)
        except SpaceError as error:
            yield "stderr", error.message.encode() + newline
            return 127


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Lines as a terminal gives them: return counts as a new line, the end-of-file character at the beginning of one as the end."""
    line = ""
    for piece in pieces:
        for character in piece.decode("utf-8", "replace"):
            if character in "\r\n":
                yield line
                line = ""
            elif character == "\x04" and not line:
                return
            else:
                line += character


def _signal(name: str) -> int:
    try:
        return int(signals.Signals[name if name.startswith("SIG") else f"SIG{name}"])
    except KeyError:
        raise InvalidArgument(f"signal: {name!r} is no name of one") from None


def frames_of(program: Program, process: Process, record: MockProcess) -> Iterator[bytes]:
    """The attached stream of a command, made as it is read; `record` keeps what was told."""
    yield encode(Kind.START, json.dumps({"pid": 2, "process": record.id}).encode())
    sent = {"stdout": 0, "stderr": 0}
    output = perform(program, process)
    while True:
        try:
            stream, data = next(output)
        except StopIteration as end:
            reply: Reply = end.value
            break
        yield encode(Kind.STDOUT if stream == "stdout" else Kind.STDERR, data, sent[stream])
        sent[stream] += len(data)
        record.wrote(stream, data)
    if not reply.cut:
        record.finish(reply)
        yield encode(Kind.EXIT, json.dumps(record.exit).encode())


BUILTIN: dict[str, Program] = {
    "true": lambda _: Reply(),
    "false": lambda _: Reply(exit_code=1),
    "exit": lambda process: Reply(exit_code=int(process.argv[1])),
    "echo": lambda process: Reply(stdout=" ".join(process.argv[1:]).encode() + b"\n"),
    "cat": lambda process: Reply(pieces=(("stdout", piece) for piece in process.incoming)),
}
