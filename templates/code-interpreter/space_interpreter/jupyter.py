"""A Jupyter kernel as its client sees it: signed messages over two sockets in a directory that only this user may open."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from space_interpreter import results
from space_interpreter.contexts import Task

READY_SECONDS = 240.0  # of an emulated processor that others use too
QUEUED = 256
_MARK = b"<IDS|MSG>"
_REQUEST = {"silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False, "stop_on_error": True}
_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


class Jupyter:
    """One kernel process. `begin` makes it; when it dies, `dead` is set and it is no more."""

    def __init__(self, place: Path, name: str) -> None:
        self._file = place / f"{name}.json"
        self._socket = place / name
        self._key = secrets.token_hex(16).encode()
        self._session = secrets.token_hex(8)
        self._shell: Any = None
        self._iopub: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._heard: dict[str, asyncio.Queue[tuple[str, dict[str, Any]]]] = {}
        self.pid = 0
        self.dead = asyncio.Event()

    async def begin(self, start: Callable[[str], Any]) -> None:
        """start: has a process begun with a connection file, and gives its number."""
        self._describe()
        context = zmq.asyncio.Context.instance()
        self._shell, self._iopub = context.socket(zmq.DEALER), context.socket(zmq.SUB)
        self._iopub.subscribe(b"")
        for number, socket in enumerate((self._shell, self._iopub), 1):
            socket.linger, socket.reconnect_ivl, socket.rcvhwm, socket.sndhwm = 0, 10, 0, 0
            socket.connect(f"ipc://{self._socket}-{number}")
        self._reader = asyncio.create_task(self._read(), name=f"messages of {self._socket.name}")
        self.pid = await start(str(self._file))
        async with asyncio.timeout(READY_SECONDS):
            await self._ready()

    def _describe(self) -> None:
        """The connection file, which holds the key."""
        document = {"transport": "ipc", "ip": str(self._socket), "key": self._key.decode(), "signature_scheme": "hmac-sha256"}
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w") as file:
            json.dump(document | {port: number for number, port in enumerate(_PORTS, 1)}, file)

    async def _ready(self) -> None:
        """Its answers and what it publishes both reach us: what it published before we were heard is lost, so it is asked again."""
        patience = 0.5
        while not self.dead.is_set():
            patience *= 2  # a slow processor has answers under way
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    async for _ in self._told("kernel_info_request", {}):
                        pass
                    break
        if self.dead.is_set():
            raise ChildProcessError("the kernel ended while it began")

    async def execute(self, task: Task) -> AsyncIterator[dict[str, Any]]:
        """What comes of it, in its order; returns when the kernel is idle again, or with DIED when it has died."""
        metadata = {"variables": dict(task.variables), "adopted": dict(task.adopted)}
        async for kind, said in self._told("execute_request", {**_REQUEST, "code": task.code}, metadata):
            if (line := _line(kind, said)) is not None:
                yield line
        if self.dead.is_set():
            yield results.DIED

    async def rehearse(self) -> None:
        """An execution that its kernel forgets."""
        async for _ in self._told("execute_request", {**_REQUEST, "code": "1"}, {"rehearsal": True}):
            pass

    async def _told(
        self, kind: str, content: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """What is published about a request, until the kernel is idle again or dead."""
        heard: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue(QUEUED)
        name = secrets.token_hex(8)
        self._heard[name] = heard
        try:
            await self._send(name, kind, content, metadata or {})
            while not (self.dead.is_set() and heard.empty()):
                found = await heard.get()
                if found[0] == "status":
                    if found[1].get("execution_state") in ("idle", "dead"):
                        return
                    continue
                yield found
        finally:
            del self._heard[name]
            while not heard.empty():  # who waits for room in it goes on
                heard.get_nowait()

    async def _read(self) -> None:
        while True:
            frames: list[bytes] = await self._iopub.recv_multipart()
            parts = frames[frames.index(_MARK) + 1 :] if _MARK in frames else []
            if len(parts) < 5 or not hmac.compare_digest(parts[0], self._signed(parts[1:5])):
                continue
            heard = self._heard.get(json.loads(parts[2]).get("msg_id", ""))
            if heard is not None:
                await heard.put((json.loads(parts[1])["msg_type"], json.loads(parts[4])))

    def died(self) -> None:
        """Its process has ended: whoever waits for it hears that."""
        self.dead.set()
        for heard in self._heard.values():
            if heard.full():
                heard.get_nowait()
            heard.put_nowait(("status", {"execution_state": "dead"}))

    async def interrupt(self) -> None:
        """As Ctrl-C does, to it and what it runs."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGINT)

    def restored(self) -> None:
        """It is in another machine now."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)

    def end(self) -> None:
        """Kill it and what it runs."""
        with suppress(ProcessLookupError):
            if self.pid and not self.dead.is_set():
                os.killpg(self.pid, signal.SIGKILL)
        self.died()
        if self._reader is not None:
            self._reader.cancel()
        for socket in (self._shell, self._iopub):
            if socket is not None:
                socket.close(linger=0)
        for path in (self._file, *(self._socket.with_name(f"{self._socket.name}-{n}") for n in range(1, 6))):
            path.unlink(missing_ok=True)

    async def _send(self, name: str, kind: str, content: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat()
        header = {"msg_id": name, "session": self._session, "username": "user", "date": now, "msg_type": kind, "version": "5.3"}
        parts = [json.dumps(part).encode() for part in (header, {}, metadata, content)]
        await self._shell.send_multipart([_MARK, self._signed(parts), *parts])

    def _signed(self, parts: list[bytes]) -> bytes:
        return hmac.new(self._key, b"".join(parts), hashlib.sha256).hexdigest().encode()


def _line(kind: str, said: Mapping[str, Any]) -> dict[str, Any] | None:
    match kind:
        case "stream":
            return results.output(said["name"], said["text"])
        case "execute_result" | "display_data":
            return results.result(said["data"], main=kind == "execute_result")
        case "error":
            return results.error(said["ename"], said["evalue"], "\n".join(said["traceback"]))
        case "execute_input":
            return results.count(said["execution_count"])
    return None
