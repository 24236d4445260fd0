"""The gates in front of every route: who may talk, under which name, how much, and what a refusal looks like."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from space.config.settings import Settings
from space.control import app, limits
from space.control.hosts import Hosts
from space.control.route import Access
from space.control.routes import ROUTES
from space.control.server import check_address, check_isolation
from space.model.errors import InvalidArgument
from space.model.isolation import EMULATED, HARDWARE
from space.rpc.node_api import NodeInfo
from space.testing.simcontrol import World, dialogue, until

PROBLEM = "application/problem+json"


def is_a_problem(answer: httpx.Response, status: int, code: str) -> dict[str, object]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    problem: dict[str, object] = answer.json()
    assert problem["code"] == code
    assert problem["status"] == status
    assert problem["type"] == f"urn:space:problem:{code}"
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] == answer.headers["x-request-id"]
    return problem


@dialogue()
async def test_every_route_but_the_open_ones_needs_a_key(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.url, trust_env=False, verify=False) as nobody:
        for route in ROUTES:
            answer = await nobody.request(route.method, re.sub(r"\{.*?\}", "x", route.path))
            if route.access is Access.OPEN:
                assert answer.status_code == 200
            elif route.method == "HEAD":
                assert (answer.status_code, answer.content) == (401, b"")
            else:
                problem = is_a_problem(answer, 401, "unauthenticated")
                assert "Bearer" in str(problem["hint"])
                assert answer.headers["www-authenticate"].startswith("Bearer")


@dialogue()
async def test_a_body_in_a_content_encoding_is_refused_before_it_is_read(world: World) -> None:
    for coding in ("gzip", "br, identity", "Deflate"):
        answer = await world.client.post("/v1/sandboxes", content=b"{}", headers={"Content-Encoding": coding})
        assert "content encoding" in str(is_a_problem(answer, 415, "unsupported")["detail"])
    answer = await world.client.post("/v1/keys", json={"tenant": "t"}, headers={"Content-Encoding": "Identity"})
    assert answer.status_code == 201


@dialogue()
async def test_admin_routes_refuse_a_tenants_key(world: World) -> None:
    async with await world.other_tenant() as theirs:
        for route in ROUTES:
            if route.access is Access.ADMIN:
                is_a_problem(await theirs.request(route.method, re.sub(r"\{.*?\}", "x", route.path)), 403, "permission_denied")


@dialogue()
async def test_a_key_is_taken_from_either_header(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.url, trust_env=False, verify=False) as nobody:
        for headers in ({"Authorization": f"Bearer {world.key}"}, {"authorization": f"bearer  {world.key}"}, {"X-API-Key": world.key}):
            assert (await nobody.get("/v1/sandboxes", headers=headers)).status_code == 200
        for headers in ({"Authorization": f"Basic {world.key}"}, {"Authorization": world.key}, {"X-API-Key": world.key + "0"}):
            is_a_problem(await nobody.get("/v1/sandboxes", headers=headers), 401, "unauthenticated")


@dialogue()
async def test_unknown_paths_and_methods_are_problems(world: World) -> None:
    for path in ("/", "/v1", "/v9/sandboxes", "/v1/sandboxes/", "/v1/sandboxes/x/y", "/docs", "/%00", "/v1/sandboxes/a%2Fb"):
        is_a_problem(await world.client.get(path), 404, "not_found")
    answer = await world.client.put("/v1/sandboxes")
    is_a_problem(answer, 405, "unsupported")
    assert answer.headers["allow"] == "GET, POST"


@dialogue()
async def test_a_sane_request_id_comes_back_and_another_is_replaced(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert (await world.client.get("/healthz", headers={"X-Request-Id": "mine-1"})).headers["x-request-id"] == "mine-1"
    for bad in ("x" * 65, "a b", "<script>", ""):
        assert re.fullmatch(
            r"req-[a-z2-7]{16}", (await world.client.get("/healthz", headers={"X-Request-Id": bad})).headers["x-request-id"]
        )


@dialogue()
async def test_an_unexpected_exception_is_internal_without_its_cause(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert world.services is not None

    async def broken(*_: object) -> None:
        raise RuntimeError("secret-of-the-house")

    monkeypatch.setattr(world.services.sandboxes, "page", broken)
    answer = await world.client.get("/v1/sandboxes")
    is_a_problem(answer, 500, "internal")
    assert "secret" not in answer.text
    assert "secret-of-the-house" in caplog.text


@dialogue(allowed_hosts=("space.example.com",))
async def test_only_the_servers_own_names_are_served(world: World) -> None:
    for host in (
        f"127.0.0.1:{world.port}",
        "127.0.0.1",
        "localhost:1",
        "LOCALHOST",
        "[::1]:80",
        "space.example.com",
        "Space.Example.Com:443",
    ):
        assert (await world.client.get("/healthz", headers={"Host": host})).status_code == 200, host
    for host in (
        "attacker.example.com", "localhost.example.com", "127.0.0.1.example.com", "space.example.com.", "10.0.0.1", "2130706433", "0x7f.1",
        "[::1", "localhost:port", "user@localhost", "localhost/", "",
    ):  # fmt: skip
        is_a_problem(await world.client.get("/healthz", headers={"Host": host}), 403, "permission_denied")
    twice = await world.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example.com\r\nConnection: close\r\n\r\n")
    assert twice.startswith(b"HTTP/1.1 400")
    none = await world.raw(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert none.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))


def test_a_server_on_a_network_answers_to_the_address_it_was_reached_by() -> None:
    hosts = Hosts(Settings(host="0.0.0.0"))
    assert hosts.admit("192.0.2.7:7070", "192.0.2.7")
    assert not hosts.admit("192.0.2.8", "192.0.2.7")
    assert not hosts.admit("localhost", "192.0.2.7")
    assert not hosts.admit("127.0.0.1", "192.0.2.7")
    assert hosts.admit("localhost", "127.0.0.1")


@pytest.mark.parametrize("origin", ["http://127.0.0.1", "null", "https://evil.example.com", ""])
@dialogue()
async def test_a_web_page_is_refused_whatever_it_says_it_is(world: World, origin: str) -> None:
    is_a_problem(await world.client.get("/healthz", headers={"Origin": origin}), 403, "permission_denied")
    answer = await world.client.options("/v1/sandboxes", headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
    assert answer.status_code == 403
    assert not any(name.startswith("access-control") for name in answer.headers)
    assert "set-cookie" not in answer.headers


@dialogue()
async def test_wrong_keys_are_rate_limited_and_right_ones_still_pass(world: World) -> None:
    async with world.as_key("space_aaaaaaaaaaaa_" + "0" * 64) as wrong:
        for _ in range(limits.WRONG_KEYS):
            is_a_problem(await wrong.get("/v1/sandboxes"), 401, "unauthenticated")
        answer = await wrong.get("/v1/sandboxes")
        is_a_problem(answer, 429, "rate_limited")
        assert 1 <= int(answer.headers["retry-after"]) <= 5
    assert (await world.client.get("/v1/sandboxes")).status_code == 200


WRONG_SANDBOXES = [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"cpus": NaN}', "not JSON"),
        (b"[" * 100_000, ""),
        (b'{"metadata": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}", ""),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b'{"cpu": 1}', "unknown field `cpu`"),
        (b'{"cpus": "2"}', "$.cpus"),
        (b'{"cpus": 0}', "$.cpus"),
        (b'{"cpus": 65}', "$.cpus"),
        (b'{"cpus": 1.5}', "$.cpus"),
        (b'{"cpus": true}', "$.cpus"),
        (b'{"memory_mib": 1}', "$.memory_mib"),
        (b'{"memory_mib": 99999999999999999999}', "$.memory_mib"),
        (b'{"disk_mib": -1}', "$.disk_mib"),
        (b'{"template": 3}', "$.template"),
        (b'{"template": "../etc"}', "template"),
        (b'{"template": ""}', "template"),
        (b'{"env": []}', "$.env"),
        (b'{"env": {"A": null}}', "$.env"),
        (b'{"env": {"1A": "x"}}', "env"),
        (b'{"env": {"A": "x\\u0000"}}', "NUL"),
        (b'{"env": {"A": "\\ud800"}}', ""),
        (b'{"metadata": {"": "x"}}', "metadata"),
        (b'{"metadata": {"a b": "x"}}', "metadata"),
        (b'{"metadata": {"a": 1}}', "$.metadata"),
        (b'{"metadata": {"a": "' + b"x" * 513 + b'"}}', "metadata.a"),
        (b'{"metadata": {' + b",".join(b'"k%d": ""' % i for i in range(65)) + b"}}", "metadata"),
        (b'{"env": {"A": "' + b"x" * 200_000 + b'"}}', "env.A"),
]  # fmt: skip


@dialogue()
async def test_a_wrong_sandbox_is_refused_by_the_name_of_its_field(world: World) -> None:
    for body, names in WRONG_SANDBOXES:
        problem = is_a_problem(await world.client.post("/v1/sandboxes", content=body), 400, "invalid_argument")
        assert names in str(problem["detail"]), (body[:80], problem["detail"])
    assert world.node.created == 0


@dialogue()
async def test_a_body_beyond_the_limit_is_too_large_however_it_comes(world: World) -> None:
    body = b'{"env": {"A": "' + b"x" * limits.MAX_JSON + b'"}}'
    is_a_problem(await world.client.post("/v1/sandboxes", content=body), 413, "too_large")

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), 10_000):
            yield body[at : at + 10_000]

    is_a_problem(await world.client.post("/v1/sandboxes", content=pieces()), 413, "too_large")
    is_a_problem(await world.client.post("/v1/sandboxes", content=b"{}", headers={"Content-Type": "text/xml"}), 415, "unsupported")


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?wait=maybe", "wait"), ("?what=1", "what"), ("?wait=1&wait=1", "twice"), ("?%ff", ""), ("?wait=%ff", ""),
        ("?" + "&".join(f"a{i}=1" for i in range(200)), ""),
    ],
)  # fmt: skip
@dialogue()
async def test_a_wrong_query_is_refused(world: World, query: str, names: str) -> None:
    problem = is_a_problem(await world.client.post("/v1/sandboxes" + query), 400, "invalid_argument")
    assert names in str(problem["detail"])


@pytest.mark.parametrize("key", ["", "x" * 129, "a b", "ä".encode()])
@dialogue()
async def test_a_wrong_idempotency_key_is_refused(world: World, key: str) -> None:
    is_a_problem(await world.client.post("/v1/sandboxes", headers={"Idempotency-Key": key}), 400, "invalid_argument")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 6000 + b"\r\n",
        b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000,  # never ends
    ],
    ids=["value", "many", "path", "endless"],
)
@dialogue()
async def test_a_huge_head_is_refused_with_a_problem_and_the_connection_ends(world: World, head: bytes) -> None:
    answer = await world.raw(head)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "too_large"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET /healthz HTTP/1.1\nHost: localhost\r\nA\0: b\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["tls", "both-lengths", "negative", "nul", "not-ascii", "http2"],
)
@dialogue()
async def test_what_is_no_http_is_a_problem_and_the_end_of_the_connection(world: World, data: bytes) -> None:
    answer = await world.raw(data)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "invalid_argument"
    assert (await world.client.get("/healthz")).status_code == 200


@dialogue()
async def test_http_1_0_is_refused_because_its_end_tells_nothing(world: World) -> None:
    answer = await world.raw(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert b" 415 " in answer.splitlines()[0]


@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HTTP/1.1\r\nHost: local", b"\r\n"])
@dialogue()
async def test_a_head_that_does_not_come_in_time_ends_the_connection(
    world: World, beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(beginning)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


@dialogue()
async def test_a_body_that_does_not_come_in_time_is_a_problem(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.2)
    answer = await world.raw(
        f"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {world.key}\r\nContent-Length: 10\r\n\r\n{{".encode()
    )
    assert answer.startswith(b"HTTP/1.1 504 ")


@dialogue()
async def test_requests_beyond_a_tenants_room_are_pushed_back_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.node.hold_create = asyncio.Event()
    room = app.Room(3, 2, 1, 2, 1)
    with room.place("a"), room.place("a"):
        with pytest.raises(Exception, match="tenant a has 2"), room.place("a"):
            pass
        with room.place("b"), pytest.raises(Exception, match="3 requests are in hand"), room.place("c"):
            pass
        with room.place("a", reserved=True), pytest.raises(Exception, match="tenant a has 2"), room.place("a", reserved=True):
            pass
        with (
            room.place("b", reserved=True),
            room.place("c", reserved=True),
            pytest.raises(Exception, match="3 requests are in hand"),
            room.place("d", reserved=True),
        ):
            pass
    with room.place("a", guest="x"):
        with pytest.raises(Exception, match="1 requests to the guest of sandbox x are in hand"), room.place("a", guest="x"):
            pass
        with room.place("a", guest="y"), room.place("b", guest="x"):  # another sandbox's, and what is no sandbox of this tenant
            pass
    assert (room._inside, room._reserved, room._waiting) == ({}, {}, {})
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 1)
    async with (
        httpx.AsyncClient(base_url=world.url, trust_env=False, verify=False) as one,
        httpx.AsyncClient(base_url=world.url, trust_env=False, verify=False) as two,
    ):
        assert (await one.get("/healthz")).status_code == 200
        is_a_problem(await two.get("/healthz"), 503, "unavailable")
    world.node.hold_create.set()


@dialogue()
async def test_metrics_count_requests_sandboxes_and_stages(world: World) -> None:
    sandbox = await world.create()
    text = (await world.client.get("/metrics")).text
    assert 'space_http_requests_total{method="POST",route="/v1/sandboxes",status="201",tenant="default"} 1.0' in text
    assert 'space_sandboxes{phase="running",tenant="default"} 1.0' in text
    assert 'space_create_stage_seconds_count{stage="boot",start="cold"} 1.0' in text
    assert 'space_create_stage_seconds_sum{stage="boot",start="cold"} 0.002' in text
    assert "space_node_up 1.0" in text
    assert sandbox not in text
    assert 'stage="first_exec"' not in text
    assert world.services is not None
    entry, there = world.services.sandboxes._book.live[sandbox], world.node.sandboxes[sandbox]
    for took in (3.0, 500.0):
        world.node._move(there, "running", stages={"boot": 2.0, "first_exec": took})
        await until(lambda: entry.seen == there.revision)
    text = (await world.client.get("/metrics")).text
    assert 'space_create_stage_seconds_count{stage="first_exec",start="cold"} 1.0' in text, "the first command of a sandbox, once"
    assert 'space_create_stage_seconds_sum{stage="first_exec",start="cold"} 0.003' in text
    assert 'space_create_stage_seconds_count{stage="boot",start="cold"} 1.0' in text


NODE = NodeInfo(EMULATED, "tcg", [], 0, 1, 1, 0)


def test_a_network_address_needs_tls_and_a_boundary() -> None:
    check_address(Settings(host="127.0.0.1"))
    check_address(Settings(host="localhost"))
    check_address(Settings(host="0.0.0.0", tls_certificate="c", tls_key="k"))
    for host in ("0.0.0.0", "::", "192.0.2.1", "space.example.com"):
        with pytest.raises(InvalidArgument, match="without TLS"):
            check_address(Settings(host=host))
    remote = Settings(host="0.0.0.0", tls_certificate="c", tls_key="k")
    with pytest.raises(InvalidArgument, match="no security boundary"):
        check_isolation(remote, NODE)
    check_isolation(Settings(), NODE)
    check_isolation(Settings(host="0.0.0.0", allow_remote_emulated=True), NODE)
    check_isolation(remote, NodeInfo(HARDWARE, "kvm", [], 0, 1, 1, 0))


@dialogue()
async def test_a_request_whose_client_left_is_over(world: World) -> None:
    assert world.services is not None
    _, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(f"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {world.key}\r\nContent-Length: 10\r\n\r\n{{".encode())
    await writer.drain()
    writer.transport.abort()

    async def is_counted() -> bool:
        return 'status="0"' in (await world.client.get("/metrics")).text

    await until(is_counted)
    assert world.node.created == 0
