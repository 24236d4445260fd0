"""Quotas: what a tenant may have at once and how fast it may ask, also when many ask together."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

from space.control.problems import QuotaPassed, TooMany
from space.control.quotas import Quotas
from space.control.store.store import Store
from space.model.errors import NoCapacity
from space.model.sandbox import SandboxSpec
from space.model.tenants import Quota, Usage
from space.testing.simcontrol import World, controlled, dialogue, until
from space.testing.virtualtime import Clock


@pytest.fixture
def store(tmp_path):  # type: ignore[no-untyped-def]
    made = Store(tmp_path / "s.db")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("quota", "refused"),
    [
        (Quota(), None),
        (Quota(sandboxes=3), None),
        (Quota(sandboxes=2), "sandboxes 2"),
        (Quota(sandboxes=0), "sandboxes 0"),
        (Quota(cpus=8), None),
        (Quota(cpus=7), "cpus 7; it has 4, and this wants 4"),
        (Quota(memory_mib=1535), "memory_mib 1535"),
        (Quota(memory_mib=1536), None),
        (Quota(disk_mib=6143), "disk_mib 6143"),
        (Quota(sandboxes=3, cpus=8, memory_mib=1536, disk_mib=6144), None),
    ],
)
def test_one_more_sandbox_is_admitted_exactly_up_to_the_quota(store: Store, quota: Quota, refused: str | None) -> None:
    quotas = Quotas(store, quota)
    used = Usage(sandboxes=2, cpus=4, memory_mib=1024, disk_mib=4096)
    if refused is None:
        quotas.admit("t", SandboxSpec(cpus=4), lambda: used)
        return
    with pytest.raises(QuotaPassed, match=refused):
        quotas.admit("t", SandboxSpec(cpus=4), lambda: used)


def test_an_allowance_refills_at_its_rate_up_to_its_burst(store: Store) -> None:
    clock = Clock(100)
    quotas = Quotas(store, Quota(requests_per_second=2.0, burst=5), clock=clock)

    def passed(count: int) -> int:
        done = 0
        for _ in range(count):
            with contextlib.suppress(TooMany):
                quotas.spend("t")
                done += 1
        return done

    assert passed(20) == 5
    clock.now += 1
    assert passed(20) == 2
    clock.now += 1000
    assert passed(20) == 5
    quotas.spend("other")  # a tenant's allowance is its own
    slow = Quotas(store, Quota(requests_per_second=0.1), clock=clock)
    slow.spend("t")
    with pytest.raises(TooMany) as refused:
        slow.spend("t")
    assert refused.value.retry_after == 10


@dialogue()
async def test_fifty_that_come_together_get_exactly_what_the_quota_has(world: World) -> None:
    set_to = await world.client.put("/v1/tenants/other/quota", json={"sandboxes": 7})
    assert set_to.status_code == 200, set_to.text
    async with await world.other_tenant() as tenant:
        answers = await asyncio.gather(*(tenant.post("/v1/sandboxes", json={}) for _ in range(50)))
        assert Counter(answer.status_code for answer in answers) == {201: 7, 503: 43}
        refused = next(answer for answer in answers if answer.status_code == 503)
        problem = refused.json()
        assert (problem["code"], problem["quota"]) == ("no_capacity", True)
        assert problem["detail"] == "tenant other may have sandboxes 7; it has 7, and this wants 1"
        assert "retry-after" not in refused.headers
        assert world.node.created == 7
        # What is freed is freed once: repeated deletes make no more room.
        one = next(answer for answer in answers if answer.status_code == 201).json()["id"]
        await asyncio.gather(*(tenant.delete(f"/v1/sandboxes/{one}") for _ in range(10)))
        again = await asyncio.gather(*(tenant.post("/v1/sandboxes", json={}) for _ in range(20)))
        assert Counter(answer.status_code for answer in again) == {201: 1, 503: 19}
        used = (await world.client.get("/v1/tenants/other/quota")).json()
        assert used["used"] == {"sandboxes": 7, "cpus": 7, "memory_mib": 3584, "disk_mib": 14336, "snapshot_mib": 0, "checkpoints": 0}
    assert await world.create()  # another tenant is not concerned
    assert 'space_quota_refusals_total{quota="sandboxes",tenant="other"} 62.0' in (await world.client.get("/metrics")).text


@dialogue()
async def test_a_create_that_fails_or_is_refused_gives_its_place_back(world: World) -> None:
    await world.client.put("/v1/tenants/default/quota", json={"sandboxes": 1})
    world.node.refuse_create = NoCapacity("full")
    assert (await world.client.post("/v1/sandboxes", json={})).json().get("quota") is None
    world.node.refuse_create = None
    world.node.fail_create = "no boot"
    assert (await world.client.post("/v1/sandboxes", json={})).status_code == 502
    world.node.fail_create = None
    await world.create()


@dialogue()
async def test_a_sandbox_counts_until_the_node_has_ended_it(world: World) -> None:
    await world.client.put("/v1/tenants/default/quota", json={"cpus": 2})
    sandbox = await world.create(cpus=2)
    world.node.hold_delete = asyncio.Event()
    deleting = asyncio.create_task(world.client.delete(f"/v1/sandboxes/{sandbox}"))

    async def is_deleting() -> bool:
        return await world.phase(sandbox) == "deleting"

    await until(is_deleting)
    assert (await world.client.post("/v1/sandboxes", json={})).json()["quota"] is True
    world.node.hold_delete.set()
    assert (await deleting).status_code == 204
    await world.create(cpus=2)


@dialogue(tenant_sandboxes=1, start=False)
async def test_a_tenants_own_quota_goes_before_the_servers_and_outlives_a_restart(world: World) -> None:
    async with controlled(world):
        assert world.services is not None
        await world.services.link.wait_up()
        await world.create()
        assert (await world.client.post("/v1/sandboxes", json={})).status_code == 503
        shown = (await world.client.put("/v1/tenants/default/quota", json={"sandboxes": 2, "memory_mib": None})).json()
        assert (shown["quota"]["sandboxes"], shown["effective"]["sandboxes"], shown["used"]["sandboxes"]) == (2, 2, 1)
        await world.create()
    async with controlled(world):
        assert world.services is not None
        await world.services.link.wait_up()
        assert (await world.client.post("/v1/sandboxes", json={})).status_code == 503
        cleared = (await world.client.put("/v1/tenants/default/quota", json={})).json()
        assert (cleared["quota"]["sandboxes"], cleared["effective"]["sandboxes"]) == (None, 1)


@dialogue()
async def test_requests_beyond_the_rate_are_told_when_to_come_back_and_administration_is_not_counted(world: World) -> None:
    await world.client.put("/v1/tenants/default/quota", json={"requests_per_second": 0.5, "burst": 3})
    answers = [await world.client.get("/v1/sandboxes") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].json()["code"] == "rate_limited"
    assert answers[-1].headers["retry-after"] == "2"
    async with await world.other_tenant() as tenant:
        assert (await tenant.get("/v1/sandboxes")).status_code == 200
    assert (await world.client.put("/v1/tenants/default/quota", json={})).status_code == 200
    assert (await world.client.get("/v1/sandboxes")).status_code == 200


@dialogue()
async def test_only_an_admin_reads_and_sets_quotas_and_nonsense_is_refused(world: World) -> None:
    async with await world.other_tenant() as tenant:
        for answer in (await tenant.get("/v1/tenants/other/quota"), await tenant.put("/v1/tenants/other/quota", json={})):
            assert answer.status_code == 403
    for wrong in ({"sandboxes": -1}, {"sandboxes": 1.5}, {"requests_per_second": 0}, {"burst": 0}, {"cores": 1}, {"cpus": "all"}):
        assert (await world.client.put("/v1/tenants/default/quota", json=wrong)).status_code == 400, wrong
    assert (await world.client.put("/v1/tenants/-/quota", json={})).status_code == 400
