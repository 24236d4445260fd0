"""A real guest and the town outside: what its policy allows goes through, what it does not stays in, whoever is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.machine.test_templates import build, context

from space.core.policy import document
from space.host import namespaces
from space.model.ids import new_sandbox_id
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Data, Message, Session
from space.testing import leaks, machine
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance
from space.testing.egresstown import Town, town

ALLOWED, OTHER = "allowed.example.com", "other.example.com"
# curl's own words say which step refused it
GET = (
    "curl --silent --show-error --max-time 20 --write-out '%{{http_code}}' --output /tmp/body https://{name}{path} 2>&1;"
    " echo; cat /tmp/body; rm -f /tmp/body"
)
HOLD = (
    "import http.client, ssl, sys, time\n"
    "c = http.client.HTTPSConnection(sys.argv[1], timeout=20, context=ssl.create_default_context())\n"
    "while True:\n"
    "    try:\n"
    "        c.request('GET', '/tick'); print(c.getresponse().read().decode(), flush=True)\n"
    "    except Exception as e: print('!', type(e).__name__, flush=True); c.close()\n"
    "    time.sleep(0.05)\n"
)


def policy(*rules: dict[str, Any], **more: Any) -> bytes:
    return document.compose({"sandbox": {"version": 1, "rule": list(rules), **more}})


@pytest.fixture(scope="module")
def place() -> Iterator[Town]:
    with town() as made:
        made.serve(ALLOWED)
        made.serve(OTHER)
        yield made


@pytest.fixture(scope="module")
def bare(place: Town) -> Iterator[BareInstance]:
    with bare_instance(*BESIDE_NODE, "node", settings=place.as_settings()) as one:
        yield one


def run(bare: BareInstance, work: Callable[[Session], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(240):
            session = await Session.connect(bare.instance.node_socket)
            try:
                await work(session)
            finally:
                await session.aclose()

    asyncio.run(within())


async def put(session: Session, data: bytes) -> str:
    digest = document.digest(data)
    async with await session.open("policy_put", api.PolicyPut(digest, len(data))) as stream:
        await stream.send(data)
        await stream.close()
        assert [event async for event in stream if isinstance(event, Message)]
    return digest


async def create(session: Session, data: bytes | None) -> api.SandboxState:
    digest = "" if data is None else await put(session, data)
    asked = api.Create(new_sandbox_id(), "acme", 1, "base", 1, 512, 2048, {}, policy=digest, policy_generation=1)
    async with await session.open("create", asked, finish=True) as stream:
        state = [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream if isinstance(event, Message)][-1]
    assert state.phase == "running", state.reason
    return state


async def sh(session: Session, sandbox: str, script: str) -> str:
    async with await session.open("exec", api.Exec(sandbox, ["sh", "-c", script]), finish=True) as stream:
        return b"".join([event.payload async for event in stream if isinstance(event, Data)]).decode()


async def get(session: Session, sandbox: str, name: str, path: str = "/") -> tuple[str, str]:
    """What curl said: a status (000 when there was none, with its words), and the body."""
    first, _, body = (await sh(session, sandbox, GET.format(name=name, path=path))).partition("\n")
    return first, body


async def state_of(session: Session, sandbox: str) -> api.SandboxState:
    listed = msgspec.msgpack.decode(await session.call("list", api.Empty()), type=api.SandboxList)
    return next(one for one in listed.sandboxes if one.sandbox == sandbox)


async def counters(session: Session, sandbox: str) -> api.EgressCounters:
    return msgspec.msgpack.decode(await session.call("egress_counters", api.Target(sandbox)), type=api.EgressCounters)


def heads(place: Town, name: str) -> int:
    return len(place.servers[name].heads)


def worker(bare: BareInstance) -> int:
    """The worker that lives, of the only sandbox."""
    uids = range(bare.instance.worker_uid(0), bare.instance.uid_range.stop)
    (found,) = (
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and entry.stat().st_uid in uids and namespaces.start_time(int(entry.name)) is not None
    )
    return found


def test_an_allowed_name_is_reached_and_another_is_not(bare: BareInstance, place: Town) -> None:
    async def work(session: Session) -> None:
        began = time.monotonic()
        state = await create(session, policy({"host": ALLOWED, "paths": ["/open/**"]}))
        print(f"created in {time.monotonic() - began:.2f} s: {state.stages_ms}")
        seen = heads(place, ALLOWED), heads(place, OTHER)
        status, body = await get(session, state.sandbox, ALLOWED, "/open/door")
        assert (status, body) == ("200", "GET /open/door HTTP/1.1 got 0")
        assert (await get(session, state.sandbox, ALLOWED, "/shut"))[0] == "403"
        status, words = await get(session, state.sandbox, OTHER)
        assert status != "200"
        assert "resolve" in status, (status, words)
        assert (heads(place, ALLOWED) - seen[0], heads(place, OTHER) - seen[1]) == (1, 0)
        assert not [asked for asked in place.zone.asked if asked[1] == OTHER]  # no query left the machine
        found = await counters(session, state.sandbox)
        print(found)
        assert found.worker
        assert (found.requests >= 1, found.denied >= 1, found.drops["admitted_tcp"] > 0) == (True, True, True)
        await session.call("delete", api.Target(state.sandbox))

    run(bare, work)
    leaks.settle(lambda: leaks.of_sandboxes(bare.instance))


def test_without_a_policy_nothing_is_reached_and_a_policy_takes_hold_while_it_runs_or_is_paused(bare: BareInstance, place: Town) -> None:
    async def work(session: Session) -> None:
        state = await create(session, None)
        assert (await get(session, state.sandbox, ALLOWED))[0] != "200"
        one = await put(session, policy({"host": ALLOWED}))
        await session.call("set_policy", api.SetPolicy(state.sandbox, one, 2))
        assert (await get(session, state.sandbox, ALLOWED))[0] == "200"
        await session.call("pause", api.Target(state.sandbox))
        two = await put(session, policy({"host": OTHER}))
        await session.call("set_policy", api.SetPolicy(state.sandbox, two, 3))
        await session.call("resume", api.Target(state.sandbox))
        assert (await get(session, state.sandbox, ALLOWED))[0] != "200"
        assert (await get(session, state.sandbox, OTHER))[0] == "200"
        assert (await state_of(session, state.sandbox)).egress.policy_generation == 3
        await session.call("delete", api.Target(state.sandbox))

    run(bare, work)


def test_traffic_recovers_after_sigkill_of_whoever_carries_it_without_a_sandbox_being_touched(bare: BareInstance, place: Town) -> None:
    names: list[str] = []

    async def ticks(session: Session) -> list[str]:
        return (await sh(session, names[0], "cat /tmp/ticks")).splitlines()

    async def until_served(session: Session, after: int) -> None:
        async with asyncio.timeout(60):
            while not [tick for tick in (await ticks(session))[after:] if "got 0" in tick]:  # noqa: ASYNC110 (of a guest)
                await asyncio.sleep(0.05)

    async def begin(session: Session) -> None:
        names.append((await create(session, policy({"host": ALLOWED}))).sandbox)
        await sh(session, names[0], f"cat >/tmp/hold.py <<'E'\n{HOLD}E\n")
        # goes on all the time, and writes down what it got
        argv = ["sh", "-c", f"exec python3 -u /tmp/hold.py {ALLOWED} >/tmp/ticks 2>&1"]
        await session.call("exec", api.Exec(names[0], argv, attach=False))
        await until_served(session, 0)

    def recovers(who: str) -> Callable[[Session], Awaitable[None]]:
        async def look(session: Session) -> None:
            began = time.monotonic()
            await until_served(session, len(await ticks(session)))
            print(f"{who}: served again {time.monotonic() - began:.2f} s after it was looked for")
            assert (await get(session, names[0], ALLOWED))[0] == "200"
            assert (await get(session, names[0], OTHER))[0] != "200"
            async with asyncio.timeout(20):
                while (await state_of(session, names[0])).egress.waiting_for:  # noqa: ASYNC110 (of another process)
                    await asyncio.sleep(0.05)
            state = await state_of(session, names[0])
            assert state.egress.worker_crashes == 1, state.egress  # the worker is killed first; none ends for the others
            assert state.phase == "running"

        return look

    run(bare, begin)
    guests, others = machine.vmm_pids(bare.instance), heads(place, OTHER)
    os.kill(worker(bare), signal.SIGKILL)
    run(bare, recovers("worker"))
    for who in ("dialer", "broker", "audit", "gateway", "node"):
        bare.kill(who)
        bare.start(who)
        run(bare, recovers(who))
    assert machine.vmm_pids(bare.instance) == guests
    assert heads(place, OTHER) == others

    async def end(session: Session) -> None:
        await session.call("delete", api.Target(names[0]))

    run(bare, end)
    leaks.settle(lambda: leaks.of_sandboxes(bare.instance))


def test_what_was_decided_is_told_of_both_chains_and_is_whole(bare: BareInstance, place: Town) -> None:
    async def work(session: Session) -> None:
        sandbox = (await create(session, policy({"host": ALLOWED, "name": "only"}))).sandbox
        assert (await get(session, sandbox, ALLOWED, "/seen?token=s3cret"))[0] == "200"
        assert (await get(session, sandbox, OTHER))[0] != "200"
        found: list[dict[str, Any]] = []
        asked = api.EgressLog(sandbox, after={}, follow=True)
        async with asyncio.timeout(20), await session.open("egress_log", asked, finish=True) as stream:
            async for event in stream:
                assert isinstance(event, Message)
                page = msgspec.msgpack.decode(event.payload, type=api.EgressRecords)
                found += [msgspec.json.decode(record.line) | {"chain": record.chain} for record in page.records]
                if {"request", "dial"} <= {one["type"] for one in found} and any(one.get("reason") for one in found):
                    break
        assert {one["sandbox"] for one in found} == {sandbox}
        request = next(one for one in found if one["type"] == "request")
        said = [request[key] for key in ("name", "path", "query", "status", "rule")]
        assert said == [ALLOWED, "/seen", ["token"], 200, "only"]
        assert next(one for one in found if one["type"] == "dial")["chain"] == "dialer"
        assert {one["name"] for one in found if one.get("reason")} == {OTHER}
        assert "s3cret" not in str(found)
        assert heads(place, ALLOWED)
        await session.call("delete", api.Target(sandbox))

    run(bare, work)


def test_the_policy_of_now_holds_after_a_wake_and_not_the_one_that_it_was_suspended_under(bare: BareInstance, place: Town) -> None:
    async def ends(session: Session, verb: str, asked: msgspec.Struct) -> api.SandboxState:
        async with await session.open(verb, asked, finish=True) as stream:
            return [msgspec.msgpack.decode(each.payload, type=api.SandboxState) async for each in stream if isinstance(each, Message)][-1]

    async def work(session: Session) -> None:
        first, second = policy({"host": ALLOWED}), policy({"host": OTHER})
        sandbox = (await create(session, first)).sandbox
        assert (await get(session, sandbox, ALLOWED))[0] == "200"
        held = api.Exec(sandbox, ["python3", "-u", "-c", HOLD, ALLOWED], attach=False, process="pr-00000000000000aa")
        await session.call("exec", held)
        assert (await ends(session, "suspend", api.Target(sandbox))).phase == "suspended"
        digest = await put(session, second)
        await session.call("set_policy", api.SetPolicy(sandbox, digest, 2))
        woken = await ends(session, "wake", life_api.Wake(sandbox=sandbox, generation=2, policy=digest, policy_generation=3))
        assert (woken.phase, woken.egress.policy, woken.egress.policy_generation) == ("running", digest, 3), woken.reason
        seen = heads(place, ALLOWED)
        status, _ = await get(session, sandbox, ALLOWED)
        assert status != "200"
        assert (await get(session, sandbox, OTHER))[0] == "200"  # the first packet after the wake was answered, by the new policy
        await asyncio.sleep(1)
        assert heads(place, ALLOWED) == seen  # nor does a connection of the former life go on
        await session.call("delete", api.Target(sandbox))

    run(bare, work)
    leaks.settle(lambda: leaks.of_sandboxes(bare.instance))


FETCH = "curl --silent --fail --max-time 20 --output /dev/null https://{name}/x"
RECIPE = f"""
version = 1
name = "fetched"
[base]
template = "base"
[[step]]
run = "! {FETCH.format(name=ALLOWED)}"
[[step]]
run = "{FETCH.format(name=ALLOWED)}; ! {FETCH.format(name=OTHER)}"
egress = "mirrors"
[[step]]
run = "{FETCH.format(name=OTHER)}"
[step.egress]
version = 1
mode = "record"
[[step]]
run = "if {FETCH.format(name=ALLOWED)} || {FETCH.format(name=OTHER)}; then exit 1; fi"
"""


def test_a_recipes_step_reaches_what_its_policy_allows_and_the_steps_around_it_nothing(bare: BareInstance) -> None:
    async def work(session: Session) -> None:
        policies = {
            '"mirrors"': await put(session, policy({"host": ALLOWED})),
            '{"mode": "record", "version": 1}': await put(session, policy(mode="record")),
        }
        made, _, said = await build(session, api.TemplateBuild("acme", RECIPE, policies=policies), context())
        assert made.name == "fetched", said
        await session.call("template_drop", api.TemplateTarget("acme", made.digest))

    run(bare, work)
