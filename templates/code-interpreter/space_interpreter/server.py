"""The server on port 49999: executions as lines of JSON, contexts, and the word of the restore hook."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from space_interpreter import results
from space_interpreter.contexts import HOME, Contexts, Kernel, Task, known
from space_interpreter.executions import Execution
from space_interpreter.jupyter import Jupyter
from space_interpreter.node import Node
from space_interpreter.wire import Connection, Refused, Request

PORT = 49999
EVERYWHERE = "0.0.0.0"  # noqa: S104 (a guest has no other way in than the port that the host asks for)
KEEPALIVE_SECONDS = 5.0
# The sandbox's own variables, as `NAME=value` and a zero byte each: the guest's daemon writes them when a clone becomes somebody's.
ENVIRONMENT = Path("/run/space/environment")
# Sockets of kernels, the fifo that the restore hook waits at, and where the hook finds the server: nobody else may look into it.
PLACE = Path("/var/lib/code-interpreter")
ANSWERED, SERVER = "restored", "server.pid"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LINES, _DOCUMENT = "application/x-ndjson", "application/json"


class Zygote:
    """Who makes copies of itself for kernels, as this process sees it."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self._link = link
        self._asked: dict[str, asyncio.Future[int]] = {}
        self._kernels: dict[int, Jupyter] = {}
        self._early: set[int] = set()
        asyncio.get_running_loop().add_reader(link, self._heard)

    async def begin(self, kind: str, cwd: str, variables: Mapping[str, str], place: Path) -> Jupyter:
        """A kernel that is ready. OSError, TimeoutError."""
        name = f"{kind}-{os.urandom(6).hex()}"
        kernel = Jupyter(place, name)

        async def start(connection: str) -> int:
            asked = self._asked[name] = asyncio.get_running_loop().create_future()
            document = {"for": name, "kind": kind, "connection": connection, "cwd": cwd, "variables": dict(variables)}
            await asyncio.get_running_loop().sock_sendall(self._link, json.dumps(document).encode())
            pid: int = await asked
            self._kernels[pid] = kernel
            if pid in self._early:
                self._early.discard(pid)
                kernel.died()
            return pid

        try:
            await kernel.begin(start)
        except BaseException:
            kernel.end()
            raise
        return kernel

    def _heard(self) -> None:
        with suppress(BlockingIOError):
            said = json.loads(self._link.recv(1 << 16) or b'{"over": true}')
            if "begun" in said:
                self._asked.pop(said["for"]).set_result(said["begun"])
            elif "ended" in said:
                if (kernel := self._kernels.pop(said["ended"], None)) is not None:
                    kernel.died()
                else:
                    self._early.add(said["ended"])
            else:
                os._exit(0)  # the zygote has ended, and the kernels with it


class Server:
    """What answers requests."""

    def __init__(self, zygote: Zygote, place: Path) -> None:
        self._zygote = zygote
        self._place = place
        self._known: tuple[int, dict[str, str]] = (0, {})
        self.contexts = Contexts(self._begin, self.environment)

    def environment(self) -> Mapping[str, str]:
        """What this process began with, and what the sandbox has since it is somebody's."""
        try:
            changed = ENVIRONMENT.stat().st_mtime_ns
            if changed != self._known[0]:
                self._known = (changed, variables_of(ENVIRONMENT.read_bytes()))
        except OSError:
            self._known = (0, {})
        return {**_OWN, **self._known[1]}

    async def _begin(self, kind: str, cwd: str, variables: Mapping[str, str]) -> Kernel:
        if kind == "node":
            node = Node()
            try:
                await node.begin(cwd, variables)
            except BaseException:
                node.end()
                raise
            return node
        return await self._zygote.begin(kind, cwd, variables, self._place)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        connection = Connection(reader, writer)
        try:
            while True:
                try:
                    request = await connection.request()
                    if request is None:
                        return
                    await self._answer(connection, request)
                    if not request.keeps:
                        return
                except Refused as refused:
                    await connection.answer(refused.status, refused.message.encode(), keeps=False)
                    return
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            await connection.aclose()

    async def _answer(self, connection: Connection, request: Request) -> None:
        match request.method, [part for part in request.path.split("/") if part]:
            case "GET", ["health"]:
                await connection.answer(200, b'"OK"', _DOCUMENT)
            case "POST", ["execute"]:
                await self._execute(connection, request)
            case "GET", ["contexts"]:
                await connection.answer(200, json.dumps(self.contexts.listed()).encode(), _DOCUMENT)
            case "POST", ["contexts"]:
                asked = request.document()
                context = await self.contexts.make(_text(asked, "language") or "python", _text(asked, "cwd") or HOME)
                await connection.answer(200, json.dumps(context.document).encode(), _DOCUMENT)
            case "POST", ["contexts", name, "restart"]:
                context = self.contexts.named(name)
                self.contexts.drop(context)
                async with context.turn:
                    await self.contexts.ready(context)
                await connection.answer(200, b"null", _DOCUMENT)
            case "POST", ["contexts", name, "interrupt"]:
                if (kernel := self.contexts.named(name).kernel) is not None:
                    await kernel.interrupt()
                await connection.answer(200, b"null", _DOCUMENT)
            case "DELETE", ["contexts", name]:
                self.contexts.remove(self.contexts.named(name))
                await connection.answer(200, b"null", _DOCUMENT)
            case _, ["health"] | ["execute"] | ["contexts", *_]:
                raise Refused(405, f"{request.method} is not for {request.path[:80]}")
            case _:
                raise Refused(404, f"there is nothing at {request.path[:80]}")

    async def _execute(self, connection: Connection, request: Request) -> None:
        asked = request.document()
        code = _text(asked, "code")
        if code is None:
            raise Refused(400, "code is missing")
        language, name = _text(asked, "language"), _text(asked, "context_id")
        if language and name:
            raise Refused(400, "Only one of context_id or language can be provided")
        context = self.contexts.named(name) if name else self.contexts.usual(language or "python")
        task = Task(code, known(language)[1] if language else context.language, _variables(asked))
        execution = Execution(self.contexts, context, task, _seconds(asked))
        connection.begin(_LINES, keeps=request.keeps)
        try:
            if await self._tell(connection, execution):
                await connection.end()
                return
            raise ConnectionResetError("the client left")
        except BaseException:
            await asyncio.shield(execution.abandon())
            raise

    async def _tell(self, connection: Connection, execution: Execution) -> bool:
        """Its lines, until the last; False when the client has left before."""
        coming: asyncio.Task[dict[str, Any] | None] | None = None
        try:
            while True:
                if coming is None:
                    coming = asyncio.create_task(execution.lines.get())
                gone = connection.gone()
                await asyncio.wait({coming, gone}, timeout=KEEPALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    line, coming = coming.result(), None
                    if line is None:
                        return True
                elif gone.done() and not gone.result():
                    return False
                elif gone.done():  # the next request came before this answer: nobody is gone
                    await asyncio.wait({coming}, timeout=KEEPALIVE_SECONDS)
                    continue
                else:
                    line = results.KEEPALIVE
                await connection.piece(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        finally:
            if coming is not None:
                coming.cancel()

    def restored(self) -> None:
        """This is another machine than it was; the hook that waits for it is told."""
        import ssl

        ssl.RAND_add(os.urandom(32), 32.0)
        self.contexts.restored()
        with suppress(OSError):
            fifo = os.open(self._place / ANSWERED, os.O_WRONLY | os.O_NONBLOCK)
            os.write(fifo, b"1\n")
            os.close(fifo)


def variables_of(data: bytes) -> dict[str, str]:
    """`NAME=value` with a zero byte behind each."""
    found = {}
    for each in data.decode("utf-8", "surrogateescape").split("\0"):
        name, equals, value = each.partition("=")
        if equals and _VARIABLE.match(name):
            found[name] = value
    return found


def _text(asked: Mapping[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"{name} is no text")
    return value


def _seconds(asked: Mapping[str, Any]) -> float | None:
    value = asked.get("timeout_seconds")
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
        raise Refused(400, f"timeout_seconds is {str(value)[:40]}")
    return None if value is None else float(value)


def _variables(asked: Mapping[str, Any]) -> dict[str, str]:
    found = asked.get("env_vars") or {}
    if not isinstance(found, dict):
        raise Refused(400, "env_vars is no object")
    if not all(_VARIABLE.match(name) and isinstance(value, str) and "\0" not in value for name, value in found.items()):
        raise Refused(400, "env_vars is no object of texts by names of variables")
    return found


_OWN: dict[str, str] = {}


async def _run(link: socket.socket) -> None:
    _OWN.update(os.environ)
    place = PLACE
    server = Server(Zygote(link), place)
    if not (place / ANSWERED).is_fifo():
        os.mkfifo(place / ANSWERED, 0o600)
    for old in (*place.glob("python-*"), *place.glob("bash-*")):
        old.unlink(missing_ok=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, server.restored)
    for language in ("python", "javascript", "bash"):
        with suppress(Refused):  # it is begun when it is asked for
            await server.contexts.warm(server.contexts.usual(language))
    listening = await asyncio.start_server(server.serve, EVERYWHERE, PORT, backlog=512, limit=1 << 20, reuse_address=True)
    (place / SERVER).write_text(f"{os.getpid()}\n")
    async with listening:
        await listening.serve_forever()


def main(link: socket.socket) -> None:
    """In the process that the zygote made for it."""
    asyncio.run(_run(link))
