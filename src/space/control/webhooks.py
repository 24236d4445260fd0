"""Webhooks: each follows its tenant's event log from a stored place, and delivers one event after the other, at least once.

    read a page -> deliver (again and again, with growing pauses, until it is taken) -> store the place -> ... -> wait for news

A webhook that fails is never given up; it is shown as failing. What was pruned meanwhile is delivered as one `gap`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from space.control import limits
from space.control.addresses import destination
from space.control.delivery import NotDelivered, Sender
from space.control.events import EventLog, Waiter
from space.control.store import schema
from space.control.store.store import Store
from space.core.policy.addresses import Network
from space.model.errors import Conflict, InvalidArgument, NotFound, SpaceError
from space.model.events import Event
from space.model.ids import new_webhook_id
from space.model.tenants import WebhookCreated, WebhookInfo

log = logging.getLogger("space.control.webhooks")
_ONE = schema.webhooks.c.id == bindparam("p_id")
_DELETE = delete(schema.webhooks).where(_ONE)
_KEEP = (
    update(schema.webhooks)
    .where(_ONE)
    .values(
        cursor=bindparam("p_cursor"), delivered=bindparam("p_delivered"), failing_us=bindparam("p_failing"), last_error=bindparam("p_error")
    )
)


@dataclass(slots=True)
class Webhook:
    """A webhook and how it is doing. Times: microseconds since the epoch."""

    id: str
    tenant: str
    url: str
    kinds: Sequence[str] | None
    secret: str = field(repr=False)
    cursor: int
    created_us: int
    delivered: int = 0
    failing_us: int | None = None
    last_error: str | None = None

    def info(self) -> WebhookInfo:
        """As the API shows it."""
        failing = None if self.failing_us is None else self.failing_us / 1e6
        return WebhookInfo(
            self.id, self.tenant, self.url, self.kinds, self.created_us / 1e6, self.cursor, self.delivered, failing, self.last_error
        )


class Webhooks:
    """Every webhook, with one task each."""

    def __init__(
        self, store: Store, events: EventLog, sender: Sender, *, allow_http: bool, allowed: Sequence[Network], version: str
    ) -> None:
        self._store = store
        self._events = events
        self._sender = sender
        self._allow_http = allow_http
        self._allowed = allowed
        self._version = version
        self._all: dict[str, Webhook] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.observe: Callable[[str], None] = lambda outcome: None

    async def start(self) -> None:
        """Go on with those that are stored."""
        rows = await self._store.read(lambda connection: connection.execute(select(schema.webhooks)).all())
        for row in rows:
            self._run(Webhook(**row._mapping))

    async def stop(self) -> None:
        """Let go; the places are stored."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sender.aclose()

    def infos(self, tenant: str) -> list[WebhookInfo]:
        """A tenant's, oldest first."""
        return [hook.info() for hook in sorted(self._mine(tenant), key=lambda hook: (hook.created_us, hook.id))]

    @property
    def failing(self) -> int:
        """How many are failing."""
        return sum(hook.failing_us is not None for hook in self._all.values())

    async def create(self, tenant: str, url: str, kinds: Sequence[str] | None, secret: str | None) -> WebhookCreated:
        """Deliver what happens from now on; on the disk when this returns. InvalidArgument, Conflict when there are too many."""
        destination(url, allow_http=self._allow_http, allowed=self._allowed)
        newest = await self._events.newest()
        if len(self._mine(tenant)) >= limits.WEBHOOKS_PER_TENANT or len(self._all) >= limits.WEBHOOKS:
            raise Conflict(
                f"tenant {tenant} has {len(self._mine(tenant))} webhooks, the server {len(self._all)}; "
                f"{limits.WEBHOOKS_PER_TENANT} and {limits.WEBHOOKS} are the most",
                hint="delete one",
            )
        hook = Webhook(
            id=new_webhook_id(),
            tenant=tenant,
            url=url,
            kinds=None if kinds is None else list(dict.fromkeys(kinds)),
            secret=secret or "whsec_" + secrets.token_hex(32),
            cursor=newest,
            created_us=time.time_ns() // 1000,
        )
        self._all[hook.id] = hook  # counted before anything is waited for
        try:
            await self._store.write(lambda connection: _insert(connection, hook), durable=True)
        except SpaceError:
            self._all.pop(hook.id, None)
            raise
        if hook.id in self._all:  # else somebody saw it in the list and has deleted it meanwhile
            self._run(hook)
        return WebhookCreated(hook.info(), hook.secret)

    async def delete(self, tenant: str, webhook: str) -> None:
        """Deliver nothing more there; on the disk when this returns. NotFound, also when it was deleted before."""
        hook = self._all.get(webhook)
        if hook is None or hook.tenant != tenant:
            raise NotFound(f"there is no webhook {webhook[:64]!r}", hint="GET /v1/webhooks lists those of this key's tenant")
        task = self._tasks.pop(webhook, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._store.write(lambda connection: connection.execute(_DELETE, {"p_id": webhook}), durable=True)
        self._all.pop(webhook, None)

    def _mine(self, tenant: str) -> list[Webhook]:
        return [hook for hook in self._all.values() if hook.tenant == tenant]

    def _run(self, hook: Webhook) -> None:
        self._all[hook.id] = hook
        self._tasks[hook.id] = asyncio.create_task(self._follow(hook), name=f"webhook {hook.id}")

    async def _follow(self, hook: Webhook) -> None:
        with self._events.waiting(hook.tenant) as waiter:
            while not waiter.closed:
                try:
                    await self._catch_up(hook, waiter)
                    await waiter.news(None)
                except SpaceError as error:
                    log.warning("webhook %s cannot read the event log: %s", hook.id, error)
                    await asyncio.sleep(limits.WEBHOOK_FIRST_PAUSE)
                except Exception:
                    log.exception("webhook %s failed", hook.id)
                    await asyncio.sleep(limits.WEBHOOK_LONGEST_PAUSE)

    async def _catch_up(self, hook: Webhook, waiter: Waiter) -> None:
        more = True
        while more and not waiter.closed:
            page = await self._events.page(hook.tenant, hook.cursor, limits.WEBHOOK_PAGE)
            if page.gap:
                await self._deliver(hook, {"kind": "gap", "oldest": page.oldest}, page.oldest - 1)
            for event in page.events:
                if hook.kinds is None or event.kind in hook.kinds:
                    await self._deliver(hook, told(event), event.id)
            if hook.cursor != page.last:
                hook.cursor = page.last
                if page.events:
                    self._keep(hook)
            more = page.more

    async def _deliver(self, hook: Webhook, event: dict[str, Any], place: int) -> None:
        """Until it is taken."""
        body = msgspec.json.encode(event)
        headers = {"User-Agent": f"space/{self._version}", "Space-Webhook": hook.id, "Space-Event": str(event.get("id", ""))}
        pause = limits.WEBHOOK_FIRST_PAUSE
        while True:
            try:
                # Checked each time: the settings may say less now than when it was made.
                to = destination(hook.url, allow_http=self._allow_http, allowed=self._allowed)
                await self._sender.send(to, body, headers, hook.secret)
                break
            except (NotDelivered, InvalidArgument) as error:
                self.observe("failed")
                self._failed(hook, str(error))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            pause = min(pause * 2, limits.WEBHOOK_LONGEST_PAUSE)
        self.observe("delivered")
        hook.failing_us = hook.last_error = None
        hook.delivered += 1
        hook.cursor = place
        self._keep(hook)

    def _failed(self, hook: Webhook, words: str) -> None:
        if hook.failing_us is None:
            hook.failing_us = time.time_ns() // 1000
        if words != hook.last_error:
            log.info("webhook %s of tenant %s is failing: %s", hook.id, hook.tenant, words)
            hook.last_error = words
            self._keep(hook)

    def _keep(self, hook: Webhook) -> None:
        values = {
            "p_id": hook.id,
            "p_cursor": hook.cursor,
            "p_delivered": hook.delivered,
            "p_failing": hook.failing_us,
            "p_error": hook.last_error,
        }
        self._store.post(lambda connection: connection.execute(_KEEP, values))


def _insert(connection: Connection, hook: Webhook) -> None:
    connection.execute(insert(schema.webhooks).values(asdict(hook)))


def told(event: Event) -> dict[str, Any]:
    """An event as streams and webhooks show it: without what does not belong to its kind."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return {name: value for name, value in fields.items() if value is not None or name == "reason"}
