"""Code executed over both forms of the SDK: values, output as it comes, contexts; what a hostile interpreter says is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.model.errors import InvalidArgument, NotFound, ProtocolError, SpaceError, StreamCut, TooLarge
from space.sdk.code import PORT, CodeResult, Collecting, Exchange, Sinks, Whole, context_of, contexts_of
from space.sdk.testing import MockServer
from space.sdk.testing.code import MockInterpreter

Opened = Callable[[MockServer], Any]
pytestmark = pytest.mark.usefixtures("no_pauses")
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def server() -> MockServer:
    server = MockServer()
    server.service(PORT)(MockInterpreter())
    return server


def test_what_was_defined_is_there_for_the_next_execution_and_in_no_other_context(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            assert (await sandbox.run_code("x = 20")).results == ()
            second = await sandbox.run_code("print('so'); x + 22")
            assert (second.text, second.stdout, second.count, second.ok) == ("42", "so\n", 2, True)
            other = await sandbox.create_code_context(cwd="/tmp")
            failed = await sandbox.run_code("x", context=other)
            assert failed.error is not None
            assert (failed.error.name, failed.ok, failed.text) == ("NameError", False, None)
            assert [each.cwd for each in await sandbox.code_contexts()] == ["/home/user", "/tmp"]
            await sandbox.run_code("y = 1", context=other)
            await sandbox.restart_code_context(other)
            assert (await sandbox.run_code("'y' in globals()", context=other.id)).text == "False"
            await sandbox.interrupt_code_context(other)
            await sandbox.delete_code_context(other)
            with pytest.raises(NotFound, match=other.id):
                await sandbox.run_code("1", context=other)

    asyncio.run(scenario())


def test_callbacks_hear_of_what_comes_and_variables_hold_for_one_execution(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            heard: list[Any] = []
            await sandbox.run_code(
                "import os; print(os.environ['KEPT']); 5", env={"KEPT": "no"}, on_stdout=heard.append, on_result=heard.append
            )
            assert heard == ["no\n", CodeResult(text="5", main=True)]
            await sandbox.run_code("1/0; 2", on_error=heard.append)
            assert heard[-1].name == "ZeroDivisionError"
            assert (await sandbox.run_code("os.environ.get('KEPT')")).results == ()

    asyncio.run(scenario())


def test_what_cannot_be_executed_is_refused_before_or_by_the_interpreter(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            with pytest.raises(InvalidArgument, match="both a language and a context"):
                await sandbox.run_code("1", language="python", context="x")
            with pytest.raises(InvalidArgument, match="timeout"):
                await sandbox.run_code("1", timeout=0)
            with pytest.raises(InvalidArgument, match="'cobol' is not known"):
                await sandbox.run_code("1", language="cobol")
        async with opened(MockServer()) as sandbox:
            with pytest.raises(NotFound, match="no code interpreter") as caught:
                await sandbox.run_code("1")
            assert "code-interpreter-v1" in (caught.value.hint or "")

    asyncio.run(scenario())


def _says(answer: bytes) -> MockServer:
    server = MockServer()

    @server.service(PORT)
    def interpreter(connected: socket.socket) -> None:
        connected.recv(65536)
        connected.sendall(answer)
        connected.shutdown(socket.SHUT_WR)

    return server


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", StreamCut),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ProtocolError),
        (HEAD + b"4\r\nnull", StreamCut),
        (HEAD + b"5\r\nnull\n\r\n0\r\n\r\n", ProtocolError),
        (HEAD + b"0\r\n\r\n", StreamCut),
        (HEAD + b"2\r\n{\n\r\n0\r\n\r\n", ProtocolError),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!", NotFound),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example.com/\r\nContent-Length: 0\r\n\r\n", ProtocolError),
    ],
)
def test_an_answer_that_is_none_or_ends_early_says_nothing_of_the_code(opened: Opened, answer: bytes, error: type[SpaceError]) -> None:
    async def scenario() -> None:
        async with opened(_says(answer)) as sandbox:
            with pytest.raises(error):
                await sandbox.run_code("1")

    asyncio.run(scenario())


def _collected(*lines: Any) -> Collecting:
    collecting = Collecting(Sinks(None, None, None, None))
    for line in lines:
        list(collecting.receive(json.dumps(line).encode() + b"\n"))
    return collecting


def test_a_result_has_its_pictures_as_bytes_and_only_forms_that_are_what_they_say() -> None:
    picture = {
        "type": "result",
        "png": base64.b64encode(b"\x89PNG").decode(),
        "chart": {"type": "line"},
        "json": [1],
        "is_main_result": True,
    }
    found = _collected(picture, {"type": "keepalive"}, {"type": "timed_out"}, {"type": "end_of_execution"}).execution()
    assert found.results == (CodeResult(png=b"\x89PNG", chart={"type": "line"}, json=[1], main=True),)
    assert (found.timed_out, found.ok) == (True, False)
    assert _collected({"type": "unexpected_end_of_execution"}).execution().died
    refused: list[dict[str, Any]] = [{"png": "*"}, {"text": 1}, {"pdf": []}]
    for wrong in refused:
        with pytest.raises(ProtocolError):
            _collected({"type": "result"} | wrong)
    with pytest.raises(ProtocolError):
        context_of({"id": "x", "language": None, "cwd": "/"})
    with pytest.raises(ProtocolError):
        contexts_of({})


def test_what_an_interpreter_says_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("space.sdk.code.MOST_LINE", 1000)
    monkeypatch.setattr("space.sdk.code.MOST_DOCUMENT", 1000)
    collecting = _collected()
    list(collecting.receive(b"x" * 900))
    with pytest.raises(TooLarge):
        list(collecting.receive(b"x" * 200))
    with pytest.raises(TooLarge):
        Whole().add(b"x" * 1001)


@given(st.lists(st.binary(max_size=60), max_size=8), st.booleans())
def test_whatever_an_interpreter_says_is_an_answer_or_an_error_of_ours(pieces: list[bytes], headed: bool) -> None:
    exchange, collecting = Exchange("POST", "/execute", {"code": "1"}), _collected()
    try:
        for piece in ([HEAD] if headed else []) + pieces + [b""]:
            if not exchange.ended:
                for body in exchange.receive(piece):
                    list(collecting.receive(body))
        collecting.execution()
    except SpaceError:
        pass
