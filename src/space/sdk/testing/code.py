"""The mock server's code interpreter: Python in this process, the same lines as the real one's.

`server.services[49999] = MockInterpreter()`: contexts with names of their own, output, values, errors; no other language, no pictures, no
interrupts. Code is executed in the test's process with all that it may do.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import h11

from space.sdk.code import CodeContext


class MockInterpreter:
    """A service of `MockServer.services`, called with each connection."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self.contexts: dict[str, CodeContext] = {}
        self._names: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, int] = {}
        self._usual = self._make("python", "/home/user").id

    def _make(self, language: str, cwd: str) -> CodeContext:
        context = CodeContext(secrets.token_hex(16), language, cwd)
        self.contexts[context.id] = context
        self._clear(context.id)
        return context

    def _clear(self, name: str) -> None:
        self._names[name], self._counts[name] = {"__name__": "__main__"}, 0

    def __call__(self, connected: socket.socket) -> None:
        connection = h11.Connection(h11.SERVER)
        request: h11.Request | None = None
        body = bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(data := connected.recv(65536))
                if not data and request is None:
                    return
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                break
        if request is None:
            return
        status, pieces = self._answer(request.method.decode(), request.target.decode(), json.loads(body or b"{}"))
        connected.sendall(connection.send(h11.Response(status_code=status, headers=[("transfer-encoding", "chunked")])) or b"")
        for piece in pieces:
            connected.sendall(connection.send(h11.Data(data=piece)) or b"")
        connected.sendall(connection.send(h11.EndOfMessage()) or b"")

    def _answer(self, method: str, path: str, asked: dict[str, Any]) -> tuple[int, Iterator[bytes]]:
        language = asked.get("language") or "python"
        if language != "python":
            return 400, iter([f"language {language!r} is not known: python".encode()])
        match method, path.strip("/").split("/"):
            case "POST", ["execute"]:
                name = asked.get("context_id") or self._usual
                return (200, self._execute(name, asked)) if name in self.contexts else _missing(name)
            case "GET", ["contexts"]:
                return 200, iter([json.dumps([_document(each) for each in self.contexts.values()]).encode()])
            case "POST", ["contexts"]:
                return 200, iter([json.dumps(_document(self._make(language, asked.get("cwd") or "/home/user"))).encode()])
            case _, ["contexts", name, *_] if name not in self.contexts:
                return _missing(name)
            case "POST", ["contexts", name, "restart"]:
                self._clear(name)
            case "DELETE", ["contexts", name]:
                del self.contexts[name]
            case "POST", ["contexts", _, "interrupt"]:
                pass
            case _:
                return 404, iter([b"there is nothing there"])
        return 200, iter([b"null"])

    def _execute(self, name: str, asked: dict[str, Any]) -> Iterator[bytes]:
        with self._turn:
            self._counts[name] += 1
            lines: list[dict[str, Any]] = [{"type": "number_of_executions", "execution_count": self._counts[name]}]
            out, err = io.StringIO(), io.StringIO()
            before = dict(os.environ)
            os.environ.update(asked.get("env_vars") or {})
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    value = _evaluated(asked["code"], self._names[name])
                ended = [] if value is None else [{"type": "result", "text": _plain(value), "is_main_result": True}]
            except Exception as error:  # noqa: BLE001 (the code's)
                ended = [{"type": "error", "name": type(error).__name__, "value": str(error), "traceback": traceback.format_exc()}]
            finally:
                os.environ.clear()
                os.environ.update(before)
        for stream, text in (("stdout", out.getvalue()), ("stderr", err.getvalue())):
            lines += [{"type": stream, "text": text, "timestamp": time.time_ns()}] if text else []
        for line in [*lines, *ended, {"type": "end_of_execution"}]:
            yield json.dumps(line).encode() + b"\n"


def _document(context: CodeContext) -> dict[str, str]:
    return {"id": context.id, "language": context.language, "cwd": context.cwd}


def _missing(name: str) -> tuple[int, Iterator[bytes]]:
    return 404, iter([f"Context {name} not found".encode()])


def _evaluated(code: str, names: dict[str, Any]) -> Any:
    """The value of the last expression, or None."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec"), names)  # noqa: S102 (what it is for)
    value = compile(ast.Expression(last.value), "<code>", "eval") if isinstance(last, ast.Expr) else None
    return None if value is None else eval(value, names)  # noqa: S307 (what it is for)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else repr(value)
