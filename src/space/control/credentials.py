"""Secrets and grants of tenants: who may have how many, and the way to the broker, which holds them all. Nothing of them is kept here.

    request -> Secret -> node -> broker: sealed, on its disk        and nothing gives a value back

Every public call takes the tenant first: what belongs to another one is not found, by construction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Literal

import msgspec

from space.control.link import NodeLink
from space.control.quotas import Quotas
from space.control.wire_credentials import SecretRequest
from space.core.credentials import grant as grants
from space.core.credentials.grant import Grant
from space.model.credentials import GrantInfo, SecretInfo
from space.model.errors import Conflict, NotFound
from space.model.secret import Secret
from space.rpc import credential_api as api
from space.rpc.node_api import Done

Mode = Literal["new", "rotate", "either"]


class Credentials:
    """The service behind the routes."""

    def __init__(self, link: NodeLink, quotas: Quotas) -> None:
        self._link = link
        self._quotas = quotas
        self._making: dict[str, asyncio.Lock] = {}

    # -- secrets ----------------------------------------------------------------------------------------------------------

    async def put_secret(self, tenant: str, name: str, asked: SecretRequest, value: Secret, mode: Mode) -> SecretInfo:
        """On the broker's disk when this returns. Conflict, NotFound (by mode), QuotaPassed, Unavailable."""
        kind: Any = asked.kind
        request = api.SecretPut(
            tenant, name, kind, value.reveal(), asked.public, asked.labels, asked.description, asked.expires, mode
        )  # fmt: skip
        async with self._room(tenant, "secrets", name, new=mode != "rotate"):
            return secret_info(await self._link.call("secret_put", request, api.SecretInfo))

    async def secret(self, tenant: str, name: str) -> SecretInfo:
        """NotFound."""
        return secret_info(await self._link.call("secret_get", api.Named(tenant, name), api.SecretInfo))

    async def secrets(self, tenant: str, after: str, limit: int) -> tuple[list[SecretInfo], str | None]:
        """A page, and the next cursor."""
        found: list[SecretInfo] = []
        async for one in self._listed("secret_list", api.SecretPage, tenant, after):
            if len(found) == limit:
                return found, found[-1].name
            found.append(secret_info(one))
        return found, None

    async def revoke_secret(self, tenant: str, name: str) -> SecretInfo:
        """Its value is gone for good. NotFound."""
        return secret_info(await self._link.call("secret_revoke", api.Named(tenant, name), api.SecretInfo))

    async def delete_secret(self, tenant: str, name: str) -> None:
        """Conflict while grants name it."""
        await self._link.call("secret_delete", api.Named(tenant, name), Done)

    # -- grants -----------------------------------------------------------------------------------------------------------

    async def put_grant(self, tenant: str, grant: Grant, *, replace: bool) -> GrantInfo:
        """It holds when this returns. Conflict, NotFound (its secret), QuotaPassed, Unavailable."""
        request = api.GrantPut(tenant, grants.encode(grant), replace)
        async with self._room(tenant, "grants", grant.name, new=True):
            return grant_info(await self._link.call("grant_put", request, api.GrantInfo))

    async def grant(self, tenant: str, name: str) -> GrantInfo:
        """NotFound."""
        return grant_info(await self._link.call("grant_get", api.Named(tenant, name), api.GrantInfo))

    async def grants(self, tenant: str, after: str, limit: int, secret: str = "") -> tuple[list[GrantInfo], str | None]:
        """A page, and the next cursor. secret: only those of that one."""
        found: list[GrantInfo] = []
        async for one in self._listed("grant_list", api.GrantPage, tenant, after, secret):
            if len(found) == limit:
                return found, found[-1].name
            found.append(grant_info(one))
        return found, None

    async def revoke_grant(self, tenant: str, name: str) -> GrantInfo:
        """Nobody has it from now on. NotFound."""
        return grant_info(await self._link.call("grant_revoke", api.Named(tenant, name), api.GrantInfo))

    async def delete_grant(self, tenant: str, name: str) -> None:
        """Revoked, and forgotten. Idempotent."""
        await self._link.call("grant_delete", api.Named(tenant, name), Done)

    # -- what a sandbox has besides -----------------------------------------------------------------------------------------

    async def attach(self, tenant: str, sandbox: str, names: Sequence[str]) -> None:
        """All or none. NotFound."""
        await self._link.call("grants_attach", api.Attachment(tenant, sandbox, tuple(names)), Done)

    async def detach(self, tenant: str, sandbox: str, name: str) -> None:
        """Idempotent."""
        await self._link.call("grant_detach", api.Attachment(tenant, sandbox, (name,)), Done)

    async def attached(self, tenant: str, sandbox: str) -> list[str]:
        """Names of grants."""
        return (await self._link.call("grants_attached", api.Attachment(tenant, sandbox), api.GrantNames)).names

    # -- parts ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _room(self, tenant: str, what: Literal["secrets", "grants"], name: str, *, new: bool) -> AsyncIterator[None]:
        """Make one more, if there may be one: counted at the broker, one maker of a tenant at a time. QuotaPassed."""
        most: int | None = getattr(self._quotas.effective(tenant), what)
        if most is None or not new:
            yield
            return
        lock = self._making.setdefault(tenant, asyncio.Lock())
        try:
            async with lock:
                if not await self._is_there(tenant, what, name):
                    self._quotas.admit_count(tenant, what, await self._count(tenant, what, most))
                yield
        finally:
            if not lock.locked():
                self._making.pop(tenant, None)

    async def _is_there(self, tenant: str, what: str, name: str) -> bool:
        try:
            await (self.secret(tenant, name) if what == "secrets" else self.grant(tenant, name))
        except NotFound:
            return False
        return True

    async def _count(self, tenant: str, what: str, most: int) -> int:
        count = 0
        verb, kind = ("secret_list", api.SecretPage) if what == "secrets" else ("grant_list", api.GrantPage)
        async for _ in self._listed(verb, kind, tenant, ""):
            count += 1
            if count >= most:
                break
        return count

    async def _listed(self, verb: str, kind: Any, tenant: str, after: str, secret: str = "") -> AsyncIterator[Any]:
        """All behind `after`, page by page."""
        more = True
        while more:
            more, before = False, after
            async for page in self._link.messages(verb, api.Listing(tenant, after, secret=secret), kind):
                for one in page.secrets if kind is api.SecretPage else page.grants:
                    after = _name(one)
                    yield one
                more = page.more
            if more and after == before:
                raise Conflict("the list does not go on")  # never a loop, whatever the broker says


def secret_info(found: api.SecretInfo) -> SecretInfo:
    """As the API shows it."""
    return SecretInfo(
        found.name, found.kind, found.version, found.public, found.labels, found.description,
        _seconds(found.created) or 0.0, _seconds(found.rotated), _seconds(found.expires), _seconds(found.revoked), found.grants,
    )  # fmt: skip


def grant_info(found: api.GrantInfo) -> GrantInfo:
    """As the API shows it."""
    said: dict[str, Any] = msgspec.json.decode(found.grant)
    return GrantInfo(
        said["name"], said["secret"], said, _seconds(found.created) or 0.0, _seconds(found.revoked), found.used, found.attached
    )  # fmt: skip


def _name(one: api.SecretInfo | api.GrantInfo) -> str:
    return one.name if isinstance(one, api.SecretInfo) else str(msgspec.json.decode(one.grant)["name"])


def _seconds(text: str) -> float | None:
    return None if not text else datetime.fromisoformat(text).timestamp()
