"""Node as a kernel: a process with `node/kernel.mjs`, told by lines of JSON, whose standard streams are the code's."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from space_interpreter import results
from space_interpreter.contexts import Task

NODE = "/usr/local/bin/node"
PROGRAM = Path(__file__).parent / "node" / "kernel.mjs"
READY_SECONDS = 240.0  # of an emulated processor that others use too
MOST_LINE = 128 << 20
PIECE = 1 << 16


class Node:
    """One process."""

    def __init__(self) -> None:
        self.pid = 0
        self.dead = asyncio.Event()
        self._count = 0
        self._process: asyncio.subprocess.Process | None = None
        self._said: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(256)
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._outputs: list[_Output] = []

    async def begin(self, cwd: str, variables: Mapping[str, str]) -> None:
        """Until it is ready."""
        pairs = [socket.socketpair() for _ in range(2)]  # what is to be done, and what is to be ended
        program = [NODE, "--no-warnings", str(PROGRAM), *(str(theirs.fileno()) for _, theirs in pairs)]
        readers, ends = zip(*(os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) for _ in range(2)), strict=True)
        for end in ends:
            os.set_blocking(end, True)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *program, cwd=cwd, env=dict(variables), stdin=asyncio.subprocess.DEVNULL, stdout=ends[0], stderr=ends[1],
                pass_fds=[theirs.fileno() for _, theirs in pairs], start_new_session=True,
            )  # fmt: skip
        finally:
            for end in ends:
                os.close(end)
            for _, theirs in pairs:
                theirs.close()
        self.pid = self._process.pid
        for ours, _ in pairs:
            ours.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MOST_LINE)
            self._writers.append(writer)
            if len(self._writers) == 1:
                self._tasks.append(asyncio.create_task(self._listen(reader)))
        self._outputs = [_Output(name, reader, self._said) for name, reader in zip(("stdout", "stderr"), readers, strict=True)]
        self._tasks.append(asyncio.create_task(self._wait(self._process)))
        async with asyncio.timeout(READY_SECONDS):
            if (await self._said.get())[0] != "ready":
                raise ChildProcessError("node ended while it began")

    async def rehearse(self) -> None:
        """Both languages, and what prints."""
        for code, language in (("console.log({a: 1})", "javascript"), ("const a_: number = 1", "typescript")):
            async for _ in self.execute(Task(f"{{ {code} }}", language)):
                pass
        self._count = 0

    async def execute(self, task: Task) -> AsyncIterator[dict[str, Any]]:
        """What comes of it, in its order; the last is DIED when it has died."""
        self._count += 1
        yield results.count(self._count)
        while not self._said.empty() and not self.dead.is_set():  # timers of earlier code may have written
            if (line := _line(*self._said.get_nowait())) is not None:
                yield line
        asked = {"id": self._count, "code": task.code, "language": task.language}
        asked |= {"variables": dict(task.variables), "adopted": dict(task.adopted)}
        self._writers[0].write(json.dumps(asked).encode() + b"\n")
        while not (self.dead.is_set() and self._said.empty()):
            kind, said = await self._said.get()
            if kind == "done":
                if said["id"] != self._count:
                    continue
                for output in self._outputs:
                    for text in output.rest():
                        yield results.output(output.name, text)
                if said.get("error"):
                    yield results.error(said["error"]["name"], said["error"]["value"], said["error"]["traceback"])
                elif said.get("bundle"):
                    yield results.result(said["bundle"], main=True)
                return
            if (line := _line(kind, said)) is not None:
                yield line
        yield results.DIED

    async def interrupt(self) -> None:
        """End what it does; programs that it waits for are interrupted."""
        with suppress(OSError):
            self._writers[1].write(b"interrupt\n")

    def restored(self) -> None:
        """Its line is read before that of any code: `Math.random()` and OpenSSL draw anew then."""
        self._writers[0].write(b'{"restored": true}\n')

    def end(self) -> None:
        """Kill it and what it runs."""
        with suppress(ProcessLookupError):
            if self.pid and not self.dead.is_set():
                os.killpg(self.pid, signal.SIGKILL)
        self._died()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()
        for output in self._outputs:
            output.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(ValueError, OSError):
            while line := await reader.readline():
                said = json.loads(line)
                await self._said.put((said.pop("type"), said))

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        for output in self._outputs:
            for text in output.rest():
                await self._said.put(("output", (output.name, text)))
        self._died()

    def _died(self) -> None:
        self.dead.set()
        if self._said.full():
            self._said.get_nowait()
        self._said.put_nowait(("dead", None))


def _line(kind: str, said: Any) -> dict[str, Any] | None:
    if kind == "output":
        return results.output(*said)
    return results.result(said["bundle"], main=False) if kind == "display" else None


class _Output:
    """One of its streams, read as it comes; a character that is split is told when it is whole."""

    def __init__(self, name: str, descriptor: int, said: asyncio.Queue[tuple[str, Any]]) -> None:
        self.name = name
        self._descriptor = descriptor
        self._said = said
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._ready)

    def _ready(self) -> None:
        if self._said.full():  # whoever writes waits
            self._loop.remove_reader(self._descriptor)
            self._loop.call_later(0.02, self._again)
            return
        if text := self._read():
            self._said.put_nowait(("output", (self.name, text)))

    def _again(self) -> None:
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._ready)

    def _read(self) -> str:
        try:
            data = os.read(self._descriptor, PIECE)
        except BlockingIOError:
            return ""
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._descriptor)
        return self._decoder.decode(data, final=not data)

    def rest(self) -> list[str]:
        """What is in it now."""
        found = []
        while self._descriptor >= 0 and (text := self._read()):
            found.append(text)
        return found

    def close(self) -> None:
        """Read no more. Idempotent."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
