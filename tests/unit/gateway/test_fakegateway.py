"""The fake zygote keeps the contract's rules about lives, slots and policies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from space.model.errors import Conflict, InvalidArgument, NotFound, Unavailable
from space.rpc import gateway_api as api
from space.rpc.gateway_client import Means, make_policy
from space.testing.fakegateway import FakeGateway

SANDBOX, OTHER = "sb-" + "a" * 20, "sb-" + "b" * 20


@contextmanager
def means() -> Iterator[Means]:
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        yield Means(null, null, null, null, null, null, null, [null])
    finally:
        os.close(null)


def run(work: Callable[[FakeGateway, list[api.Unasked]], Coroutine[Any, Any, None]]) -> None:
    heard: list[api.Unasked] = []
    asyncio.run(work(FakeGateway(heard.append), heard))


def test_a_later_life_replaces_an_earlier_one_and_another_sandbox_does_not_get_the_slot() -> None:
    async def work(gateway: FakeGateway, heard: list[api.Unasked]) -> None:
        with means() as given:
            await gateway.bind(SANDBOX, 2, 0, "198.18.0.0/15", given)
            gateway.came(SANDBOX)
            with pytest.raises(Conflict):
                await gateway.bind(OTHER, 1, 0, "198.18.0.0/15", given)
            with pytest.raises(Conflict):
                await gateway.bind(SANDBOX, 1, 0, "198.18.0.0/15", given)
            await gateway.bind(SANDBOX, 3, 0, "198.18.0.0/15", given)
            assert [(one.generation, one.worker_pid) for one in await gateway.describe()] == [(3, 0)]
            assert [type(one) for one in heard] == [api.WorkerStarted, api.WorkerEnded]
            await gateway.end(SANDBOX, 3)
            await gateway.end(SANDBOX, 3)
            assert await gateway.describe() == []

    run(work)


def test_a_policy_that_cannot_be_read_is_refused_by_a_living_worker() -> None:
    async def work(gateway: FakeGateway, _: list[api.Unasked]) -> None:
        garbage = make_policy(b"garbage")
        with means() as given:
            with pytest.raises(NotFound):
                await gateway.set_policy(SANDBOX, 1, 1, garbage)
            await gateway.bind(SANDBOX, 1, 0, "198.18.0.0/15", given)
            await gateway.set_policy(SANDBOX, 1, 1, garbage)
            with pytest.raises(NotFound):
                await gateway.say(SANDBOX, 1, b"x")
            gateway.came(SANDBOX)
            with pytest.raises(InvalidArgument):
                await gateway.set_policy(SANDBOX, 1, 2, garbage)
            gateway.die()
            with pytest.raises(Unavailable):
                await gateway.describe()
        os.close(garbage)

    run(work)
