"""Processes in the background: their life, their output from any offset, what they are told, and WebSockets to them."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, strategies
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from space.control import attached, limits
from space.model.errors import InvalidArgument
from space.model.frames import MEDIA_TYPE, Decoder, Frame, Kind, encode
from space.model.sandbox import MAX_STDIN
from space.rpc.node_api import Eof, Resize, Signal
from space.testing.simcontrol import World, dialogue, until

NDJSON = {"Accept": "application/x-ndjson"}


async def start(world: World, sandbox: str, *argv: str, **more: Any) -> str:
    answer = await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json={"argv": list(argv), **more})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/sandboxes/{sandbox}/processes/{answer.json()['id']}"
    return f"/v1/sandboxes/{sandbox}/processes/{answer.json()['id']}"


async def info(world: World, process: str) -> dict[str, Any]:
    answer = await world.client.get(process)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def state(world: World, process: str) -> str:
    return str((await info(world, process))["state"])


async def ended(world: World, process: str) -> None:
    async def over() -> bool:
        return await state(world, process) != "running"

    await until(over)


async def output(world: World, process: str, **query: Any) -> list[Frame]:
    answer = await world.client.get(process + "/output", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    return Decoder().receive(answer.content)


def socket(world: World, path: str, **more: Any) -> connect:
    head = {"Authorization": f"Bearer {world.key}"} | more.pop("headers", {})
    return connect(f"ws://127.0.0.1:{world.port}{path}", additional_headers=head, proxy=None, compression=None, **more)


async def frames(connection: ClientConnection) -> list[Frame]:
    """All of them until it closes."""
    decoder, found = Decoder(), []
    try:
        while True:
            message = await connection.recv()
            assert isinstance(message, bytes)
            found += decoder.receive(message)
    except ConnectionClosed:
        return found


async def refused(world: World, path: str, **more: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as raised:
        async with socket(world, path, **more):
            pass
    answer = raised.value.response
    assert answer.headers["content-type"] == "application/problem+json"
    problem = json.loads(answer.body)
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["status"] == answer.status_code
    return answer.status_code, problem["code"]


# -- life ---------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_a_process_in_the_background_runs_on_and_is_told_whole(world: World) -> None:
    sandbox = await world.create()
    process = await start(world, sandbox, "cat", stdin_open=True, cwd="/tmp", user="root", env={"A": "b"}, timeout_ms=60_000)
    found = await info(world, process)
    assert (found["state"], found["stdin"], found["argv"], found["cwd"], found["user"]) == ("running", "open", ["cat"], "/tmp", "root")
    assert (found["exit"], found["ended_at"], found["reason"], found["sandbox"]) == (None, None, None, sandbox)
    told = world.node.processes[sandbox][found["id"]].asked
    assert (told.attach, told.stdin, told.overflow, told.env, told.timeout_ms) == (False, True, "drop_oldest", {"A": "b"}, 60_000)
    answer = await world.client.post(process + "/stdin?close=1", content=b"hello")
    assert answer.json() == {"stdin_bytes": 5}
    await ended(world, process)
    found = await info(world, process)
    assert (found["state"], found["exit"]["code"], found["exit"]["stdout_bytes"], found["stdin_bytes"]) == ("exited", 0, 5, 5)
    assert found["ended_at"] >= found["started_at"]


@dialogue()
async def test_the_list_is_oldest_first_by_state_and_outlives_the_sandbox(world: World) -> None:
    sandbox = await world.create()
    started = [await start(world, sandbox, "true"), await start(world, sandbox, "sleep", "60"), await start(world, sandbox, "exit", "3")]
    await ended(world, started[2])

    async def ids(query: str = "") -> list[str]:
        answer = await world.client.get(f"/v1/sandboxes/{sandbox}/processes{query}")
        return [one["id"] for one in answer.json()["processes"]]

    wanted = [one.rpartition("/")[2] for one in started]
    assert await ids() == wanted
    assert await ids("?state=running") == wanted[1:2]
    assert await ids("?state=exited") == [wanted[0], wanted[2]]
    assert (await world.client.get(f"/v1/sandboxes/{sandbox}/processes?state=dead")).status_code == 400
    await world.client.delete(f"/v1/sandboxes/{sandbox}")
    assert await ids() == wanted
    assert await ids("?state=lost") == wanted[1:2]
    assert (await info(world, started[1]))["reason"] == "it was deleted"
    last = (await output(world, started[2], follow=1))[-1]
    assert (last.kind, json.loads(last.payload)["code"]) == (Kind.EXIT, 3)
    last = (await output(world, started[1], follow=1))[-1]
    assert (last.kind, json.loads(last.payload)["code"]) == (Kind.ERROR, "sandbox_died")
    # Everything else of a sandbox that has ended is gone.
    for method, path, body in (("POST", "/stdin", {}), ("POST", "/signal", {"signal": 9}), ("POST", "/resize", {"rows": 1, "cols": 1})):
        answer = await world.client.request(method, started[1] + path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (410, "gone")
    assert (await world.client.post(f"/v1/sandboxes/{sandbox}/processes", json={"argv": ["true"]})).status_code == 410


@dialogue()
async def test_deleting_a_process_kills_it_drops_it_and_may_be_repeated(world: World) -> None:
    sandbox = await world.create()
    process = await start(world, sandbox, "sleep", "600")
    assert world.node.sandboxes[sandbox].running
    assert (await world.client.delete(process)).status_code == 204
    assert (await world.client.delete(process)).status_code == 204
    await until(lambda: not world.node.sandboxes[sandbox].running)
    answer = await world.client.get(process)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("process", ["pr-0000000000000000", "x", "pr-ABCDEF0123456789", "%00"])
@dialogue()
async def test_a_process_that_is_not_there_is_not_found_on_every_route(world: World, process: str) -> None:
    path = f"/v1/sandboxes/{await world.create()}/processes/{process}"
    for method, rest, body in (
        ("GET", "", None), ("GET", "/output", None), ("POST", "/stdin", None), ("POST", "/signal", {"signal": 1}),
        ("POST", "/resize", {"rows": 1, "cols": 1}),
    ):  # fmt: skip
        answer = await world.client.request(method, path + rest, json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), (method, rest)
    assert await refused(world, path + "/connect") == (404, "not_found")


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"stdin": "x"}, "stdin"), ({"stdin_base64": "eA=="}, "stdin"), ({"kill_on_disconnect": True}, "kill_on_disconnect"),
        ({"overflow": "explode"}, "$.overflow"), ({"spool_bytes": 1}, "$.spool_bytes"), ({"pty": {"rows": 0, "cols": 1}}, "$.pty.rows"),
        ({"pty": {"rows": 1, "cols": 70_000}}, "$.pty.cols"), ({"pty": True}, "$.pty"),
    ],
)  # fmt: skip
@dialogue()
async def test_a_wrong_process_in_the_background_is_refused_by_its_field(world: World, wrong: dict[str, Any], names: str) -> None:
    answer = await world.client.post(f"/v1/sandboxes/{await world.create()}/processes", json={"argv": ["true"], **wrong})
    assert (answer.status_code, names in answer.json()["detail"]) == (400, True), answer.text
    assert answer.json()["hint"]


# -- output -------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_output_is_exact_from_any_offset_and_negative_ones_count_from_the_end(world: World) -> None:
    process = await start(world, await world.create(), "echo", "0123456789")
    await ended(world, process)
    for query, offset, wanted in (({}, 0, b"0123456789\n"), ({"stdout": 4}, 4, b"456789\n"), ({"stdout": -3}, 8, b"89\n")):
        found = await output(world, process, **query)
        assert [frame.kind for frame in found] == [Kind.START, Kind.STDOUT, Kind.EXIT]
        assert (found[1].offset, found[1].payload) == (offset, wanted)
    assert json.loads(found[0].payload) == await info(world, process)
    assert [frame.kind for frame in await output(world, process, stdout=11)] == [Kind.START, Kind.EXIT]
    answer = await world.client.get(process + "/output?stdout=12")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    for wrong in ("1.5", "x", "--1", "", "9" * 30):
        assert (await world.client.get(process + "/output", params={"stdout": wrong})).status_code == 400


@dialogue()
async def test_without_follow_a_process_that_runs_on_is_a_pause_with_the_offsets_to_ask_from(world: World) -> None:
    process = await start(world, await world.create(), "cat", stdin_open=True)
    await world.client.post(process + "/stdin", content=b"one\n")

    async def arrived() -> bool:
        return bool((await info(world, process))["stdout_bytes"] == 4)

    await until(arrived)
    found = await output(world, process)
    assert [frame.kind for frame in found] == [Kind.START, Kind.STDOUT, Kind.PAUSE]
    assert json.loads(found[-1].payload) == {"stdout": 4, "stderr": 0}
    await world.client.post(process + "/stdin?close=1", content=b"two\n")
    found = await output(world, process, follow=1, **json.loads(found[-1].payload))
    assert (found[1].offset, found[1].payload, found[-1].kind) == (4, b"two\n", Kind.EXIT)


@dialogue()
async def test_what_was_dropped_is_told_as_a_gap_and_the_counts_still_add_up(world: World) -> None:
    process = await start(world, await world.create(), "spam", "300000", spool_bytes=65_536)
    await ended(world, process)
    found = await output(world, process, stdout=0)
    assert [frame.kind for frame in found[:2]] == [Kind.START, Kind.GAP]
    gap = json.loads(found[1].payload)
    assert gap == {"stream": "stdout", "offset": 0, "bytes": 300_000 - 65_536}
    assert found[2].offset == gap["bytes"]
    assert sum(len(frame.payload) for frame in found if frame.kind is Kind.STDOUT) == 65_536
    assert found[-1].kind is Kind.EXIT


@dialogue()
async def test_followed_output_comes_as_lines_too_with_heartbeats_in_silence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.05)
    process = await start(world, await world.create(), "cat", stdin_open=True)
    kinds = []
    async with world.client.stream("GET", process + "/output?follow=1", headers=NDJSON) as answer:
        async for line in answer.aiter_lines():
            told = json.loads(line)
            kinds.append(told["kind"])
            if kinds.count("heartbeat") == 2 and "stdout" not in kinds:
                await world.client.post(process + "/stdin?close=1", content=b"late")
            if told["kind"] == "stdout":
                assert (told["offset"], base64.b64decode(told["data_base64"])) == (0, b"late")
    assert kinds[0] == "start"
    assert kinds[-1] == "exit"
    assert kinds.count("heartbeat") >= 2


@dialogue()
async def test_a_reader_that_leaves_or_never_reads_holds_nobody_back(world: World) -> None:
    sandbox = await world.create()
    process = await start(world, sandbox, "spam", "20000000")
    async with world.client.stream("GET", process + "/output?follow=1&stdout=0") as answer:
        assert answer.status_code == 200
        await ended(world, process)
    assert (await info(world, process))["stdout_bytes"] == 20_000_000


# -- input --------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_sixteen_mebibytes_of_stdin_are_streamed_and_counted_and_more_is_too_large(world: World) -> None:
    process = await start(world, await world.create(), "cat", stdin_open=True)
    body = bytes(range(256)) * (MAX_STDIN // 256)
    answer = await world.client.post(process + "/stdin?close=1", content=body)
    assert (answer.status_code, answer.json()) == (200, {"stdin_bytes": len(body)})
    assert (await info(world, process))["stdout_bytes"] == len(body)
    answer = await world.client.post(process + "/stdin", content=body + b"x")
    assert answer.status_code in (409, 413)


@dialogue()
async def test_input_of_a_process_that_has_ended_or_has_none_is_a_conflict(world: World) -> None:
    sandbox = await world.create()
    over = await start(world, sandbox, "true", stdin_open=True)
    await ended(world, over)
    for process in (await start(world, sandbox, "sleep", "60"), over):
        answer = await world.client.post(process + "/stdin", content=b"x")
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        answer = await world.client.post(process + "/resize", json={"rows": 1, "cols": 1})
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    answer = await world.client.post(over + "/signal", json={"signal": "TERM"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


@dialogue()
async def test_a_process_that_reads_nothing_holds_its_writer_back_and_a_writer_that_leaves_is_noticed(world: World) -> None:
    sandbox = await world.create()
    process = await start(world, sandbox, "stuck", stdin_open=True)
    writing = asyncio.create_task(world.client.post(process + "/stdin", content=b"x" * 8_000_000))
    assert world.services is not None
    services = world.services
    await until(lambda: services.activity.active(sandbox) == 1)
    assert not writing.done()
    writing.cancel()
    await until(lambda: services.activity.active(sandbox) == 0)
    assert await state(world, process) == "running"


@pytest.mark.parametrize("given", ["TERM", "SIGTERM", "term", 15, "15"])
@dialogue()
async def test_signals_go_by_name_or_number(world: World, given: object) -> None:
    process = await start(world, await world.create(), "sleep", "600")
    assert (await world.client.post(process + "/signal", json={"signal": given, "all": True})).status_code == 204
    await ended(world, process)
    assert (await info(world, process))["exit"] | {"wall_ms": 0} == {
        "code": None, "signal": 15, "oom_killed": False, "timed_out": False, "wall_ms": 0, "stdout_bytes": 0, "stderr_bytes": 0,
    }  # fmt: skip


@pytest.mark.parametrize("given", [0, -1, 65, 2**70, "NONE", "", "SIG", None, True, 1.5, "x" * 17, "9" * 10])
@dialogue()
async def test_what_is_no_signal_is_refused(world: World, given: object) -> None:
    process = await start(world, await world.create(), "sleep", "600")
    answer = await world.client.post(process + "/signal", json={"signal": given})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert answer.json()["hint"]


@dialogue()
async def test_a_terminal_learns_its_size(world: World) -> None:
    process = await start(world, await world.create(), "tell", pty={"rows": 24, "cols": 80})
    found = await info(world, process)
    assert (found["pty"], found["stdin"]) == (True, "open")
    assert (await world.client.post(process + "/resize", json={"rows": 50, "cols": 132})).status_code == 204
    assert (await world.client.post(process + "/stdin?close=1")).status_code == 200
    assert b"size 50 132\n" in b"".join(frame.payload for frame in await output(world, process, follow=1))


# -- attached -----------------------------------------------------------------------------------------------------------


@dialogue()
async def test_an_attached_process_may_outlive_its_client(world: World) -> None:
    sandbox = await world.create()
    body = {"argv": ["sleep", "600"], "kill_on_disconnect": False}
    async with world.client.stream("POST", f"/v1/sandboxes/{sandbox}/processes?stream=1", json=body, headers=NDJSON) as answer:
        start = json.loads(await anext(answer.aiter_lines()))
    assert world.services is not None
    services = world.services
    await until(lambda: services.activity.active(sandbox) == 0)
    assert await state(world, f"/v1/sandboxes/{sandbox}/processes/{start['process']}") == "running"
    assert world.node.killed == 0


@dialogue()
async def test_an_attached_terminal_is_written_to_through_other_requests(world: World) -> None:
    sandbox = await world.create()
    body = {"argv": ["cat"], "pty": {"rows": 24, "cols": 80}}
    async with world.client.stream("POST", f"/v1/sandboxes/{sandbox}/processes?stream=1", json=body, headers=NDJSON) as answer:
        lines = answer.aiter_lines()
        process = f"/v1/sandboxes/{sandbox}/processes/{json.loads(await anext(lines))['process']}"
        await world.client.post(process + "/stdin?close=1", content=b"typed")
        told = [json.loads(line) async for line in lines]
    assert [one["kind"] for one in told] == ["stdout", "exit"]


# -- WebSockets ---------------------------------------------------------------------------------------------------------


@dialogue()
async def test_a_websocket_carries_a_process_both_ways_and_closes_well(world: World) -> None:
    process = await start(world, await world.create(), "cat", stdin_open=True)
    async with socket(world, process + "/connect", subprotocols=["space.frames.v1"]) as connection:
        assert connection.subprotocol == "space.frames.v1"
        await connection.send(encode(Kind.STDIN, b"one ") + encode(Kind.STDIN, b"two"))
        await connection.send(encode(Kind.STDIN_END))
        found = await frames(connection)
    assert [frame.kind for frame in found][0 :: len(found) - 1] == [Kind.START, Kind.EXIT]
    assert b"".join(frame.payload for frame in found if frame.kind is Kind.STDOUT) == b"one two"
    assert json.loads(found[0].payload)["id"] == process.rpartition("/")[2]
    assert (connection.close_code, connection.close_reason) == (1000, "")


@dialogue()
async def test_a_websocket_moves_twenty_mebibytes_each_way_exactly(world: World) -> None:
    process = await start(world, await world.create(), "cat", stdin_open=True, overflow="block")
    data = bytes(range(256)) * (20 * 4096)
    async with socket(world, process + "/connect") as connection:
        reading = asyncio.create_task(frames(connection))
        for at in range(0, len(data), 500_000):
            await connection.send(encode(Kind.STDIN, data[at : at + 500_000]))
        await connection.send(encode(Kind.STDIN_END))
        found = await reading
    assert b"".join(frame.payload for frame in found if frame.kind is Kind.STDOUT) == data
    assert found[-1].kind is Kind.EXIT


@dialogue()
async def test_signals_and_sizes_go_over_a_websocket(world: World) -> None:
    process = await start(world, await world.create(), "tell", pty={"rows": 24, "cols": 80})
    async with socket(world, process + "/connect") as connection:
        await connection.send(encode(Kind.RESIZE, b'{"rows": 30, "cols": 90}'))
        await connection.send(encode(Kind.SIGNAL, b'{"signal": "HUP"}'))
        told = b""
        while told != b"size 30 90\nsignal 1\n":
            told += b"".join(frame.payload for frame in Decoder().receive(await connection.recv(decode=False)) if frame.kind is Kind.STDOUT)
        await connection.send(encode(Kind.SIGNAL, b'{"signal": 9}'))
        found = await frames(connection)
    assert json.loads(found[-1].payload)["signal"] == 9


@pytest.mark.parametrize(("kill", "left"), [("1", "exited"), ("0", "running")])
@dialogue()
async def test_the_end_of_a_websocket_kills_only_if_asked(world: World, kill: str, left: str) -> None:
    sandbox = await world.create()
    process = await start(world, sandbox, "sleep", "600")
    assert world.services is not None
    services = world.services
    async with socket(world, f"{process}/connect?kill_on_disconnect={kill}") as connection:
        await connection.recv()
        assert services.activity.active(sandbox) == 1
    await until(lambda: services.activity.active(sandbox) == 0)
    await until(lambda: world.node.killed == int(kill))
    assert await state(world, process) == left


@dialogue()
async def test_a_websocket_that_breaks_off_while_stdin_is_blocked_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(limits, "CLOSE_SECONDS", 0.1)
    sandbox = await world.create()
    process = await start(world, sandbox, "stuck", stdin_open=True)
    async with socket(world, f"{process}/connect?kill_on_disconnect=1") as connection:
        await connection.recv()
        for _ in range(100):
            try:
                await asyncio.wait_for(connection.send(encode(Kind.STDIN, b"x" * 500_000)), 1)
            except TimeoutError:
                break
        else:
            pytest.fail("50 MB fit no buffer")
        connection.transport.abort()
        await until(lambda: world.node.killed == 1)


@dialogue()
async def test_a_websockets_client_that_does_not_read_stalls_only_itself(world: World) -> None:
    sandbox = await world.create()
    process = await start(world, sandbox, "spam", "100000000", overflow="block")
    path = process + "/connect"
    async with socket(world, path + "?stdout=0", max_queue=1) as connection:
        assert Decoder().receive(bytes(await connection.recv(decode=False)))[0].kind is Kind.START
        other = await start(world, sandbox, "true")
        await ended(world, other)
        assert await state(world, process) in ("running", "exited")
        assert (await world.client.get("/healthz")).status_code == 200


@dialogue()
async def test_silence_on_a_websocket_is_filled_with_heartbeats(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.05)
    process = await start(world, await world.create(), "sleep", "0.4")
    async with socket(world, process + "/connect") as connection:
        kinds = [frame.kind for frame in await frames(connection)]
    assert kinds.count(Kind.HEARTBEAT) >= 3
    assert kinds[-1] is Kind.EXIT


@pytest.mark.parametrize(
    "message",
    [b"x", encode(Kind.STDOUT, b"x"), encode(Kind.STDIN, b"abc")[:-1], encode(Kind.SIGNAL, b"{}"), encode(Kind.RESIZE, b"x"),
     encode(Kind.SIGNAL, b'{"signal": "NONE"}'), b"\xff" * 32, "text"],
)  # fmt: skip
@dialogue()
async def test_what_is_no_frame_of_a_clients_is_told_and_ends_the_websocket(world: World, message: bytes | str) -> None:
    process = await start(world, await world.create(), "sleep", "600")
    async with socket(world, process + "/connect") as connection:
        await connection.send(message)
        found = await frames(connection)
    assert found[-1].kind is Kind.ERROR
    problem = json.loads(found[-1].payload)
    assert (problem["code"], problem["status"]) == ("invalid_argument", 400)
    assert problem["hint"]
    assert connection.close_code == 1011
    assert await state(world, process) == "running"


@dialogue()
async def test_a_sandbox_that_dies_ends_a_websocket_with_an_error_frame(world: World) -> None:
    sandbox = await world.create()
    process = await start(world, sandbox, "sleep", "600")
    async with socket(world, process + "/connect") as connection:
        await connection.recv()
        world.node.lose(sandbox)
        found = await frames(connection)
    assert json.loads(found[-1].payload)["code"] == "sandbox_died"
    assert connection.close_code == 1011


@dialogue()
async def test_a_message_beyond_the_limit_is_closed_with_1009(world: World) -> None:
    process = await start(world, await world.create(), "cat", stdin_open=True)
    async with socket(world, process + "/connect") as connection:
        await connection.recv()
        await connection.send(encode(Kind.STDIN, b"x" * limits.MAX_MESSAGE))
        assert await frames(connection) == []
    assert connection.close_code == 1009
    assert (await info(world, process))["stdin_bytes"] == 0


@dialogue()
async def test_endless_fragments_are_closed_with_1009(world: World) -> None:
    process = await start(world, await world.create(), "cat", stdin_open=True)

    async def empty() -> Any:
        while True:
            yield b""
            await asyncio.sleep(0)

    async with socket(world, process + "/connect") as connection:
        await connection.recv()
        with pytest.raises(ConnectionClosed):
            await connection.send(empty())
    assert connection.close_code == 1009


@dialogue()
async def test_before_the_upgrade_faults_are_problems(world: World, caplog: pytest.LogCaptureFixture) -> None:
    sandbox, gone = await world.create(), await world.create()
    process = await start(world, sandbox, "sleep", "60")
    port = f"/v1/sandboxes/{sandbox}/ports/7"
    await world.client.delete(f"/v1/sandboxes/{gone}")
    assert await refused(world, process + "/connect", headers={"Authorization": "Bearer nonsense"}) == (401, "unauthenticated")
    assert await refused(world, process + "/connect", headers={"Host": "evil.example.com"}) in [
        (403, "permission_denied"),
        (400, "invalid_argument"),
    ]
    assert await refused(world, process + "/connect", origin="http://127.0.0.1") == (403, "permission_denied")
    assert await refused(world, process + "/connect?what=1") == (400, "invalid_argument")
    assert await refused(world, process + "/connect?stdout=99") == (400, "invalid_argument")
    assert await refused(world, f"/v1/sandboxes/sb-{'a' * 20}/ports/7") == (404, "not_found")
    assert await refused(world, f"/v1/sandboxes/{gone}/ports/7") == (410, "gone")
    assert await refused(world, f"/v1/sandboxes/{sandbox}/ports/8080") == (404, "not_found")
    for wrong in ("0", "65536", "x", "-1", "%00"):
        assert await refused(world, f"/v1/sandboxes/{sandbox}/ports/{wrong}") == (400, "invalid_argument")
    await world.client.post(f"/v1/sandboxes/{sandbox}/pause")
    assert await refused(world, port) == (409, "conflict")
    assert await refused(world, "/v1/sandboxes") == (415, "unsupported")
    assert await refused(world, "/nowhere") == (404, "not_found")
    async with await world.other_tenant() as stranger:
        key = {"Authorization": stranger.headers["authorization"]}
        assert await refused(world, process + "/connect", headers=key) == (404, "not_found")
        assert await refused(world, port, headers=key) == (404, "not_found")
    assert "without completing handshake" not in caplog.text


@dialogue()
async def test_a_websockets_path_without_an_upgrade_says_so(world: World) -> None:
    process = await start(world, await world.create(), "sleep", "60")
    answer = await world.client.get(process + "/connect")
    assert (answer.status_code, answer.json()["code"], answer.headers["upgrade"]) == (426, "unsupported", "websocket")


@pytest.mark.parametrize(
    "head",
    [b"Sec-WebSocket-Version: 13\r\n", b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n",
     b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 8\r\n",
     b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nX: " + b"x" * 9000 + b"\r\n",
     b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n" + b"X: y\r\n" * 200],
    ids=["no-key", "bad-key", "version", "long-header", "many-headers"],
)  # fmt: skip
@dialogue()
async def test_a_handshake_that_is_none_is_a_problem_and_the_end_of_the_connection(world: World, head: bytes) -> None:
    answer = await world.raw(
        f"GET /v1/sandboxes/x/ports/7 HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {world.key}\r\n".encode()
        + b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + head + b"\r\n"
    )  # fmt: skip
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "invalid_argument"
    assert (await world.client.get("/healthz")).status_code == 200


@dialogue()
async def test_another_method_with_upgrade_headers_is_answered_as_if_it_had_none(world: World) -> None:
    answer = await world.client.post("/v1/sandboxes", headers={"Connection": "Upgrade", "Upgrade": "websocket"}, content=b"")
    assert answer.status_code == 201


@dialogue()
async def test_a_client_that_answers_no_ping_and_takes_nothing_is_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PING_SECONDS", 0.2)
    assert world.services is not None
    services = world.services
    sandbox = await world.create()
    process = await start(world, sandbox, "sleep", "600")
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(
        f"GET {process}/connect?kill_on_disconnect=1 HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {world.key}\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")
    await until(lambda: services.activity.active(sandbox) == 1)
    await until(lambda: world.node.killed == 1)
    await until(lambda: services.activity.active(sandbox) == 0)
    writer.close()


@dialogue()
async def test_a_websocket_is_counted_and_logged_like_any_request(world: World) -> None:
    process = await start(world, await world.create(), "true")
    async with socket(world, process + "/connect") as connection:
        await frames(connection)

    async def counted() -> bool:
        text = (await world.client.get("/metrics")).text
        return 'route="/v1/sandboxes/{id}/processes/{process}/connect",status="101",tenant="default"} 1.0' in text

    await until(counted)


@dialogue()
async def test_a_request_in_hand_when_the_server_stops_is_told_so(world: World) -> None:
    world.node.hold_create = asyncio.Event()
    async with httpx.AsyncClient(base_url=world.url, headers=world.client.headers, timeout=30, trust_env=False, verify=False) as client:
        asked = asyncio.create_task(client.post("/v1/sandboxes"))
        await until(lambda: bool(world.node.sandboxes))
        assert world.web is not None
        world.web.stop()
        answer = await asked
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert answer.headers["content-type"] == "application/problem+json"
    world.node.hold_create.set()


@dialogue()
async def test_a_websocket_is_told_when_the_server_stops_and_its_process_runs_on(world: World) -> None:
    sandbox = await world.create()
    process = await start(world, sandbox, "sleep", "600")
    async with socket(world, process + "/connect") as connection:
        await connection.recv()
        assert world.web is not None
        world.web.stop()
        await connection.wait_closed()
    assert connection.close_code == 1012
    assert world.node.sandboxes[sandbox].running


_FRAMES = strategies.lists(
    strategies.builds(encode, strategies.sampled_from(list(Kind)), strategies.binary(max_size=40), strategies.integers(0, 2**64 - 1))
).map(b"".join)


@given(
    strategies.one_of(strategies.binary(max_size=200), _FRAMES, strategies.builds(lambda a, b: a[:b], _FRAMES, strategies.integers(0, 99)))
)
def test_any_message_of_a_clients_is_frames_of_its_or_refused_with_a_remedy(message: bytes) -> None:
    try:
        found: Any = [attached._meaning(frame) for frame in attached._frames(message)]
    except InvalidArgument as error:
        found = error
    if isinstance(found, InvalidArgument):
        assert found.hint
    else:
        assert all(meaning is None or isinstance(meaning, Eof | Resize | Signal) for meaning in found)
