"""What control may ask of processes (`rpc.node_api`): exec, attach, input, processes, process, forget."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

import msgspec

from space.config import logs
from space.model.errors import InvalidArgument, NotFound, SandboxDied, SpaceError
from space.node.node import Node
from space.node.process import Process
from space.node.processes import Processes, window
from space.node.reader import Reader
from space.node.shield import ended
from space.rpc import node_api as api
from space.rpc.session import Data, Message, Stream

R = TypeVar("R", bound=msgspec.Struct)
Ended = Callable[[], Awaitable[None]]
_INPUT = msgspec.msgpack.Decoder(api.Eof | api.Resize | api.Signal)
_LIST_BYTES = 128 << 10  # of a list in a message; the longest item alone fits a frame as well
_MOST_SIGNAL = 64


class ProcessVerbs:
    """Part of the table of `verbs`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.table: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "exec": self._exec,
            "attach": self._attach,
            "input": self._input,
            "processes": self._processes,
            "process": self._process,
            "forget": self._forget,
        }

    async def _exec(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Exec, request)
        sandbox = self._node.find(api.Target(asked.sandbox))
        sandbox.guest()  # refused here when it does not run
        began = time.monotonic()
        more = await sandbox.environment()
        process = sandbox.processes.start(sandbox.as_its_template_has_it(asked), more)
        if not asked.attach:
            async with self._client(asked.sandbox, process, kill=False):
                await process.running()
                sandbox.has_run((time.monotonic() - began) * 1000)
                await stream.send_message(_started(process), last=True)
            return
        with Reader(process) as reader:
            async with self._client(asked.sandbox, process, kill=asked.kill_on_disconnect):
                await process.running()
                await stream.send_message(_started(process))
                sandbox.has_run((time.monotonic() - began) * 1000)
                feeding = functools.partial(_feed, stream, process, last=process.eof) if asked.stdin else None
                await _following(reader, stream, feeding)
                end = _end(process)
                if isinstance(end, api.Lost):
                    raise process.fault or SandboxDied(end.reason)
                await stream.send_message(end, last=True)

    async def _attach(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Attach, request)
        process = self._find(asked.sandbox, asked.process)
        if asked.input:
            self._taken_over(asked.sandbox)
        with Reader(process) as reader:
            reader.seek(asked.stdout, asked.stderr)
            async with self._client(asked.sandbox, process, kill=asked.kill_on_disconnect):
                await stream.send_message(api.Attached(process.info(asked.sandbox), *reader.offsets))
                feeding = functools.partial(_feed, stream, process, last=None) if asked.input else None
                if await _following(reader, stream, feeding, follow=asked.follow):
                    await stream.send_message(_end(process), last=True)
                else:
                    await stream.send_message(api.Paused(*reader.offsets), last=True)

    async def _input(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.ProcessTarget, request)
        process = self._find(asked.sandbox, asked.process)
        self._taken_over(asked.sandbox)
        async with self._client(asked.sandbox, process, kill=False):
            async for event in stream:
                await _give(process, event)
            process.note_input()
            await stream.send_message(api.InputDone(process.stdin_bytes), last=True)

    async def _processes(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Target, request)
        for page in pages(self._of(asked.sandbox).infos()):
            await stream.send_message(api.ProcessList(page))

    async def _process(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.ProcessTarget, request)
        await stream.send_message(self._find(asked.sandbox, asked.process).info(asked.sandbox), last=True)

    async def _forget(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.ProcessTarget, request)
        processes = self._of(asked.sandbox)
        try:
            process = processes.get(asked.process)
        except NotFound:
            process = None
        if process is not None and process.state == "running":
            self._node.find(api.Target(asked.sandbox)).guest()  # refused here when it is paused: nobody could kill it
        try:
            await processes.forget(asked.process)
        except SpaceError as error:
            raise await self._explained(asked.sandbox, error) from error
        await stream.send_message(api.Done(), last=True)

    def _taken_over(self, sandbox: str) -> None:
        with suppress(NotFound):  # then its processes have ended, and say so
            self._node.find(api.Target(sandbox)).taken_over()

    def _of(self, sandbox: str) -> Processes:
        return self._node.around.archive.find(sandbox)

    def _find(self, sandbox: str, process: str) -> Process:
        return self._of(sandbox).get(process)

    async def _explained(self, sandbox: str, error: SpaceError) -> SpaceError:
        try:
            return await self._node.find(api.Target(sandbox)).explain(error)
        except NotFound:
            return error

    def _client(self, sandbox: str, process: Process, *, kill: bool) -> _Client:
        return _Client(self._explained, sandbox, process, kill)


class _Client:
    """A client of a process: what it is told of a sandbox that ended, and what follows when it leaves before the process's end."""

    __slots__ = ("_explained", "_kill", "_process", "_sandbox")

    def __init__(self, explained: Callable[[str, SpaceError], Awaitable[SpaceError]], sandbox: str, process: Process, kill: bool) -> None:
        self._explained = explained
        self._sandbox = sandbox
        self._process = process
        self._kill = kill

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if isinstance(error, SpaceError):
                raise await self._explained(self._sandbox, error) from error
        finally:
            self._process.left(kill=self._kill)


def _started(process: Process) -> api.Started:
    return api.Started(process.spool.head.pid, process.name)


def _end(process: Process) -> api.Exited | api.Lost:
    end = process.spool.end
    assert end is not None, "it has ended"
    if end.reason is not None:
        return api.Lost(end.reason)
    return api.Exited(end.code, end.signal, end.oom_killed, end.timed_out, end.stdout_bytes, end.stderr_bytes, end.wall_ms)


async def _following(reader: Reader, stream: Stream, feeding: Ended | None, *, follow: bool = True) -> bool:
    """Send output until the process has ended (or there is no more, without follow), while control's input goes to the process."""
    if feeding is None:
        return await reader.send(stream, follow=follow)
    feeder = asyncio.ensure_future(feeding())
    try:
        return await reader.send(stream, follow=follow)
    finally:
        await ended(feeder)


async def _feed(stream: Stream, process: Process, *, last: Ended | None) -> None:
    """Until control closes its side; then `last`. What the process does not take any more is dropped: its end is told elsewhere."""
    deaf = False
    try:
        async for event in stream:
            if not deaf:
                try:
                    await _give(process, event)
                except SpaceError:
                    deaf = process.state != "running" or isinstance(event, Data)
        if last is not None and not deaf:
            await last()
    except SpaceError:
        pass  # control's side broke: its handler is being cancelled; or the process has just ended


async def _give(process: Process, event: Data | Message) -> None:
    if isinstance(event, Data):
        await process.feed(event.payload)
        return
    try:
        message = _INPUT.decode(event.payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"not an input of a process: {error}") from None
    match message:
        case api.Eof():
            await process.eof()
        case api.Resize(rows, cols):
            window(rows, cols)
            await process.resize(rows, cols)
        case api.Signal(number, everything):
            if not 1 <= number <= _MOST_SIGNAL:
                raise InvalidArgument(f"a signal is 1 to {_MOST_SIGNAL}, not {number}")
            await process.signal(number, everything=everything)


def decode(kind: type[R], request: bytes) -> R:
    """A request of control's; InvalidArgument when it is not well formed."""
    try:
        found = msgspec.msgpack.decode(request, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"not a request of {kind.__name__}: {error}") from None
    # Lines of this stream, and of what it starts, belong to that sandbox, and to the API request that it is for.
    logs.sandbox.set(getattr(found, "sandbox", "-"))
    logs.request_id.set(getattr(found, "request_id", "") or "-")
    return found


def pages(items: Iterable[R]) -> Iterator[list[R]]:
    """As many at a time as a frame holds; one page that is empty when there are none."""
    some: list[R] = []
    size = 0
    for item in items:
        length = len(msgspec.msgpack.encode(item))
        if some and size + length > _LIST_BYTES:
            yield some
            some, size = [], 0
        some.append(item)
        size += length
    yield some
