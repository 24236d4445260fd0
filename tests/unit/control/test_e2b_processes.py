"""`process.Process` over the wire, behind a simulated node: streams, deadlines, input, signals, terminals, users, what is refused."""

from __future__ import annotations

import asyncio

import pytest

from space.core.wire import envelopes
from space.testing.e2bcalls import Envd, encoded, program
from space.testing.simcontrol import World, dialogue, until


@dialogue()
async def test_a_command_begins_with_its_pid_gives_its_output_and_ends_with_its_status(world: World) -> None:
    envd = await Envd.create(world)
    told = await envd.start("echo", "hello", "you")
    assert (told.code, told.stdout) == ("", b"hello you\n")
    assert told.end == {"exited": True, "status": "exit status 0"}
    failed = await envd.start("exit", "3")
    assert failed.output("stderr") == b"bye\n"
    assert failed.end == {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}


@dialogue()
async def test_much_output_comes_whole_in_pieces_that_clients_take(world: World) -> None:
    envd = await Envd.create(world)
    told = await envd.start("spam", str(3 << 20))
    assert told.stdout == b"x" * (3 << 20)
    assert max(len(event["data"]["stdout"]) for event in told.events if "data" in event) <= 44_000


@dialogue()
async def test_a_hundred_streams_on_one_sandbox_lose_nothing(world: World) -> None:
    envd = await Envd.create(world)
    told = await asyncio.gather(*[envd.start("spam", str(200_000 + at)) for at in range(100)])
    assert [len(one.stdout) for one in told] == [200_000 + at for at in range(100)]


@dialogue()
async def test_processes_are_found_by_pid_and_by_tag_while_they_run(world: World) -> None:
    envd = await Envd.create(world)
    running = asyncio.create_task(envd.start("cat", tag="mine", stdin=True, envs={"A": "b"}, cwd="/tmp"))

    async def listed() -> list[dict[str, object]]:
        return list((await envd.ask("process.Process/List"))["processes"])

    await until(listed)
    (one,) = await listed()
    assert one["tag"] == "mine"
    config = one["config"]
    assert isinstance(config, dict)
    assert (config["cmd"], config["cwd"], config["envs"]["A"], config["envs"]["E2B_SANDBOX"]) == ("cat", "/tmp", "b", "true")
    await envd.ask("process.Process/SendInput", {"process": {"tag": "mine"}, "input": {"stdin": encoded(b"one ")}})
    await envd.ask("process.Process/SendInput", {"process": {"pid": one["pid"]}, "input": {"stdin": encoded(b"two")}})
    await envd.ask("process.Process/CloseStdin", {"process": {"pid": one["pid"]}})
    assert (await running).stdout == b"one two"
    assert await listed() == []
    told = await envd.run("process.Process/Connect", {"process": {"pid": one["pid"]}})
    assert told.end["status"] == "exit status 0"
    assert not told.stdout


@dialogue()
async def test_input_as_a_stream_keeps_its_order(world: World) -> None:
    envd = await Envd.create(world)
    running = asyncio.create_task(envd.start("cat", tag="t", stdin=True))
    await until(lambda: any(world.node.processes.get(envd.sandbox, {}).values()))
    pieces = [{"data": {"input": {"stdin": encoded(bytes([at]) * 100)}}} for at in range(50)]
    done = await envd.run("process.Process/StreamInput", {"start": {"process": {"tag": "t"}}}, *pieces, {"keepalive": {}})
    assert (done.events, done.code) == ([{}], "")
    await envd.ask("process.Process/CloseStdin", {"process": {"tag": "t"}})
    assert (await running).stdout == b"".join(bytes([at]) * 100 for at in range(50))


@dialogue()
async def test_a_client_that_leaves_does_not_end_its_process_and_another_goes_on_without_history(world: World) -> None:
    envd = await Envd.create(world)
    pid = 0
    async for message in envd.follow("process.Process/Start", program("cat", stdin=True, tag="t")):
        pid = message["event"]["start"]["pid"]
        break
    await envd.ask("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": encoded(b"unheard")}})
    (process,) = world.node.processes[envd.sandbox].values()
    await until(lambda: process.outputs[0].total == 7)
    assert process.state == "running"
    coming = envd.follow("process.Process/Connect", {"process": {"pid": pid}})
    assert (await anext(coming))["event"] == {"start": {"pid": pid}}
    await envd.ask("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": encoded(b"heard")}})
    assert (await anext(coming))["event"] == {"data": {"stdout": encoded(b"heard")}}
    await envd.ask("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})
    end = (await anext(coming))["event"]["end"]
    assert end == {"exitCode": -1, "status": "signal: killed", "error": "signal: killed"}
    assert await anext(coming) == {"end of stream": {}}


@dialogue()
async def test_a_start_asks_the_guest_to_kill_at_its_deadline_and_a_connect_ends_alone(world: World) -> None:
    envd = await Envd.create(world)
    running = asyncio.create_task(envd.start("cat", stdin=True, tag="t", headers={"Connect_Timeout_Ms": "60000"}))
    await until(lambda: world.node.processes.get(envd.sandbox))
    (process,) = world.node.processes[envd.sandbox].values()
    assert (process.asked.timeout_ms, process.asked.kill_on_disconnect, process.asked.overflow) == (60_000, False, "block")
    told = await envd.run("process.Process/Connect", {"process": {"tag": "t"}}, Connect_Timeout_Ms="50")
    assert (told.code, process.state) == ("deadline_exceeded", "running")
    await envd.ask("process.Process/CloseStdin", {"process": {"tag": "t"}})
    await running


@dialogue()
async def test_a_silent_stream_shows_that_it_lives(world: World) -> None:
    envd = await Envd.create(world)
    coming = envd.follow("process.Process/Start", program("cat", stdin=True), Keepalive_Ping_Interval="1")
    assert "start" in (await anext(coming))["event"]
    assert (await anext(coming))["event"] == {"keepalive": {}}


@dialogue()
async def test_a_terminal_has_a_size_one_output_and_no_end_of_input(world: World) -> None:
    envd = await Envd.create(world)
    size = {"cols": 80, "rows": 24}
    coming = envd.follow("process.Process/Start", program("tell", pty={"size": size}, tag="t"))
    await anext(coming)
    await envd.ask("process.Process/Update", {"process": {"tag": "t"}, "pty": {"size": {"cols": 100, "rows": 30}}})
    assert (await anext(coming))["event"]["data"] == {"pty": encoded(b"size 30 100\n")}
    refused = await envd.refused("process.Process/CloseStdin", {"process": {"tag": "t"}})
    assert refused[:2] == (400, "failed_precondition")
    await envd.ask("process.Process/SendInput", {"process": {"tag": "t"}, "input": {"pty": encoded(b"x")}})
    status, code, _ = await envd.refused("process.Process/SendInput", {"process": {"tag": "t"}, "input": {"stdin": encoded(b"x")}})
    assert (status, code) == (400, "failed_precondition")
    await envd.ask("process.Process/SendSignal", {"process": {"tag": "t"}, "signal": 9})


@dialogue()
async def test_who_runs_it_and_where_is_as_the_request_says(world: World) -> None:
    envd = await Envd.create(world, env={"FROM": "sandbox"})
    for user, runs_as in ((None, "user"), ("root", "root"), ("", "user")):
        await envd.start("true", user=user, cwd="/tmp" if user == "root" else None)
        process = list(world.node.processes[envd.sandbox].values())[-1]
        assert process.asked.user == runs_as
        assert process.asked.env["E2B_SANDBOX_ID"] == envd.headers["E2b-Sandbox-Id"]
        assert process.asked.env["FROM"] == "sandbox"
    told = await envd.start("true", user="no such/user")
    assert (told.code, told.message) == ("unauthenticated", "invalid username: 'no such/user'")
    await envd.ask("filesystem.Filesystem/MakeDir", {"path": "below"})
    for path, wanted in (("~", None), ("below", "/home/user/below"), ("~/below", "/home/user/below")):
        await envd.start("true", cwd=path)
        assert list(world.node.processes[envd.sandbox].values())[-1].asked.cwd == wanted
    told = await envd.start("true", cwd="nowhere")
    assert (told.code, told.message) == ("invalid_argument", "cwd 'nowhere' does not exist")


@dialogue()
async def test_what_cannot_be_done_has_the_protocols_code(world: World) -> None:
    envd = await Envd.create(world)
    assert (await envd.start("no-such-program")).code == "invalid_argument"
    assert (await envd.run("process.Process/Start", {})).code == "invalid_argument"
    assert (await envd.run("process.Process/Start")).message == "the request has no message"
    assert (await envd.run("process.Process/Start", program("true"), program("true"))).code == "invalid_argument"
    assert (await envd.run("process.Process/Connect", {"process": {"pid": 99}})).code == "not_found"
    for method, message, code in (
        ("SendSignal", {"process": {"pid": 99}, "signal": "SIGNAL_SIGKILL"}, "not_found"),
        ("SendSignal", {"process": {"pid": 99}, "signal": "SIGNAL_SIGHUP"}, "unimplemented"),
        ("SendInput", {"process": {"tag": "x"}, "input": {"stdin": ""}}, "not_found"),
        ("SendInput", {"process": {}}, "invalid_argument"),
        ("Update", {"process": {"pid": "nan"}}, "invalid_argument"),
    ):
        assert (await envd.refused("process.Process/" + method, message))[1] == code
    running = asyncio.create_task(envd.start("stuck", tag="t"))
    await until(lambda: world.node.processes.get(envd.sandbox, {}))
    refused = await envd.refused("process.Process/SendInput", {"process": {"tag": "t"}, "input": {"stdin": encoded(b"x")}})
    assert refused[1:] == ("failed_precondition", "stdin is not enabled for the process: start it with stdin")
    refused = await envd.refused("process.Process/List", Connect_Timeout_Ms="soon")
    assert refused[1] == "invalid_argument"
    await envd.ask("process.Process/SendSignal", {"process": {"tag": "t"}, "signal": "SIGNAL_SIGTERM"})
    assert (await running).end["status"] == "signal: terminated"


@dialogue()
async def test_other_codecs_methods_and_paths_are_refused_as_the_protocol_says(world: World) -> None:
    envd = await Envd.create(world)
    async with envd.client() as client:
        answer = await client.post("/process.Process/List", content=b"", headers={"Content-Type": "application/proto"})
        assert (answer.status_code, answer.headers["accept-post"], answer.content) == (415, "application/json", b"")
        answer = await client.post("/process.Process/Start", content=b"{}", headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.headers["accept-post"]) == (415, "application/connect+json")
        assert (await client.get("/process.Process/List")).status_code == 405
        for path in ("/process.Process/Nothing", "/init", "/elsewhere"):
            answer = await client.post(path, content=b"{}", headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (404, 404)


@pytest.mark.parametrize(
    "body",
    [
        b"\x00\x7f\xff\xff\xff",
        b"\x04\x00\x00\x00\x00",
        b"\x01\x00\x00\x00\x02{}",
        b"\x00\x00\x00\x00\x08{}",
        envelopes.encode(b"{}", envelopes.END) + b"\x00",
        envelopes.encode(b"[" * 5000),
        envelopes.encode(b'{"process": 7}'),
        b"\x00",
    ],
)
@dialogue()
async def test_what_is_no_stream_of_messages_ends_the_call_with_a_fault(world: World, body: bytes) -> None:
    envd = await Envd.create(world)
    async with envd.client() as client:
        answer = await client.post("/process.Process/Start", content=body, headers={"Content-Type": "application/connect+json"})
    (last,) = envelopes.Decoder(1 << 20).feed(answer.content)
    assert last.ends
    assert b'"error"' in last.payload
    assert not world.node.processes.get(envd.sandbox)


@dialogue()
async def test_a_guest_whose_daemon_is_older_runs_commands_without_what_they_leave_behind(world: World) -> None:
    envd = await Envd.create(world)
    world.node.old_daemon = True
    told = await envd.start("echo", "old", tag="t")
    assert told.stdout == b"old\n"
    (process,) = world.node.processes[envd.sandbox].values()
    assert not process.asked.stays
    world.node.old_daemon = False
    await envd.start("echo", "new")
    assert list(world.node.processes[envd.sandbox].values())[-1].asked.stays


@dialogue()
async def test_a_sandbox_that_ends_in_the_middle_is_unavailable(world: World) -> None:
    envd = await Envd.create(world)
    told = await envd.start("die")
    assert (told.code, told.message) == ("unavailable", "the connection to the sandbox ended before the stream completed")


@dialogue()
async def test_no_token_or_another_sandboxes_opens_nothing(world: World) -> None:
    envd, other = await Envd.create(world), await Envd.create(world)
    wrong = Envd(world, envd.sandbox, {**envd.headers, "X-Access-Token": other.headers["X-Access-Token"]})
    async with wrong.client() as client:
        for path in ("/process.Process/List", "/files", "/metrics", "/envs"):
            answer = await client.post(path, content=b"{}")
            assert (answer.status_code, answer.json()["code"]) == (401, 401)
