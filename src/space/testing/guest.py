r"""FakeGuest: the guest's side of the channel (docs/protocol.md, section 2) in this process, over two sockets. No kernel, no processes.

`exec` knows these programs (the last part of argv[0] counts):

    echo WORD...    the words and a newline        exit N          ends with that status
    err WORD...     the same on stderr             sleep S         that many seconds, then 0
    cat             stdin to stdout                yes-bytes N     that many bytes of "y\n"
    env             one NAME=VALUE a line          signal N        ends by that signal
    true, false     0, 1

and answers `not_found` to any other, `sh -c` too. A timeout ends them with signal 9. tree_put keeps the tar stream under exactly its path,
tree_get returns it.
noop, configure, metrics, shutdown (which kills the fake), echo, sink and source do as the page says; `guestfiles` has
the verbs of files, watches and ports.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import socket
import tarfile
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from space.core.wire import guest
from space.core.wire.events import GUEST, Data
from space.model.errors import GuestError, InvalidArgument, NotFound, ProtocolError, Unsupported
from space.rpc.served import Served
from space.rpc.stream import Stream
from space.testing.guestfiles import FakeFiles

_PIECE = 64 << 10
_BOOT_ID = "00000000-0000-4000-8000-000000000000"


@dataclass(slots=True)
class _Process:
    """What a running program has written, and where to."""

    stream: Stream
    request: guest.Exec
    env: dict[bytes, bytes]
    written: list[int] = field(default_factory=lambda: [0, 0])

    async def write(self, data: bytes, lane: int = 0) -> None:
        self.written[lane] += len(data)
        await self.stream.send(data, lane)


class FakeGuest:
    """One machine's daemon. configured: the last configure. trees: tar streams by path. running: argv of live programs by pid."""

    def __init__(self) -> None:
        self.configured: guest.Configure | None = None
        self.trees: dict[bytes, bytes] = {}
        self.running: dict[int, list[bytes]] = {}
        self.off = asyncio.Event()
        self.files = FakeFiles()
        self._pids = itertools.count(100)
        self._born = time.monotonic()
        self._served: Served | None = None
        self._verbs = {
            "noop": self._noop,
            "configure": self._configure,
            "exec": self._exec,
            "tree_put": self._tree_put,
            "tree_get": self._tree_get,
            "metrics": self._metrics,
            "shutdown": self._shutdown,
            "echo": self._echo,
            "sink": self._sink,
            "source": self._source,
            **self.files.verbs,
        }

    async def serve(self, control: socket.socket, bulk: socket.socket) -> None:
        """Serve on these pipes from now on (returns at once); pipes of an earlier call are closed."""
        if self.off.is_set():
            control.close()
            bulk.close()
            return
        if self._served is not None:
            self._served.die("the pipes were replaced")
        self._served = Served(GUEST, self._answer)
        await self._served.attach((control, bulk))

    def kill(self) -> None:
        """As if the VMM died: the pipes close, `off` is set. Idempotent."""
        self.off.set()
        self.files.close()
        if self._served is not None:
            self._served.die("the guest was killed")

    async def _answer(self, stream: Stream, verb: str, request: bytes) -> None:
        method = self._verbs.get(verb)
        if method is None:
            raise Unsupported(f"this guest does not know the verb {verb!r}")
        try:
            await method(stream, request)
        except ProtocolError as error:
            raise InvalidArgument(error.message) from error

    async def _noop(self, stream: Stream, request: bytes) -> None:
        guest.decode_request(guest.Empty, request)
        await stream.send_message(guest.Done())

    async def _configure(self, stream: Stream, request: bytes) -> None:
        self.configured = guest.decode_request(guest.Configure, request)
        await stream.send_message(guest.Configured(_BOOT_ID, "fake", self._uptime_ms(), 2 << 30, "0"))

    async def _metrics(self, stream: Stream, request: bytes) -> None:
        guest.decode_request(guest.Empty, request)
        processes = 1 + len(self.running)
        await stream.send_message(guest.Metrics(512 << 20, 400 << 20, 10, 20, 2 << 30, 1 << 20, processes, self._uptime_ms(), 0))

    async def _shutdown(self, stream: Stream, request: bytes) -> None:
        guest.decode_request(guest.Empty, request)
        await stream.send_message(guest.Done())
        await stream.close()
        asyncio.get_running_loop().call_soon(self.kill)

    async def _echo(self, stream: Stream, _: bytes) -> None:
        async for event in stream:
            await stream.send(event.payload)

    async def _sink(self, stream: Stream, _: bytes) -> None:
        taken = 0
        async for event in stream:
            taken += len(event.payload)
        await stream.send_message(guest.TreeDone(0, taken, 0))

    async def _source(self, stream: Stream, request: bytes) -> None:
        total = guest.decode_request(guest.Source, request).bytes
        for piece in _pieces(bytes(4 * _PIECE), total):
            await stream.send(piece)
        await stream.send_message(guest.TreeDone(0, total, 0))

    async def _tree_put(self, stream: Stream, request: bytes) -> None:
        tree = guest.decode_request(guest.Tree, request)
        taken = bytearray()
        async for event in stream:
            taken += event.payload
        stored = bytes(taken)
        done = _counted(stored)
        self.trees[tree.path] = stored
        await stream.send_message(done)

    async def _tree_get(self, stream: Stream, request: bytes) -> None:
        tree = guest.decode_request(guest.Tree, request)
        stored = self.trees.get(tree.path)
        if stored is None:
            raise NotFound(f"there is no {tree.path!r}")
        await stream.send(stored)
        await stream.send_message(_counted(stored))

    async def _exec(self, stream: Stream, request: bytes) -> None:
        wanted = guest.decode_request(guest.Exec, request)
        name = wanted.argv[0].rpartition(b"/")[2].decode("utf-8", "replace")
        program = _PROGRAMS.get(name)
        if program is None:
            raise NotFound(f"there is no program {name!r}")
        env = dict(self.configured.env if self.configured else []) | dict(wanted.env)
        process, pid, begun = _Process(stream, wanted, env), next(self._pids), time.monotonic()
        self.running[pid] = wanted.argv
        status, signal, timed_out = 0, None, False
        try:
            await stream.send_message(guest.Started(pid))
            async with asyncio.timeout(None if wanted.timeout_ms is None else wanted.timeout_ms / 1000):
                status = await program(process)
        except TimeoutError:
            status, timed_out = -9, True
        finally:
            del self.running[pid]
        if status < 0:
            signal = -status
        stdout, stderr = process.written
        wall = int((time.monotonic() - begun) * 1000)
        await stream.send_message(guest.Exited(None if signal else status, signal, False, timed_out, stdout, stderr, wall))

    def _uptime_ms(self) -> int:
        return int((time.monotonic() - self._born) * 1000)


async def _echo(process: _Process, lane: int = 0) -> int:
    await process.write(b" ".join(process.request.argv[1:]) + b"\n", lane)
    return 0


async def _err(process: _Process) -> int:
    return await _echo(process, 1)


async def _cat(process: _Process) -> int:
    async for data in _stdin(process):
        await process.write(data)
    return 0


async def _env(process: _Process) -> int:
    for name, value in process.env.items():
        await process.write(name + b"=" + value + b"\n")
    return 0


async def _true(_: _Process) -> int:
    return 0


async def _false(_: _Process) -> int:
    return 1


async def _exit(process: _Process) -> int:
    return _number(process) & 0xFF


async def _signal(process: _Process) -> int:
    return -_number(process)


async def _sleep(process: _Process) -> int:
    await asyncio.sleep(float(process.request.argv[1]))
    return 0


async def _yes_bytes(process: _Process) -> int:
    for piece in _pieces(b"y\n" * (_PIECE // 2), _number(process)):
        await process.write(piece)
    return 0


_PROGRAMS = {
    "echo": _echo,
    "err": _err,
    "cat": _cat,
    "env": _env,
    "true": _true,
    "false": _false,
    "exit": _exit,
    "signal": _signal,
    "sleep": _sleep,
    "yes-bytes": _yes_bytes,
}


def _number(process: _Process) -> int:
    try:
        return int(process.request.argv[1])
    except (IndexError, ValueError):
        raise InvalidArgument(f"{process.request.argv[0]!r} wants a number") from None


async def _stdin(process: _Process) -> AsyncIterator[bytes]:
    async for event in process.stream:
        if not isinstance(event, Data):
            raise InvalidArgument("a message came where standard input was expected")
        yield event.payload


def _pieces(block: bytes, total: int) -> list[bytes]:
    whole, rest = divmod(total, len(block))
    return [block] * whole + ([block[:rest]] if rest else [])


def _counted(tar: bytes) -> guest.TreeDone:
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
            entries = len(archive.getmembers())
    except tarfile.TarError as error:
        raise GuestError(f"that is no tar stream: {error}") from error
    return guest.TreeDone(entries, len(tar), zlib.crc32(tar))
