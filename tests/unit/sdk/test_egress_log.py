"""Records of egress in the SDK: each once, over breaks of the connection, and what is kept no longer is told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from space.model.egresslog import EgressRecord
from space.model.errors import InvalidArgument
from space.sdk import AsyncSandbox, EgressGap, Sandbox
from space.sdk.recordlog import PAGE
from space.sdk.testing import MockServer


def names(found: Any) -> list[str]:
    return [one.name if isinstance(one, EgressRecord) else "gap" for one in found]


def test_records_are_told_oldest_first_with_what_they_say() -> None:
    server = MockServer()
    with server.client() as client, Sandbox.create(client=client) as sandbox, Sandbox.create(client=client) as other:
        server.egress.log.add(sandbox.id, name="a.example.com", method="GET", path="/", query=["q"], status=200, sent=5, later="x")
        server.egress.log.add(other.id, name="b.example.com")
        server.egress.log.add(sandbox.id, kind="name", name="c.example.com", reason="name_not_allowed")
        first, second = sandbox.egress_log()
        assert isinstance(first, EgressRecord)
        assert isinstance(second, EgressRecord)
        assert (first.kind, first.query, first.status, first.denied, first.more["later"]) == ("request", ("q",), 200, False, "x")
        assert (second.kind, second.reason, second.denied) == ("name", "name_not_allowed", True)
        assert names(sandbox.egress_log(after=first.id)) == ["c.example.com"]
        assert names(sandbox.egress_log(denied=True)) == ["c.example.com"]
        assert names(sandbox.egress_log(kinds=["name"])) == ["c.example.com"]
        assert names(sandbox.egress_log(since="2099-01-01T00:00:00Z")) == []
        assert names(client.egress_log()) == ["a.example.com", "b.example.com", "c.example.com"]
        with pytest.raises(InvalidArgument):
            list(sandbox.egress_log(after="nonsense"))


def test_more_than_a_page_comes_over_several_requests() -> None:
    server = MockServer()
    with server.client() as client, Sandbox.create(client=client) as sandbox:
        for number in range(PAGE + 3):
            server.egress.log.add(sandbox.id, name=f"n{number}.example.com")
        server.egress.log.forget(1)
        found = names(sandbox.egress_log())
        assert found == [f"n{number}.example.com" for number in range(1, PAGE + 3)]
        assert names(sandbox.egress_log(after="0.0"))[0] == "gap"


@pytest.mark.parametrize("cut", [3, 60, 200, 500, 900])
def test_a_connection_that_breaks_is_made_anew_and_each_record_comes_once(cut: int) -> None:
    server = MockServer()

    async def talk() -> None:
        async with server.async_client() as client:
            sandbox = await AsyncSandbox.create(client=client)
            server.egress.log.add(sandbox.id, name="before.example.com")
            server.cut_next(cut, path="egress/log")
            found: list[str] = []
            following = sandbox.egress_log(follow=True)
            timer = threading.Timer(0.2, lambda: [server.egress.log.add(sandbox.id, name=f"n{number}.example.com") for number in range(6)])
            timer.start()
            async for record in following:
                found += names([record])
                if len(found) == 6:
                    break
            await following.aclose()
            # What came before the first sign of life of the first connection is what "from now on" means.
            assert found == [f"n{number}.example.com" for number in range(6)]

    async def bounded() -> None:
        await asyncio.wait_for(talk(), 60)

    asyncio.run(bounded())


def test_what_is_kept_no_longer_is_a_gap() -> None:
    server = MockServer()
    with server.client() as client, Sandbox.create(client=client) as sandbox:
        for number in range(5):
            server.egress.log.add(sandbox.id, name=f"n{number}.example.com")
        server.egress.log.forget(3)
        gap, *rest = sandbox.egress_log(after="1.0")
        assert gap == EgressGap("gateway", 3)
        assert names(rest) == ["n3.example.com", "n4.example.com"]
