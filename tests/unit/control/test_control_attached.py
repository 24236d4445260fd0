"""Processes in the background over HTTP: their life, their output from any offset, and what they are told."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from space.control import limits
from space.model.frames import Kind
from space.model.sandbox import MAX_STDIN
from space.testing.processclient import NDJSON, ended, info, output, refused, start, state
from space.testing.simcontrol import World, dialogue, until

# -- life ---------------------------------------------------------------------------------------------------------------


@dialogue()
async def test_a_process_in_the_background_runs_on_and_is_told_whole(world: World) -> None:
    sandbox = await world.create()
    world.client.headers["x-request-id"] = "mine-7"
    process = await start(world, sandbox, "cat", stdin_open=True, cwd="/tmp", user="root", env={"A": "b"}, timeout_ms=60_000)
    found = await info(world, process)
    assert (found["state"], found["stdin"], found["argv"], found["cwd"], found["user"]) == ("running", "open", ["cat"], "/tmp", "root")
    assert (found["exit"], found["ended_at"], found["reason"], found["sandbox"]) == (None, None, None, sandbox)
    told = world.node.processes[sandbox][found["id"]].asked
    assert (told.attach, told.stdin, told.overflow, told.env, told.timeout_ms) == (False, True, "drop_oldest", {"A": "b"}, 60_000)
    assert (told.request_id, told.named) == ("mine-7", False), "the node's log is found by the id that the client saw"
    answer = await world.client.post(process + "/stdin?close=1", content=b"hello")
    assert answer.json() == {"stdin_bytes": 5}
    await ended(world, process)
    found = await info(world, process)
    assert (found["state"], found["exit"]["code"], found["exit"]["stdout_bytes"], found["stdin_bytes"]) == ("exited", 0, 5, 5)
    assert found["ended_at"] >= found["started_at"]


@dialogue()
async def test_a_start_with_the_clients_own_id_is_done_once(world: World) -> None:
    path = f"/v1/sandboxes/{await world.create()}/processes"
    asked = {"argv": ["cat"], "stdin_open": True, "env": {"A": "1", "B": "2"}, "id": "pr-00000000000000aa"}
    answers = await asyncio.gather(*(world.client.post(path, json=asked) for _ in range(5)))
    assert [answer.status_code for answer in answers] == [201] * 5
    assert {answer.json()["id"] for answer in answers} == {asked["id"]}
    assert len((await world.client.get(path)).json()["processes"]) == 1
    for more, params in (({"argv": ["sleep", "1"]}, {}), ({"env": {}}, {}), ({"user": "root"}, {}), ({}, {"stream": "1"})):
        answer = await world.client.post(path, json=asked | more, params=params)
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict"), more
    for _ in range(2):
        assert (await world.client.delete(f"{path}/{asked['id']}")).status_code == 204
        assert (await world.client.post(path, json=asked)).status_code == 409
    assert (await world.client.delete(f"{path}/pr-00000000000000bb")).status_code == 204
    assert (await world.client.post(path, json=asked | {"id": "pr-00000000000000bb"})).status_code == 409, "a start may come after its end"
    for wrong in ("pr-1", "PR-00000000000000aa", "../../../etc/passwd", "pr-00000000000000aa\n", ""):
        answer = await world.client.post(path, json=asked | {"id": wrong})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), wrong


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
