"""`broker`: grant checks of the real broker, each written down by the real keeper of records before it is answered; and many grants.

`checks_per_s`: leases for one use a second of the broker's processor time (user and system), asked for by eight sandboxes at a time; beside
it the same with the keeper's time counted too, and what the clock said. `load_ms`, `memory_mib`: from the start of a broker whose store has
100,000 grants until it is ready, and its memory after it has told 64 sandboxes what they have and lent to each. `granted_over_plain`,
`tripwire_over_plain`: processor time of worker and broker for a small request on a kept connection, and for a byte of a large reply, with a
grant over without one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tempfile
import time
from pathlib import Path

import uvloop

from space.bench import granted
from space.bench.figures import Figure, Section, median, of
from space.bench.gatewayload import NAME
from space.bench.stack import Stack
from space.core.credentials.secret import packed
from space.model.secret import Secret
from space.rpc.audit_client import AuditControl
from space.rpc.broker_client import BrokerControl, Signer
from space.rpc.packets import pair
from space.testing.brokerprocess import AuditProcess, BrokerProcess

HOST, TENANT = "api.example.com", "acme"
_TICK = os.sysconf("SC_CLK_TCK")
_ROUNDS, _CHECKS, _WORKERS, _AT_A_TIME = 5, 3000, 8, 4
_GRANTS, _TOLD = 100_000, 64
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


def measure(stack: Stack) -> Section:
    """About half a minute. The private server of the run is not used: broker and keeper are the same processes without guests."""
    with tempfile.TemporaryDirectory(prefix="sb") as name:
        return uvloop.run(_measure(Path(name), quick=stack.quick))  # the loop of workers


async def _measure(directory: Path, *, quick: bool) -> Section:
    broker, keeper = BrokerProcess(directory), AuditProcess(directory, "--writer", "broker")
    with broker, keeper:
        rates, with_keeper, wall = await _checks(broker, keeper, _CHECKS // (10 if quick else 1))
        costs = await _granted(broker, keeper, quick=quick)
        await _many(broker)
        seconds, mib = await _loaded(broker, keeper)
    figures = {
        "checks_per_s": of(rates, "1/s", with_keeper=median(with_keeper), wall=median(wall)),
        **costs,
        "load_ms": Figure(seconds * 1000, "ms", {"grants": float(_GRANTS)}),
        "memory_mib": Figure(mib, "MiB", {"grants": float(_GRANTS)}),
    }
    return Section(figures, {"checks_per_s": rates, "checks_per_s.with_keeper": with_keeper, "checks_per_s.wall": wall})


async def _joined(broker: BrokerProcess, keeper: AuditProcess) -> tuple[BrokerControl, AuditControl]:
    control, audit = BrokerControl.connect(broker.socket), AuditControl.connect(keeper.socket)
    theirs, ours = pair()
    await control.bind_writer(theirs, ("gateway", "dialer", "broker"))
    await audit.bind_broker(ours)
    theirs, ours = pair()
    await audit.bind_source(theirs, "broker", "", 0)
    await control.bind_audit(ours)
    return control, audit


async def _checks(broker: BrokerProcess, keeper: AuditProcess, checks: int) -> tuple[list[float], list[float], list[float]]:
    control, audit = await _joined(broker, keeper)
    await control.make_root("base", 0)
    await control.put_secret(TENANT, "s", "static", Secret(packed({"value": b"v" * 40})))
    rate = {"count": 1_000_000, "seconds": 1}  # counted, so that each request is a check of its own
    said = {"name": "g", "secret": "s", "where": {"host": HOST, "methods": ["GET"], "paths": ["/v1/**"]}, "slot": {"kind": "header"}}
    await control.put_grant(TENANT, json.dumps({**said, "who": {"labels": {"team": "a"}}, "rate": rate}).encode())
    workers = [await _worker(control, number, {"team": "a"}) for number in range(_WORKERS)]
    rates, with_keeper, wall = [], [], []
    for round_ in range(_ROUNDS + 1):
        before, kept, began = _spent(broker), _spent(keeper), time.perf_counter()
        each = max(1, checks // (_WORKERS * _AT_A_TIME))
        await asyncio.gather(*(_asks(worker, each) for worker in workers for _ in range(_AT_A_TIME)))
        count, took, kept = each * _WORKERS * _AT_A_TIME, _spent(broker) - before, _spent(keeper) - kept
        if round_:  # the first one warms
            rates.append(count / max(took, 1 / _TICK))
            with_keeper.append(count / max(took + kept, 1 / _TICK))
            wall.append(count / (time.perf_counter() - began))
    for worker in workers:
        worker.close()
    control.close()
    audit.close()
    return rates, with_keeper, wall


async def _granted(broker: BrokerProcess, keeper: AuditProcess, *, quick: bool) -> dict[str, Figure]:
    control, audit = await _joined(broker, keeper)
    await control.put_secret(TENANT, "token", "static", Secret(packed({"value": b"tk_live_0Pn2DMIKRiIjIpZLtxvLqw9YxQ7aB3cD"})))
    said = {"name": granted.GRANT, "secret": "token", "where": {"host": NAME}, "slot": {"kind": "header"}, "who": {"all": True}}
    await control.put_grant(TENANT, json.dumps(said).encode())
    worker = await _worker(control, 0, {})
    found = await granted.measure(worker, lambda: _spent(broker), quick=quick)
    worker.close()
    control.close()
    audit.close()
    return found


async def _asks(worker: Signer, count: int) -> None:
    for number in range(count):
        lease = await worker.credential("g", HOST, 443, "GET", "/v1/items", f"c1-{number}")
        assert lease.uses == 1


async def _many(broker: BrokerProcess) -> None:
    """Grants as the broker would have kept them, written by its own code but without a sync for each."""
    from space.broker.grants import rows

    broker.stop()
    grants = (
        {"name": f"g{number}", "secret": "s", "where": {"host": f"h{number}.example.com"}, "slot": {"kind": "header"}, "who": _who(number)}
        for number in range(_GRANTS)
    )
    with sqlite3.connect(broker.data / "store.db") as database:
        for grant in grants:
            for statement, values in rows(TENANT, json.dumps(grant).encode(), "2026-01-01T00:00:00Z"):
                database.execute(statement, values)


async def _loaded(broker: BrokerProcess, keeper: AuditProcess) -> tuple[float, float]:
    began = time.perf_counter()
    broker.start()
    seconds = time.perf_counter() - began
    control, audit = await _joined(broker, keeper)
    for number in range(_TOLD):
        worker = await _worker(control, number, {})
        await worker.credential(f"g{number}", f"h{number}.example.com", 443, "GET", "/")
    mib = _resident(broker)
    control.close()
    audit.close()
    return seconds, mib


def _who(number: int) -> dict[str, list[str]]:
    return {"sandboxes": [_sandbox(number)]}


def _sandbox(number: int) -> str:
    name = ""
    for _ in range(20):
        number, digit = divmod(number, len(_LETTERS))
        name = _LETTERS[digit] + name
    return f"sb-{name}"


async def _worker(control: BrokerControl, number: int, labels: dict[str, str]) -> Signer:
    theirs, ours = pair()
    await control.bind_sandbox(theirs, _sandbox(number), 1, "base", 0, tenant=TENANT, labels=labels)
    return Signer(ours)


def _resident(process: BrokerProcess) -> float:
    assert process.process is not None
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def _spent(process: BrokerProcess | AuditProcess) -> float:
    assert process.process is not None
    fields = Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK
