"""The SDK against its own mock server, both forms of it: what is sent, what comes back, what each failure becomes."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from space import AsyncSandbox, CommandFailed, Sandbox
from space.model.errors import (
    ConnectionFailed,
    GuestError,
    InvalidArgument,
    NoCapacity,
    NotFound,
    ProtocolError,
    SandboxDied,
    StreamCut,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from space.model.frames import Kind, encode
from space.model.sandbox import MAX_STDIN, Phase
from space.sdk._sync.client import Client
from space.sdk.testing import MockServer, Process, Reply


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> MockServer:
    monkeypatch.setattr("space.sdk._sync.client.sleep", lambda _: None)
    return MockServer()


@pytest.fixture
def sandbox(server: MockServer) -> Iterator[Sandbox]:
    with server.client() as client, Sandbox.create(client=client) as made:
        yield made


def test_leaving_the_block_deletes_what_was_created_and_not_what_was_connected_to(server: MockServer) -> None:
    with Sandbox.create(client=server.client(), cpus=2, env={"A": "b"}, metadata={"who": "me"}) as sandbox:
        assert server.sandboxes[sandbox.id].spec["cpus"] == 2
        with Sandbox.connect(sandbox.id, client=server.client()) as again:
            assert again.info().spec.metadata == {"who": "me"}
        assert sandbox.id in server.sandboxes
    assert server.sandboxes == {}


def test_delete_is_idempotent(server: MockServer, sandbox: Sandbox) -> None:
    sandbox.delete()
    sandbox.delete()
    assert server.sandboxes == {}


def test_a_create_whose_answer_was_lost_is_repeated_and_makes_one_sandbox(server: MockServer) -> None:
    server.fail_next(httpx.ReadError("reset"), path="/v1/sandboxes", after=True)
    with Sandbox.create(client=server.client()):
        assert len(server.sandboxes) == 1
    assert server.requests.count(("POST", "/v1/sandboxes")) == 2


def test_a_create_that_is_interrupted_leaves_no_sandbox(server: MockServer) -> None:
    server.fail_next(KeyboardInterrupt(), path="/v1/sandboxes", after=True)
    with pytest.raises(KeyboardInterrupt):
        Sandbox.create(client=server.client())
    assert server.sandboxes == {}
    assert [method for method, _ in server.requests] == ["POST", "POST", "DELETE"]


def test_no_room_is_told_at_once(server: MockServer) -> None:
    server.fail_next(NoCapacity("no memory is left"))
    with pytest.raises(NoCapacity, match="no memory"):
        Sandbox.create(client=server.client())
    assert len(server.requests) == 1


def test_an_outage_is_repeated_a_bounded_number_of_times(server: MockServer) -> None:
    for _ in range(10):
        server.fail_next(Unavailable("the node is away"))
    with pytest.raises(Unavailable):
        server.client().templates()
    assert len(server.requests) == 4


def test_a_command_is_never_repeated(server: MockServer, sandbox: Sandbox) -> None:
    server.fail_next(Unavailable("the node is away"), path="/processes")
    before = len(server.requests)
    with pytest.raises(Unavailable):
        sandbox.run(["true"])
    assert len(server.requests) == before + 1


def test_errors_carry_hint_and_request_id(server: MockServer) -> None:
    with pytest.raises(Unauthenticated) as caught:
        Client(api_url=server.url, api_key="wrong", transport=server.transport).templates()
    assert caught.value.hint == "is it the right server?"
    assert caught.value.request_id
    assert caught.value.request_id.startswith("req-")


def test_a_server_that_is_not_there_is_a_connection_failure_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("space.sdk._sync.client.sleep", lambda _: None)
    with pytest.raises(ConnectionFailed, match="space serve"):
        Sandbox.create(api_url="http://127.0.0.1:9", api_key="k")


def test_the_list_is_read_page_after_page(server: MockServer) -> None:
    client = server.client()
    made = {Sandbox.create(client=client).id for _ in range(5)}
    assert {info.id for info in Sandbox.list(client=client)} == made
    assert server.requests.count(("GET", "/v1/sandboxes")) == 3
    assert list(Sandbox.list(client=client, phase="paused")) == []


def test_pause_resume_noop_metrics(server: MockServer, sandbox: Sandbox) -> None:
    sandbox.pause()
    assert sandbox.info().phase is Phase.PAUSED
    sandbox.resume()
    assert sandbox.info().phase is Phase.RUNNING
    sandbox.noop()
    assert sandbox.metrics().memory_total == 1


def test_a_result_tells_code_signal_and_output(server: MockServer, sandbox: Sandbox) -> None:
    server.program("die")(lambda _: Reply(b"out", b"err", exit_code=None, signal=9, oom_killed=True))
    assert sandbox.run(["echo", "a", "b"]).text == "a b\n"
    assert sandbox.run("exit 7").exit_code == 7
    result = sandbox.run(["die"])
    assert (result.exit_code, result.signal, result.oom_killed, result.ok) == (None, 9, True, False)
    assert (result.stdout, result.error_text) == (b"out", "err")


def test_check_raises_with_the_result(sandbox: Sandbox) -> None:
    with pytest.raises(CommandFailed, match="exit 3 ended with exit code 3") as caught:
        sandbox.run("exit 3", check=True)
    assert caught.value.result.exit_code == 3


@pytest.mark.parametrize(
    "stdin",
    [b"x\ny", "x\ny", io.BytesIO(b"x\ny"), [b"x", b"\ny"], iter([b"x\n", b"", b"y"])],
    ids=["bytes", "text", "file", "list", "iterator"],
)
def test_stdin_is_bytes_text_a_file_or_pieces(sandbox: Sandbox, stdin: bytes) -> None:
    assert sandbox.run(["cat"], stdin=stdin).stdout == b"x\ny"


def test_sixteen_mebibytes_of_stdin_come_back_and_one_more_byte_is_refused_before_it_is_sent(server: MockServer, sandbox: Sandbox) -> None:
    data = bytes(range(256)) * (MAX_STDIN // 256)
    assert sandbox.run(["cat"], stdin=data).stdout == data
    before = len(server.requests)
    with pytest.raises(TooLarge, match="upload"):
        sandbox.run(["cat"], stdin=data + b"x")
    with pytest.raises(TooLarge):
        sandbox.run(["cat"], stdin=(data for _ in range(1000)))
    assert len(server.requests) == before


def test_what_is_asked_for_reaches_the_server(server: MockServer) -> None:
    seen: list[Process] = []

    @server.program("look")
    def look(process: Process) -> Reply:
        seen.append(process)
        return Reply()

    with Sandbox.create(client=server.client(), env={"A": "1", "B": "2"}) as sandbox:
        sandbox.run(["look", "ä"], cwd="/tmp", env={"B": "3"}, user="root", timeout=1.5)
    (process,) = seen
    assert (process.argv, process.cwd, process.user, process.timeout_ms) == (("look", "ä"), "/tmp", "root", 1500)
    assert process.env == {"A": "1", "B": "3"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"command": []}, "at least one"), ({"command": ["a", "\udc80"]}, "UTF-8"), ({"command": "x", "timeout": 0}, "above 0")],
)
def test_what_cannot_be_right_is_refused_here(sandbox: Sandbox, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        sandbox.run(**arguments)  # type: ignore[arg-type]


def test_text_callbacks_get_whole_characters_and_byte_callbacks_the_pieces(server: MockServer, sandbox: Sandbox) -> None:
    pieces = [("stdout", b"\xe2\x82"), ("stderr", b"!"), ("stdout", b"\xac \xff"), ("stdout", b"\xc3")]
    server.program("euro")(lambda _: Reply(pieces=pieces))
    text: list[str] = []
    raw: list[bytes] = []
    errors: list[str] = []
    result = sandbox.run(["euro"], on_stdout=text.append, on_stderr=errors.append, on_stdout_bytes=raw.append)
    assert "".join(text) == "€ \ufffd\ufffd"
    assert text[0].startswith("€")
    assert raw == [b"\xe2\x82", b"\xac \xff", b"\xc3"]
    assert errors == ["!"]
    assert result.stdout == b"".join(raw)


def test_output_arrives_while_the_command_runs(server: MockServer, sandbox: Sandbox) -> None:
    seen: list[str] = []

    def lines() -> Iterator[tuple[str, bytes]]:
        for number in range(3):
            assert seen == [str(n) for n in range(number)]
            yield "stdout", str(number).encode()

    server.program("count")(lambda _: Reply(pieces=lines()))
    sandbox.run(["count"], on_stdout=seen.append)
    assert seen == ["0", "1", "2"]


def test_twenty_megabytes_are_exact(server: MockServer, sandbox: Sandbox) -> None:
    data = bytes(range(251)) * 80_000
    server.program("much")(lambda _: Reply(stdout=data))
    assert sandbox.run(["much"]).stdout == data
    with pytest.raises(TooLarge, match="capture=False"):
        sandbox.run(["much"], output_limit=1 << 20)
    total: list[int] = []
    assert sandbox.run(["much"], capture=False, output_limit=1, on_stdout_bytes=lambda piece: total.append(len(piece))).stdout == b""
    assert sum(total) == len(data)


def test_an_exception_of_a_callback_comes_out_and_ends_the_command(server: MockServer, sandbox: Sandbox) -> None:
    def stop(_: str) -> None:
        raise KeyboardInterrupt

    server.program("endless")(lambda _: Reply(pieces=iter(lambda: ("stdout", b"y"), None)))
    with pytest.raises(KeyboardInterrupt):
        sandbox.run(["endless"], on_stdout=stop)
    assert server.sandboxes[sandbox.id].closed == 1


def test_a_stream_without_exit_frame_is_never_success(server: MockServer, sandbox: Sandbox) -> None:
    server.program("cut")(lambda _: Reply(stdout=b"done", cut=True))
    with pytest.raises(StreamCut, match="without an exit frame"):
        sandbox.run(["cut"])


def _answering(*pieces: bytes | Exception) -> Sandbox:
    """A sandbox whose next command is answered with exactly this body."""
    server = MockServer()

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for piece in pieces:
                if isinstance(piece, Exception):
                    raise piece
                yield piece

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Body()) if request.url.path.endswith("/processes") else server.handle(request)

    return Sandbox.create(client=Client(api_url=server.url, api_key=server.key, transport=httpx.MockTransport(handle)))


def exited(stdout: int = 0, stderr: int = 0) -> bytes:
    status = {"code": 0, "signal": None, "oom_killed": False, "timed_out": False, "stdout_bytes": stdout, "stderr_bytes": stderr}
    return encode(Kind.EXIT, json.dumps(status | {"wall_ms": 1}).encode())


EXIT = exited()
ONE = encode(Kind.STDOUT, b"1")


@pytest.mark.parametrize(
    ("body", "fault", "words"),
    [
        ([], StreamCut, "without an exit"),
        ([ONE], StreamCut, "without an exit"),
        ([ONE, EXIT[:-1]], StreamCut, "without an exit"),
        ([ONE, httpx.ReadError("reset")], StreamCut, "broke"),
        ([ONE, httpx.RemoteProtocolError("peer closed")], StreamCut, "broke"),
        ([ONE, httpx.ReadTimeout("slow")], StreamCut, "for 30 s"),
        ([ONE, ONE, EXIT], StreamCut, "goes on at byte 0"),
        ([encode(Kind.STDOUT, b"1", 5), EXIT], StreamCut, "goes on at byte 5"),
        ([EXIT[:-1].replace(b'"wall', b'"stdout_bytes":2,"wall') + b"}"], ProtocolError, None),
        ([EXIT, ONE], ProtocolError, "follows the exit"),
        ([EXIT, b"x"], ProtocolError, "follow the exit"),
        ([EXIT + EXIT], ProtocolError, "follows the exit"),
        ([b"HTTP/1.1 502 Bad Gateway"], ProtocolError, "broken"),
        ([b"\x00\x00\x00\x00\x09\x00\x00\x00" + bytes(8)], ProtocolError, "broken"),
        ([encode(Kind.EXIT, b"[]")], ProtocolError, "no object"),
        ([encode(Kind.EXIT, b"{")], ProtocolError, "no JSON"),
        ([encode(Kind.EXIT, b"{}")], ProtocolError, "incomplete"),
        ([encode(Kind.EXIT, EXIT[16:].replace(b"null", b"9"))], ProtocolError, "code 0 and signal 9"),
        ([exited(2)], StreamCut, "stdout has 2 bytes and 0 arrived"),
        ([ONE, exited(1, 1)], StreamCut, "stderr has 1 bytes and 0 arrived"),
        ([ONE, exited(0)], StreamCut, "stdout has 0 bytes and 1 arrived"),
        ([ONE, encode(Kind.ERROR, b'{"code":"sandbox_died","detail":"the VM ended"}')], SandboxDied, "the VM ended"),
        ([encode(Kind.ERROR, b'{"code":"guest_error","detail":"no","hint":"h"}')], GuestError, r"no \(h\)"),
    ],
)
def test_a_broken_stream_is_a_typed_error(body: list[bytes | Exception], fault: type[Exception], words: str | None) -> None:
    with pytest.raises(fault, match=words):
        _answering(*body).run(["x"])


def test_output_before_an_error_frame_is_delivered_before_the_error() -> None:
    got: list[bytes] = []
    with pytest.raises(SandboxDied):
        _answering(ONE + encode(Kind.ERROR, b'{"code":"sandbox_died","detail":"the VM ended"}')).run(["x"], on_stdout_bytes=got.append)
    assert got == [b"1"]


def test_heartbeats_and_any_split_of_the_stream_change_nothing() -> None:
    body = (
        encode(Kind.START, b'{"pid":1}') + encode(Kind.HEARTBEAT) + ONE + encode(Kind.HEARTBEAT) + encode(Kind.STDOUT, b"2", 1) + exited(2)
    )
    for size in (1, 3, 16, 17, 1000):
        assert _answering(*(body[at : at + size] for at in range(0, len(body), size))).run(["x"]).text == "12"


def test_a_connection_that_breaks_behind_the_exit_frame_takes_nothing_away() -> None:
    assert _answering(ONE, exited(1), httpx.ReadError("reset")).run(["x"]).text == "1"


def test_a_silent_server_is_cut_off_by_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("space.sdk._sync.sandbox.HEARTBEAT_LIMIT_SECONDS", 0.2)
    server = MockServer()

    release = threading.Event()

    def wait() -> Iterator[tuple[str, bytes]]:
        yield "stdout", b"first"
        release.wait(30)

    server.program("hang")(lambda _: Reply(pieces=wait()))
    with server.listen() as url:
        sandbox = Sandbox.create(api_url=url, api_key=server.key)
        with pytest.raises(StreamCut, match=r"for 0\.2 s"):
            sandbox.run(["hang"])
        release.set()
        sandbox.close()


def test_the_body_of_a_proxy_goes_by_its_status(server: MockServer) -> None:
    pages = httpx.MockTransport(lambda _: httpx.Response(502, text="<html>Bad Gateway"))
    with pytest.raises(Unavailable, match="502 without saying why"):
        Client(api_url=server.url, api_key="k", transport=pages).templates()


def test_keys_are_made_listed_and_revoked(server: MockServer) -> None:
    client = server.client()
    made = client.create_key(tenant="acme", name="ci")
    assert made.key == "secret-key-1"
    assert "secret" not in repr(made)
    assert [key.tenant for key in client.keys()] == ["acme"]  # noqa: SIM118  # it is no mapping
    client.revoke_key(made.id)
    assert client.keys()[0].revoked_at is not None
    with pytest.raises(NotFound):
        client.revoke_key("other")


def test_an_uploaded_tree_comes_back_as_it_was(server: MockServer, sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub/a.txt").write_bytes(b"hello")
    (source / "run").write_bytes(b"#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("sub/a.txt")
    summary = sandbox.upload(source, "/srv/tree")
    assert summary.entries == 5
    assert server.sandboxes[sandbox.id].files["/srv/tree/sub/a.txt"] == b"hello"
    unpacked = sandbox.download("/srv/tree", tmp_path / "back")
    assert unpacked.entries == 5
    assert (tmp_path / "back/sub/a.txt").read_bytes() == b"hello"
    assert (tmp_path / "back/run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "back/link").readlink() == Path("sub/a.txt")
    assert int((tmp_path / "back/run").stat().st_mtime) == int((source / "run").stat().st_mtime)


def test_a_file_goes_to_its_new_name_or_into_a_directory(server: MockServer, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    sandbox.upload(tmp_path / "a.txt", "/tmp/b.txt")
    sandbox.upload(tmp_path / "a.txt", "/tmp/")
    sandbox.upload(tmp_path / "a.txt", "c.txt")
    assert set(server.sandboxes[sandbox.id].files) == {"/tmp/b.txt", "/tmp/a.txt", "/home/user/c.txt"}
    sandbox.download("/tmp/b.txt", tmp_path)
    assert (tmp_path / "b.txt").read_text() == "a"
    sandbox.download("/tmp/b.txt", tmp_path / "a.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_an_upload_that_arrived_otherwise_is_an_error(server: MockServer, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")

    def handle(request: httpx.Request) -> httpx.Response:
        response = server.handle(request)
        return httpx.Response(200, json={"entries": 1, "bytes": 2048, "crc32": 7}) if request.method == "PUT" else response

    client = Client(api_url=server.url, api_key=server.key, transport=httpx.MockTransport(handle))
    with Sandbox.create(client=client) as sandbox, pytest.raises(StreamCut, match="00000007"):
        sandbox.upload(tmp_path / "a", "/tmp/")


@pytest.mark.parametrize("kept", [0, 511, 512, 1024, 10239])
def test_a_cut_download_leaves_nothing(server: MockServer, tmp_path: Path, kept: int) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        response = server.handle(request)
        if request.url.path.endswith("/tree") and request.method == "GET":
            return httpx.Response(200, content=response.read()[:kept])
        return response

    client = Client(api_url=server.url, api_key=server.key, transport=httpx.MockTransport(handle))
    with Sandbox.create(client=client) as sandbox:
        server.sandboxes[sandbox.id].files["/tmp/a"] = b"x" * 4096
        with pytest.raises(StreamCut):
            sandbox.download("/tmp/a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


# -- asyncio -----------------------------------------------------------------------------------------------------------


def test_the_same_things_with_asyncio(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = MockServer()
        seen: list[str] = []

        async def later(text: str) -> None:
            await asyncio.sleep(0)
            seen.append(text)

        (tmp_path / "a").write_text("a" * 100_000)
        async with server.async_client() as client:
            async with await AsyncSandbox.create(client=client) as sandbox:
                result = await sandbox.run(["cat"], stdin=b"hello", on_stdout=later)
                assert (result.text, seen) == ("hello", ["hello"])
                await sandbox.upload(tmp_path / "a", "/tmp/")
                await sandbox.download("/tmp/a", tmp_path / "b")
                assert [info.id async for info in AsyncSandbox.list(client=client)] == [sandbox.id]
            assert server.sandboxes == {}
        assert (tmp_path / "b").read_text() == "a" * 100_000

    asyncio.run(scenario())


def test_cancelling_a_command_closes_its_stream() -> None:
    async def scenario() -> None:
        server = MockServer()
        started = asyncio.Event()
        closed = asyncio.Event()

        class Endless(httpx.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                yield ONE
                started.set()
                await asyncio.Event().wait()

            async def aclose(self) -> None:
                closed.set()

        class Transport(httpx.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if request.url.path.endswith("/processes"):
                    return httpx.Response(200, stream=Endless())
                return await server.transport.handle_async_request(request)

        async with await AsyncSandbox.create(api_url=server.url, api_key=server.key, transport=Transport()) as sandbox:
            task = asyncio.create_task(sandbox.run(["x"]))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert closed.is_set()

    asyncio.run(scenario())
