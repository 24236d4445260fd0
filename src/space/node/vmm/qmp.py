"""A small client of QEMU's monitor, for a VMM that may have been taken over by its guest.

    greeting -> qmp_capabilities -> commands one at a time, events between the answers

Lines are bounded, reading is paced, every wait has a deadline, and of what comes only the few things that we asked for are kept. Any
violation ends the connection: `Qmp.execute` raises ProtocolError then, and the VMM is to be killed.
"""

from __future__ import annotations

import array
import asyncio
import json
import socket
from collections import deque
from contextlib import suppress
from typing import Any

from space.model.errors import DeadlineExceeded, ProtocolError, SandboxDied
from space.node import limits
from space.node.vmm.pace import Pace

# The only events that tell us something; others are dropped unread.
_EVENTS = frozenset({"SHUTDOWN", "GUEST_PANICKED", "GUEST_CRASHLOADED", "RESET", "BLOCK_IO_ERROR"})
_STALLED = "BLOCK_IO_ERROR"  # with the action `stop`: the disk did not take a write for want of space, and the guest stands still
_EVENTS_KEPT = 16


class Qmp:
    """One connection. Make it with `open`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: socket.socket) -> None:
        self._link = link
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()
        self._number = 0
        self._waiting: tuple[int, asyncio.Future[Any]] | None = None
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loaded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._broken: ProtocolError | SandboxDied | None = None
        self.events: deque[dict[str, Any]] = deque(maxlen=_EVENTS_KEPT)
        self.stalled = asyncio.Event()  # set by each such event, cleared by whoever heeds it
        self._task = asyncio.create_task(self._read(), name="qmp")

    @classmethod
    async def open(cls, link: socket.socket) -> Qmp:
        """Take over a connected socket; returns when commands may be sent. DeadlineExceeded, ProtocolError, SandboxDied."""
        second = link.dup()  # descriptors go over it, which a transport does not send
        try:
            reader, writer = await asyncio.open_unix_connection(sock=link, limit=limits.QMP_LINE)
        except BaseException:
            second.close()
            raise
        qmp = cls(reader, writer, second)
        try:
            try:
                async with asyncio.timeout(limits.QMP):
                    await asyncio.shield(qmp._greeted)
            except TimeoutError:
                raise DeadlineExceeded(f"the VMM's monitor said nothing for {limits.QMP:.0f} s") from None
            await qmp.execute("qmp_capabilities")
        except BaseException:
            await qmp.aclose()
            raise
        return qmp

    async def execute(self, command: str, **arguments: Any) -> Any:
        """The command's `return`. DeadlineExceeded after `limits.QMP`, ProtocolError when QEMU refuses, SandboxDied when it is gone."""
        return await self._execute(command, arguments, None, limits.QMP)

    async def send(self, command: str, descriptor: int, **arguments: Any) -> Any:
        """`execute` with a descriptor, of which QEMU gets a duplicate."""
        return await self._execute(command, arguments, descriptor, limits.QMP)

    async def until_loaded(self) -> None:
        """Until an incoming state has been loaded. SandboxDied when it could not be, DeadlineExceeded after `limits.LOAD`."""
        try:
            async with asyncio.timeout(limits.LOAD):
                status = await self.execute("query-status")
                if isinstance(status, dict) and status.get("status") != "inmigrate":
                    return
                if await asyncio.shield(self._loaded):
                    return
        except TimeoutError:
            raise DeadlineExceeded(f"the VMM did not load its state within {limits.LOAD:.0f} s") from None
        raise SandboxDied("the VMM could not load its state")

    async def _execute(self, command: str, arguments: dict[str, Any], descriptor: int | None, seconds: float) -> Any:
        async with self._turn:
            if self._broken is not None:
                raise self._broken
            self._number += 1
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._waiting = (self._number, future)
            request: dict[str, Any] = {"execute": command, "id": self._number}
            if arguments:
                request["arguments"] = arguments
            try:
                self._say(json.dumps(request).encode() + b"\n", descriptor)
                async with asyncio.timeout(seconds):
                    return await future
            except TimeoutError:
                raise DeadlineExceeded(f"the VMM did not answer {command} within {seconds:.0f} s") from None
            finally:
                self._waiting = None

    def _say(self, line: bytes, descriptor: int | None) -> None:
        if descriptor is None:
            self._writer.write(line)
            return
        # Every command before was answered, so nothing waits in the transport, and a line finds room.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            sent = self._link.sendmsg([line], rights, socket.MSG_NOSIGNAL)
        except OSError as error:
            raise SandboxDied(f"the VMM's monitor broke: {error.strerror}") from error
        if sent != len(line):
            raise ProtocolError("the VMM's monitor does not take a line")

    async def drained(self, seconds: float) -> None:
        """After the VMM's end: until its last events have been read, at most so long."""
        await asyncio.wait({self._task}, timeout=seconds)

    async def aclose(self) -> None:
        """Hang up; idempotent."""
        self._task.cancel()
        await asyncio.wait({self._task})
        self._link.close()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        pace = Pace(limits.QMP_RATE)
        try:
            while True:
                line = await self._reader.readuntil(b"\n")
                self._take(line)
                if wait := pace.spend(1, loop.time()):
                    await asyncio.sleep(wait)
        except asyncio.IncompleteReadError:
            self._break(SandboxDied("the VMM closed its monitor"))
        except OSError as error:
            self._break(SandboxDied(f"the VMM's monitor broke: {error.strerror}"))
        except asyncio.LimitOverrunError:
            self._break(ProtocolError(f"the VMM's monitor sent a line of more than {limits.QMP_LINE} bytes"))
        except ProtocolError as error:
            self._break(error)
        finally:
            if self._broken is None:
                self._break(SandboxDied("the monitor's connection was closed"))

    def _break(self, error: ProtocolError | SandboxDied) -> None:
        self._broken = error
        self._writer.close()
        for future in (self._greeted, self._loaded, self._waiting[1] if self._waiting else None):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise ProtocolError(f"the VMM's monitor sent a line that is not JSON: {line[:60]!r}") from None
        if not isinstance(message, dict):
            raise ProtocolError(f"the VMM's monitor sent {type(message).__name__}, not an object")
        if "QMP" in message:
            if not self._greeted.done():
                self._greeted.set_result(None)
        elif "event" in message:
            if message["event"] == "MIGRATION":
                data = message.get("data")
                status = data.get("status") if isinstance(data, dict) else None
                if status in ("completed", "failed") and not self._loaded.done():
                    self._loaded.set_result(status == "completed")
            elif message["event"] in _EVENTS:
                self.events.append(message if len(line) < 2048 else {"event": message["event"]})
                if message["event"] == _STALLED:
                    self.stalled.set()
        elif self._waiting is not None and message.get("id") == self._waiting[0]:
            future = self._waiting[1]
            if future.done():
                return
            if "return" in message:
                future.set_result(message["return"])
            else:
                future.set_exception(ProtocolError(f"the VMM refused: {_words(message.get('error'))}"))
        # an answer that nobody waits for came after its deadline


def _words(error: object) -> str:
    text = str(error.get("desc", error)) if isinstance(error, dict) else str(error)
    return "".join(c if c.isprintable() else "?" for c in text[:200])
