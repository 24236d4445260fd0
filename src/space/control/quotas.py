"""Quotas: what a tenant may have at once, and how fast it may ask. Set by an admin for a tenant, or by the settings for all.

What is had is counted at admission, from the book of live sandboxes; nothing is kept here that could drift.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import fields, replace

import msgspec
from sqlalchemy import Connection, delete, insert, select

from space.config.settings import Settings
from space.control import limits
from space.control.problems import QuotaPassed, TooMany
from space.control.store import schema
from space.control.store.store import Store
from space.model.sandbox import SandboxSpec
from space.model.tenants import Quota, QuotaInfo, Usage

_AMOUNTS = tuple(field.name for field in fields(Usage))


def defaults(settings: Settings) -> Quota:
    """What the settings say; their 0 is no limit."""
    return Quota(
        settings.tenant_sandboxes or None,
        settings.tenant_cpus or None,
        settings.tenant_memory_mib or None,
        settings.tenant_disk_mib or None,
        settings.tenant_snapshot_mib or None,
        settings.tenant_checkpoints or None,
        settings.tenant_secrets or None,
        settings.tenant_grants or None,
        settings.tenant_requests_per_second or None,
    )


class Quotas:
    """The quota of every tenant, and its allowance of requests."""

    def __init__(self, store: Store, default: Quota, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._default = default
        self._clock = clock
        self._own: dict[str, Quota] = {}
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tenant -> what was left, and when
        self.observe: Callable[[str, str], None] = lambda tenant, what: None

    async def load(self) -> None:
        """Read what is stored."""
        rows = await self._store.read(lambda connection: connection.execute(select(schema.quotas)).all())
        self._own = {row.tenant: msgspec.convert(row.quota, Quota) for row in rows}

    def own(self, tenant: str) -> Quota:
        """What was set for this tenant."""
        return self._own.get(tenant, Quota())

    def effective(self, tenant: str) -> Quota:
        """What counts."""
        own = self._own.get(tenant)
        if own is None:
            return self._default
        return replace(self._default, **{name: value for name, value in msgspec.to_builtins(own).items() if value is not None})

    def info(self, tenant: str, used: Usage) -> QuotaInfo:
        """As the API shows it."""
        return QuotaInfo(tenant, self.own(tenant), self.effective(tenant), used)

    async def set(self, tenant: str, quota: Quota) -> None:
        """Set it, whole; stored when this returns. What the tenant has already stays, also beyond it."""
        await self._store.write(lambda connection: _set(connection, tenant, quota), durable=True)
        self._own[tenant] = quota
        self._buckets.pop(tenant, None)

    def admit(self, tenant: str, spec: SandboxSpec, used: Callable[[], Usage], *, count: int = 1) -> None:
        """QuotaPassed names the first amount that `count` more such sandboxes would pass."""
        if all(getattr(self.effective(tenant), name) is None for name in _AMOUNTS):
            return
        wanted = {"sandboxes": 1, "cpus": spec.cpus, "memory_mib": spec.memory_mib, "disk_mib": spec.disk_mib}
        self._admit(tenant, {name: count * amount for name, amount in wanted.items()}, used(), "delete a sandbox or a template")

    def admit_rest(self, tenant: str, spec: SandboxSpec, used: Usage) -> None:
        """As `admit`, of a sandbox that comes at rest: its place, its disk and its stored memory."""
        wanted = {"sandboxes": 1, "disk_mib": spec.disk_mib, "snapshot_mib": spec.memory_mib}
        self._admit(tenant, wanted, used, "delete a sandbox or a template")

    def admit_life(self, tenant: str, spec: SandboxSpec, used: Usage) -> None:
        """As `admit`, of what a sandbox takes again that wakes."""
        self._admit(tenant, {"cpus": spec.cpus, "memory_mib": spec.memory_mib}, used, "suspend another sandbox")

    def admit_snapshot(self, tenant: str, spec: SandboxSpec, used: Usage) -> None:
        """As `admit`, of a memory that is stored: at most all of it. A rule is never refused it, but counts for the next one who asks."""
        self._admit(tenant, {"snapshot_mib": spec.memory_mib}, used, "drop a checkpoint, or delete a suspended sandbox")

    def admit_checkpoint(self, tenant: str, spec: SandboxSpec, used: Usage) -> None:
        """As `admit_snapshot`, of one checkpoint more."""
        self._admit(tenant, {"checkpoints": 1, "snapshot_mib": spec.memory_mib}, used, "drop a checkpoint")

    def admit_count(self, tenant: str, name: str, has: int) -> None:
        """One more of what is counted elsewhere. QuotaPassed."""
        most = getattr(self.effective(tenant), name)
        if most is not None and has >= most:
            self.observe(tenant, name)
            raise QuotaPassed(f"tenant {tenant} may have {name} {most}, and has as many", hint="delete one, or ask the operator for more")

    def _admit(self, tenant: str, wanted: Mapping[str, int], had: Usage, remedy: str) -> None:
        quota = self.effective(tenant)
        for name, amount in wanted.items():
            most, has = getattr(quota, name), getattr(had, name)
            if most is not None and has + amount > most:
                self.observe(tenant, name)
                raise QuotaPassed(
                    f"tenant {tenant} may have {name} {most}; it has {has}, and this wants {amount}",
                    hint=f"{remedy}, or ask the operator for a larger quota",
                )

    def room(self, tenant: str, used: Callable[[], Usage], *, most: int) -> int:
        """MiB of disk that the tenant may have more, at most `most`. QuotaPassed when there is none."""
        quota = self.effective(tenant).disk_mib
        if quota is None:
            return most
        if (left := quota - used().disk_mib) <= 0:
            self.observe(tenant, "disk_mib")
            raise QuotaPassed(
                f"tenant {tenant} may have disk_mib {quota}, and has {used().disk_mib}",
                hint="delete a sandbox or a template, or ask the operator for a larger quota",
            )
        return min(left, most)

    def spend(self, tenant: str) -> None:
        """One request. TooMany says in how many seconds there is one again."""
        quota = self.effective(tenant)
        rate = quota.requests_per_second
        if rate is None:
            return
        size = float(max(1.0, 2 * rate) if quota.burst is None else quota.burst)
        now = self._clock()
        left, at = self._buckets.get(tenant, (size, now))
        left = min(size, left + (now - at) * rate)
        spent = left >= 1
        self._buckets[tenant] = (left - 1 if spent else left, now)
        self._buckets.move_to_end(tenant)
        if len(self._buckets) > limits.MAX_PEERS:
            self._buckets.popitem(last=False)
        if not spent:
            self.observe(tenant, "requests_per_second")
            wait = max(1, int((1 - left) / rate + 0.999))
            raise TooMany(
                f"tenant {tenant} may ask {rate:g} times a second, {size:g} at once", hint=f"try again in {wait} s", retry_after=wait
            )


def _set(connection: Connection, tenant: str, quota: Quota) -> None:
    connection.execute(delete(schema.quotas).where(schema.quotas.c.tenant == tenant))
    connection.execute(insert(schema.quotas).values(tenant=tenant, quota=msgspec.to_builtins(quota)))
