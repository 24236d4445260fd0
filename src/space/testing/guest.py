r"""FakeGuest: the guest's side of the channel (docs/protocol.md, section 2) in this process, over two sockets. No kernel, no processes.

`exec` knows these programs (the last part of argv[0] counts):

    echo WORD...    the words and a newline        exit N          ends with that status
    err WORD...     the same on stderr             sleep S         that many seconds, then 0
    cat             stdin to stdout                yes-bytes N     that many bytes of "y\n"
    env             one NAME=VALUE a line          signal N        ends by that signal
    true, false     0, 1                           count N         1 to N, a line each, odd ones on stderr
    stty size       "ROWS COLS" of its terminal    sizes           the same at each change, until stdin ends

and answers `not_found` to any other, `sh -c` too. A timeout ends them with signal 9. Kept processes and terminals: `guestprocesses`.
tree_put keeps the tar stream under exactly its path, tree_get returns it. noop, configure, metrics, shutdown (which kills the fake), echo,
sink and source do as the page says; `guestfiles` has the verbs of files, watches and ports.
"""

from __future__ import annotations

import asyncio
import io
import socket
import tarfile
import time
import zlib

import msgspec

from space.core.wire import guest
from space.core.wire.events import GUEST
from space.model.errors import Conflict, GuestError, InvalidArgument, NotFound, ProtocolError, Unsupported
from space.rpc.served import Served
from space.rpc.stream import Stream
from space.testing.guestfiles import FakeFiles
from space.testing.guestprocesses import Processes
from space.testing.guestprograms import pieces

_PIECE = 64 << 10
_BOOT_ID = "00000000-0000-4000-8000-000000000000"
_OWN, _RESTORED, _IMPRINTED = "", "imprinted", "claimed"  # of a session: what is missing before all is answered
_ALLOWED = {
    _RESTORED: frozenset({"noop", "metrics", "shutdown", "imprint"}),
    _IMPRINTED: frozenset({"noop", "metrics", "shutdown", "imprint", "claim", "exec"}),
}


class FakeGuest:
    """One machine's daemon. configured: the last configure. trees: tar streams by path. processes: what runs and what is kept."""

    def __init__(self, former: FakeGuest | None = None) -> None:
        """former: the guest that this one is a restored copy of, with its files and its trees; its processes stay behind."""
        self.configured: guest.Configure | None = None
        self.imprinted: guest.Imprint | None = None
        self.claimed: guest.Claim | None = None
        self.disk_bytes = 2 << 30
        self._life: int | None = None
        self._standing = _OWN
        self.trees: dict[bytes, bytes] = {}
        self.processes = Processes()
        self.off = asyncio.Event()
        self.files = FakeFiles()
        self._born = time.monotonic()
        self._served: Served | None = None
        self._verbs = {
            "noop": self._noop,
            "configure": self._configure,
            "prepare_snapshot": self._prepare_snapshot,
            "imprint": self._imprint,
            "claim": self._claim,
            "grow": self._grow,
            "exec": self._exec,
            "launch": self._exec,
            "attach": self._attach,
            "processes": self._processes,
            "forget": self._forget,
            "tree_put": self._tree_put,
            "tree_get": self._tree_get,
            "metrics": self._metrics,
            "shutdown": self._shutdown,
            "echo": self._echo,
            "sink": self._sink,
            "source": self._source,
            **self.files.verbs,
        }
        if former is not None:
            self.configured, self.imprinted, self.claimed, self._life = former.configured, former.imprinted, former.claimed, former._life
            self.trees = dict(former.trees)
            self.files.copy_from(former.files)

    @property
    def running(self) -> dict[int, list[bytes]]:
        """argv of live programs by pid."""
        return self.processes.running

    async def serve(self, control: socket.socket, bulk: socket.socket) -> None:
        """Serve on these pipes from now on (returns at once); pipes of an earlier call are closed."""
        if self.off.is_set():
            control.close()
            bulk.close()
            return
        if self._served is not None:
            self._served.die("the pipes were replaced")
        self._served = Served(GUEST, self._answer, on_begin=self._greeted)
        await self._served.attach((control, bulk))

    def kill(self) -> None:
        """As if the VMM died: the pipes close, `off` is set. Idempotent."""
        self.off.set()
        self.files.close()
        self.processes.kill()
        if self._served is not None:
            self._served.die("the guest was killed")

    async def _answer(self, stream: Stream, verb: str, request: bytes) -> None:
        if self._standing in _ALLOWED and verb not in _ALLOWED[self._standing]:
            raise Conflict(f"this guest was restored and is not {self._standing} yet: '{verb}' has to wait")
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
        self._life, self._standing = self.configured.generation, _OWN
        await stream.send_message(guest.Configured(self._boot_id(), "fake", self._uptime_ms(), self.disk_bytes, "0"))

    async def _prepare_snapshot(self, stream: Stream, request: bytes) -> None:
        guest.decode_request(guest.PrepareSnapshot, request)
        await stream.send_message(guest.Done())

    async def _imprint(self, stream: Stream, request: bytes) -> None:
        self.imprinted = guest.decode_request(guest.Imprint, request)
        if self._standing == _RESTORED:
            self._standing = _IMPRINTED
        await stream.send_message(guest.Imprinted(0, 1))

    async def _claim(self, stream: Stream, request: bytes) -> None:
        self.claimed = claim = guest.decode_request(guest.Claim, request)
        if self.configured is not None:
            told = {"env": claim.env, "generation": claim.generation, "realtime_ns": claim.realtime_ns}
            self.configured = msgspec.structs.replace(self.configured, hostname=claim.hostname or self.configured.hostname, **told)
        self._life, self._standing = claim.generation, _OWN
        await stream.send_message(guest.Configured(self._boot_id(), "fake", self._uptime_ms(), self.disk_bytes, "0"))

    async def _grow(self, stream: Stream, request: bytes) -> None:
        self.disk_bytes = guest.decode_request(guest.Grow, request).disk_bytes
        await stream.send_message(guest.Configured(self._boot_id(), "fake", self._uptime_ms(), self.disk_bytes, "0"))

    def _greeted(self, generation: int) -> None:
        self._standing = _OWN if self._life in (None, generation) else _RESTORED

    def _boot_id(self) -> str:
        return self.imprinted.boot_id if self.imprinted is not None else _BOOT_ID

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
        for piece in pieces(bytes(4 * _PIECE), total):
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
        base = self.configured.env if self.configured else []
        await self.processes.exec(stream, guest.decode_request(guest.Exec, request), base)

    async def _attach(self, stream: Stream, request: bytes) -> None:
        await self.processes.attach(stream, guest.decode_request(guest.Attach, request))

    async def _processes(self, stream: Stream, request: bytes) -> None:
        await self.processes.processes(stream, guest.decode_request(guest.Empty, request))

    async def _forget(self, stream: Stream, request: bytes) -> None:
        await self.processes.forget(stream, guest.decode_request(guest.Process, request))

    def _uptime_ms(self) -> int:
        return int((time.monotonic() - self._born) * 1000)


def _counted(tar: bytes) -> guest.TreeDone:
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
            entries = len(archive.getmembers())
    except tarfile.TarError as error:
        raise GuestError(f"that is no tar stream: {error}") from error
    return guest.TreeDone(entries, len(tar), zlib.crc32(tar))
