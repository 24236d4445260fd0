"""How a worker ends with its sandbox, or with the gateway: by itself and having told everything, or by force."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from space.testing.gatewaylab import GatewayLab, gateway_lab
from space.testing.roothost import RootHost

Work = Callable[[GatewayLab], Coroutine[Any, Any, None]]
ALLOWED = "allowed.example.com"


def run(host: RootHost, root: Path, work: Work) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), gateway_lab(host, root) as lab:
            await work(lab)

    asyncio.run(main())


@pytest.mark.parametrize("ends", ["its sandbox", "the gateway"])
def test_a_request_that_is_under_way_when_it_all_ends_is_recorded(host: RootHost, root: Path, ends: str) -> None:
    """Else a guest that sends what it should not and powers itself off would be told of by a dial alone."""

    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(policy={"rule": [{"host": ALLOWED, "port": port}]})
        _, writer = await lab.tls(place, ALLOWED, port)
        writer.write(f"POST /taken HTTP/1.1\r\nHost: {ALLOWED}:{port}\r\nContent-Length: 100000\r\n\r\n".encode() + bytes(5000))
        await lab.until(lambda: lab.upstreams[ALLOWED].heads)
        if ends == "its sandbox":
            await lab.gateway.end(place.sandbox, place.generation)
        else:
            lab.end_zygote()
        await lab.keeper.end_source("gateway", place.sandbox, place.generation)
        (file,) = lab.audit.data.glob("gateway.*.jsonl")
        records = [json.loads(line) for line in file.read_text().splitlines()]
        (request,) = [one for one in records if one["type"] == "request"]
        (connection,) = [one for one in records if one["type"] == "connection"]
        assert (request["method"], request["path"], request["reason"], connection["reason"]) == ("POST", "/taken", "stopped", "stopped")
        assert connection["sent"] >= 5000
        writer.transport.abort()

    run(host, root, work)


def test_a_worker_that_does_not_end_when_it_is_asked_to_is_killed(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(policy={"rule": [{"host": ALLOWED, "port": port}]})
        await lab.get(place, ALLOWED, port)
        os.kill(lab.pid(place), signal.SIGSTOP)
        async with asyncio.timeout(5):
            await lab.gateway.end(place.sandbox, place.generation)

    run(host, root, work)
