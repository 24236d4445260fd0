"""Control's side of the verbs of processes, for tests: over a node in memory with one sandbox (`lab`), or over any session."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from space.model.ids import new_process_id, new_sandbox_id
from space.node.process import Process
from space.node.processes import Quota
from space.rpc import node_api as api
from space.rpc.session import Data, Session
from space.rpc.stream import Stream
from space.testing.guest import FakeGuest
from space.testing.memorynode import QUOTA, MemoryNode

Said = (
    api.Started | api.Exited | api.Attached | api.Gap | api.Paused | api.Lost | api.ProcessInfo | api.ProcessList | api.InputDone | api.Done
)
SAID: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)


@dataclass
class Heard:
    """What a stream of a process said. lanes: output, from the offsets on that it began with."""

    lanes: list[bytearray] = field(default_factory=lambda: [bytearray(), bytearray()])
    said: list[Said] = field(default_factory=list)

    @property
    def end(self) -> Said:
        return self.said[-1]

    @property
    def gaps(self) -> list[api.Gap]:
        return [each for each in self.said if isinstance(each, api.Gap)]

    async def take(self, stream: Stream) -> bool:
        """One event; False at the end."""
        event = await anext(stream, None)
        if event is None:
            return False
        if isinstance(event, Data):
            self.lanes[event.lane] += event.payload
        else:
            self.said.append(SAID.decode(event.payload))
        return True


class Client:
    """Control's side of one sandbox over a session."""

    def __init__(self, session: Session, sandbox: str = "") -> None:
        self.session = session
        self.sandbox = sandbox

    async def open(self, *argv: str, **asked: object) -> Stream:
        """An attached process."""
        made = msgspec.structs.replace(api.Exec(self.sandbox, list(argv), process=new_process_id()), **asked)
        return await self.session.open("exec", made)

    async def start(self, *argv: str, overflow: str = "drop_oldest", **asked: object) -> str:
        """One in the background; its id."""
        stream = await self.open(*argv, attach=False, overflow=overflow, **asked)
        stream.close_now()
        heard = await drain(stream)
        assert isinstance(heard.end, api.Started)
        return heard.end.process

    async def attach(self, process: str, stdout: int | None = 0, stderr: int | None = 0, *, follow: bool = True, **asked: object) -> Stream:
        """A stream of its output."""
        made = msgspec.structs.replace(api.Attach(self.sandbox, process, stdout, stderr, follow), **asked)
        return await self.session.open("attach", made)

    async def output(self, process: str, stdout: int | None = 0, stderr: int | None = 0, *, follow: bool = True) -> Heard:
        """All that an attachment says."""
        stream = await self.attach(process, stdout, stderr, follow=follow)
        stream.close_now()
        return await drain(stream)

    async def info(self, process: str) -> api.ProcessInfo:
        return msgspec.msgpack.decode(await self.session.call("process", api.ProcessTarget(self.sandbox, process)), type=api.ProcessInfo)

    async def list(self) -> list[api.ProcessInfo]:
        found: list[api.ProcessInfo] = []
        async with await self.session.open("processes", api.Target(self.sandbox), finish=True) as stream:
            async for event in stream:
                found += msgspec.msgpack.decode(event.payload, type=api.ProcessList).processes
        return found

    async def input(self, process: str, *what: bytes | msgspec.Struct) -> int:
        """Give it these; bytes of stdin over its life."""
        async with await self.session.open("input", api.ProcessTarget(self.sandbox, process)) as stream:
            for each in what:
                await (stream.send(each) if isinstance(each, bytes) else stream.send_message(each))
            stream.close_now()
            heard = await drain(stream)
        assert isinstance(heard.end, api.InputDone)
        return heard.end.stdin_bytes

    async def forget(self, process: str) -> None:
        await self.session.call("forget", api.ProcessTarget(self.sandbox, process))

    async def state(self) -> api.SandboxState:
        listed = msgspec.msgpack.decode(await self.session.call("list", api.Empty()), type=api.SandboxList)
        return next(each for each in listed.sandboxes if each.sandbox == self.sandbox)

    async def delete(self) -> None:
        await self.session.call("delete", api.Target(self.sandbox))


class Lab(Client):
    """One sandbox of a node in memory."""

    def __init__(self, node: MemoryNode, session: Session, guest: FakeGuest) -> None:
        super().__init__(session)
        self.node = node
        self.guest = guest

    async def create(self) -> str:
        """A sandbox; `sandbox` is the latest."""
        self.sandbox = new_sandbox_id()
        asked = api.Create(self.sandbox, "acme", 1, "base", 1, 512, 2048, {})
        async with await self.session.open("create", asked, finish=True) as stream:
            async for _ in stream:
                pass
        return self.sandbox

    @property
    def running(self) -> bool:
        """Whether the node believes that something runs."""
        return any(each.state == "running" for each in self.node.node.around.archive.find(self.sandbox).infos())

    def find(self, process: str) -> Process:
        """The node's own."""
        return self.node.node.around.archive.find(self.sandbox).get(process)

    async def crash(self) -> None:
        """SIGKILL to the node, and the next one."""
        self.node.crash()
        await self.session.aclose()
        await self.node.start()
        self.session = await Session.connect(self.node.path)


async def drain(stream: Stream) -> Heard:
    """Everything up to the end."""
    heard = Heard()
    async with stream:
        while await heard.take(stream):
            pass
    return heard


async def until(condition: Callable[[], object]) -> None:
    """Until it holds (it may be a coroutine), 20 s at most."""
    deadline = asyncio.get_running_loop().time() + 20
    while True:
        found = condition()
        if (await found) if inspect.isawaitable(found) else found:
            return
        assert asyncio.get_running_loop().time() < deadline, "it did not come true within 20 s"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def lab(directory: Path, *, quota: Quota = QUOTA, retention: float = 3600.0, interval: float = 0.0) -> AsyncIterator[Lab]:
    """A node, its control, one sandbox."""
    guest = FakeGuest()
    async with MemoryNode(directory, guests=lambda: guest, quota=quota, retention=retention, interval=interval) as node:
        made = Lab(node, await Session.connect(node.path), guest)
        try:
            await made.create()
            yield made
        finally:
            await made.session.aclose()


def expected(number: int) -> list[bytes]:
    """What `count N` writes: odd numbers on stderr."""
    return [b"".join(b"%d\n" % one for one in range(1, number + 1) if one & 1 == lane) for lane in (0, 1)]
