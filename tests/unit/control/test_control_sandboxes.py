"""The life of sandboxes over HTTP: create, list, delete, time to live, idempotency, and a node that comes and goes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from space.control import limits, records
from space.control.records import Record
from space.control.wire_processes import ProcessRequest, check_process
from space.model.errors import InvalidArgument, NoCapacity, Unavailable
from space.node.guest import environment_fits
from space.testing.simcontrol import World, controlled, dialogue, until


@dialogue()
async def test_a_created_sandbox_runs_and_is_listed_until_it_is_deleted(world: World) -> None:
    answer = await world.client.post("/v1/sandboxes", json={"memory_mib": 256, "metadata": {"who": "me"}, "env": {"A": "b"}})
    assert answer.status_code == 201
    made = answer.json()
    assert made["phase"] == "running"
    assert made["spec"]["memory_mib"] == 256
    assert made["isolation"] == "emulated (development only)"
    assert made["expires_at"] - made["created_at"] == 3600
    assert (await world.client.get(f"/v1/sandboxes/{made['id']}")).json() == made
    assert [one["id"] for one in (await world.client.get("/v1/sandboxes")).json()["sandboxes"]] == [made["id"]]
    assert (await world.client.delete(f"/v1/sandboxes/{made['id']}")).status_code == 204
    assert world.node.deleted == [made["id"]]
    assert (await world.client.delete(f"/v1/sandboxes/{made['id']}")).status_code == 204
    gone = (await world.client.get(f"/v1/sandboxes/{made['id']}")).json()
    assert (gone["phase"], gone["reason"]) == ("gone", "deleted by request")
    assert gone["revision"] > made["revision"]
    assert (await world.client.get("/v1/sandboxes", params={"phase": "running"})).json()["sandboxes"] == []


@dialogue()
async def test_without_waiting_the_answer_comes_before_the_sandbox_runs(world: World) -> None:
    world.node.hold_create = asyncio.Event()
    answer = await world.client.post("/v1/sandboxes?wait=false", json={})
    assert answer.status_code == 202
    sandbox = answer.json()["id"]
    await until(lambda: world.node.created == 1)
    assert await world.phase(sandbox) in ("requested", "preparing")
    refused = await world.client.post(f"/v1/sandboxes/{sandbox}/noop")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    world.node.hold_create.set()

    async def runs() -> bool:
        return await world.phase(sandbox) == "running"

    await until(runs)


@dialogue()
async def test_a_refused_create_keeps_nothing_and_a_failed_one_stays_listed(world: World) -> None:
    world.node.refuse_create = NoCapacity("no memory is left on this machine")
    answer = await world.client.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (503, "no_capacity")
    assert answer.headers["retry-after"] == "1"
    assert (await world.client.get("/v1/sandboxes")).json()["sandboxes"] == []
    world.node.refuse_create = None
    world.node.fail_create = "the guest did not answer"
    answer = await world.client.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (502, "sandbox_died")
    assert "the guest did not answer" in answer.json()["detail"]
    [listed] = (await world.client.get("/v1/sandboxes")).json()["sandboxes"]
    assert (listed["phase"], listed["reason"]) == ("failed", "the guest did not answer")
    await until(lambda: listed["id"] in world.node.deleted)  # nobody wants what failed
    world.node.fail_create = None
    assert (await world.client.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": "k"})).status_code == 201


@dialogue()
async def test_a_server_that_ends_its_sandboxes_makes_no_more(world: World) -> None:
    assert world.services is not None
    kept = [await world.create() for _ in range(3)]
    assert await world.services.sandboxes.delete_all("the server was stopped", 10) == 0
    assert sorted(world.node.deleted) == sorted(kept)
    refused = await world.client.post("/v1/sandboxes", json={})
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    shown = (await world.client.get(f"/v1/sandboxes/{kept[0]}")).json()
    assert (shown["phase"], shown["reason"]) == ("gone", "the server was stopped")


@dialogue()
async def test_without_a_node_the_end_of_all_is_promised_and_not_waited_for(world: World) -> None:
    assert world.services is not None
    kept = await world.create()
    await world.node.stop()
    link = world.services.link
    await until(lambda: not link.is_up)
    assert await world.services.sandboxes.delete_all("the server was stopped", 1000) == 1
    assert await world.phase(kept) == "deleting"
    world.node.start()
    await until(lambda: kept in world.node.deleted)


@dialogue()
async def test_an_unknown_template_is_not_found(world: World) -> None:
    answer = await world.client.post("/v1/sandboxes", json={"template": "nowhere"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert (await world.client.get("/v1/sandboxes")).json()["sandboxes"] == []


@dialogue()
async def test_what_the_node_refuses_before_it_begins_is_not_kept(world: World) -> None:
    world.node.refuse_create = InvalidArgument("disk_mib is 512 (the size of template base) to 65536, not 100")
    answer = await world.client.post("/v1/sandboxes", json={"disk_mib": 100}, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert (await world.client.get("/v1/sandboxes")).json()["sandboxes"] == []
    promised = (await world.client.post("/v1/sandboxes?wait=false", json={"disk_mib": 100})).json()["id"]

    async def has_failed() -> bool:
        return await world.phase(promised) == "failed"  # whoever did not wait learns it here

    await until(has_failed)
    world.node.refuse_create = None
    assert (await world.client.post("/v1/sandboxes", json={"disk_mib": 100}, headers={"Idempotency-Key": "k"})).status_code == 201


@dialogue()
async def test_an_environment_that_no_guest_takes_is_refused_before_anything_is_stored(world: World) -> None:
    answer = await world.client.post("/v1/sandboxes", json={"env": {"A": "x" * 100_000}})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert "env: 100009 bytes" in answer.json()["detail"]
    assert world.node.created == 0
    assert (await world.client.get("/v1/sandboxes")).json()["sandboxes"] == []


@pytest.mark.parametrize("env", [{"A": "ü" * 30_000}, {f"V{n}": "x" * n for n in range(310)}, {f"V{n}": "" for n in range(4000)}, {}])
def test_an_environment_that_control_admits_fits_the_node(env: dict[str, str]) -> None:
    try:
        check_process(ProcessRequest(["true"], env=env))
    except InvalidArgument:
        pytest.fail("chosen to be admitted")
    environment_fits(env)


@dialogue()
async def test_a_tenant_keeps_only_so_many_that_have_ended_and_their_timers_hold_no_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ENDED_PER_TENANT", 2)
    assert world.services is not None
    made = [await world.create(env={"A": "x"}) for _ in range(4)]
    for sandbox in made:
        await world.client.delete(f"/v1/sandboxes/{sandbox}")

    async def are_listed() -> bool:
        return [one["id"] for one in (await world.client.get("/v1/sandboxes")).json()["sandboxes"]] == [made[3], made[2]]

    await until(are_listed)

    def are_let_go() -> bool:
        gc.collect()
        return not [found for found in gc.get_objects() if isinstance(found, Record) and found.id in made]

    await until(are_let_go)


@dialogue(max_sandboxes=2)
async def test_more_sandboxes_than_the_server_takes_are_refused_at_once(world: World) -> None:
    first = await world.create()
    await world.create()
    refused = await world.client.post("/v1/sandboxes", json={})
    assert (refused.status_code, refused.json()["code"]) == (503, "no_capacity")
    assert world.node.created == 2
    await world.client.delete(f"/v1/sandboxes/{first}")
    await world.create()


@dialogue()
async def test_an_idempotency_key_gives_the_same_sandbox_also_to_concurrent_repeats(world: World) -> None:
    world.node.hold_create = asyncio.Event()
    headers = {"Idempotency-Key": "once"}
    asked = [asyncio.create_task(world.client.post("/v1/sandboxes", json={"cpus": 2}, headers=headers)) for _ in range(8)]
    await until(lambda: world.node.created == 1)
    world.node.hold_create.set()
    answers = await asyncio.gather(*asked)
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert world.node.created == 1
    spelled = await world.client.post("/v1/sandboxes", content=b' { "cpus" :2 }', headers=headers)
    assert spelled.json()["id"] == answers[0].json()["id"]
    other = await world.client.post("/v1/sandboxes", json={"cpus": 1}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    theirs = await world.other_tenant()
    async with theirs:
        assert (await theirs.post("/v1/sandboxes", json={"cpus": 1}, headers=headers)).status_code == 201  # a tenant's keys are its own


@dialogue(start=False)
async def test_an_idempotency_key_outlives_a_restart(world: World) -> None:
    headers = {"Idempotency-Key": "kept"}
    async with controlled(world):
        first = (await _when_up(world, headers)).json()["id"]
    async with controlled(world):
        assert (await _when_up(world, headers)).json()["id"] == first
    assert world.node.created == 1


async def _when_up(world: World, headers: dict[str, str]):  # type: ignore[no-untyped-def]
    assert world.services is not None
    await asyncio.wait_for(world.services.link.wait_up(), 10)
    return await world.client.post("/v1/sandboxes", json={}, headers=headers)


@dialogue()
async def test_a_sandbox_is_ended_when_its_time_is_over(world: World) -> None:
    sandbox = await world.create(ttl_seconds=1)
    other = await world.create()

    async def is_gone() -> bool:
        return await world.phase(sandbox) == "gone"

    await until(is_gone)
    assert "time to live of 1 s" in (await world.client.get(f"/v1/sandboxes/{sandbox}")).json()["reason"]
    assert await world.phase(other) == "running"
    used = await world.client.post(f"/v1/sandboxes/{sandbox}/noop")
    assert (used.status_code, used.json()["code"]) == (410, "gone")


@pytest.mark.parametrize(
    ("ttl", "names"), [(0, "1 to 86400, not 0"), (-5, "not -5"), (86_401, "1 to 86400"), (1.5, "ttl_seconds"), ("1", "ttl_seconds")]
)
@dialogue()
async def test_a_time_to_live_that_cannot_be_is_refused_by_name(world: World, ttl: object, names: str) -> None:
    answer = await world.client.post("/v1/sandboxes", json={"ttl_seconds": ttl})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert names in answer.json()["detail"]


@dialogue(max_ttl_seconds=60)
async def test_the_default_time_to_live_obeys_the_servers_limit(world: World) -> None:
    made = (await world.client.post("/v1/sandboxes")).json()
    assert made["spec"]["ttl_seconds"] == 60


@dialogue()
async def test_pause_and_resume_are_idempotent_and_a_paused_sandbox_runs_nothing(world: World) -> None:
    sandbox = await world.create()
    for _ in range(2):
        assert (await world.client.post(f"/v1/sandboxes/{sandbox}/pause")).json()["phase"] == "paused"
    refused = await world.client.post(f"/v1/sandboxes/{sandbox}/processes?stream=1", json={"argv": ["echo"]})
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "resume" in refused.json()["hint"]
    for _ in range(2):
        assert (await world.client.post(f"/v1/sandboxes/{sandbox}/resume")).json()["phase"] == "running"


@dialogue()
async def test_metrics_and_templates_come_from_the_node(world: World) -> None:
    sandbox = await world.create()
    assert (await world.client.get(f"/v1/sandboxes/{sandbox}/metrics")).json()["processes"] == 7
    listed = (await world.client.get("/v1/templates")).json()["templates"]
    assert [(each["name"], each["shipped"]) for each in listed] == [("base", True)]


@dialogue()
async def test_while_the_node_is_down_reads_are_answered_and_the_rest_is_unavailable(world: World) -> None:
    sandbox = await world.create()
    await world.node.stop()
    assert world.services is not None
    await until(lambda: not world.services.link.is_up)  # type: ignore[union-attr]
    assert await world.phase(sandbox) == "running"
    assert (await world.client.get("/healthz")).json()["status"] == "degraded"
    for method, path in (("POST", "/v1/sandboxes"), ("POST", f"/v1/sandboxes/{sandbox}/noop"), ("GET", "/v1/templates")):
        answer = await world.client.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), path
    promised = await world.client.delete(f"/v1/sandboxes/{sandbox}")
    assert (promised.status_code, promised.json()["phase"]) == (202, "deleting")
    world.node.start()
    await until(lambda: world.node.deleted == [sandbox])

    async def is_gone() -> bool:
        return await world.phase(sandbox) == "gone"

    await until(is_gone)
    assert (await world.client.get("/healthz")).json() == {"status": "ok", "isolation": "emulated (development only)", "version": "0.1.0"}


@dialogue()
async def test_a_node_that_comes_back_with_less_and_more_is_reconciled(world: World) -> None:
    kept, lost = await world.create(), await world.create()
    await world.node.stop()
    extra = world.node.sandboxes.pop(lost)
    world.node.sandboxes["sb-" + "z" * 20] = extra.__class__(type(extra.create)("sb-" + "z" * 20, "default", 1, "base", 1, 512, 2048, {}))
    world.node.start()
    await until(lambda: world.node.deleted == ["sb-" + "z" * 20])
    assert await world.phase(kept) == "running"
    failed = (await world.client.get(f"/v1/sandboxes/{lost}")).json()
    assert (failed["phase"], failed["reason"]) == ("failed", "the node no longer has it")


@dialogue()
async def test_a_create_whose_connection_is_lost_is_adopted(world: World) -> None:
    world.node.hold_create = asyncio.Event()
    asked = asyncio.create_task(world.client.post("/v1/sandboxes", json={}))
    await until(lambda: world.node.created == 1)
    world.node.cut()
    [there] = world.node.sandboxes.values()
    world.node.hold_create.set()
    await until(lambda: world.services is not None and world.services.link.is_up)
    world.node._move(there, "running")
    answer = await asked
    assert (answer.status_code, answer.json()["phase"]) == (201, "running")
    assert world.node.deleted == []


@dialogue()
async def test_a_create_that_the_returning_node_does_not_know_fails_typed(world: World) -> None:
    world.node.hold_create = asyncio.Event()
    asked = asyncio.create_task(world.client.post("/v1/sandboxes", json={}))
    await until(lambda: world.node.created == 1)
    world.node.sandboxes.clear()
    world.node.cut()
    answer = await asked
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    [listed] = (await world.client.get("/v1/sandboxes")).json()["sandboxes"]
    assert listed["phase"] == "failed"


@dialogue()
async def test_a_create_whose_node_stays_away_is_answered_before_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NODE_BACK_SECONDS", 0.1)
    world.node.hold_create = asyncio.Event()
    asked = asyncio.create_task(world.client.post("/v1/sandboxes", json={}))
    await until(lambda: world.node.created == 1)
    await world.node.stop()
    answer = await asyncio.wait_for(asked, 10)
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


@dialogue()
async def test_delete_is_legal_while_a_sandbox_is_made(world: World) -> None:
    world.node.hold_create = asyncio.Event()
    asked = asyncio.create_task(world.client.post("/v1/sandboxes", json={}))
    await until(lambda: world.node.created == 1)
    [sandbox] = world.node.sandboxes
    assert (await world.client.delete(f"/v1/sandboxes/{sandbox}")).status_code == 204
    world.node.hold_create.set()
    answer = await asked
    assert (answer.status_code, answer.json()["code"]) == (410, "gone")
    assert world.node.sandboxes == {}


@dialogue()
async def test_a_sandbox_whose_vm_ends_is_failed_with_the_nodes_reason(world: World) -> None:
    sandbox = await world.create()
    world.node.lose(sandbox, "the VMM was killed by signal 9")

    async def has_failed() -> bool:
        return await world.phase(sandbox) == "failed"

    await until(has_failed)
    assert (await world.client.get(f"/v1/sandboxes/{sandbox}")).json()["reason"] == "the VMM was killed by signal 9"


@dialogue()
async def test_what_ended_is_forgotten_after_its_retention(world: World) -> None:
    assert world.services is not None
    world.services.sandboxes._book.retention = 0.05
    sandbox = await world.create()
    await world.client.delete(f"/v1/sandboxes/{sandbox}")

    async def is_forgotten() -> bool:
        return (await world.client.delete(f"/v1/sandboxes/{sandbox}")).status_code == 404

    await until(is_forgotten)


@dialogue()
async def test_what_takes_power_away_is_on_the_disk_before_the_answer_and_a_create_waits_for_no_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.services is not None
    store = world.services.sandboxes._book.store
    post = store.post
    durable: list[bool] = []

    def told(change: Callable[[Any], Any], *, durable: bool = False, made: list[bool] = durable) -> Future[Any]:
        made.append(durable)
        return post(change, durable=durable)

    monkeypatch.setattr(store, "post", told)
    sandbox = await world.create()
    assert durable == [False, False]  # the row, and that it runs
    durable.clear()
    await world.client.delete(f"/v1/sandboxes/{sandbox}")
    assert durable == [True, False]  # the promise, and that it is kept
    durable.clear()
    key = (await world.client.post("/v1/keys", json={"tenant": "acme"})).json()
    await world.client.delete(f"/v1/keys/{key['id']}")
    assert durable == [True, True]


@dialogue()
async def test_a_sandbox_whose_row_is_not_stored_is_refused_and_what_the_node_made_of_it_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asyncio.Event()
    loop = asyncio.get_running_loop()

    def refuse(connection: object, record: Record, repeat: object) -> None:
        asyncio.run_coroutine_threadsafe(asyncio.wait_for(made.wait(), 10), loop).result()
        raise Unavailable("the state store could not be read or written")

    monkeypatch.setattr(records, "add", refuse)
    asked = asyncio.create_task(world.client.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": "k"}))
    await until(lambda: any(one.phase == "running" for one in world.node.sandboxes.values()))
    [sandbox] = world.node.sandboxes
    assert not asked.done()  # it runs, and nobody is told before its row is committed
    made.set()
    assert (await asked).status_code == 503
    await until(lambda: world.node.deleted == [sandbox])
    assert (await world.client.get("/v1/sandboxes")).json()["sandboxes"] == []
    monkeypatch.undo()
    again = await world.client.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["id"] == sandbox) == (201, False)


@dialogue()
async def test_a_node_tells_its_sandboxes_in_as_many_messages_as_it_likes(world: World) -> None:
    made = {await world.create() for _ in range(5)}
    assert world.services is not None
    assert {level.sandbox for level in await world.services.link.list()} == made
