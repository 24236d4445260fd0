"""SimNode: the node's verbs over a UNIX socket, with sandboxes that are dictionaries. For control's tests and for benches.

    async with SimNode(socket_path) as node:
        node.refuse_create = NoCapacity("full")     # the next creates are refused
        node.cut()                                  # every session ends now

Processes: `echo WORD...`, `cat`, `exit N` (or `false`, `true`), `sleep SECONDS`, `spam BYTES`, `die` (the sandbox ends in the
middle). Trees are kept as the tar streams that were put. What it holds survives `stop` and `start`, as a node's does.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from space.core.wire.events import NODE
from space.model.errors import NotFound, PermissionDenied, SandboxDied, SpaceError, Unsupported
from space.model.isolation import EMULATED
from space.rpc import node_api as api
from space.rpc.session import Data, Served, Stream

_PIECE = 64 * 1024


@dataclass(slots=True)
class SimSandbox:
    """A sandbox that is not there."""

    create: api.Create
    phase: str = "running"
    revision: int = 1
    trees: dict[str, bytes] = field(default_factory=dict)
    running: set[asyncio.Task[None]] = field(default_factory=set)


class SimNode:
    """A node in this process. Failures are attributes."""

    def __init__(self, path: Path, *, isolation: str = EMULATED, templates: tuple[str, ...] = ("base",)) -> None:
        self.path = path
        self.isolation = isolation
        self.templates = templates
        self.sandboxes: dict[str, SimSandbox] = {}
        self.created = 0
        self.deleted: list[str] = []
        self.killed = 0  # processes whose stream was reset
        self.open_trees = 0
        self.refuse_create: SpaceError | None = None
        self.fail_create: str | None = None  # the phase becomes failed, with this reason
        self.hold_create: asyncio.Event | None = None  # creates stop at `preparing` until it is set
        self.hold_delete: asyncio.Event | None = None
        self.lie_about_trees = False
        self.break_tree_after: int | None = None  # a download is reset after so many bytes
        self._revision = 0
        self._watchers: set[asyncio.Queue[api.SandboxState]] = set()
        self._sessions: set[Served] = set()
        self._peers: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._verbs: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "info": self._info,
            "create": self._create,
            "delete": self._delete,
            "list": self._list,
            "watch": self._watch,
            "pause": self._pause,
            "resume": self._resume,
            "noop": self._noop,
            "metrics": self._metrics,
            "exec": self._exec,
            "tree_put": self._tree_put,
            "tree_get": self._tree_get,
        }

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Listen."""
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def stop(self) -> None:
        """Stop listening and hang up; the sandboxes stay."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            self.path.unlink(missing_ok=True)
        self.cut()
        await asyncio.gather(*self._peers, return_exceptions=True)

    def cut(self) -> None:
        """End every session at once."""
        for session in list(self._sessions):
            session.die("cut")

    def lose(self, sandbox: str, reason: str = "its VM ended") -> None:
        """The sandbox dies: its processes' streams end with sandbox_died, its phase is failed."""
        there = self.sandboxes[sandbox]
        for task in there.running:
            task.cancel()
        self._move(there, "failed", reason)

    # -- sessions ---------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:
            return
        task = asyncio.create_task(self._serve(peer))
        self._peers.add(task)
        task.add_done_callback(self._peers.discard)

    async def _serve(self, peer: socket.socket) -> None:
        served = Served(NODE, self._handle)
        self._sessions.add(served)
        try:
            await served.attach([peer])
            await asyncio.shield(served.closed)
        finally:
            await served.aclose()
            self._sessions.discard(served)

    async def _handle(self, stream: Stream, verb: str, request: bytes) -> None:
        run = self._verbs.get(verb)
        if run is None:
            raise Unsupported(f"no verb {verb}")
        await run(stream, request)

    # -- levels -----------------------------------------------------------------------------------------------------------

    def _state(self, there: SimSandbox, phase: str, reason: str | None = None, stages: dict[str, float] | None = None) -> api.SandboxState:
        asked = there.create
        return api.SandboxState(asked.sandbox, asked.tenant, asked.generation, phase, there.revision, self.isolation, reason, stages or {})

    def _move(self, there: SimSandbox, phase: str, reason: str | None = None, stages: dict[str, float] | None = None) -> api.SandboxState:
        self._revision += 1
        there.phase, there.revision = phase, self._revision
        state = self._state(there, phase, reason, stages)
        for queue in self._watchers:
            queue.put_nowait(state)
        return state

    def _find(self, sandbox: str) -> SimSandbox:
        there = self.sandboxes.get(sandbox)
        if there is None:
            raise NotFound(f"the node has no sandbox {sandbox}")
        return there

    async def _info(self, stream: Stream, _: bytes) -> None:
        await stream.send_message(api.NodeInfo(self.isolation, "sim", list(self.templates), len(self.sandboxes), 10_000, 1 << 20, 0))

    async def _list(self, stream: Stream, _: bytes) -> None:
        await stream.send_message(api.SandboxList([self._state(there, there.phase) for there in self.sandboxes.values()]))

    async def _watch(self, stream: Stream, _: bytes) -> None:
        queue: asyncio.Queue[api.SandboxState] = asyncio.Queue()
        for there in self.sandboxes.values():
            queue.put_nowait(self._state(there, there.phase))
        self._watchers.add(queue)
        try:
            while True:
                await stream.send_message(await queue.get())
        finally:
            self._watchers.discard(queue)

    # -- life -------------------------------------------------------------------------------------------------------------

    async def _create(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.Create)
        if self.refuse_create is not None:
            raise self.refuse_create
        if asked.template not in self.templates:
            raise NotFound(f"there is no template {asked.template!r}")
        there = self.sandboxes.get(asked.sandbox)
        if there is None:
            there = self.sandboxes[asked.sandbox] = SimSandbox(asked)
            self.created += 1
            await stream.send_message(self._move(there, "preparing"))
        if self.hold_create is not None:
            await self.hold_create.wait()
        if self.sandboxes.get(asked.sandbox) is not there:
            raise NotFound("it was deleted while it was made")
        if self.fail_create is not None:
            await stream.send_message(self._move(there, "failed", self.fail_create))
            return
        await stream.send_message(self._move(there, "running", stages={"disk": 1.0, "boot": 2.0, "hello": 0.5}))

    async def _delete(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.Target)
        if self.hold_delete is not None:
            await self.hold_delete.wait()
        there = self.sandboxes.pop(asked.sandbox, None)
        if there is None:
            await stream.send_message(api.SandboxState(asked.sandbox, "", asked.generation, "gone", 0, self.isolation))
            return
        self.deleted.append(asked.sandbox)
        for task in there.running:
            task.cancel()
        await stream.send_message(self._move(there, "gone"))

    async def _pause(self, stream: Stream, request: bytes) -> None:
        there = self._find(msgspec.msgpack.decode(request, type=api.Target).sandbox)
        await stream.send_message(self._move(there, "paused"))

    async def _resume(self, stream: Stream, request: bytes) -> None:
        there = self._find(msgspec.msgpack.decode(request, type=api.Target).sandbox)
        await stream.send_message(self._move(there, "running"))

    async def _noop(self, stream: Stream, request: bytes) -> None:
        self._find(msgspec.msgpack.decode(request, type=api.Target).sandbox)
        await stream.send_message(api.Done())

    async def _metrics(self, stream: Stream, request: bytes) -> None:
        self._find(msgspec.msgpack.decode(request, type=api.Target).sandbox)
        await stream.send_message(api.Metrics(512 << 20, 400 << 20, 10, 5, 2 << 30, 1 << 30, 7, 1000, 50, 90 << 20, 20))

    # -- processes --------------------------------------------------------------------------------------------------------

    async def _exec(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.Exec)
        there = self._find(asked.sandbox)
        program = getattr(self, "_run_" + asked.argv[0].rpartition("/")[2], None)
        if program is None:
            raise NotFound(f"there is no program {asked.argv[0]!r} in the sandbox")
        await stream.send_message(api.Started(4242))
        task = asyncio.ensure_future(program(stream, asked))
        there.running.add(task)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            self.killed += 1
            raise
        finally:
            there.running.discard(task)
            task.cancel()
        if task.cancelled():
            raise SandboxDied(f"sandbox {asked.sandbox} ended during the command")
        code, out, err = task.result()
        await stream.send_message(api.Exited(code, None, False, False, out, err, 1))

    async def _run_echo(self, stream: Stream, asked: api.Exec) -> tuple[int, int, int]:
        line = (" ".join(asked.argv[1:]) + "\n").encode()
        await stream.send(line)
        return 0, len(line), 0

    async def _run_cat(self, stream: Stream, _: api.Exec) -> tuple[int, int, int]:
        total = 0
        async for event in stream:
            if isinstance(event, Data):
                await stream.send(event.payload)
                total += len(event.payload)
        return 0, total, 0

    async def _run_exit(self, stream: Stream, asked: api.Exec) -> tuple[int, int, int]:
        await stream.send(b"bye\n", 1)
        return int(asked.argv[1]), 0, 4

    async def _run_sleep(self, _: Stream, asked: api.Exec) -> tuple[int, int, int]:
        await asyncio.sleep(float(asked.argv[1]))
        return 0, 0, 0

    async def _run_spam(self, stream: Stream, asked: api.Exec) -> tuple[int, int, int]:
        size = int(asked.argv[1])
        for at in range(0, size, _PIECE):
            await stream.send(b"x" * min(_PIECE, size - at))
        return 0, size, 0

    async def _run_lie(self, stream: Stream, _: api.Exec) -> tuple[int, int, int]:
        await stream.send(b"four")
        return 0, 5, 0

    async def _run_die(self, stream: Stream, asked: api.Exec) -> tuple[int, int, int]:
        await stream.send(b"half of the out")
        self.lose(asked.sandbox)
        return await asyncio.Future()

    # -- trees ------------------------------------------------------------------------------------------------------------

    async def _tree_put(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.Tree)
        there = self._find(asked.sandbox)
        if asked.path == "/proc":
            raise PermissionDenied("/proc is not writable")
        taken = bytearray()
        with self._open_tree():
            async for event in stream:
                if isinstance(event, Data):
                    taken += event.payload
        there.trees[asked.path] = bytes(taken)
        await stream.send_message(self._counted(taken))

    async def _tree_get(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.Tree)
        tree = self._find(asked.sandbox).trees.get(asked.path)
        if tree is None:
            raise NotFound(f"there is no {asked.path} in the sandbox")
        with self._open_tree():
            await stream.send(tree[: self.break_tree_after])
        if self.break_tree_after is not None:
            raise SandboxDied("the sandbox ended during the download")
        await stream.send_message(self._counted(tree))

    def _counted(self, tree: bytes | bytearray) -> api.TreeDone:
        return api.TreeDone(len(tree) // 512, len(tree), zlib.crc32(tree) ^ (1 if self.lie_about_trees else 0))

    @contextmanager
    def _open_tree(self) -> Iterator[None]:
        self.open_trees += 1
        try:
            yield
        finally:
            self.open_trees -= 1
