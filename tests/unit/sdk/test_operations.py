"""Changes of a sandbox, events, webhooks, quotas and the audit, over both forms of the SDK."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import pytest

from space.model.errors import Conflict, InvalidArgument, NotFound, PermissionDenied, ProtocolError, Unavailable
from space.model.sandbox import IdlePolicy
from space.model.tenants import Quota
from space.sdk import AsyncSandbox, Event
from space.sdk.eventlog import EventGap, EventLog
from space.sdk.testing import MockServer
from space.sdk.webhooks import verify
from space.testing.simcontrol import until

Opened = Callable[[MockServer], Any]
pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture
def server() -> MockServer:
    return MockServer()


def test_what_is_given_changes_and_the_rest_stays(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            before = await sandbox.info()
            info = await sandbox.update(metadata={"a": "b", "c": "d"}, idle=IdlePolicy(60), ttl_seconds=9)
            assert (info.spec.metadata, info.spec.idle, info.spec.ttl_seconds) == ({"a": "b", "c": "d"}, IdlePolicy(60, "pause"), 9)
            info = await sandbox.update(metadata={"a": None}, on_timeout="pause")
            assert (info.spec.metadata, info.spec.idle, info.spec.on_timeout) == ({"c": "d"}, IdlePolicy(60, "pause"), "pause")
            assert (await sandbox.update(idle=None)).spec.idle is None
            with pytest.raises(Conflict, match="revision"):
                await sandbox.update(ttl_seconds=5, revision=before.revision)
            with pytest.raises(InvalidArgument):
                await sandbox.update()

    asyncio.run(scenario())


def test_a_change_is_repeated_unless_it_names_a_revision(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            server.fail_next(Unavailable("away"), path=sandbox.id, after=True)
            info = await sandbox.update(ttl_seconds=5)
            server.fail_next(Unavailable("away"), path=sandbox.id, after=True)
            with pytest.raises(Unavailable):
                await sandbox.update(ttl_seconds=6, revision=info.revision)

    asyncio.run(scenario())


def test_figures_over_time(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            history = await sandbox.metrics_history()
            assert (history.interval_seconds, len(history.samples)) == (10.0, 3)
            assert len((await sandbox.metrics_history(since=history.samples[1].at - 1)).samples) == 2

    asyncio.run(scenario())


def test_events_come_once_and_in_order_over_broken_connections(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            for _ in range(20):
                await sandbox.pause()
                await sandbox.resume()
            for after in (1, 150, 400, 170, 900, 33):
                server.cut_next(after, path="/v1/events")
            got = [event async for event in sandbox.client.events(after=0, follow=False)]
            assert [event.id for event in got] == list(range(1, 42))
            assert (got[0].kind, got[1].kind, got[1].from_phase, got[1].phase) == ("created", "phase", "running", "paused")

    asyncio.run(scenario())


def test_following_from_now_on_misses_nothing_while_it_connects_again(server: MockServer) -> None:
    async def scenario() -> None:
        async with server.async_client() as client, await AsyncSandbox.create(client=client) as sandbox:
            server.cut_next(40, path="/v1/events")
            events = client.events()
            task = asyncio.create_task(anext(events))
            await until(lambda: ("GET", "/v1/events") in server.requests)
            await sandbox.pause()
            await sandbox.resume()
            first, second = await task, await anext(events)
            assert isinstance(first, Event)
            assert isinstance(second, Event)
            assert (first.phase, second.phase) == ("paused", "running")
            await events.aclose()

    asyncio.run(scenario())


def test_events_that_are_kept_no_longer_are_a_gap(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            await sandbox.pause()
            await sandbox.resume()
            await sandbox.pause()
            server.events.forget(2)
            got = [event async for event in sandbox.client.events(after=1, follow=False)]
            assert got[0] == EventGap(3)
            assert [event.id for event in got[1:]] == [3, 4]
            kinds = [event.kind async for event in sandbox.client.events(after=2, follow=False, sandbox=sandbox.id, kinds=["deleted"])]
            assert kinds == []

    asyncio.run(scenario())


def test_an_event_log_that_goes_back_is_refused_and_what_is_not_known_is_skipped() -> None:
    log = EventLog()
    assert log.receive({"kind": "heartbeat", "id": 7}) is None
    assert log.params(follow=True) == {"follow": "1", "after": "7"}
    assert log.receive({"kind": "of tomorrow", "id": 8, "at": 1.0}) is None
    for line in ({"kind": "phase", "id": 8}, {"kind": "phase"}, {"kind": "phase", "id": 9}):
        with pytest.raises(ProtocolError):
            log.receive(line)
    with pytest.raises(NotFound):
        log.receive({"kind": "error", "problem": {"code": "not_found", "detail": "gone"}})


def test_webhooks_are_made_listed_and_deleted(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            made = await sandbox.client.create_webhook("https://example.com/hook", kinds=["deleted"], secret="0123456789abcdef")
            assert made.secret == "0123456789abcdef"
            assert made.secret not in repr(made)
            assert await sandbox.client.webhooks() == [made.webhook]
            await sandbox.client.delete_webhook(made.webhook.id)
            with pytest.raises(NotFound):
                await sandbox.client.delete_webhook(made.webhook.id)

    asyncio.run(scenario())


def test_quotas_and_the_audit(server: MockServer, opened: Opened) -> None:
    async def scenario() -> None:
        async with opened(server) as sandbox:
            assert (await sandbox.client.quota("acme")).quota == Quota()
            info = await sandbox.client.set_quota("acme", Quota(sandboxes=3, requests_per_second=1.5))
            assert (info.tenant, info.quota.sandboxes, info.effective.requests_per_second, info.used.sandboxes) == ("acme", 3, 1.5, 1)
            routes = [record.route async for record in sandbox.client.audit(page_size=2)]
            assert routes[0] == "POST /v1/sandboxes"
            assert routes.count("PUT /v1/tenants/acme/quota") == 1

    asyncio.run(scenario())


def _signed(secret: str, body: bytes, at: int) -> str:
    return f"t={at},v1={hmac.new(secret.encode(), f'{at}.'.encode() + body, hashlib.sha256).hexdigest()}"


def test_a_delivery_is_trusted_only_with_the_secret_and_while_it_is_fresh() -> None:
    verify("s" * 16, _signed("s" * 16, b"{}", 1000), b"{}", now=1200)
    verify("s" * 16, _signed("x" * 16, b"{}", 1000) + "," + _signed("s" * 16, b"{}", 1000).split(",")[1], b"{}", now=1200)
    good = _signed("s" * 16, b"{}", 1000)
    for signature, body, now in [
        (good, b"{ }", 1200), (good, b"{}", 1400), (good, b"{}", 600), (_signed("x" * 16, b"{}", 1000), b"{}", 1200), ("", b"{}", 1200),
        ("t=1000", b"{}", 1200), ("t=1000,t=1000," + good, b"{}", 1200), (good.replace("t=1000", "t=١٠٠٠"), b"{}", 1200),
        ("v1=é," + good.split(",")[0], b"{}", 1200),
    ]:  # fmt: skip
        with pytest.raises(PermissionDenied):
            verify("s" * 16, signature, body, now=now)
