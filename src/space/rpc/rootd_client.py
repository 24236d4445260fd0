"""The node's side of rootd's socket: typed methods, pidfds beside the answers, and a rootd that may be followed by another.

One SEQPACKET connection; answers come in the order of the questions. When the connection breaks with operations in flight,
each is asked once more over a new one: rootd's operations are idempotent. A second break is `Unavailable`.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from space.model.errors import Internal, ProtocolError, SpaceError, Unavailable, from_code
from space.model.rootd import (
    BeginSnapshot,
    CreateSandbox,
    Describe,
    DropTemplate,
    EdgeOp,
    KeepTemplate,
    ListSnapshots,
    OpenTemplate,
    Operation,
    RebaseTemplate,
    RenewSandbox,
    SandboxOp,
    SealSnapshot,
    SealTemplate,
    SlotOp,
    SnapshotOp,
    StageSnapshot,
    StageTemplate,
    StartVmm,
    TemplateOp,
)

_ANSWER_BYTES = 4 << 20
_LISTENERS = 3
_MOST_DESCRIPTORS = 4
_RECONNECT_STEPS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)  # serve starts a rootd that died again after a moment

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SandboxOnHost:
    """A sandbox that rootd found on the host. alive: its VMM lives."""

    sandbox: str
    generation: int
    slot: int
    alive: bool


@dataclass(frozen=True, slots=True)
class Description:
    """What of this instance is on the host."""

    slots: tuple[int, ...]
    sandboxes: tuple[SandboxOnHost, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """A sandbox's cgroup: memory now, CPU time so far, and how many of its processes the kernel killed for want of memory."""

    memory_bytes: int
    cpu_usec: int
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotOnHost:
    """A complete snapshot. private_bytes: memory beyond its parent's. held: its memory is in memory (shared ones).

    One that cannot be used here (another version of space made it) has its name alone: a sandbox boots from its disk.
    """

    snapshot: str
    sandbox: str = ""
    generation: int = 0
    template: str = ""
    parent: str = ""
    shared: bool = False
    durable: bool = False
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    accelerator: str = ""
    private_bytes: int = 0
    taken_at: float = 0.0
    held: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotDoor:
    """Descriptors of a snapshot that begins, which the caller owns: the file for the device state, and the conversation."""

    state: int
    talk: int


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """A snapshot that is there: its manifest, and descriptors for reading, which the caller owns."""

    manifest: dict[str, Any]
    memory: int
    state: int
    disk: int

    def close(self) -> None:
        """All of them."""
        _close_all((self.memory, self.state, self.disk))


@dataclass(frozen=True, slots=True)
class StagedSnapshot:
    """One that is being written: descriptors, which the caller owns. lock: while it is open, nobody takes the rest for what was left."""

    lock: int
    memory: int
    state: int
    disk: int

    def close(self) -> None:
        """All of them."""
        _close_all((self.memory, self.state, self.disk, self.lock))


@dataclass(frozen=True, slots=True)
class Listeners:
    """Descriptors of a slot's edge, which the caller owns: TCP to every admitted address and port; DNS over UDP; DNS over TCP."""

    transparent: int
    dns: int
    dns_tcp: int

    def close(self) -> None:
        """All of them."""
        _close_all((self.transparent, self.dns, self.dns_tcp))


@dataclass(frozen=True, slots=True)
class _Answer:
    values: dict[str, Any]
    descriptors: tuple[int, ...]


class _Broken(Exception):
    """The connection ended before the answer."""


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection and the futures of the questions that are not answered yet."""

    channel: socket.socket
    loop: asyncio.AbstractEventLoop
    answers: deque[asyncio.Future[_Answer]] = field(default_factory=deque)
    open: bool = True

    def ask(self, message: bytes) -> asyncio.Future[_Answer]:
        try:
            self.channel.send(message)
        except OSError as error:
            self.close(f"rootd does not take messages: {error.strerror}")
            raise _Broken(str(error)) from error
        answer: asyncio.Future[_Answer] = self.loop.create_future()
        self.answers.append(answer)
        return answer

    def readable(self) -> None:
        """Take one answer, which belongs to the oldest question."""
        try:
            data, rights, flags, _ = self.channel.recvmsg(_ANSWER_BYTES, socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS))
        except BlockingIOError:
            return
        except OSError as error:
            self.close(f"connection to rootd: {error.strerror}")
            return
        received = [fd for level, kind, raw in rights if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) for fd in _integers(raw)]
        for descriptor in received:
            os.set_inheritable(descriptor, False)
        if not data or not self.answers or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            _close_all(received)
            self.close("rootd ended" if not data else "rootd sent what nobody asked for")
            return
        future = self.answers.popleft()
        if future.done():  # whoever asked was cancelled
            _close_all(received)
            return
        try:
            future.set_result(_Answer(_values(data), tuple(received)))
        except SpaceError as error:
            _close_all(received)
            future.set_exception(error)

    def close(self, why: str) -> None:
        if not self.open:
            return
        self.open = False
        self.loop.remove_reader(self.channel)
        self.channel.close()
        while self.answers:
            future = self.answers.popleft()
            if not future.done():
                future.set_exception(_Broken(why))


class RootdClient:
    """rootd, as the node sees it. Cancelling a method does not undo what rootd was asked; asking again is safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def describe(self) -> Description:
        """What of this instance is on the host."""
        values = (await self._ask("describe", Describe())).values
        return _read(
            lambda: Description(
                tuple(int(slot) for slot in values["slots"]),
                tuple(SandboxOnHost(one["sandbox"], one["generation"], one["slot"], one["alive"]) for one in values["sandboxes"]),
            )
        )

    async def create_slot(self, slot: int) -> None:
        """Namespace, TAP and ruleset; returns when the ruleset was read back."""
        await self._ask("create_slot", SlotOp(slot))

    async def create_edge(self, slot: int, synthetic: str, *, literal: bool) -> Listeners:
        """A slot with egress, or other destinations for the one that is there: duplicates of its listeners, which rootd holds as well.

        Conflict while a VMM lives in a slot that had to be built anew.
        """
        descriptors = (await self._ask("create_edge", EdgeOp(slot, synthetic, literal))).descriptors
        if len(descriptors) != _LISTENERS:
            _close_all(descriptors)
            raise ProtocolError(f"rootd's answer came with {len(descriptors)} listeners")
        return Listeners(*descriptors)

    async def worker_cgroup(self, slot: int) -> tuple[int, ...]:
        """Descriptors, which the caller owns, by which a process puts itself into the cgroup of the slot's worker: one a hierarchy."""
        descriptors = (await self._ask("worker_cgroup", SlotOp(slot))).descriptors
        if not descriptors:
            raise ProtocolError("rootd's answer came without a file of the worker's cgroup")
        return descriptors

    async def provide_root(self, template: str) -> None:
        """The root certificate's key of that template is where the broker takes it from. NotFound: the template has none."""
        await self._ask("provide_root", TemplateOp(template))

    async def slot_counters(self, slot: int) -> dict[str, int]:
        """What the filter of a slot counted: packets by kind."""
        values = (await self._ask("slot_counters", SlotOp(slot))).values
        return _read(lambda: {str(name): int(count) for name, count in values["counters"].items()})

    async def destroy_slot(self, slot: int) -> None:
        """Remove a slot; Conflict while a VMM lives in it."""
        await self._ask("destroy_slot", SlotOp(slot))

    async def create_sandbox(self, request: CreateSandbox) -> None:
        """Directory, disk and cgroup; NotFound without the template, Conflict when it is there in another shape."""
        await self._ask("create_sandbox", request)

    async def start_vmm(self, request: StartVmm) -> int:
        """Boot it; its sockets listen. Returns a pidfd that the caller owns. Gone when this generation ran and has ended."""
        return self._one_descriptor(await self._ask("start_vmm", request))

    async def adopt_vmm(self, sandbox: str, generation: int) -> int | None:
        """A pidfd, which the caller owns, of the VMM if it lives."""
        answer = await self._ask("adopt_vmm", SandboxOp(sandbox, generation))
        return self._one_descriptor(answer) if answer.values.get("alive") is True else None

    async def kill_vmm(self, sandbox: str, generation: int) -> None:
        """Send SIGKILL to all of it; the pidfd says when it is dead."""
        await self._ask("kill_vmm", SandboxOp(sandbox, generation))

    async def renew_sandbox(self, sandbox: str, generation: int, following: int) -> None:
        """Its disk is that of another generation; Conflict while the VMM lives."""
        await self._ask("renew_sandbox", RenewSandbox(sandbox, generation, following))

    async def destroy_sandbox(self, sandbox: str, generation: int) -> None:
        """Remove files, sockets and cgroups; Conflict while the VMM lives."""
        await self._ask("destroy_sandbox", SandboxOp(sandbox, generation))

    async def usage(self, sandbox: str, generation: int) -> Usage:
        """Memory and CPU of the sandbox's cgroup."""
        values = (await self._ask("usage", SandboxOp(sandbox, generation))).values
        return _read(lambda: Usage(int(values["memory_bytes"]), int(values["cpu_usec"]), int(values["oom_kills"])))

    async def keep_template(self, request: KeepTemplate) -> None:
        """The sandbox's disk as it is becomes a template of the instance. NoCapacity when the file system is full: nothing is kept then."""
        await self._ask("keep_template", request)

    async def rebase_template(self, request: RebaseTemplate) -> None:
        """A template's disk under another digest, booting as `onto` does."""
        await self._ask("rebase_template", request)

    async def stage_template(self, request: StageTemplate) -> int:
        """A descriptor of an empty disk to write, which the caller owns; asked again, another one."""
        return self._one_descriptor(await self._ask("stage_template", request))

    async def seal_template(self, request: SealTemplate) -> None:
        """What was written there is a template from now on."""
        await self._ask("seal_template", request)

    async def open_template(self, digest: str) -> int:
        """A descriptor of its disk, for reading, which the caller owns. NotFound."""
        return self._one_descriptor(await self._ask("open_template", OpenTemplate(digest)))

    async def drop_template(self, digest: str, *, force: bool = False) -> None:
        """Take it away; Conflict while sandboxes of it are there."""
        await self._ask("drop_template", DropTemplate(digest, force))

    async def begin_snapshot(self, request: BeginSnapshot) -> SnapshotDoor:
        """Begin to take one (`model.rootd` has the conversation). Gone when the VM does not live, Conflict when the name is taken."""
        descriptors = (await self._ask("begin_snapshot", request)).descriptors
        if len(descriptors) != 2:
            _close_all(descriptors)
            raise ProtocolError(f"rootd's answer came with {len(descriptors)} descriptors of a snapshot")
        return SnapshotDoor(*descriptors)

    async def list_snapshots(self) -> tuple[SnapshotOnHost, ...]:
        """Every complete snapshot of this instance."""
        values = (await self._ask("list_snapshots", ListSnapshots())).values
        return _read(lambda: tuple(SnapshotOnHost(**each) for each in values["snapshots"]))

    async def discard_snapshot(self, snapshot: str) -> None:
        """Remove it and let its memory go; nothing there is fine. Conflict while a sandbox is made of it."""
        await self._ask("discard_snapshot", SnapshotOp(snapshot))

    async def open_snapshot(self, snapshot: str) -> SnapshotFiles:
        """One's manifest and files, for reading. NotFound; Conflict for a template's."""
        answer = await self._ask("open_snapshot", SnapshotOp(snapshot))
        memory, state, disk = self._descriptors(answer, 3)
        return SnapshotFiles(answer.values.get("manifest") or {}, memory, state, disk)

    async def stage_snapshot(self, request: StageSnapshot) -> StagedSnapshot:
        """Files to write, which are a snapshot once they are sealed."""
        return StagedSnapshot(*self._descriptors(await self._ask("stage_snapshot", request), 4))

    async def seal_snapshot(self, request: SealSnapshot) -> None:
        """What was written there is a snapshot, durably."""
        await self._ask("seal_snapshot", request)

    async def hold_memory(self, snapshot: str) -> None:
        """Returns when a shared snapshot's memory is held. Unavailable when its holder ended before."""
        answer = await self._ask("hold_memory", SnapshotOp(snapshot))
        if not await _first_line(self._one_descriptor(answer)):
            raise Unavailable(f"the memory of snapshot {snapshot} could not be held", hint="rootd's log says why")

    async def release_memory(self, snapshot: str) -> None:
        """Let it go; machines that run have it mapped and keep it."""
        await self._ask("release_memory", SnapshotOp(snapshot))

    async def aclose(self) -> None:
        """Close the connection; what is in flight fails."""
        if self._connection is not None:
            self._connection.close("closed")

    async def _ask(self, op: str, record: Operation) -> _Answer:
        message = json.dumps({"op": op, **asdict(record)}).encode()
        for attempt in (1, 2):
            connection = await self._connected()
            answer: asyncio.Future[_Answer] | None = None
            try:
                answer = connection.ask(message)
                return await answer
            except _Broken as error:
                if attempt == 2:
                    raise Unavailable(f"rootd went away twice during {op}: {error}", hint="its log says why") from error
            except asyncio.CancelledError:
                if answer is not None and answer.done() and not answer.cancelled() and answer.exception() is None:
                    _close_all(answer.result().descriptors)
                raise
        raise AssertionError

    async def _connected(self) -> _Connection:
        async with self._connecting:
            if self._connection is not None and self._connection.open:
                return self._connection
            loop = asyncio.get_running_loop()
            for pause in _RECONNECT_STEPS:
                await asyncio.sleep(pause)
                channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                try:
                    channel.connect(str(self._path))  # to a UNIX socket: at once, or EAGAIN when its queue is full
                except OSError as error:
                    channel.close()
                    failure = error
                    continue
                self._connection = _Connection(channel, loop)
                loop.add_reader(channel, self._connection.readable)
                return self._connection
            raise Unavailable(f"rootd cannot be reached at {self._path}: {failure.strerror}", hint="is serve running?") from failure

    @classmethod
    def _one_descriptor(cls, answer: _Answer) -> int:
        return cls._descriptors(answer, 1)[0]

    @staticmethod
    def _descriptors(answer: _Answer, count: int) -> Sequence[int]:
        if len(answer.descriptors) != count:
            _close_all(answer.descriptors)
            raise ProtocolError(f"rootd's answer came with {len(answer.descriptors)} descriptors, not {count}")
        return answer.descriptors


async def _first_line(descriptor: int) -> bytes:
    """What comes over a pipe that this closes; nothing when it ends without a word."""
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    os.set_blocking(descriptor, False)
    loop.add_reader(descriptor, there.set)
    try:
        await there.wait()
        return os.read(descriptor, 4096)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _values(data: bytes) -> dict[str, Any]:
    """The fields of an answer; raises what a refusal says."""
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise ProtocolError("rootd's answer is not JSON") from error
    if not isinstance(raw, dict):
        raise ProtocolError("rootd's answer is not an object")
    if raw.get("ok") is True:
        return raw
    hint = raw.get("hint")
    raise from_code(str(raw.get("code", "internal")), str(raw.get("message", "rootd failed")), hint=str(hint) if hint else None)


def _read(parse: Callable[[], T]) -> T:
    try:
        return parse()
    except (KeyError, TypeError, ValueError) as error:
        raise Internal("rootd's answer lacks what was asked for") from error


def _integers(raw: bytes) -> array.array[int]:
    numbers = array.array("i")
    numbers.frombytes(raw[: len(raw) - len(raw) % numbers.itemsize])
    return numbers


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
