"""Who did what: one record a request, gathered in memory and stored in batches, off the request's path.

A crash loses at most the last second (`limits.AUDIT_SECONDS`); a stop loses nothing. Which routes are recorded is their attribute
`audit`: all but those that only look (lists, states, metrics, events, health, the audit itself). A request without a valid key, or one
that its tenant's allowance of requests refused, is a line of the log, not a record: nobody can fill the table that way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Future
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from space.control import limits
from space.control.store.schema import audit
from space.control.store.store import Store
from space.control.timers import Timers
from space.model.tenants import AuditRecord

log = logging.getLogger("space.control.audit")
_PRUNE = 5000


class AuditLog:
    """The records."""

    def __init__(self, store: Store, timers: Timers, *, keep_seconds: float) -> None:
        self._store = store
        self._timers = timers
        self._keep_seconds = keep_seconds
        self._waiting: list[dict[str, Any]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._stored: Future[Any] | None = None

    def start(self) -> None:
        """Forget what is too old now and every hour."""
        self._store.post(self._prune)
        self._timers.after(limits.SWEEP_SECONDS, self.start)

    def note(self, *, request_id: str, key_id: str, tenant: str, peer: str, route: str, sandbox: str | None, status: int) -> None:
        """A request was answered with `status`; 0: its client left before."""
        self._waiting.append(
            {
                "at_us": time.time_ns() // 1000,
                "request_id": request_id,
                "key_id": key_id,
                "tenant": tenant,
                "peer": peer[:64],
                "route": route,
                "sandbox": None if sandbox is None else sandbox[:64],
                "status": status,
            }
        )
        if len(self._waiting) >= limits.AUDIT_BATCH:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(limits.AUDIT_SECONDS, self.flush)

    def flush(self) -> None:
        """Hand over what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            rows, self._waiting = self._waiting, []
            future = self._store.post(lambda connection: connection.execute(insert(audit), rows))
            future.add_done_callback(_log_failure)
            self._stored = future

    async def page(self, after: int, limit: int, tenant: str | None) -> tuple[list[AuditRecord], int | None]:
        """Records behind a place, oldest first, and the next place; None when there is no more yet. tenant: None for all."""
        self.flush()
        if self._stored is not None:
            await asyncio.wait({asyncio.wrap_future(self._stored)})  # the last batch: those before it are stored earlier
        query = select(audit).where(audit.c.id > after).order_by(audit.c.id).limit(limit)
        if tenant is not None:
            query = query.where(audit.c.tenant == tenant)
        rows = await self._store.read(lambda connection: connection.execute(query).all())
        records = [
            AuditRecord(row.id, row.at_us / 1e6, row.request_id, row.key_id, row.tenant, row.peer, row.route, row.sandbox, row.status)
            for row in rows
        ]
        return records, records[-1].id if len(records) == limit else None

    def _prune(self, connection: Connection) -> None:
        # Ids are in the order of time, so the oldest are first, and a step touches few rows: the writing thread serves everybody.
        cutoff = time.time_ns() // 1000 - int(self._keep_seconds * 1e6)
        oldest = select(audit.c.id).order_by(audit.c.id).limit(_PRUNE)
        if connection.execute(delete(audit).where(audit.c.id.in_(oldest), audit.c.at_us < cutoff)).rowcount == _PRUNE:
            self._store.post(self._prune)


def _log_failure(future: Future[Any]) -> None:
    if (error := future.exception()) is not None:
        log.error("audit records were not stored: %s", error)
