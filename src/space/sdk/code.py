"""Executions of a code interpreter: what comes of them as values, and the exchange with its server, bytes in and bytes out.

The server is a program in the sandbox (template `code-interpreter-v1`, port 49999); what it says is the guest's: parsed strictly, bounded.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import h11

from space.model.errors import ProtocolError, SpaceError, StreamCut, TooLarge
from space.sdk.answers import by_status

PORT = 49999
DEFAULT_SECONDS = 300.0
MOST_LINE = 128 << 20
MOST_DOCUMENT = 4 << 20
NO_INTERPRETER = 'make the sandbox of a template with a code interpreter: Sandbox.create("code-interpreter-v1")'


@dataclass(frozen=True, slots=True)
class CodeContext:
    """Where code is executed: what was defined there is there for the next. cwd: the directory that it began in."""

    id: str
    language: str
    cwd: str


@dataclass(frozen=True, slots=True)
class CodeError:
    """How code failed, as its language says it. traceback: with colours of a terminal."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True, slots=True)
class CodeResult:
    """A value or a picture, in the forms that it has; what it has not is None.

    main: it is the value of the last expression; else it was displayed. data: a table's columns by name. chart: what a picture shows, with
    its `type` (line, scatter, bar, pie, box_and_whisker, superchart). extra: forms of other media types.
    """

    text: str | None = None
    html: str | None = None
    markdown: str | None = None
    svg: str | None = None
    png: bytes | None = field(default=None, repr=False)
    jpeg: bytes | None = field(default=None, repr=False)
    pdf: bytes | None = field(default=None, repr=False)
    latex: str | None = None
    json: Any = None
    javascript: str | None = None
    data: dict[str, Any] | None = field(default=None, repr=False)
    chart: dict[str, Any] | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    main: bool = False


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of code. count: which execution of its context it was. timed_out: it was interrupted for its time was over.

    died: the kernel ended while it ran (out of memory, say): what was defined in the context is lost, the next execution begins anew.
    """

    results: tuple[CodeResult, ...] = ()
    stdout: str = ""
    stderr: str = ""
    error: CodeError | None = None
    count: int | None = None
    timed_out: bool = False
    died: bool = False

    @property
    def ok(self) -> bool:
        """It ran to its end, in time, without an error."""
        return self.error is None and not self.timed_out and not self.died

    @property
    def text(self) -> str | None:
        """The value of its last expression as text; a string without its quotes."""
        return next((each.text for each in self.results if each.main), None)


class Exchange:
    """One request to the interpreter's server. Its body comes in pieces; an answer that is none is ProtocolError, a refusal its class."""

    def __init__(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> None:
        self._connection = h11.Connection(h11.CLIENT)
        self._refused: int | None = None
        self._reason = bytearray()
        self.ended = False
        body = b"" if document is None else json.dumps(document).encode()
        headers = [("host", f"localhost:{PORT}"), ("content-type", "application/json"), ("content-length", str(len(body)))]
        head = self._connection.send(h11.Request(method=method, target=path, headers=headers)) or b""
        self.request = head + (self._connection.send(h11.Data(data=body)) or b"" if body else b"")
        self._connection.send(h11.EndOfMessage())

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Pieces of the body in what came; b"" is the connection's end."""
        try:
            self._connection.receive_data(data)
            while (event := self._connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response) and event.status_code >= 300:
                    self._refused = event.status_code
                elif isinstance(event, h11.Data) and self._refused is None:
                    yield bytes(event.data)
                elif isinstance(event, h11.Data):
                    self._reason += bytes(event.data)[: max(0, 4000 - len(self._reason))]
                elif isinstance(event, h11.EndOfMessage):
                    self.ended = True
                    if self._refused is not None:
                        raise self._refusal(self._refused)
                    return
                elif isinstance(event, h11.ConnectionClosed):
                    break
        except h11.RemoteProtocolError as error:
            if not data:
                raise self._cut() from error
            raise ProtocolError(f"the code interpreter's answer is no HTTP: {error}") from error
        if not data:
            raise self._cut()

    def _refusal(self, status: int) -> SpaceError:
        return by_status(status)(self._reason.decode("utf-8", "replace").strip() or f"the code interpreter answered {status}")

    def _cut(self) -> StreamCut:
        return StreamCut("the code interpreter's answer ended before its end", hint="the code may or may not have run to its end")


class Whole:
    """A body that is one JSON document."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, piece: bytes) -> None:
        """TooLarge beyond what a document may have."""
        self._data += piece
        if len(self._data) > MOST_DOCUMENT:
            raise TooLarge(f"the code interpreter's answer has more than {MOST_DOCUMENT} bytes")

    def document(self) -> Any:
        """What it holds."""
        return _parsed(bytes(self._data))


class Sinks:
    """Who wants to hear of what comes."""

    def __init__(
        self,
        on_stdout: Callable[[str], object] | None,
        on_stderr: Callable[[str], object] | None,
        on_result: Callable[[CodeResult], object] | None,
        on_error: Callable[[CodeError], object] | None,
    ) -> None:
        self.of = {"stdout": on_stdout, "stderr": on_stderr, "result": on_result, "error": on_error}


class Collecting:
    """The lines of an execution, put together."""

    def __init__(self, sinks: Sinks) -> None:
        self._sinks = sinks
        self._pieces: list[bytes] = []
        self._size = 0
        self._results: list[CodeResult] = []
        self._texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._error: CodeError | None = None
        self._count: int | None = None
        self._marks: set[str] = set()

    def receive(self, piece: bytes) -> Iterator[tuple[Callable[[Any], object], Any]]:
        """Callbacks to call, in the order of what came."""
        *lines, rest = piece.split(b"\n")
        for line in lines:
            whole = b"".join([*self._pieces, line])
            self._pieces, self._size = [], 0
            if whole.strip():
                yield from self._take(_parsed(whole))
        self._pieces.append(rest)
        self._size += len(rest)
        if self._size > MOST_LINE:
            raise TooLarge(f"a line of the code interpreter has more than {MOST_LINE} bytes")

    def _take(self, said: Any) -> Iterator[tuple[Callable[[Any], object], Any]]:
        if not isinstance(said, dict):
            raise ProtocolError("a line of the code interpreter holds no object")
        kind = said.get("type")
        value: Any = None
        match kind:
            case "stdout" | "stderr":
                value = _text(said, "text")
                self._texts[kind].append(value)
            case "result":
                value = _result(said)
                self._results.append(value)
            case "error":
                value = self._error = CodeError(_text(said, "name"), _text(said, "value"), _text(said, "traceback"))
            case "number_of_executions":
                self._count = said["execution_count"] if isinstance(said.get("execution_count"), int) else None
            case "timed_out" | "unexpected_end_of_execution" | "end_of_execution":
                self._marks.add(kind)
        if value is not None and (sink := self._sinks.of[str(kind)]) is not None:
            yield sink, value

    def execution(self) -> Execution:
        """What came of it, at the end of the lines. StreamCut when its end is missing."""
        if not self._marks & {"end_of_execution", "unexpected_end_of_execution"}:
            raise StreamCut(
                "the code interpreter's lines ended before the execution's end", hint="the code may or may not have run to its end"
            )
        return Execution(
            results=tuple(self._results),
            stdout="".join(self._texts["stdout"]),
            stderr="".join(self._texts["stderr"]),
            error=self._error,
            count=self._count,
            timed_out="timed_out" in self._marks,
            died="unexpected_end_of_execution" in self._marks,
        )


def context_of(document: Any) -> CodeContext:
    """A context as the server says it."""
    if not isinstance(document, dict):
        raise ProtocolError("the code interpreter's context is no object")
    return CodeContext(_text(document, "id"), _text(document, "language"), _text(document, "cwd"))


def contexts_of(document: Any) -> list[CodeContext]:
    """All of them."""
    if not isinstance(document, list):
        raise ProtocolError("the code interpreter's answer holds no list of contexts")
    return [context_of(each) for each in document]


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the code interpreter's answer is no JSON: {str(error)[:200]}") from error


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"{name} of the code interpreter's answer is no text")
    return value


def _result(said: Mapping[str, Any]) -> CodeResult:
    texts = {name: _text(said, name) for name in ("text", "html", "markdown", "svg", "latex", "javascript") if said.get(name) is not None}
    pictures = {name: _bytes(_text(said, name)) for name in ("png", "jpeg", "pdf") if said.get(name) is not None}
    tables = {name: said[name] for name in ("data", "chart", "extra") if isinstance(said.get(name), dict)}
    return CodeResult(**texts, **pictures, **tables, json=said.get("json"), main=said.get("is_main_result") is True)  # type: ignore[arg-type]


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError("a picture of the code interpreter is no base64") from error
