"""The code interpreter's server, without its kernels: requests, turns, disconnects, time. (Real kernels: tests/e2b.)"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

PLACE = Path(__file__).parents[3] / "templates" / "code-interpreter"


def _module(name: str) -> Any:
    sys.path.insert(0, str(PLACE))
    try:
        return importlib.import_module(f"space_interpreter.{name}")
    finally:
        sys.path.remove(str(PLACE))


wire, results, contexts, executions = (_module(name) for name in ("wire", "results", "contexts", "executions"))


class Kernel:
    """One that says what it is told to, or works until it is interrupted."""

    def __init__(self) -> None:
        self.pid, self.dead = 1, asyncio.Event()
        self.interrupted = asyncio.Event()
        self.interrupts = 0
        self.tasks: list[Any] = []
        self.stubborn = False

    async def execute(self, task: Any) -> AsyncIterator[dict[str, Any]]:
        self.tasks.append(task)
        yield results.count(len(self.tasks))
        if task.code == "forever":
            await asyncio.wait({asyncio.create_task(each.wait()) for each in (self.interrupted, self.dead)}, return_when="FIRST_COMPLETED")
            yield results.DIED if self.dead.is_set() else results.error("KeyboardInterrupt", "", "")

    async def rehearse(self) -> None:
        """Nothing."""

    async def interrupt(self) -> None:
        self.interrupts += 1
        if not self.stubborn:
            self.interrupted.set()

    def restored(self) -> None:
        """Nothing."""

    def end(self) -> None:
        self.dead.set()


class Around:
    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.environment: dict[str, str] = {"A": "1"}
        self.all = contexts.Contexts(self.begin, lambda: dict(self.environment))

    async def begin(self, kind: str, cwd: str, variables: Mapping[str, str]) -> Kernel:
        self.kernels.append(Kernel())
        return self.kernels[-1]

    def execution(self, code: str, seconds: float | None = None, **variables: str) -> Any:
        return executions.Execution(self.all, self.all.usual("python"), contexts.Task(code, "python", variables), seconds)


async def _lines(execution: Any) -> list[str]:
    found = []
    while (line := await execution.lines.get()) is not None:
        found.append(line["type"])
    return found


def test_executions_of_a_context_wait_for_each_other_and_one_whose_client_left_never_begins() -> None:
    async def scenario() -> None:
        around = Around()
        first, second, third = around.execution("forever"), around.execution("no"), around.execution("yes")
        assert (await first.lines.get())["type"] == "number_of_executions"
        await second.abandon()
        await first.abandon()
        assert await _lines(third) == ["number_of_executions", "end_of_execution"]
        assert [task.code for task in around.kernels[0].tasks] == ["forever", "yes"]
        assert around.kernels[0].interrupts == 1

    asyncio.run(scenario())


def test_code_whose_client_left_while_its_kernel_began_is_not_executed() -> None:
    async def scenario() -> None:
        around, begins, may = Around(), asyncio.Event(), asyncio.Event()
        usual = around.begin

        async def begin(kind: str, cwd: str, variables: Mapping[str, str]) -> Kernel:
            begins.set()
            await may.wait()
            return await usual(kind, cwd, variables)

        around.all = contexts.Contexts(begin, dict)
        execution = around.execution("1")
        await begins.wait()
        left = asyncio.create_task(execution.abandon())
        await asyncio.sleep(0)
        may.set()
        await left
        assert around.kernels[0].tasks == []

    asyncio.run(scenario())


def test_code_that_catches_every_interrupt_loses_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "INTERRUPT_SECONDS", 0.01)

    async def scenario() -> None:
        around = Around()
        for end in ("left", "late"):
            execution = around.execution("forever", seconds=0.01 if end == "late" else None)
            await execution.lines.get()
            kernel = around.kernels[-1]
            kernel.stubborn = True
            if end == "left":
                await execution.abandon()
            else:
                assert await _lines(execution) == ["timed_out", "unexpected_end_of_execution", "end_of_execution"]
            assert (kernel.interrupts, kernel.dead.is_set()) == (3, True)
        assert await _lines(around.execution("1")) == ["number_of_executions", "end_of_execution"]
        assert len(around.kernels) == 3

    asyncio.run(scenario())


def test_a_kernel_learns_of_the_sandboxs_variables_when_they_change_and_once() -> None:
    async def scenario() -> None:
        around = Around()
        await _lines(around.execution("1", B="2"))
        around.environment["A"] = "9"
        await _lines(around.execution("2"))
        await _lines(around.execution("3"))
        told = [(task.variables, task.adopted) for task in around.kernels[0].tasks]
        assert told == [({"B": "2"}, {}), ({}, {"A": "9"}), ({}, {})]

    asyncio.run(scenario())


def test_contexts_are_named_bounded_and_begin_where_there_is_a_directory(tmp_path: Path) -> None:
    async def scenario() -> None:
        around = Around()
        made = await around.all.make("js", str(tmp_path))
        assert made.document == {"id": made.id, "language": "javascript", "cwd": str(tmp_path)}
        assert around.all.usual("ts") is around.all.usual("javascript")
        for language, cwd, status in (("cobol", "/", 400), ("python", str(tmp_path / "none"), 400)):
            with pytest.raises(wire.Refused) as caught:
                await around.all.make(language, cwd)
            assert caught.value.status == status
        around.all.remove(made)
        with pytest.raises(wire.Refused):
            around.all.named(made.id)
        while len(around.all.listed()) < contexts.MOST:
            await around.all.make("python", "/")
        with pytest.raises(wire.Refused, match="64 contexts"):
            await around.all.make("python", "/")

    asyncio.run(scenario())


class Sink:
    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


async def _asked(*pieces: bytes) -> list[Any]:
    """The requests in that, and the refusal of what is none."""
    reader = asyncio.StreamReader()
    for piece in pieces:
        reader.feed_data(piece)
    reader.feed_eof()
    connection, found = wire.Connection(reader, Sink()), []
    try:
        while (request := await connection.request()) is not None:
            found.append((request.method, request.path, request.body))
    except wire.Refused as refused:
        found.append(refused.status)
    return found


def test_requests_follow_each_other_with_bodies_of_both_forms() -> None:
    both = b"POST /a?b HTTP/1.1\r\nContent-Length: 2\r\n\r\nhiPOST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    both += b"GET /c HTTP/1.1\r\n\r\n"
    wanted = [("POST", "/a", b"hi"), ("POST", "/b", b"abc"), ("GET", "/c", b"")]
    assert asyncio.run(_asked(both)) == wanted
    assert asyncio.run(_asked(*(both[at : at + 1] for at in range(len(both))))) == wanted


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"GET / HTTP/1.1\r\nname : x\r\n\r\n", 400),
        (b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
def test_a_request_that_is_none_is_refused(head: bytes, status: int) -> None:
    assert asyncio.run(_asked(head)) == [status]


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_any_bytes_are_requests_or_a_refusal(pieces: list[bytes]) -> None:
    with suppress(ConnectionResetError):
        asyncio.run(_asked(*pieces))


def test_results_have_the_names_that_clients_read() -> None:
    bundle = {"text/plain": "'a'", "image/png": "aa\nbb", "application/x-own": 1, "text/html": None}
    assert results.result(bundle, main=True) == {
        "type": "result", "text": "a", "png": "aabb", "extra": {"application/x-own": 1}, "is_main_result": True,
    }  # fmt: skip
