"""Processes in the background, over both forms of the SDK: what is read, from where, after how many broken connections."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from space import AsyncSandbox, Sandbox
from space.model.errors import Conflict, ConnectionFailed, InvalidArgument, NotFound, SandboxDied, StreamCut, TooLarge, Unavailable
from space.model.process import PtySize
from space.sdk import Gap, Output, OutputLost, Text
from space.sdk.testing import MockServer, Process, Reply
from space.testing.simcontrol import until

Opened = Callable[[MockServer], Any]
pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture
def server() -> MockServer:
    return MockServer()


def test_a_process_runs_on_its_own_and_is_found_again(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            process = await sandbox.start(["cat"], stdin=True, cwd="/srv", env={"A": "b"})
            assert (process.state, process.id[:3]) == ("running", "pr-")
            assert await process.write_stdin("hällo ") == 7
            again = await sandbox.process(process.id)
            assert await again.write_stdin(b"there", close=True) == 12
            status = await again.wait()
            assert (status.code, status.signal, status.stdout_bytes) == (0, None, 12)
            assert (await process.result()).text == "hällo there"
            (info,) = await sandbox.processes()
            assert (info.id, info.state, info.argv, info.cwd, info.exit) == (process.id, "exited", ["cat"], "/srv", status)
            assert await sandbox.processes(state="running") == []
            with pytest.raises(Conflict, match="has ended"):
                await process.write_stdin(b"late")
            await process.delete()
            with pytest.raises(NotFound):
                await process.info()

    asyncio.run(scenario())


def test_a_start_whose_answer_was_lost_finds_its_process(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            server.fail_next(Unavailable("away"), path="/processes", after=True)
            process = await sandbox.start(["cat"], stdin=True)
            (info,) = await sandbox.processes()
            assert (info.id, info.state) == (process.id, "running")

    asyncio.run(scenario())


def test_a_start_whose_outcome_stays_unknown_leaves_no_process_unless_its_id_was_given(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            for given in (None, "pr-0123456789abcdef"):
                for _ in range(4):
                    server.fail_next(StreamCut("cut"), path="/processes", after=True)
                with pytest.raises(StreamCut):
                    await sandbox.start(["cat"], stdin=True, process_id=given)
                assert [info.id for info in await sandbox.processes()] == ([] if given is None else [given])
            assert (await sandbox.start(["cat"], stdin=True, process_id=given)).id == given
            with pytest.raises(Conflict):
                await sandbox.start(["cat"], process_id=given)
            assert len(await sandbox.processes()) == 1

    asyncio.run(scenario())


def test_what_is_written_is_never_repeated(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            process = await sandbox.start(["cat"], stdin=True)
            server.fail_next(Unavailable("away"), path="/stdin", after=True)
            with pytest.raises(Unavailable):
                await process.write_stdin(b"once")
            assert (await process.info()).stdin_bytes == 4
            server.fail_next(Unavailable("away"), path="/signal", after=True)
            with pytest.raises(Unavailable):
                await process.signal("TERM")
            assert (await process.wait()).signal == 15

    asyncio.run(scenario())


def test_output_goes_on_exactly_where_a_broken_connection_left_it(server: MockServer, opened: Opened) -> None:
    data = random.Random(1).randbytes(300_000)
    errors = random.Random(2).randbytes(100_000)
    chance = random.Random(3)

    @server.program("much")
    def much(process: Process) -> Generator[tuple[str, bytes], None, Reply]:
        for at in range(0, len(data), 5000):
            yield "stdout", data[at : at + 5000]
            yield "stderr", errors[at // 3 : at // 3 + 1700] if at // 3 + 1700 <= len(errors) else b""
        return Reply()

    async def scenario() -> None:
        async with opened(server) as sandbox:
            process = await sandbox.start(["much"])
            for _ in range(12):
                server.cut_next(chance.randrange(1, 60_000), path="/output")
            got = {"stdout": bytearray(), "stderr": bytearray()}
            async for piece in process.output():
                assert isinstance(piece, Output)
                assert piece.offset == len(got[piece.stream])
                got[piece.stream] += piece.data
            assert bytes(got["stdout"]) == data
            result = await process.result()
            assert (result.stdout, result.stderr) == (bytes(got["stdout"]), bytes(got["stderr"]))
            assert sum(1 for _, path in server.requests if path.endswith("/output")) >= 13

    asyncio.run(scenario())


@pytest.mark.parametrize("place", range(0, 60, 7))
def test_a_connection_that_breaks_within_any_frame_loses_nothing(server: MockServer, opened: Opened, place: int) -> None:
    server.program("say")(lambda _: Reply(pieces=[("stdout", b"ab"), ("stderr", b"c"), ("stdout", b"d")]))

    async def scenario() -> None:
        async with opened(server) as sandbox:
            process = await sandbox.start(["say"])
            await process.wait()
            start = len(str(process)) + 400
            for after in (start + place, start + place + 1, place + 1):
                server.cut_next(after, path="/output")
                result = await process.result()
                assert (result.stdout, result.stderr) == (b"abd", b"c")

    asyncio.run(scenario())


def test_a_server_that_stays_away_is_told_after_a_bounded_number_of_connections(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            process = await sandbox.start(["echo", "abc"])
            await process.wait()
            before = len(server.requests)
            for _ in range(30):
                server.cut_next(1, path="/output")
            with pytest.raises(StreamCut) as caught:
                await process.result()
            assert len(server.requests) - before == 10
            assert "output(stdout=0, stderr=0)" in caught.value.__notes__[0]

    asyncio.run(scenario())


def test_faults_that_a_repeat_cannot_mend_come_out_at_once(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            process = await sandbox.start(["echo", "abc"])
            await process.wait()
            with pytest.raises(InvalidArgument, match="byte 9"):
                await anext(process.output(stdout=9))
            before = len(server.requests)
            server.fail_next(SandboxDied("the VM ended"), path="/output")
            with pytest.raises(SandboxDied):
                await process.result()
            assert len(server.requests) == before + 1
            server.fail_next(ConnectionFailed("no"), path="/output")
            assert (await process.result()).stdout == b"abc\n"

    asyncio.run(scenario())


def test_offsets_choose_where_to_begin_and_without_follow_what_there_is_comes(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            process = await sandbox.start(["cat"], stdin=True)
            await process.write_stdin(b"0123456789")
            async for piece in process.output():
                if piece.offset + len(piece.data) == 10:
                    break
            assert [piece async for piece in process.output(follow=False)] == [Output("stdout", 0, b"0123456789")]
            assert [piece async for piece in process.output(stdout=7, follow=False)] == [Output("stdout", 7, b"789")]
            assert [piece async for piece in process.output(stdout=-4, follow=False)] == [Output("stdout", 6, b"6789")]
            await process.kill()
            status = await process.wait()
            assert (status.code, status.signal) == (None, 9)

    asyncio.run(scenario())


def test_what_was_dropped_is_a_gap_and_an_error_of_the_result(server: MockServer, opened: Opened) -> None:
    server.program("flood")(lambda _: Reply(pieces=[("stdout", b"x" * 100_000), ("stdout", b"y" * 65_536)]))

    async def scenario() -> None:
        async with opened(server) as sandbox:
            process = await sandbox.start(["flood"], spool_bytes=65_536)
            await process.wait()
            pieces = [piece async for piece in process.output(stdout=0)]
            assert pieces[0] == Gap("stdout", 0, 100_000)
            assert b"".join(piece.data for piece in pieces[1:]) == b"y" * 65_536
            with pytest.raises(OutputLost, match="100000 bytes of output were dropped, the first at byte 0 of stdout") as caught:
                await process.result()
            assert caught.value.gaps == (Gap("stdout", 0, 100_000),)
            assert caught.value.exited is not None
            assert caught.value.exited.code == 0
            assert [piece.offset async for piece in process.output()] == [100_000]

    asyncio.run(scenario())


def test_a_result_is_bounded(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            process = await sandbox.start(["echo", "x" * 100])
            with pytest.raises(TooLarge):
                await process.result(output_limit=10)

    asyncio.run(scenario())


def test_text_is_whole_characters_at_every_split(server: MockServer, opened: Opened) -> None:
    said = "aé€😀\ufffdz".encode()
    pieces = [[said[:at], said[at:]] for at in range(len(said) + 1)] + [[bytes([byte]) for byte in said]]

    @server.program("say")
    def say(process: Process) -> Reply:
        return Reply(pieces=[("stdout", piece) for piece in pieces[int(process.argv[1])]] + [("stderr", b"\xe2\x82")])

    async def scenario() -> None:
        async with opened(server) as sandbox:
            for number in range(len(pieces)):
                process = await sandbox.start(["say", str(number)])
                told = [piece async for piece in process.text()]
                assert "".join(piece.text for piece in told if piece.stream == "stdout") == said.decode()
                assert told[-1] == Text("stderr", "\ufffd")

    asyncio.run(scenario())


def test_leaving_the_iteration_closes_its_connection(server: MockServer) -> None:
    async def scenario() -> None:
        async with server.async_client() as client, await AsyncSandbox.create(client=client) as sandbox:
            process = await sandbox.start(["cat"], stdin=True)
            await process.write_stdin(b"x")
            task = asyncio.create_task(process.result())
            await until(lambda: any(path.endswith("/output") for _, path in server.requests))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await process.info()).state == "running"

    asyncio.run(scenario())


# -- terminals -----------------------------------------------------------------------------------------------------------


def test_a_shell_is_a_conversation(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            async with await sandbox.shell(rows=30, cols=100) as terminal:
                said = bytearray()
                await terminal.send("echo hello\n")
                async for piece in terminal:
                    said += piece.data
                    if said.endswith(b"hello\r\n$ "):
                        break
                await terminal.resize(50, 200)
                await terminal.send(b"exit 3\r")
                status = await terminal.wait()
                assert (status.code, terminal.exit, terminal.offsets["stdout"]) == (3, status, len(said))
                process = server.sandboxes[sandbox.id].processes[terminal.process.id]
                assert process.process.pty == PtySize(30, 100)
                assert process.resized == [PtySize(50, 200)]
            assert server.sandboxes[sandbox.id].processes == {}

    asyncio.run(scenario())


def test_a_shell_that_is_left_ends(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            async with await sandbox.shell() as terminal:
                process = server.sandboxes[sandbox.id].processes[terminal.process.id]
            assert process.ended
            assert server.sandboxes[sandbox.id].processes == {}

    asyncio.run(scenario())


def test_a_shell_that_cannot_be_connected_leaves_no_process(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            server.fail_next(Unavailable("the node is away"), path="/connect")
            with pytest.raises(Unavailable, match="the node is away") as caught:
                await sandbox.shell()
            assert caught.value.request_id
            assert server.sandboxes[sandbox.id].processes == {}

    asyncio.run(scenario())


def test_a_connection_that_breaks_is_told_and_goes_on_from_where_it_stood(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            process = await sandbox.start(["cat"], stdin=True)
            await process.write_stdin(b"0123456789")
            server.cut_next(650, path="/connect")
            terminal = await process.connect()
            with pytest.raises(StreamCut):
                await _echoes(terminal)
            await terminal.aclose()
            async with await process.connect(**terminal.offsets) as again:
                await again.send_eof()
                status = await again.wait()
            assert status.stdout_bytes == (await process.info()).stdin_bytes
            assert (await process.result()).stdout.startswith(b"0123456789")

    asyncio.run(scenario())


async def _echoes(terminal: Any) -> None:
    while True:
        await terminal.send(b"abc")
        await anext(terminal)


def test_a_disconnect_kills_only_who_was_to_die_with_it(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            lives = await sandbox.start(["cat"], stdin=True)
            dies = await sandbox.start(["cat"], stdin=True)
            async with await lives.connect(), await dies.connect(kill_on_disconnect=True):
                pass
            assert (await dies.wait()).signal == 9
            assert (await lives.info()).state == "running"
            async with await lives.connect() as terminal:
                await terminal.signal("INT")
                assert (await terminal.wait()).signal == 2

    asyncio.run(scenario())


def test_many_outputs_are_followed_at_once_over_one_client(server: MockServer) -> None:
    many = 120

    async def scenario() -> None:
        with server.listen() as url:
            async with await AsyncSandbox.create(api_url=url, api_key=server.key) as sandbox:
                processes = [await sandbox.start(["cat"], stdin=True) for _ in range(many)]
                tasks = [asyncio.create_task(process.result()) for process in processes]
                await until(lambda: sum(path.endswith("/output") for _, path in server.requests) == many, 60)
                for number, process in enumerate(processes):
                    await process.write_stdin(str(number), close=True)
                assert [(await task).text for task in tasks] == [str(number) for number in range(many)]

    asyncio.run(scenario())


def test_an_interrupt_ends_what_hangs_on_the_connection_and_nothing_else(server: MockServer) -> None:
    def interrupted(blocks: Callable[[], object]) -> None:
        timer = threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            blocks()
        timer.join()

    def shell() -> None:
        with sandbox.shell() as terminal:
            terminal.wait()

    with server.listen() as url, Sandbox.create(api_url=url, api_key=server.key) as sandbox:
        process = sandbox.start(["cat"], stdin=True)
        interrupted(process.result)
        interrupted(process.wait)
        interrupted(lambda: list(process.output()))
        assert process.info().state == "running"
        interrupted(shell)
        assert [info.id for info in sandbox.processes()] == [process.id]
