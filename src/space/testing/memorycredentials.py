"""Secrets and grants in memory, as the broker's control socket answers of them; nothing is injected anywhere.

held = MemoryCredentials()
held.value("acme", "token")                   # the parts that were put, for a test to compare
held.environments["sb-..."]                   # placeholders by variable
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from space.core.credentials import grant as grants
from space.core.credentials import secret as secrets
from space.core.credentials.grant import Grant, GrantRefused, Kind, Life, Placeholder
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.secret import Secret
from space.rpc import broker_api as api

Key = tuple[str, str]  # tenant and name


class MemoryCredentials:
    """What `rpc.broker_client.BrokerControl` asks of credentials."""

    def __init__(self) -> None:
        self.secrets_held: dict[Key, api.SecretInfo] = {}
        self.grants_held: dict[Key, api.GrantInfo] = {}
        self.attachments: defaultdict[Key, set[str]] = defaultdict(set)  # by tenant and sandbox
        self.forgotten: list[str] = []
        self._values: dict[Key, Secret] = {}

    def value(self, tenant: str, name: str) -> dict[str, bytes]:
        """Its secret parts."""
        return secrets.unpacked(self._values[tenant, name].reveal())

    # -- secrets -------------------------------------------------------------------------------------------------

    async def put_secret(
        self,
        tenant: str,
        name: str,
        kind: Kind,
        value: Secret,
        *,
        public: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        description: str = "",
        expires: str = "",
        mode: str = "new",
    ) -> api.SecretInfo:
        before = self.secrets_held.get((tenant, name))
        if before is not None and mode == "new":
            raise Conflict(f"there is a secret {name!r} already", hint="rotate it, or take another name")
        if before is None and mode == "rotate":
            raise NotFound(f"there is no secret {name!r}")
        try:
            secrets.check(kind, public or {}, secrets.unpacked(value.reveal()))
        except GrantRefused as refused:
            raise InvalidArgument(str(refused)) from None
        self._values[tenant, name] = value
        found = api.SecretInfo(
            0, tenant, name, kind, 1 if before is None else before.version + 1, dict(public or {}), dict(labels or {}), description,
            before.created if before else _now(), "" if before is None else _now(), expires, "", self._users(tenant, name),
        )  # fmt: skip
        self.secrets_held[tenant, name] = found
        return found

    async def secret(self, tenant: str, name: str) -> api.SecretInfo:
        found = self.secrets_held.get((tenant, name))
        if found is None:
            raise NotFound(f"there is no secret {name!r}", hint="GET /v1/secrets lists those of this key's tenant")
        return msgspec.structs.replace(found, grants=self._users(tenant, name))

    async def secrets(self, tenant: str, after: str = "", limit: int = api.PAGE) -> api.SecretInfos:
        names = sorted(name for one, name in self.secrets_held if one == tenant and name > after)
        return api.SecretInfos(0, [await self.secret(tenant, name) for name in names[:limit]], len(names) > limit)

    async def revoke_secret(self, tenant: str, name: str) -> api.SecretInfo:
        found = await self.secret(tenant, name)
        self._values.pop((tenant, name), None)
        self.secrets_held[tenant, name] = found = msgspec.structs.replace(found, revoked=found.revoked or _now())
        return found

    async def delete_secret(self, tenant: str, name: str) -> None:
        if users := self._users(tenant, name):
            raise Conflict(f"{users} grants name secret {name!r}", hint="delete them first")
        self.secrets_held.pop((tenant, name), None)
        self._values.pop((tenant, name), None)

    # -- grants --------------------------------------------------------------------------------------------------

    async def put_grant(self, tenant: str, grant: bytes, *, replace: bool = False) -> api.GrantInfo:
        try:
            asked = grants.parse(grant)
            secret = await self.secret(tenant, asked.secret)
            secrets.fits(secret.kind, asked)
        except GrantRefused as refused:
            raise InvalidArgument(str(refused)) from None
        before = self.grants_held.get((tenant, asked.name))
        if before is not None and not replace:
            raise Conflict(f"there is a grant {asked.name!r} already", hint="replace it, or take another name")
        found = api.GrantInfo(0, tenant, grants.encode(asked), before.created if before else _now(), "", 0, 0)
        self.grants_held[tenant, asked.name] = found
        return found

    async def grant(self, tenant: str, name: str) -> api.GrantInfo:
        found = self.grants_held.get((tenant, name))
        if found is None:
            raise NotFound(f"there is no grant {name!r}", hint="GET /v1/grants lists those of this key's tenant")
        attached = sum(name in names for (one, _), names in self.attachments.items() if one == tenant)
        return msgspec.structs.replace(found, attached=attached)

    async def grants(self, tenant: str, after: str = "", limit: int = api.PAGE, secret: str = "") -> api.GrantInfos:
        names = sorted(name for one, name in self.grants_held if one == tenant and name > after)
        names = [name for name in names if not secret or self._said(tenant, name).secret == secret]
        return api.GrantInfos(0, [await self.grant(tenant, name) for name in names[:limit]], len(names) > limit)

    async def revoke_grant(self, tenant: str, name: str) -> api.GrantInfo:
        found = await self.grant(tenant, name)
        self.grants_held[tenant, name] = found = msgspec.structs.replace(found, revoked=found.revoked or _now())
        return found

    async def delete_grant(self, tenant: str, name: str) -> None:
        self.grants_held.pop((tenant, name), None)
        for (one, _), names in self.attachments.items():
            if one == tenant:
                names.discard(name)

    async def attach_grants(self, tenant: str, sandbox: str, names: tuple[str, ...]) -> None:
        for name in names:
            await self.grant(tenant, name)
        self.attachments[tenant, sandbox] |= set(names)

    async def detach_grant(self, tenant: str, sandbox: str, name: str) -> None:
        self.attachments[tenant, sandbox].discard(name)

    async def attached(self, tenant: str, sandbox: str) -> list[str]:
        return sorted(self.attachments.get((tenant, sandbox), ()))

    async def forget_sandbox(self, sandbox: str) -> None:
        self.forgotten.append(sandbox)
        for tenant, one in list(self.attachments):
            if one == sandbox:
                del self.attachments[tenant, one]

    def has(self, life: Life) -> list[Grant]:
        """Those that a life of a sandbox may use now."""
        attached = self.attachments.get((life.tenant, life.sandbox), set())
        life = msgspec.structs.replace(life, attached=attached)
        said = [self._said(*key) for key, info in self.grants_held.items() if key[0] == life.tenant and not info.revoked]
        return [one for one in said if grants.is_for(one, life.tenant, life)]

    def environment(self, life: Life, generation: int) -> dict[str, str]:
        """Placeholders of a life."""
        return {
            one.slot.env: one.slot.prefix + hashlib.sha256(f"{life.sandbox} {generation} {one.name}".encode()).hexdigest()
            for one in self.has(life)
            if isinstance(one.slot, Placeholder)
        }

    def _said(self, tenant: str, name: str) -> Grant:
        return grants.decode(self.grants_held[tenant, name].grant)

    def _users(self, tenant: str, secret: str) -> int:
        return sum(self._said(*key).secret == secret for key in self.grants_held if key[0] == tenant)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
