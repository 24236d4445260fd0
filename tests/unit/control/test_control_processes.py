"""Commands over HTTP: both request forms, both answer forms, stdin, faults, and a client that leaves."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from space.control import limits
from space.model.errors import from_code
from space.model.frames import MEDIA_TYPE, PROCESS_MEDIA_TYPE, Decoder, Frame, Kind
from space.model.sandbox import MAX_STDIN
from space.testing.simcontrol import World, dialogue, until

NDJSON = "application/x-ndjson"
COUNTED = {"stdout_bytes": 9, "stderr_bytes": 0}


def framed(process: dict[str, Any], stdin: bytes = b"") -> bytes:
    text = json.dumps(process).encode()
    return struct.pack("<I", len(text)) + text + stdin


async def run(world: World, sandbox: str, process: dict[str, Any], **more: Any) -> list[Frame]:
    answer = await world.client.post(f"/v1/sandboxes/{sandbox}/processes?stream=1", json=process, **more)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    decoder = Decoder()
    frames = decoder.receive(answer.content)
    assert decoder.pending == 0
    return frames


@dialogue()
async def test_a_command_is_start_output_and_exactly_one_exit(world: World) -> None:
    frames = await run(world, await world.create(), {"argv": ["echo", "hi", "there"]})
    assert [frame.kind for frame in frames] == [Kind.START, Kind.STDOUT, Kind.EXIT]
    start = json.loads(frames[0].payload)
    assert (start["pid"], len(start), start["process"][:3]) == (4242, 2, "pr-")
    assert (frames[1].payload, frames[1].offset) == (b"hi there\n", 0)
    assert json.loads(frames[2].payload) == {"code": 0, "signal": None, "oom_killed": False, "timed_out": False, "wall_ms": 1} | COUNTED


@dialogue()
async def test_stderr_and_an_exit_code_are_told(world: World) -> None:
    frames = await run(world, await world.create(), {"argv": ["exit", "7"]})
    assert [frame.kind for frame in frames] == [Kind.START, Kind.STDERR, Kind.EXIT]
    assert json.loads(frames[-1].payload)["code"] == 7


@dialogue()
async def test_lines_of_json_carry_the_same(world: World) -> None:
    sandbox = await world.create()
    answer = await world.client.post(
        f"/v1/sandboxes/{sandbox}/processes?stream=1", json={"argv": ["echo", "x"]}, headers={"Accept": NDJSON}
    )
    assert answer.headers["content-type"] == NDJSON
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["kind"] for line in lines] == ["start", "stdout", "exit"]
    assert base64.b64decode(lines[1]["data_base64"]) == b"x\n"
    assert (lines[2]["code"], lines[2]["stdout_bytes"], lines[2]["stderr_bytes"]) == (0, 2, 0)


@pytest.mark.parametrize("given", [{"stdin": "a\nb"}, {"stdin_base64": base64.b64encode(b"a\nb").decode()}], ids=["text", "base64"])
@dialogue()
async def test_stdin_may_come_in_the_object(world: World, given: dict[str, str]) -> None:
    frames = await run(world, await world.create(), {"argv": ["cat"], **given})
    assert b"".join(frame.payload for frame in frames if frame.kind is Kind.STDOUT) == b"a\nb"


@dialogue()
async def test_sixteen_mebibytes_of_stdin_come_back_whole_to_a_client_that_reads_only_afterwards(world: World) -> None:
    sandbox = await world.create()
    stdin = bytes(range(256)) * (MAX_STDIN // 256)
    answer = await world.client.post(
        f"/v1/sandboxes/{sandbox}/processes?stream=1",
        content=framed({"argv": ["cat"]}, stdin),
        headers={"Content-Type": PROCESS_MEDIA_TYPE},
    )
    frames = Decoder().receive(answer.content)
    assert frames[-1].kind is Kind.EXIT
    output = [frame for frame in frames if frame.kind is Kind.STDOUT]
    assert b"".join(frame.payload for frame in output) == stdin
    at = 0
    for frame in output:
        assert frame.offset == at
        at += len(frame.payload)


@dialogue()
async def test_more_stdin_than_the_limit_is_too_large_and_never_a_success(world: World) -> None:
    sandbox = await world.create()
    path = f"/v1/sandboxes/{sandbox}/processes?stream=1"
    body = framed({"argv": ["cat"]}, b"x" * (MAX_STDIN + limits.MAX_JSON + 1))
    announced = await world.client.post(path, content=body, headers={"Content-Type": PROCESS_MEDIA_TYPE})
    assert (announced.status_code, announced.json()["code"]) == (413, "too_large")

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, MAX_STDIN + 65_536, 65_536):
            yield framed({"argv": ["sleep", "60"]}, b"") if at == 0 else b"x" * 65_536
        yield b"x"

    streamed = await world.client.post(path, content=pieces(), headers={"Content-Type": PROCESS_MEDIA_TYPE})
    last = Decoder().receive(streamed.content)[-1]
    assert (last.kind, json.loads(last.payload)["code"]) == (Kind.ERROR, "too_large")
    in_object = await world.client.post(path, json={"argv": ["cat"], "stdin": "x" * (MAX_STDIN + 1)})
    assert (in_object.status_code, in_object.json()["code"]) == (413, "too_large")


@dialogue()
async def test_a_process_that_reads_no_stdin_ends_well(world: World) -> None:
    sandbox = await world.create()
    answer = await world.client.post(
        f"/v1/sandboxes/{sandbox}/processes?stream=1",
        content=framed({"argv": ["echo", "done"]}, b"x" * 4_000_000),
        headers={"Content-Type": PROCESS_MEDIA_TYPE},
    )
    assert [frame.kind for frame in Decoder().receive(answer.content)] == [Kind.START, Kind.STDOUT, Kind.EXIT]
    assert (await world.client.post(f"/v1/sandboxes/{sandbox}/noop")).status_code == 204


@dialogue()
async def test_a_missing_program_is_a_problem_and_not_a_stream(world: World) -> None:
    sandbox = await world.create()
    answer = await world.client.post(f"/v1/sandboxes/{sandbox}/processes?stream=1", json={"argv": ["nothing"]})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.headers["content-type"] == "application/problem+json"


@dialogue()
async def test_a_sandbox_that_dies_ends_the_stream_with_an_error(world: World) -> None:
    sandbox = await world.create()
    frames = await run(world, sandbox, {"argv": ["die"]})
    assert [frame.kind for frame in frames] == [Kind.START, Kind.STDOUT, Kind.ERROR]
    problem = json.loads(frames[-1].payload)
    assert (problem["code"], problem["status"]) == ("sandbox_died", 502)
    assert problem["request_id"]
    from_code(problem["code"], problem["detail"])


@dialogue()
async def test_output_that_does_not_add_up_is_an_error(world: World) -> None:
    frames = await run(world, await world.create(), {"argv": ["lie"]})
    assert frames[-1].kind is Kind.ERROR
    assert json.loads(frames[-1].payload)["code"] == "protocol_error"


@dialogue()
async def test_a_lost_node_ends_the_stream_with_an_error(world: World) -> None:
    sandbox = await world.create()
    asked = asyncio.create_task(run(world, sandbox, {"argv": ["sleep", "60"]}))
    await until(lambda: world.node.sandboxes[sandbox].running)
    world.node.cut()
    frames = await asked
    assert [frame.kind for frame in frames] == [Kind.START, Kind.ERROR]
    assert json.loads(frames[-1].payload)["code"] == "unavailable"


@dialogue()
async def test_a_client_that_leaves_kills_its_process(world: World) -> None:
    sandbox = await world.create()
    async with world.client.stream("POST", f"/v1/sandboxes/{sandbox}/processes?stream=1", json={"argv": ["sleep", "600"]}) as answer:
        await anext(answer.aiter_raw())
    await until(lambda: world.node.killed == 1)
    await until(lambda: not world.node.sandboxes[sandbox].running)


@dialogue()
async def test_a_client_that_leaves_while_it_sends_stdin_kills_its_process(world: World) -> None:
    sandbox = await world.create()
    head = (
        f"POST /v1/sandboxes/{sandbox}/processes?stream=1 HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {world.key}\r\n"
        f"Content-Type: {PROCESS_MEDIA_TYPE}\r\nContent-Length: 1000000\r\n\r\n"
    )
    _, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(head.encode() + framed({"argv": ["cat"]}, b"half"))
    await until(lambda: world.node.sandboxes[sandbox].running)
    writer.transport.abort()
    await until(lambda: world.node.killed == 1)


@dialogue()
async def test_silence_is_filled_with_heartbeats(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.05)
    frames = await run(world, await world.create(), {"argv": ["sleep", "0.4"]})
    kinds = [frame.kind for frame in frames]
    assert kinds[0] is Kind.START
    assert kinds[-1] is Kind.EXIT
    assert kinds.count(Kind.HEARTBEAT) >= 3
    assert all(frame.payload == b"" for frame in frames if frame.kind is Kind.HEARTBEAT)


@dialogue()
async def test_a_client_that_does_not_read_stalls_only_itself(world: World) -> None:
    sandbox = await world.create()
    async with world.client.stream("POST", f"/v1/sandboxes/{sandbox}/processes?stream=1", json={"argv": ["spam", "100000000"]}) as answer:
        assert answer.status_code == 200
        await run(world, sandbox, {"argv": ["echo", "other"]})
        assert world.node.sandboxes[sandbox].running  # 100 MB fit no buffer: it waits for its reader
    await until(lambda: not world.node.sandboxes[sandbox].running)


@dialogue()
async def test_a_client_that_never_reads_is_cut_off_and_its_process_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.3)
    sandbox = await world.create()
    async with world.client.stream("POST", f"/v1/sandboxes/{sandbox}/processes?stream=1", json={"argv": ["spam", "100000000"]}) as answer:
        assert answer.status_code == 200
        await until(lambda: world.node.killed == 1)
    assert not world.node.sandboxes[sandbox].running


@dialogue()
async def test_a_client_that_reads_slowly_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_SECONDS", 0.5)
    sandbox = await world.create()
    async with world.client.stream("POST", f"/v1/sandboxes/{sandbox}/processes?stream=1", json={"argv": ["spam", "12000000"]}) as answer:
        decoder, frames = Decoder(), []
        async for piece in answer.aiter_raw(1_500_000):
            frames += decoder.receive(piece)
            await asyncio.sleep(0.1)  # in all more than the limit, and never that long without a read
    assert frames[-1].kind is Kind.EXIT


WRONG_PROCESSES = [
    (b"{", "application/json", "not JSON"),
    (b"[]", "application/json", "Expected `object`"),
    (b'{"argv": []}', "application/json", "$.argv"),
    (b'{"argv": "ls"}', "application/json", "$.argv"),
    (b'{"argv": ["ls", 3]}', "application/json", "$.argv[1]"),
    (b'{"argv": [""]}', "application/json", "argv[0]"),
    (b'{"argv": ["a\\u0000b"]}', "application/json", "NUL"),
    (b'{"argv": ["ls"], "cwd": "tmp"}', "application/json", "cwd"),
    (b'{"argv": ["ls"], "cwd": 1}', "application/json", "$.cwd"),
    (b'{"argv": ["ls"], "env": {"A=B": "c"}}', "application/json", "env"),
    (b'{"argv": ["ls"], "env": {"A": 1}}', "application/json", "$.env"),
    (b'{"argv": ["ls"], "user": "ro ot"}', "application/json", "user"),
    (b'{"argv": ["ls"], "timeout_ms": 0}', "application/json", "$.timeout_ms"),
    (b'{"argv": ["ls"], "timeout_ms": -1}', "application/json", "$.timeout_ms"),
    (b'{"argv": ["ls"], "timeout": 1}', "application/json", "`timeout`"),
    (b'{"argv": ["ls"], "stdin": "a", "stdin_base64": "YQ=="}', "application/json", "both"),
    (b'{"argv": ["ls"], "stdin_base64": "?"}', "application/json", "base64"),
    (b"\x01", PROCESS_MEDIA_TYPE, "needs 4"),
    (b"\x09\0\0\0{}", PROCESS_MEDIA_TYPE, "needs 13"),
    (framed({"argv": ["ls"], "stdin": "x"}), PROCESS_MEDIA_TYPE, "stdin"),
]


@dialogue()
async def test_a_wrong_process_is_refused_by_the_name_of_its_field(world: World) -> None:
    sandbox = await world.create()
    for body, media, names in WRONG_PROCESSES:
        answer = await world.client.post(f"/v1/sandboxes/{sandbox}/processes?stream=1", content=body, headers={"Content-Type": media})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), body
        assert names in answer.json()["detail"], (body, answer.json()["detail"])


@dialogue()
async def test_media_types_that_nobody_knows_are_unsupported(world: World) -> None:
    sandbox = await world.create()
    path = f"/v1/sandboxes/{sandbox}/processes"
    for headers in ({"Accept": "text/html"}, {"Content-Type": "text/plain"}):
        answer = await world.client.post(path + "?stream=1", json={"argv": ["echo"]}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported")
