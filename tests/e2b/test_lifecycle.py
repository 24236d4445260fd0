"""Sandboxes' lives through E2B's SDKs: made, found, kept, put to rest, woken, copied, ended."""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.e2b.stage import Js, Running

import e2b
from e2b import AsyncSandbox, Sandbox, SandboxQuery, SandboxState

NOWHERE = "i" + "a" * 20


def _eventually(claim: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.1)


def test_the_sdks_are_the_newest_that_the_locks_name(server: Running, js: Js) -> None:
    assert hasattr(e2b.Sandbox, "create")
    assert js("return [typeof Sandbox.create, typeof interpreter.Sandbox.create]") == ["function"] * 2


# -- keys ------------------------------------------------------------------------------------------------------------------


def test_a_wrong_key_is_an_authentication_error(server: Running, js: Js) -> None:
    wrong = "e2b_" + "0" * 40
    with pytest.raises(e2b.AuthenticationException):
        Sandbox.create(api_key=wrong)
    said: dict[str, Any] = js("return thrown(() => Sandbox.create({ apiKey: given.key }))", key=wrong)
    assert said["name"] == "AuthenticationError"


def test_our_own_keys_are_taken_as_they_are(server: Running) -> None:
    made = Sandbox.create(api_key=server.served.api_key)
    assert made.is_running()
    assert made.kill()


def test_a_key_of_another_tenant_finds_nothing(server: Running, shared: Sandbox) -> None:
    key = server.served.api_key
    with pytest.raises(e2b.SandboxNotFoundException):
        Sandbox.get_info(shared.sandbox_id, api_key=key)
    with pytest.raises(e2b.SandboxNotFoundException):
        Sandbox.connect(shared.sandbox_id, api_key=key)
    assert not Sandbox.kill(shared.sandbox_id, api_key=key)
    assert shared.is_running()


# -- create ----------------------------------------------------------------------------------------------------------------


def test_a_sandbox_is_made_seen_and_ended(server: Running) -> None:
    made = Sandbox.create(timeout=120, metadata={"job": "a", "odd name!": "ü=&"}, envs={"A": "1"})
    assert made.is_running()
    info = made.get_info()
    assert (info.sandbox_id, info.template_id, info.state) == (made.sandbox_id, "base", SandboxState.RUNNING)
    assert info.metadata == {"job": "a", "odd name!": "ü=&"}
    assert 100 < (info.end_at - datetime.now(UTC)).total_seconds() < 121
    assert (info.cpu_count, info.memory_mb) == (1, 512)
    assert made.kill()
    assert not made.kill()
    assert not made.is_running()
    with pytest.raises(e2b.SandboxNotFoundException):
        made.get_info()


def test_javascript_makes_sees_and_ends_one(js: Js) -> None:
    said = js("""
        const made = await Sandbox.create({ timeoutMs: 60_000, metadata: { job: 'js' }, envs: { A: '1' } })
        const info = await made.getInfo()
        const running = await made.isRunning()
        const killed = [await made.kill(), await Sandbox.kill(made.sandboxId)]
        return [running, info.state, info.metadata, info.templateId, killed, await made.isRunning(),
                (await thrown(() => made.getInfo())).name]
    """)
    assert said == [True, "running", {"job": "js"}, "base", [True, False], False, "SandboxNotFoundError"]


def test_the_asynchronous_sdk_makes_many_at_once(server: Running) -> None:
    async def talk() -> None:
        made = await asyncio.gather(*(AsyncSandbox.create(metadata={"many": str(n)}) for n in range(4)))
        assert len({one.sandbox_id for one in made}) == 4
        assert all(await asyncio.gather(*(one.is_running() for one in made)))
        assert all(await asyncio.gather(*(one.kill() for one in made)))

    asyncio.run(talk())


def test_the_same_idempotency_key_makes_one_sandbox(server: Running) -> None:
    key = str(uuid.uuid4())
    first = Sandbox.create(idempotency_key=key)
    again = Sandbox.create(idempotency_key=key)
    assert first.sandbox_id == again.sandbox_id
    with pytest.raises(e2b.SandboxException, match="409"):
        Sandbox.create(timeout=77, idempotency_key=key)
    first.kill()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"template": "no-such-template"}, "404"),
        ({"template": "a b"}, "404"),
        ({"timeout": 10**8}, "400"),
        ({"envs": {"1A": "x"}}, "400"),
        ({"mcp": {"browserbase": {"apiKey": "x", "geminiApiKey": "x", "projectId": "x"}}, "template": "base"}, "501"),
        ({"volume_mounts": {"/data": "v"}}, "501"),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_reason(server: Running, options: dict[str, Any], words: str) -> None:
    with pytest.raises(e2b.SandboxException, match=words):
        Sandbox.create(**options)


def test_the_first_version_of_the_route_serves_older_sdks(server: Running) -> None:
    with httpx.Client(base_url=server.served.url, headers={"X-API-KEY": server.key}) as client:
        made = client.post("/sandboxes", json={"templateID": "base", "timeout": 60, "secure": False, "someday": 1})
        assert made.status_code == 201, made.text
        said = made.json()
        assert {"sandboxID", "templateID", "clientID", "envdVersion"} <= said.keys()
        assert "envdAccessToken" not in said
        listed = client.get("/sandboxes").json()
        assert said["sandboxID"] in [one["sandboxID"] for one in listed]
        legacy = f"{said['sandboxID']}-{said['clientID']}"
        assert client.post(f"/sandboxes/{legacy}/connect", json={"timeout": 90}).status_code == 200
        assert client.post(f"/sandboxes/{said['sandboxID']}/connect", json={}).status_code == 400
        assert client.post(f"/sandboxes/{said['sandboxID']}/refreshes", json={"duration": 600}).status_code == 204
        ends = datetime.fromisoformat(client.get(f"/sandboxes/{said['sandboxID']}").json()["endAt"])
        assert (ends - datetime.now(UTC)).total_seconds() > 550
        assert client.delete(f"/sandboxes/{said['sandboxID']}").status_code == 204
        gone = client.delete(f"/sandboxes/{said['sandboxID']}")
        assert (gone.status_code, gone.json()["code"]) == (404, 404)


# -- lists -----------------------------------------------------------------------------------------------------------------


def _ids(**options: Any) -> list[str]:
    pages, found = Sandbox.list(**options), []
    while pages.has_next:
        found += [one.sandbox_id for one in pages.next_items()]
    return found


def test_lists_are_filtered_ordered_and_paged(server: Running) -> None:
    mark = uuid.uuid4().hex
    made = [Sandbox.create(metadata={"mark": mark, "odd name!": f"{n} &="}) for n in range(3)]
    ids = [one.sandbox_id for one in made]
    everything = SandboxQuery(metadata={"mark": mark})
    assert _ids(query=everything) == ids[::-1]
    assert _ids(query=everything, order="asc") == ids
    assert _ids(query=everything, limit=1) == ids[::-1]
    assert _ids(query=everything, limit=2, order="asc") == ids
    assert _ids(query=SandboxQuery(metadata={"mark": mark, "odd name!": "1 &="})) == [ids[1]]
    assert _ids(query=SandboxQuery(metadata={"mark": "other"})) == []
    assert _ids(query=SandboxQuery(metadata={"mark": mark}, template="base")) == ids[::-1]
    assert _ids(query=SandboxQuery(metadata={"mark": mark}, template="no-such")) == []
    assert _ids(query=SandboxQuery(metadata={"mark": mark}, started_after=datetime.now(UTC) + timedelta(hours=1))) == []
    made[0].pause()
    assert _ids(query=SandboxQuery(metadata={"mark": mark}, state=[SandboxState.PAUSED])) == [ids[0]]
    assert _ids(query=SandboxQuery(metadata={"mark": mark}, state=[SandboxState.RUNNING])) == ids[:0:-1]
    assert len(_ids(query=SandboxQuery(metadata={"mark": mark}, state=[SandboxState.RUNNING, SandboxState.PAUSED]))) == 3
    with pytest.raises(e2b.SandboxException, match="400"):
        Sandbox.list(next_token="nonsense").next_items()
    for one in made:
        assert one.kill()
    assert _ids(query=everything) == []


def test_javascript_lists_pages(js: Js) -> None:
    said = js("""
        const made = [await Sandbox.create({ metadata: { 'odd name!': 'ü' } }), await Sandbox.create({ metadata: { 'odd name!': 'ü' } })]
        const pages = Sandbox.list({ query: { metadata: { 'odd name!': 'ü' }, state: ['running'] }, limit: 1 })
        const found = []
        while (pages.hasNext) found.push(...(await pages.nextItems()).map(one => one.sandboxId))
        await Promise.all(made.map(one => one.kill()))
        return [made.map(one => one.sandboxId).reverse(), found]
    """)
    assert said[0] == said[1]


# -- time ------------------------------------------------------------------------------------------------------------------


def test_a_timeout_may_be_made_longer_and_shorter_and_ends_it(server: Running) -> None:
    made = Sandbox.create(timeout=60)
    made.set_timeout(600)
    assert (made.get_info().end_at - datetime.now(UTC)).total_seconds() > 500
    made.set_timeout(1)
    _eventually(lambda: not made.is_running())
    assert not made.kill()
    with pytest.raises(e2b.SandboxNotFoundException):
        made.set_timeout(60)
    with pytest.raises(e2b.SandboxNotFoundException):
        Sandbox.set_timeout(NOWHERE, 60)


def test_connecting_makes_the_time_longer_and_never_shorter(server: Running) -> None:
    made = Sandbox.create(timeout=300)
    ends = made.get_info().end_at
    assert Sandbox.connect(made.sandbox_id, timeout=10).get_info().end_at == ends
    assert Sandbox.connect(made.sandbox_id, timeout=900).get_info().end_at > ends + timedelta(seconds=500)
    made.kill()
    with pytest.raises(e2b.SandboxNotFoundException):
        Sandbox.connect(made.sandbox_id)


# -- rest ------------------------------------------------------------------------------------------------------------------


def test_a_paused_sandbox_is_the_same_one_when_it_is_connected_to(server: Running, js: Js) -> None:
    made = Sandbox.create(metadata={"kept": "yes"})
    token = made.connection_config.sandbox_headers if hasattr(made.connection_config, "sandbox_headers") else None
    assert made.pause()
    assert not made.pause()
    assert made.get_info().state == SandboxState.PAUSED
    assert not made.is_running()
    with pytest.raises(e2b.SandboxException, match="409"):
        made.set_timeout(60)
    again = Sandbox.connect(made.sandbox_id, timeout=120)
    assert (again.sandbox_id, again.is_running()) == (made.sandbox_id, True)
    assert made.is_running(), f"its token is the same after a rest ({token})"
    info = again.get_info()
    assert (info.state, info.metadata) == (SandboxState.RUNNING, {"kept": "yes"})
    said = js("""
        const made = await Sandbox.connect(given.id)
        const paused = [await made.pause(), await made.pause(), (await made.getInfo()).state]
        const again = await made.connect()
        return [paused, await again.isRunning(), await again.kill()]
    """, id=made.sandbox_id)  # fmt: skip
    assert said == [[True, False, "paused"], True, True]
    with pytest.raises(e2b.SandboxNotFoundException):
        made.pause()


def test_a_paused_sandbox_can_be_ended(server: Running) -> None:
    made = Sandbox.create()
    made.pause()
    assert made.kill()
    assert not Sandbox.kill(made.sandbox_id)


def test_a_filesystem_pause_boots_again(server: Running) -> None:
    made = Sandbox.create()
    assert made.pause(mode="filesystem")
    assert made.get_info().state == SandboxState.PAUSED
    assert Sandbox.connect(made.sandbox_id).is_running()
    assert made.pause()
    assert Sandbox.connect(made.sandbox_id, on_resume="reboot").is_running()
    assert made.kill()


def test_a_sandbox_that_pauses_at_its_end_is_kept(server: Running) -> None:
    made = Sandbox.create(timeout=2, lifecycle={"on_timeout": "pause"})
    assert made.get_info().lifecycle["on_timeout"] == "pause"
    _eventually(lambda: made.get_info().state == SandboxState.PAUSED)
    assert not made.is_running()
    assert Sandbox.connect(made.sandbox_id, timeout=60).is_running()
    assert made.kill()


def test_traffic_wakes_a_sandbox_that_is_told_to_be_woken(server: Running) -> None:
    made = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause", "auto_resume": True})
    assert made.get_info().lifecycle["auto_resume"]
    made.pause()
    with httpx.Client(base_url=server.served.url) as stranger:
        head = {"E2b-Sandbox-Id": made.sandbox_id, "E2b-Sandbox-Port": "49983"}
        assert stranger.get("/health", headers=head).status_code == 502, "a stranger wakes nobody"
    assert made.is_running()
    assert made.get_info().state == SandboxState.RUNNING
    assert made.kill()


# -- copies ----------------------------------------------------------------------------------------------------------------


def test_forks_are_sandboxes_of_their_own(server: Running) -> None:
    made = Sandbox.create(metadata={"of": "fork"})
    children = made.fork(count=2, timeout=90)
    assert len(children) == 2
    assert all(isinstance(one, Sandbox) and one.is_running() for one in children)
    assert made.is_running()
    assert len({made.sandbox_id, *(one.sandbox_id for one in children)}) == 3
    assert children[0].get_info().metadata == {"of": "fork"}
    head = {"E2b-Sandbox-Id": children[0].sandbox_id, "X-Access-Token": made._envd_access_token}
    assert httpx.get(f"{server.served.url}/envs", headers=head).status_code == 401, "a parent's token opens no child"
    made.pause()
    with pytest.raises(e2b.SandboxException, match="409"):
        made.fork()
    for one in (made, *children):
        assert one.kill()
    with pytest.raises(e2b.SandboxNotFoundException):
        made.fork()


# -- figures ---------------------------------------------------------------------------------------------------------------


def test_figures_and_logs_are_told(server: Running, shared: Sandbox, js: Js) -> None:
    [*_, last] = shared.get_metrics()
    assert (last.cpu_count, last.mem_total > 2**28, 0 < last.mem_used < last.mem_total) == (1, True, True)
    assert 0 < last.disk_used < last.disk_total
    assert js("return (await Sandbox.getMetrics(given.id)).length", id=shared.sandbox_id) > 0
    with pytest.raises(e2b.SandboxNotFoundException):
        Sandbox.get_metrics(NOWHERE)
    with httpx.Client(base_url=server.served.url, headers={"X-API-KEY": server.key}) as client:
        of_all = client.get("/sandboxes/metrics", params={"sandbox_ids": f"{shared.sandbox_id},{NOWHERE}"}).json()
        assert list(of_all["sandboxes"]) == [shared.sandbox_id]
        logs = client.get(f"/v2/sandboxes/{shared.sandbox_id}/logs").json()["logs"]
        assert [one["level"] for one in logs[:2]] == ["info", "info"]
        assert "created" in logs[0]["message"]
        back = client.get(f"/v2/sandboxes/{shared.sandbox_id}/logs", params={"direction": "backward", "limit": 1}).json()["logs"]
        assert back == [logs[-1]]
        assert client.get(f"/sandboxes/{shared.sandbox_id}/logs").json()["logs"]
