"""WebSockets to processes: frames both ways, back-pressure, refusals before the upgrade, and clients that break the rules."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, strategies
from websockets.exceptions import ConnectionClosed

from space.control import attached, limits
from space.model.errors import InvalidArgument
from space.model.frames import Decoder, Kind, encode
from space.rpc.node_api import Eof, Resize, Signal
from space.testing.processclient import ended, frames, info, refused, socket, start, state
from space.testing.simcontrol import World, dialogue, until

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
