"""A broker that is killed while it puts, rotates and counts: what it had answered holds, what it had not is there whole or not at all."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

from space.core.credentials.secret import packed
from space.model.errors import Conflict, Unavailable
from space.model.secret import Secret
from space.rpc.audit_client import AuditControl
from space.rpc.broker_client import BrokerControl, Signer
from space.rpc.packets import pair
from space.testing.brokerprocess import AuditProcess, BrokerProcess

HOST, TENANT, USES = "api.example.com", "acme", 1_000_000


class Held:
    """What the broker answered so far; `enough` once that many of both."""

    def __init__(self, answers: int) -> None:
        self.version = self.lent = 0
        self.enough = asyncio.Event()
        self._answers = answers

    def counted(self) -> None:
        if min(self.version, self.lent) >= self._answers:
            self.enough.set()


async def _joined(broker: BrokerProcess, keeper: AuditProcess) -> tuple[BrokerControl, AuditControl, Signer]:
    control, audit = BrokerControl.connect(broker.socket), AuditControl.connect(keeper.socket)
    theirs, ours = pair()
    await control.bind_writer(theirs, ("gateway", "dialer", "broker"))
    await audit.bind_broker(ours)
    theirs, ours = pair()
    await audit.bind_source(theirs, "broker", "", 0)
    await control.bind_audit(ours)
    with suppress(Conflict):  # the store has it since the first time
        await control.make_root("base", 0)
    theirs, ours = pair()
    await control.bind_sandbox(theirs, "sb-" + "a" * 20, 1, "base", 0, tenant=TENANT)
    return control, audit, Signer(ours)


async def _rotates(control: BrokerControl, held: Held) -> None:
    with suppress(Unavailable, OSError):
        while True:
            value = f"value-{held.version + 1}".encode()
            held.version = (await control.put_secret(TENANT, "s", "static", Secret(packed({"value": value})), mode="rotate")).version
            held.counted()


async def _uses(worker: Signer, held: Held) -> None:
    with suppress(Unavailable, OSError):
        while True:
            await worker.credential("g", HOST, 443, "GET", "/")
            held.lent += 1
            held.counted()


@pytest.mark.parametrize("answers", [2, 7, 19, 40])
def test_a_broker_killed_while_it_writes_leaves_a_whole_store(tmp_path: Path, answers: int) -> None:
    broker, keeper, held = BrokerProcess(tmp_path), AuditProcess(tmp_path, "--writer", "broker"), Held(answers)

    async def until_killed() -> None:
        control, audit, worker = await _joined(broker, keeper)
        held.version = (await control.put_secret(TENANT, "s", "static", Secret(packed({"value": b"value-1"})))).version
        said = {"name": "g", "secret": "s", "where": {"host": HOST}, "slot": {"kind": "header"}, "who": {"all": True}, "uses": USES}
        await control.put_grant(TENANT, json.dumps(said).encode())
        busy = [asyncio.create_task(_rotates(control, held)), *(asyncio.create_task(_uses(worker, held)) for _ in range(3))]
        await held.enough.wait()
        broker.kill()
        await asyncio.gather(*busy)
        for end in (worker, control, audit):
            end.close()

    async def afterwards() -> None:
        control, audit, worker = await _joined(broker, keeper)
        version = (await control.secret(TENANT, "s")).version
        assert held.version <= version <= held.version + 1
        assert held.lent <= (await control.grant(TENANT, "g")).used <= held.lent + 3
        lease = await worker.credential("g", HOST, 443, "GET", "/")
        assert (lease.version, bytes(lease.value)) == (version, f"value-{version}".encode())
        for end in (worker, control, audit):
            end.close()

    with keeper, broker:
        asyncio.run(asyncio.wait_for(until_killed(), 20))
        broker.start()
        asyncio.run(asyncio.wait_for(afterwards(), 20))
