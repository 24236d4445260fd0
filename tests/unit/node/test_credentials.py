"""Credentials through the node: grants are attached before anything runs, placeholders are in every environment, nothing is left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from space.core.credentials.secret import packed
from space.core.lifecycle.admission import Capacity
from space.core.wire import workertalk
from space.model.errors import Conflict, InvalidArgument, NoCapacity, NotFound
from space.model.ids import new_sandbox_id
from space.model.secret import Secret
from space.node.ledger import Holding, Kind
from space.node.stages import Stage
from space.rpc import broker_api, gateway_api, node_api
from space.rpc import credential_api as api
from space.rpc.life_api import Child, Fork
from space.rpc.session import Data, Message, Session
from space.testing.memorynode import MemoryNode

T = TypeVar("T", bound=msgspec.Struct)
CANARY = b"canary-7d1f0c2e"


async def granted(sim: Any, name: str = "g", **more: Any) -> None:
    broker = sim.services.broker
    if ("acme", "s") not in broker.secrets_held:
        await broker.put_secret("acme", "s", "static", Secret(packed({"value": CANARY})))
    slot = {"kind": "placeholder", "env": "TOKEN", "name": "authorization"}
    grant = {"name": name, "secret": "s", "where": {"host": "api.example.com"}, "slot": slot} | more
    await broker.put_grant("acme", json.dumps(grant).encode())


async def create(session: Session, sandbox: str = "", **more: Any) -> node_api.SandboxState:
    asked = node_api.Create(sandbox or new_sandbox_id(), "acme", 1, "base", 1, 512, 2048, {}, **more)
    async with await session.open("create", asked, finish=True) as stream:
        told = [event.payload async for event in stream if isinstance(event, Message)]
    return msgspec.msgpack.decode(told[-1], type=node_api.SandboxState)


async def call(session: Session, verb: str, request: msgspec.Struct, kind: type[T]) -> T:
    return msgspec.msgpack.decode(await session.call(verb, request), type=kind)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (of fakes in the same loop)
            await asyncio.sleep(0.005)


async def ran(session: Session, sandbox: str, env: dict[str, str]) -> list[str]:
    """The environment of a program."""
    async with await session.open("exec", node_api.Exec(sandbox, ["env"], env=env)) as stream:
        await stream.close()
        return b"".join([event.payload async for event in stream if isinstance(event, Data)]).decode().splitlines()


def placeholders(sim: MemoryNode, sandbox: str) -> dict[str, str]:
    return sim.node.find(node_api.Target(sandbox)).placeholders()


async def test_what_is_granted_at_create_is_attached_before_the_guest_runs(tmp_path: Path) -> None:
    attached: list[list[str]] = []
    sandbox = new_sandbox_id()

    async def trace(name: str, stage: Stage, when: str) -> None:
        if (stage, when) == (Stage.SPAWN, "before"):
            attached.append(await sim.services.broker.attached("acme", name))

    async with MemoryNode(tmp_path, trace=trace) as sim, sim.connected() as session:
        await granted(sim)
        state = await create(session, sandbox, grants=["g"], labels={"team": "a"})
        assert (state.phase, attached) == ("running", [["g"]])
        life = sim.services.broker.lives[sandbox][1]
        assert (life.tenant, life.template, life.labels, life.forked) == ("acme", "base", {"team": "a"}, False)
        assert list(placeholders(sim, sandbox)) == ["TOKEN"]
        await session.call("delete", node_api.Target(sandbox))
        await until(lambda: sim.services.broker.forgotten == [sandbox])
        await until(lambda: not sim.node.around.ledger.holdings())


async def test_a_create_with_an_unknown_grant_is_not_found_and_leaves_nothing(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        await granted(sim)
        with pytest.raises(NotFound, match="there is no grant 'missing'"):
            await create(session, grants=["g", "missing"])
        await until(lambda: not sim.node.around.ledger.holdings())
        assert sim.node.around.board.states() == []
        assert not any(sim.services.broker.attachments.values())


async def test_a_create_without_room_leaves_nothing_attached(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path, capacity=Capacity(memory_mib=64, sandboxes=1, boots=1, queue=1)) as sim, sim.connected() as session:
        await granted(sim)
        with pytest.raises(NoCapacity):
            await create(session, grants=["g"])
        await until(lambda: not sim.node.around.ledger.holdings())
        assert not any(sim.services.broker.attachments.values())


async def test_what_was_attached_is_forgotten_by_the_next_node_when_this_one_dies_over_it(tmp_path: Path) -> None:
    sandbox = new_sandbox_id()
    async with MemoryNode(tmp_path) as sim:
        await granted(sim)
        sim.node.around.ledger.hold(Holding(Kind.GRANTS, sandbox, sandbox, 1, "acme"))
        await sim.services.broker.attach_grants("acme", sandbox, ("g",))
        sim.crash()
        await sim.start()
        await until(lambda: sim.services.broker.forgotten == [sandbox])
        await until(lambda: not sim.node.around.ledger.holdings())


async def test_a_deletion_does_not_wait_for_a_broker_that_is_away_and_its_grants_are_forgotten_later(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        await granted(sim)
        state = await create(session, grants=["g"])
        with sim.services.gone("broker"):
            gone = await call(session, "delete", node_api.Target(state.sandbox), node_api.SandboxState)
            assert gone.phase == "gone"
        await until(lambda: sim.services.broker.forgotten == [state.sandbox])


async def test_a_fork_is_told_to_the_broker_as_one_and_has_nothing_attached(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        await granted(sim, "attached")
        await granted(sim, "by-label", who={"labels": {"team": "a"}}, slot={"kind": "placeholder", "env": "LABEL", "name": "x-key"})
        await granted(
            sim, "crosses", forks=True, who={"labels": {"team": "a"}}, slot={"kind": "placeholder", "env": "CROSSES", "name": "x-key"}
        )
        parent = await create(session, grants=["attached"], labels={"team": "a"})
        assert placeholders(sim, parent.sandbox).keys() == {"TOKEN", "LABEL", "CROSSES"}
        child = new_sandbox_id()
        async with await session.open("fork", Fork(sandbox=parent.sandbox, children=[Child(sandbox=child, generation=1)])) as stream:
            await stream.close()
            async for _ in stream:
                pass
        assert sim.services.broker.lives[child][1].forked
        assert placeholders(sim, child).keys() == {"CROSSES"}
        assert placeholders(sim, child)["CROSSES"] != placeholders(sim, parent.sandbox)["CROSSES"], "new ones after a fork"


async def test_a_fork_that_is_granted_again_has_it(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        await granted(sim)
        parent, child = await create(session), new_sandbox_id()
        async with await session.open("fork", Fork(sandbox=parent.sandbox, children=[Child(sandbox=child, generation=1)])) as stream:
            await stream.close()
            async for _ in stream:
                pass
        await session.call("grants_attach", api.Attachment("acme", child, ("g",)))
        assert await call(session, "grants_attached", api.Attachment("acme", child), api.GrantNames) == api.GrantNames(["g"])
        await sim.node.find(node_api.Target(child)).environment()
        assert placeholders(sim, child).keys() == {"TOKEN"}


async def test_what_a_fork_is_granted_is_attached_before_its_child_runs_or_there_is_none(tmp_path: Path) -> None:
    attached: list[list[str]] = []
    child = new_sandbox_id()

    async def trace(name: str, stage: Stage, when: str) -> None:
        if (name, stage, when) == (child, Stage.SPAWN, "before"):
            attached.append(await sim.services.broker.attached("acme", name))

    async def forked(session: Session, parent: str, *grants: str) -> None:
        one = Child(sandbox=child, generation=1, grants=list(grants))
        async with await session.open("fork", Fork(sandbox=parent, children=[one])) as stream:
            await stream.close()
            async for _ in stream:
                pass

    async with MemoryNode(tmp_path, trace=trace) as sim, sim.connected() as session:
        await granted(sim)
        parent = (await create(session)).sandbox
        with pytest.raises(NotFound, match="there is no grant 'missing'"):
            await forked(session, parent, "g", "missing")
        await until(lambda: not any(one.kind is Kind.GRANTS for one in sim.node.around.ledger.holdings()))
        assert not any(sim.services.broker.attachments.values())
        await forked(session, parent, "g")
        assert attached == [["g"]]
        assert placeholders(sim, child).keys() == {"TOKEN"}
        assert placeholders(sim, parent) == {}, "it is the child's alone"
        await session.call("delete", node_api.Target(child))
        await until(lambda: not any(sim.services.broker.attachments.values()))


async def test_a_command_gets_placeholders_and_a_value_of_the_callers_own_wins(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        await granted(sim)
        await granted(sim, "own", who={"all": True}, slot={"kind": "placeholder", "env": "OWN", "name": "x-key"})
        asked = node_api.Create(new_sandbox_id(), "acme", 1, "base", 1, 512, 2048, {"OWN": "mine"}, grants=["g"])
        async with await session.open("create", asked, finish=True) as stream:
            async for _ in stream:
                pass
        sandbox = sim.node.find(node_api.Target(asked.sandbox))
        assert (await sandbox.environment()).keys() == {"TOKEN"}, "the sandbox has OWN itself"
        token = placeholders(sim, asked.sandbox)["TOKEN"]
        assert f"TOKEN={token}" in await ran(session, asked.sandbox, {})
        assert "TOKEN=mine" in await ran(session, asked.sandbox, {"TOKEN": "mine"})


async def test_placeholders_are_others_after_a_grant_of_the_tenant_has_changed_and_stay_while_the_broker_is_away(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        state = await create(session)
        sandbox = sim.node.find(node_api.Target(state.sandbox))
        assert await sandbox.environment() == {}
        await granted(sim, "all", who={"all": True})
        await session.call("secret_put", api.SecretPut("acme", "other", "static", packed({"value": CANARY})))
        grant = {"name": "h", "secret": "other", "where": {"host": "h.example.com"}, "who": {"all": True}}
        slot = {"kind": "placeholder", "env": "H", "name": "authorization"}
        await session.call("grant_put", api.GrantPut("acme", json.dumps({**grant, "slot": slot}).encode()))
        assert (await sandbox.environment()).keys() == {"TOKEN", "H"}
        with sim.services.gone("broker"):
            assert (await sandbox.environment()).keys() == {"TOKEN", "H"}


async def test_no_answer_of_the_node_holds_a_value(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        answers = [
            await session.call("secret_put", api.SecretPut("acme", "s", "static", packed({"value": CANARY}))),
            await session.call("secret_get", api.Named("acme", "s")),
            await session.call("secret_list", api.Listing("acme")),
            await session.call("secret_revoke", api.Named("acme", "s")),
        ]
        assert sim.services.broker.secrets_held["acme", "s"].revoked
        assert not any(CANARY in answer for answer in answers)
        for wrong in (
            api.SecretPut("acme", "s", "static", packed({"value": CANARY})),
            api.SecretPut("acme", "t", "aws", packed({"value": CANARY})),
        ):
            with pytest.raises((Conflict, InvalidArgument)) as refused:
                await session.call("secret_put", wrong)
            assert CANARY.decode() not in str(refused.value)


async def test_nothing_is_attached_to_a_sandbox_of_another_tenant(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        await granted(sim)
        state = await create(session)
        with pytest.raises(NotFound):
            await session.call("grants_attach", api.Attachment("other", state.sandbox, ("g",)))
        assert not any(sim.services.broker.attachments.values())


async def test_new_labels_are_what_grants_see(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        state = await create(session, labels={"team": "a"})
        await session.call("set_labels", node_api.SetLabels(state.sandbox, {"team": "b"}))
        await until(lambda: sim.services.broker.lives[state.sandbox][1].labels == {"team": "b"} and sim.services.whole(state.sandbox))


async def test_an_alarm_of_a_worker_is_part_of_the_level(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        state = await create(session)
        for kind, count in (("credential_echoed", 2), ("placeholder_misplaced", 1), ("credential_echoed", 3)):
            said = workertalk.encode(workertalk.Alarm(kind=kind, grant="g", host="api.example.com", count=count))  # type: ignore[arg-type]
            sim.node.around.egress.heard(gateway_api.Heard(state.sandbox, 1, said))
        told = sim.node.find(node_api.Target(state.sandbox)).state.egress.alarms
        assert [(one.kind, one.grant, one.count) for one in told] == [("tripwire", "g", 5), ("misplaced", "g", 1)]


async def test_an_alarm_of_the_broker_is_part_of_the_level_and_is_counted(tmp_path: Path) -> None:
    async with MemoryNode(tmp_path) as sim, sim.connected() as session:
        state = await create(session)
        for count in (1, 4):
            sim.node.around.egress.services.unasked(broker_api.Alarm("rate", "acme", state.sandbox, "g", "s", "api.example.com", count))
        sim.node.around.egress.services.unasked(broker_api.Alarm("rate", "other", state.sandbox, "g", "s", "api.example.com", 1))
        told = sim.node.find(node_api.Target(state.sandbox)).state.egress.alarms
        assert [(one.kind, one.grant, one.secret, one.host, one.count) for one in told] == [("rate", "g", "s", "api.example.com", 5)]
