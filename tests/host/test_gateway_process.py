"""The gateway as processes: zygote and workers as they are in the product, at real slots, with real broker and keeper of records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from space.testing.gatewaylab import GatewayLab, gateway_lab
from space.testing.roothost import RootHost

ALLOWED, OTHER, REFUSED = "allowed.example.com", "other.example.com", "refused.example.com"
Work = Callable[[GatewayLab], Coroutine[Any, Any, None]]


def run(host: RootHost, root: Path, work: Work, module: str = "space.gateway.server") -> None:
    async def main() -> None:
        async with asyncio.timeout(120), gateway_lab(host, root, module) as lab:
            await work(lab)

    asyncio.run(main())


def rules(port: int, *names: str) -> dict[str, Any]:
    return {"rule": [{"host": name, "port": port} for name in names or (ALLOWED, OTHER)]}


def test_a_request_goes_through_and_a_refused_name_does_not(host: RootHost, root: Path) -> None:
    async def work(lab: GatewayLab) -> None:
        port = await lab.upstream(ALLOWED)
        place = await lab.sandbox(policy=rules(port))
        assert lab.pid(place) == 0
        answer = await lab.get(place, ALLOWED, port, "/a?token=s3cret")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert await lab.ask(place, REFUSED) == (5, None)
        assert lab.pid(place) > 0
        assert lab.upstreams[ALLOWED].heads[0].startswith(b"GET /a?token=s3cret HTTP/1.1\r\nhost: ")

    run(host, root, work)
