"""What a credential costs: requests with a grant and without one through one worker, with leases of the real broker, by processor time.

The worker runs in this process, upstream and clients in others, whose cost counts for nobody. Rounds of both kinds follow one another.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from space.bench.figures import Figure, ratio
from space.bench.gatewayload import NAME, Mode, Target, load, upstream
from space.core.credentials.grant import Header, Outline
from space.gateway.lending import Lender
from space.gateway.loans import NONE, Grants
from space.gateway.surroundings import Limits, Ruling
from space.rpc.broker_api import Credential
from space.rpc.broker_client import Signer
from space.testing.egress import Lab, stack_of

GRANT = "measured"
_ROUNDS, _SECONDS, _BEGIN = 5, 1.5, 0.5


async def measure(worker: Signer, spent: Callable[[], float], *, quick: bool) -> dict[str, Figure]:
    """worker: a sandbox's socket of a broker that has the grant `GRANT` for NAME at 443. spent: the broker's processor time."""
    found = {}
    modes: tuple[tuple[str, Mode], ...] = (("granted_over_plain", "keepalive"), ("tripwire_over_plain", "bulk"))
    for name, mode in modes:
        with_it, without = await _compared(worker, spent, mode, 1 if quick else _ROUNDS)
        found[name] = ratio(with_it, without)
    return found


async def _compared(worker: Signer, spent: Callable[[], float], mode: Mode, rounds: int) -> tuple[list[float], list[float]]:
    """Processor time for each request (or byte), with a grant and without."""
    lab = Lab(Ruling(1, stack_of()), limits=Limits())
    held = [NONE]

    async def ask(grant: str, host: str, _port: int, method: str, path: str, request: str, approved: bool) -> Credential:
        return await worker.credential(grant, host, 443, method, path, request, approved=approved)

    object.__setattr__(lab.around, "grants", lambda: held[0])
    object.__setattr__(lab.around, "lender", Lender(ask, time.monotonic, 30.0))
    with tempfile.TemporaryDirectory() as name:
        pem = Path(name) / "upstream.pem"
        leaf = lab.signer.make(NAME)
        pem.write_bytes(leaf.chain + leaf.key)
        with upstream(str(pem)) as served:
            port = lab.listen()
            lab.policy({"rule": [{"host": NAME, "port": port}]})
            lab.dialer.places[NAME, port] = ("127.0.0.1", served.port)
            one = Outline(GRANT, NAME, port, None, None, Header())
            target = Target(lab.address(NAME), port, f"{NAME}:{port}", lab.signer.pem)
            costs: tuple[list[float], list[float]] = [], []
            try:
                for _ in range(rounds):
                    for into, grants in zip(costs, (Grants([one]), NONE), strict=True):
                        held[0] = grants
                        into.append(await _round(target, mode, spent))
            finally:
                await lab.close()
    return costs


async def _round(target: Target, mode: Mode, spent: Callable[[], float]) -> float:
    with load(target, mode) as clients:
        await asyncio.sleep(_BEGIN)
        before, (count, _), began = spent(), await asyncio.to_thread(clients.count), _own()
        await asyncio.sleep(_SECONDS)
        used = _own() - began + spent() - before
        after, failures = await asyncio.to_thread(clients.count)
    if failures:
        raise RuntimeError(f"{failures} requests failed")
    return used / (after - count)


def _own() -> float:
    times = os.times()
    return times.user + times.system
