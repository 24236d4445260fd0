"""The SDK at its edges: answers that were lost, names that are none, arguments of another type, objects used after their end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from space import AsyncSandbox, Sandbox
from space.model.errors import Conflict, InvalidArgument, NotFound, StreamCut, Unavailable
from space.sdk.testing import MockServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> MockServer:
    monkeypatch.setattr("space.sdk._sync.client.sleep", lambda _: None)
    return MockServer()


@pytest.fixture
def sandbox(server: MockServer) -> Iterator[Sandbox]:
    with server.client() as client, Sandbox.create(client=client) as made:
        yield made


@pytest.mark.parametrize("fault", [httpx.ReadError("reset"), httpx.ReadTimeout("silence"), Unavailable("the node is away")])
def test_a_create_whose_answers_were_all_lost_leaves_no_sandbox_unless_its_key_was_given(server: MockServer, fault: Exception) -> None:
    def lose() -> None:
        for _ in range(4):
            server.fail_next(fault, path="/v1/sandboxes", after=True)

    lose()
    with pytest.raises((StreamCut, Unavailable)):
        Sandbox.create(client=server.client())
    assert server.sandboxes == {}
    assert [method for method, _ in server.requests] == ["POST"] * 5 + ["DELETE"]
    lose()
    with pytest.raises((StreamCut, Unavailable)):
        Sandbox.create(client=server.client(), idempotency_key="mine")
    with Sandbox.create(client=server.client(), idempotency_key="mine") as found:
        assert list(server.sandboxes) == [found.id]


def test_an_identifier_cannot_leave_its_segment_of_the_path(server: MockServer) -> None:
    client = server.client()
    for name in ("../keys?x=1", "..", ".", "", "sb-a/metrics", "sb-a%2Fmetrics", "sb a", "sb-a\n", "ü", "a" * 200, None):
        with pytest.raises(InvalidArgument, match="not an identifier"):
            Sandbox.connect(name, client=client)  # type: ignore[arg-type]
    for call in (client.revoke_key, client.delete_webhook, client.quota):
        with pytest.raises(InvalidArgument, match="not an identifier"):
            call("x/../../sandboxes/sb-a")
    assert server.requests == []


def test_what_is_used_after_its_client_was_closed_says_so(server: MockServer) -> None:
    client = server.client()
    sandbox = Sandbox.create(client=client)
    client.close()
    calls = (sandbox.info, sandbox.delete, lambda: sandbox.run("true"), lambda: sandbox.connect_port(80), lambda: list(client.sandboxes()))
    for call in calls:
        with pytest.raises(Conflict, match="the client is closed"):
            call()

    async def talk() -> None:
        again = server.async_client()
        async with again:
            other = await AsyncSandbox.connect(sandbox.id, client=again)
        with pytest.raises(Conflict, match="the client is closed"):
            await other.info()

    asyncio.run(talk())


def test_a_watch_and_a_terminal_used_after_their_block_say_so(server: MockServer, sandbox: Sandbox) -> None:
    with sandbox.files.watch("/tmp") as changes:
        pass
    with pytest.raises(Conflict, match="the watch is not open"):
        next(changes)
    with sandbox.shell(["cat"]) as terminal:
        pass
    for call in (lambda: terminal.send("x"), terminal.send_eof, lambda: terminal.resize(1, 1), terminal.signal, terminal.wait):
        with pytest.raises(Conflict, match="the terminal is closed"):
            call()


def test_an_empty_local_path_is_refused_and_is_not_the_current_directory(server: MockServer, sandbox: Sandbox) -> None:
    asked = len(server.requests)
    for call in (lambda: sandbox.upload("", "/srv/x"), lambda: sandbox.download("/etc", "")):
        with pytest.raises(InvalidArgument, match="the path is empty"):
            call()
    assert len(server.requests) == asked


def test_a_file_that_would_take_a_directorys_name_is_told_the_remedy(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    with pytest.raises(Conflict, match=r"^'/tmp' is a directory \(end it with / to copy into it\)$"):
        sandbox.upload(tmp_path / "f", "/tmp")
    with pytest.raises(InvalidArgument, match="ends in /"):
        sandbox.files.write("/tmp/", b"1")


def test_arguments_of_another_type_are_refused_before_anything_is_sent(server: MockServer, sandbox: Sandbox) -> None:
    odd: Any = sandbox
    asked = len(server.requests)
    calls = (
        lambda: Sandbox.create(client=server.client(), idle=5),  # type: ignore[arg-type]
        lambda: odd.run("true", timeout="5"),
        lambda: odd.run("true", timeout=True),
        lambda: odd.run(None),
        lambda: odd.run(b"true"),
        lambda: odd.connect_port("x"),
        lambda: odd.forward(0, "x"),
        lambda: odd.files.write("/srv/f", b"", mode="644"),
    )
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()
    assert len(server.requests) == asked


@pytest.mark.parametrize("form", ["async", "sync"])
def test_a_forward_ends_when_a_connection_finds_that_the_sandbox_is_gone(server: MockServer, form: str) -> None:
    sandbox = Sandbox.create(client=server.client())
    if form == "sync":
        with sandbox.forward(0, 8000) as forward, socket.create_connection(forward.address, 5) as idle:
            sandbox.delete()
            with pytest.raises(NotFound, match=sandbox.id), socket.create_connection(forward.address, 5):
                forward.serve_forever()
            assert isinstance(forward.failures[-1], NotFound)
            del idle
        return

    async def talk() -> None:
        async with server.async_client() as client:
            other = await AsyncSandbox.connect(sandbox.id, client=client)
            async with other.forward(0, 8000) as forward:
                sandbox.delete()
                _, writer = await asyncio.open_connection(*forward.address)
                with pytest.raises(NotFound, match=sandbox.id):
                    await asyncio.wait_for(forward.serve_forever(), 5)
                writer.close()
                assert isinstance(forward.failures[-1], NotFound)

    asyncio.run(talk())


def test_a_coroutine_function_is_no_callback_of_the_synchronous_form(sandbox: Sandbox) -> None:
    async def callback(_: str) -> None: ...

    with pytest.raises(InvalidArgument, match="coroutine function"):
        sandbox.run(["echo", "x"], on_stdout=callback)
