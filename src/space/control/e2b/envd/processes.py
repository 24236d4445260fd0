"""`process.Process`: commands and terminals. A client that leaves does not end a process; the deadline of its Start does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from space.control.call import Call, ClientGone
from space.control.e2b.envd import entries
from space.control.e2b.envd import process_wire as wire
from space.control.e2b.envd.connect import Fault, Outlet, decode, first, interval, messages
from space.control.e2b.envd.people import refused, user_of
from space.control.e2b.envd.room import Room
from space.control.e2b.envd.roster import processes
from space.control.e2b.envd.signals import described
from space.control.link import decoded
from space.core.wire.events import Data, Message
from space.model.errors import InvalidArgument, NotFound, PermissionDenied, ProtocolError, SandboxDied, SpaceError, Unsupported
from space.model.ids import new_process_id
from space.rpc.node_api import (
    Attach,
    Attached,
    Eof,
    Exec,
    Exited,
    Gap,
    InputDone,
    Lost,
    Paused,
    ProcessInfo,
    ProcessTarget,
    Resize,
    Signal,
    Started,
    Window,
)
from space.rpc.stream import Stream

_EVENTS = Started | Attached | Gap | Exited | Paused | Lost
_OUTPUT = 32 << 10
_TERMINAL = 16 << 10
_MOST_SIDE = 65_535
_SIGNALS = {"SIGNAL_SIGTERM": 15, 15: 15, "SIGNAL_SIGKILL": 9, 9: 9}
_NO_CWD = "cwd '"
# What the guest kills at its deadline it tells; one that cannot is not waited for longer than this.
_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Processes:
    """The service, for one call."""

    call: Call
    room: Room

    # -- calls with one answer ----------------------------------------------------------------------------------------

    async def list(self, payload: bytes) -> wire.ListResponse:
        """List: those that run."""
        decode(payload, dict[str, object])
        found = await processes(self.room.services.link, self.room.sandbox)
        return wire.ListResponse([self._entry(info) for info in found if info.state == "running"])

    def _entry(self, info: ProcessInfo) -> wire.ProcessEntry:
        note = self.room.memory.roster.noted(info)
        config = wire.Config(_shown(info.argv[0]), [_shown(word) for word in info.argv[1:]], dict(note.env), info.cwd)
        return wire.ProcessEntry(config, info.pid, note.tag)

    async def update(self, payload: bytes) -> dict[str, object]:
        """Update: another size of a terminal."""
        asked = decode(payload, wire.UpdateRequest)
        info = await self._find(asked.process)
        if asked.pty is not None and asked.pty.size is not None:
            window = _window(asked.pty)
            await self._input(info, Resize(window.rows, window.cols))
        return {}

    async def send_input(self, payload: bytes) -> dict[str, object]:
        """SendInput."""
        asked = decode(payload, wire.SendInputRequest)
        info = await self._find(asked.process)
        await self._input(info, _bytes(info, asked.input))
        return {}

    async def send_signal(self, payload: bytes) -> dict[str, object]:
        """SendSignal."""
        asked = decode(payload, wire.SendSignalRequest)
        number = _SIGNALS.get(asked.signal)
        if number is None:
            raise Fault("unimplemented", f"signal {str(asked.signal)[:32]!r} cannot be sent: SIGNAL_SIGTERM and SIGNAL_SIGKILL can")
        info = await self._find(asked.process)
        # To all of it what cannot be caught, which nothing that waits before a process that does not read holds back.
        await self._input(info, Signal(number, all=number == 9))
        return {}

    async def close_stdin(self, payload: bytes) -> dict[str, object]:
        """CloseStdin."""
        asked = decode(payload, wire.CloseStdinRequest)
        info = await self._find(asked.process)
        if info.pty:
            raise Fault("failed_precondition", "a terminal's input has no end: send the character 0x04")
        _open(info)
        await self._input(info, Eof())
        return {}

    async def _find(self, selector: wire.Selector | None, *, ended: bool = False) -> ProcessInfo:
        return await self.room.memory.roster.find(self.room.services.link, self.room.sandbox, selector, ended=ended)

    async def _input(self, info: ProcessInfo, what: Any) -> None:
        with self.room.services.activity.during(self.room.sandbox):
            async with await self.room.services.link.open("input", ProcessTarget(info.sandbox, info.process)) as stream:
                await (stream.send(what) if isinstance(what, bytes) else stream.send_message(what))
                await _finish(stream)

    # -- streams ------------------------------------------------------------------------------------------------------

    async def start(self, outlet: Outlet, seconds: float | None) -> None:
        """Start: a program, its output, its end."""
        asked = await first(self.call, wire.StartRequest)
        program = asked.process or wire.Config()
        if not program.cmd:
            raise Fault("invalid_argument", "process.cmd is empty")
        user = user_of(self.call.headers, self.room.user)
        given = {**self.room.env, **(program.envs or {})}
        pty = None if asked.pty is None else _window(asked.pty)
        wanted = Exec(
            self.room.sandbox,
            [program.cmd, *(program.args or ())],
            await self._directory(program.cwd or self.room.workdir, user),
            given,
            user,
            None if seconds is None else max(1, round(seconds * 1000)),
            stdin=pty is not None or asked.stdin is not False,
            process=new_process_id(),
            pty=pty,
            kill_on_disconnect=False,
            stays=pty is None,
        )
        self.room.memory.roster.note(self.room.sandbox, wanted.process, asked.tag, given)
        patience = None if seconds is None else seconds + _GRACE
        try:
            try:
                await self._run(wanted, outlet, patience)
            except Unsupported as error:
                if not (wanted.stays and entries.is_old(error)):
                    raise
                # A daemon that kills what a command leaves behind is better than none.
                await self._run(msgspec.structs.replace(wanted, stays=False, process=self._again(wanted)), outlet, patience)
        except SpaceError as error:
            raise _start_fault(error, user, program.cwd or "") from None

    async def _run(self, wanted: Exec, outlet: Outlet, patience: float | None) -> None:
        async with await self.room.services.link.open("exec", wanted, finish=not wanted.stdin) as stream:
            await self._follow(_told(stream), outlet, wanted.pty is not None, patience)

    def _again(self, wanted: Exec) -> str:
        """Another id for a start that came to nothing."""
        name = new_process_id()
        note = self.room.memory.roster.take(self.room.sandbox, wanted.process)
        self.room.memory.roster.note(self.room.sandbox, name, note.tag, note.env)
        return name

    async def connect(self, outlet: Outlet, seconds: float | None) -> None:
        """Connect: the output from now on, and the end."""
        asked = await first(self.call, wire.ConnectRequest)
        info = await self._find(asked.process, ended=True)
        wanted = Attach(info.sandbox, info.process, info.stdout_bytes, info.stderr_bytes)
        async with await self.room.services.link.open("attach", wanted, finish=True) as stream:
            await self._follow(_told(stream), outlet, info.pty, seconds)

    async def stream_input(self, outlet: Outlet, seconds: float | None) -> None:
        """StreamInput: bytes in order, as they come."""
        coming = messages(self.call)
        head = decode(await anext(coming, b"{}"), wire.StreamInputRequest)
        if head.start is None:
            raise Fault("invalid_argument", "the first message of a stream of input says which process it is for")
        info = await self._find(head.start.process)
        with self.room.services.activity.during(self.room.sandbox):
            async with await self.room.services.link.open("input", ProcessTarget(info.sandbox, info.process)) as stream:
                async for payload in coming:
                    asked = decode(payload, wire.StreamInputRequest)
                    if asked.data is not None:
                        await stream.send(_bytes(info, asked.data.input))
                await _finish(stream)
        await outlet.say({})

    async def _directory(self, path: str | None, user: str) -> str | None:
        """Where a process begins. Relative paths begin at the home, which the guest knows."""
        if not path or path == "~":
            return None
        if path.startswith("/"):
            return path
        try:
            return (await entries.stat(self.room.services, self.room.sandbox, path, user)).path.decode("utf-8", "surrogateescape")
        except NotFound:
            raise _no_cwd(path) from None

    async def _follow(self, events: AsyncIterator[Any], outlet: Outlet, terminal: bool, patience: float | None) -> None:
        """Until its last event. Fault; ClientGone."""
        loop = asyncio.get_running_loop()
        end = None if patience is None else loop.time() + patience
        pause = interval(self.call.headers)
        left = asyncio.ensure_future(self.call.gone())
        coming: asyncio.Future[Any] = asyncio.ensure_future(anext(events, None))
        try:
            with self.room.services.activity.during(self.room.sandbox):
                while True:
                    wait = pause if end is None else min(pause, max(0.0, end - loop.time()))
                    done, _ = await asyncio.wait({coming, left}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                    if left in done:
                        raise ClientGone
                    if coming in done:
                        if await _say(outlet, coming.result(), terminal):
                            return
                        coming = asyncio.ensure_future(anext(events, None))
                    elif wait < pause:
                        raise Fault("deadline_exceeded", f"the stream was open for {patience:g} s, which was its limit")
                    else:
                        await outlet.say(wire.EventMessage(wire.Event(keepalive={})))
        finally:
            left.cancel()
            coming.cancel()
            await asyncio.wait({left, coming})


async def _told(stream: Stream) -> AsyncIterator[Any]:
    """Data as it is, messages as what they say."""
    async for event in stream:
        yield event if isinstance(event, Data) else decoded(event, _EVENTS)


async def _say(outlet: Outlet, event: Any, terminal: bool) -> bool:
    """Tell the client; whether it was the last. Fault."""
    match event:
        case Data():
            most = _TERMINAL if terminal else _OUTPUT
            for at in range(0, len(event.payload), most):
                piece = bytes(event.payload[at : at + most])
                data = (
                    wire.DataEvent(pty=piece) if terminal else wire.DataEvent(stderr=piece) if event.lane else wire.DataEvent(stdout=piece)
                )
                await outlet.say(wire.EventMessage(wire.Event(data=data)))
        case Started(pid):
            await outlet.say(wire.EventMessage(wire.Event(start=wire.StartEvent(pid))))
        case Attached(info):
            await outlet.say(wire.EventMessage(wire.Event(start=wire.StartEvent(info.pid))))
        case Exited() as end:
            if end.timed_out:
                raise Fault("deadline_exceeded", "the process was killed: its time was up")
            await outlet.say(wire.EventMessage(wire.Event(end=_end(end))))
            return True
        case Lost() | None:
            raise SandboxDied("the connection to the sandbox ended before the stream completed")
        case Gap():  # a reader that was slower than its process may keep waiting
            pass
        case _:
            raise ProtocolError("the node told of a process what nobody asked for")
    return False


def _end(told: Exited) -> wire.EndEvent:
    status = described(told.code, told.signal)
    code = -1 if told.code is None else told.code
    return wire.EndEvent(code, told.code is not None, status, None if code == 0 else status)


async def _finish(stream: Stream) -> None:
    await stream.close()
    async for event in stream:
        if isinstance(event, Message):
            decoded(event, InputDone)
            return
    raise ProtocolError("the node ended a process's input without an answer")


def _bytes(info: ProcessInfo, given: wire.Input | None) -> bytes:
    """What is to go to the process. Fault."""
    data = None if given is None else given.pty if info.pty else given.stdin
    if data is None:
        raise Fault("failed_precondition", "the process has a terminal" if info.pty else "the process has no terminal")
    _open(info)
    return data


def _open(info: ProcessInfo) -> None:
    if info.stdin == "none":
        raise Fault("failed_precondition", "stdin is not enabled for the process: start it with stdin")
    if info.stdin == "closed":
        raise Fault("failed_precondition", "stdin of the process is closed")


def _window(pty: wire.Pty) -> Window:
    size = pty.size or wire.Size(80, 24)
    if not (0 < size.rows <= _MOST_SIDE and 0 < size.cols <= _MOST_SIDE):
        raise Fault("invalid_argument", f"a terminal has 1 to {_MOST_SIDE} rows and cols, not {size.rows} and {size.cols}")
    return Window(size.rows, size.cols)


def _no_cwd(path: str) -> Fault:
    return Fault("invalid_argument", f"cwd '{path[:200]}' does not exist")


def _start_fault(error: SpaceError, user: str, cwd: str) -> Exception:
    """Why it did not begin, as this face tells it."""
    match error:
        case NotFound() | PermissionDenied():
            return Fault("invalid_argument", f"the process cannot be started: {error.message}")
        case InvalidArgument() if error.message.startswith(_NO_CWD):
            return _no_cwd(cwd)
    try:
        refused(error, user)
    except SpaceError as told:
        return told


def _shown(text: str) -> str:
    """JSON has no bytes that are no text."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
