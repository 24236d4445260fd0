"""SimNode: the node's verbs over a UNIX socket, with sandboxes that are dictionaries. For control's tests and for benches.

    async with SimNode(socket_path) as node:
        node.refuse_create = NoCapacity("full")     # the next creates are refused
        node.cut()                                  # every session ends now

Its programs are in `simprocesses`, its files and ports in `simfiles`, its policies and asks in `simegress`, its lives in `simlife`.
Trees are kept as the tar streams that were put. What it holds survives `stop` and `start`, as a node's does.
"""

from __future__ import annotations

import asyncio
import socket
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from space.core.credentials.grant import Life
from space.core.lifecycle.table import Request
from space.core.wire.events import NODE
from space.model.errors import Conflict, NotFound, PermissionDenied, SandboxDied, SpaceError, Unsupported
from space.model.ids import new_process_id
from space.model.isolation import EMULATED
from space.model.sandbox import Phase
from space.node.credentials import CredentialVerbs
from space.rpc import node_api as api
from space.rpc.life_api import Checkpointed
from space.rpc.session import Data, Served, Stream
from space.testing import simfiles, simprocesses
from space.testing.simcredentials import SimCredentials
from space.testing.simegress import SimEgress, SimTraffic
from space.testing.simegresslog import SimEgressLog
from space.testing.simfiles import SimFiles
from space.testing.simlife import SimLife
from space.testing.simprocesses import SimProcess
from space.testing.simtemplates import SimTemplates


@dataclass(slots=True)
class SimSandbox:
    """A sandbox that is not there."""

    create: api.Create
    phase: str = "running"
    revision: int = 1
    busy: bool = False
    oom_kills: int = 0
    last_oom: str | None = None
    trees: dict[str, bytes] = field(default_factory=dict)
    running: set[asyncio.Task[None]] = field(default_factory=set)
    files: SimFiles = field(default_factory=SimFiles)
    traffic: SimTraffic = field(default_factory=SimTraffic)
    start: str = "cold"
    stored: bool = False  # it has a stored memory
    checkpoints: dict[str, Checkpointed] = field(default_factory=dict)


class SimNode:
    """A node in this process. Failures are attributes."""

    def __init__(self, path: Path, *, isolation: str = EMULATED, templates: tuple[str, ...] = ("base",)) -> None:
        self.path = path
        self.isolation = isolation
        self.templates = templates
        self.sandboxes: dict[str, SimSandbox] = {}
        self.created = 0
        self.deleted: list[str] = []
        self.held_execs = 0
        self.killed = 0  # processes whose stream was reset
        self.open_trees = 0
        self.refuse_create: SpaceError | None = None
        self.fail_create: str | None = None  # the phase becomes failed, with this reason
        self.hold_create: asyncio.Event | None = None  # creates stop at `preparing` until it is set
        self.hold_exec: asyncio.Event | None = None  # starts do not begin until it is set
        self.hold_delete: asyncio.Event | None = None
        self.old_daemon = False  # guests do not know how to let go on what a command leaves behind
        self.lie_about_trees = False
        self.break_tree_after: int | None = None  # a download is reset after so many bytes
        self.processes: dict[str, dict[str, SimProcess]] = {}  # by sandbox, also of those that are gone
        self.forgotten: set[str] = set()  # processes
        self.egress = SimEgress(self._traffic, self._egress_changed)
        self.egress_log = SimEgressLog()
        self.templating = SimTemplates(templates)
        self.credentials = SimCredentials(self._life_of)
        self.life = SimLife(self)
        self._pid = 4241
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
            "noop": self._noop,
            "metrics": self._metrics,
            "exec": self._exec,
            "attach": self._attach,
            "input": self._input,
            "processes": self._processes,
            "process": self._one_process,
            "forget": self._forget,
            "history": self._history,
            **{verb: self._forward(verb) for verb in simfiles.verbs() if verb != "watch"},
            "tree_put": self._tree_put,
            "tree_get": self._tree_get,
            **self.egress.verbs,
            **self.egress_log.verbs,
            **self.templating.verbs,
            **CredentialVerbs(self.credentials).table,
            "set_labels": self._set_labels,
            **self.life.verbs,
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
        self._end_processes(sandbox, reason)
        self._move(self.sandboxes[sandbox], "failed", reason)

    def _end_processes(self, sandbox: str, reason: str) -> None:
        for process in self.processes.get(sandbox, {}).values():
            process.end(reason=reason)

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
        return api.SandboxState(
            asked.sandbox, asked.tenant, asked.generation, phase, there.revision, self.isolation, reason, stages or {},
            there.busy, there.oom_kills, there.last_oom, there.traffic.state(), list(there.traffic.asks.values()),
            there.start, self.life.bytes_of(there), len(there.checkpoints),
        )  # fmt: skip

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

    def _usable(self, sandbox: str) -> SimSandbox:
        """Its guest answers."""
        there = self._find(sandbox)
        self.life.verdict(there, Request.USE)
        return there

    async def _info(self, stream: Stream, _: bytes) -> None:
        await stream.send_message(api.NodeInfo(self.isolation, "sim", list(self.templates), len(self.sandboxes), 10_000, 1 << 20, 0))

    async def _list(self, stream: Stream, _: bytes) -> None:
        found = list(self.sandboxes.values())
        for at in range(0, len(found) or 1, 2):  # more than one message, as many sandboxes make
            await stream.send_message(api.SandboxList([self._state(there, there.phase) for there in found[at : at + 2]]))

    async def _watch(self, stream: Stream, request: bytes) -> None:
        """Of the node's sandboxes; of files when the request names a sandbox."""
        if request != msgspec.msgpack.encode(api.Empty()):
            await self._forward("watch")(stream, request)
            return
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
        if asked.digest:
            self.templating.of(asked.tenant, asked.digest)
        elif asked.template not in self.templates:
            raise NotFound(f"there is no template {asked.template!r}")
        there = self.sandboxes.get(asked.sandbox)
        if asked.grants:
            await self.credentials.broker().attach_grants(asked.tenant, asked.sandbox, tuple(asked.grants))
        if there is None:
            traffic = self.egress.begin(asked)
            there = self.sandboxes[asked.sandbox] = SimSandbox(asked, traffic=traffic)
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
        await self.credentials.held.forget_sandbox(asked.sandbox)
        self._end_processes(asked.sandbox, "it was deleted")
        await stream.send_message(self._move(there, "gone"))

    async def _noop(self, stream: Stream, request: bytes) -> None:
        self._usable(msgspec.msgpack.decode(request, type=api.Target).sandbox)
        await stream.send_message(api.Done())

    async def _metrics(self, stream: Stream, request: bytes) -> None:
        self._usable(msgspec.msgpack.decode(request, type=api.Target).sandbox)
        await stream.send_message(api.Metrics(512 << 20, 400 << 20, 10, 5, 2 << 30, 1 << 30, 7, 1000, 50, 90 << 20, 20))

    def _life_of(self, sandbox: str) -> tuple[Life, Phase, int]:
        there = self._find(sandbox)
        asked = there.create
        life = Life(asked.tenant, asked.sandbox, asked.template, asked.labels, there.start == "fork")
        return life, Phase(there.phase), asked.generation

    async def _set_labels(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.SetLabels)
        there = self._find(asked.sandbox)
        there.create = msgspec.structs.replace(there.create, labels=asked.labels)
        await stream.send_message(api.Done())

    def alarm(self, sandbox: str, kind: api.AlarmKind, grant: str, *, secret: str = "s", host: str = "api.example.com") -> None:
        """Something went wrong with a credential."""
        there = self._find(sandbox)
        before = there.traffic.alarms.get((kind, grant))
        count = 1 if before is None else before.count + 1
        there.traffic.alarms[kind, grant] = api.CredentialAlarm(kind, grant, secret, host, count, time.time_ns() // 1000)
        self._move(there, there.phase)

    def _traffic(self, sandbox: str) -> SimTraffic:
        return self._find(sandbox).traffic

    def _egress_changed(self, sandbox: str) -> None:
        there = self._find(sandbox)
        self._move(there, there.phase)

    # -- processes --------------------------------------------------------------------------------------------------------

    async def _exec(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.Exec)
        if self.hold_exec is not None:
            self.held_execs += 1
            await self.hold_exec.wait()
        there = self._usable(asked.sandbox)
        if asked.stays and self.old_daemon:
            raise Unsupported("this daemon does not know the verb 'launch'")
        kept = self.processes.setdefault(asked.sandbox, {})
        if not asked.process:
            asked = msgspec.structs.replace(asked, process=new_process_id())
        first = kept.get(asked.process)
        if first is not None and asked.named and not asked.attach and first.is_of(asked):
            await stream.send_message(api.Started(first.pid, asked.process))
            return
        if first is not None or asked.process in self.forgotten:
            raise Conflict(f"process {asked.process} is there already, or was deleted")
        simprocesses.check(asked)
        self._pid += 1
        process = kept[asked.process] = SimProcess(asked, self._pid)
        await stream.send_message(api.Started(process.pid, asked.process))
        process.task = asyncio.create_task(self._live(process, there))
        there.running.add(process.task)
        if asked.attach:
            await self._attached(stream, process, [0, 0], kill=asked.kill_on_disconnect)

    async def _live(self, process: SimProcess, there: SimSandbox) -> None:
        try:
            await simprocesses.run(process, lambda: self.lose(process.asked.sandbox))
        finally:
            there.running.discard(process.task)

    async def _attached(
        self, stream: Stream, process: SimProcess, at: list[int], *, kill: bool, follow: bool = True, eof_at_close: bool = True
    ) -> None:
        taking = asyncio.create_task(process.take(stream, eof_at_close=eof_at_close))
        try:
            await process.relay(stream, at, follow=follow)
        except asyncio.CancelledError:
            if kill and process.state == "running":
                self.killed += 1
                process.end(signal=9)
            raise
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def _attach(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.Attach)
        process = self._process(asked.sandbox, asked.process)
        at = process.offsets(asked)
        await stream.send_message(api.Attached(process.info(), *at))
        if asked.input:
            await self._attached(stream, process, at, kill=asked.kill_on_disconnect, eof_at_close=False)
        else:
            await process.relay(stream, at, follow=asked.follow)

    async def _input(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.ProcessTarget)
        process = self._process(asked.sandbox, asked.process)
        if process.state != "running":
            raise Conflict(f"process {asked.process} has ended")
        await process.take(stream, eof_at_close=False)
        await stream.send_message(api.InputDone(process.stdin_bytes))

    async def _processes(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.Target)
        found = list(self.processes.get(asked.sandbox, {}).values())
        for at in range(0, len(found), 2):  # more than one message, as many processes make
            await stream.send_message(api.ProcessList([one.info() for one in found[at : at + 2]]))

    async def _one_process(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.ProcessTarget)
        await stream.send_message(self._process(asked.sandbox, asked.process).info())

    async def _forget(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.ProcessTarget)
        self.forgotten.add(asked.process)
        process = self.processes.get(asked.sandbox, {}).pop(asked.process, None)
        if process is not None:
            process.end(signal=9)
        await stream.send_message(api.Done())

    def _process(self, sandbox: str, process: str) -> SimProcess:
        found = self.processes.get(sandbox, {}).get(process)
        if found is None:
            raise NotFound(f"sandbox {sandbox} has no process {process}")
        return found

    async def _history(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.History)
        self._find(asked.sandbox)
        samples = [api.Sample(at * 10_000_000, 512 << 20, 400 << 20, at, at, 2 << 30, 1 << 30, 7, 90 << 20, 20) for at in (1, 2, 3)]
        await stream.send_message(api.MetricsHistory(10_000, [one for one in samples if one.at_us > asked.since_us]))

    # -- files ------------------------------------------------------------------------------------------------------------

    def _forward(self, verb: str) -> Callable[[Stream, bytes], Awaitable[None]]:
        async def run(stream: Stream, request: bytes) -> None:
            asked = msgspec.msgpack.decode(request, type=api.Forward)
            await self._usable(asked.sandbox).files.run(stream, verb, asked.request)

        return run

    # -- trees ------------------------------------------------------------------------------------------------------------

    async def _tree_put(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.Tree)
        there = self._usable(asked.sandbox)
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
        tree = self._usable(asked.sandbox).trees.get(asked.path)
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
