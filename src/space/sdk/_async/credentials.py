"""Credentials that sandboxes use and never see: the part of a client and of a sandbox that speaks of secrets and grants."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from space.model.credentials import GrantInfo, SecretInfo, SecretKind
from space.model.egresslog import EgressRecord
from space.sdk import credentials
from space.sdk.credentials import GrantSource, SecretSource
from space.sdk.recordlog import EgressGap, RecordLog
from space.sdk.request import segment

from .egress import asked, told

if TYPE_CHECKING:
    from .client import AsyncClient

_JSON = {"content-type": "application/json"}


class AsyncSandboxCredentials:
    """Of one sandbox."""

    _client: AsyncClient
    _path: str

    async def grants(self) -> list[str]:
        """Names of grants that were attached to it. Those that it has by what they select are not among them."""
        return [str(name) for name in credentials.page(await self._client.call("GET", f"{self._path}/grants"), "grants")[0]]

    async def attach_grant(self, name: str) -> None:
        """It has that grant as well, over all of its lives; forks of it do not. NotFound. Idempotent."""
        await self._client.call("PUT", f"{self._path}/grants/{segment(name)}", repeatable=True)

    async def detach_grant(self, name: str) -> None:
        """Take it away, at once: what uses it is cut. Idempotent."""
        await self._client.call("DELETE", f"{self._path}/grants/{segment(name)}", repeatable=True)


class AsyncClientCredentials:
    """Of the key's tenant. A value goes in, and nothing gives it back."""

    if TYPE_CHECKING:
        call: Any

    async def secrets(self) -> AsyncIterator[SecretInfo]:
        """All of them, by name, without their values."""
        async for one in self._named("secrets", {}):
            yield credentials.secret_info(one)

    async def secret(self, name: str) -> SecretInfo:
        """One, without its value. NotFound."""
        return credentials.secret_info(await self.call("GET", f"/v1/secrets/{segment(name)}"))

    async def put_secret(
        self,
        name: str,
        value: SecretSource,
        *,
        kind: SecretKind = "static",
        public: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        description: str = "",
        expires: str | None = None,
        replace: bool = False,
    ) -> SecretInfo:
        """Store a secret: on the disk, sealed, when this returns. replace: whether one of that name gets another version; else Conflict.

        value: a `Secret` (which no traceback shows), text or bytes; of a kind other than `static` its secret parts by name: `oauth_refresh`
        has `refresh_token` and perhaps `client_secret`, `client_credentials` has `client_secret`, `aws` has `secret_access_key` and perhaps
        `session_token`. public: parts that may be told: `endpoint` (a name of the operator's), `client_id`, `scope`, `access_key_id`.
        expires: RFC 3339 with a zone. InvalidArgument, Conflict, NoCapacity (the tenant's quota).
        """
        body = credentials.secret_body(value, kind, public, labels, description, expires)
        method = "PUT" if replace else "POST"
        return credentials.secret_info(await self.call(method, f"/v1/secrets/{segment(name)}", content=body, headers=_JSON))

    async def rotate_secret(
        self,
        name: str,
        value: SecretSource,
        *,
        kind: SecretKind = "static",
        public: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        description: str = "",
        expires: str | None = None,
    ) -> SecretInfo:
        """Another value for a secret that is there; grants use it from the next request on. NotFound."""
        body = credentials.secret_body(value, kind, public, labels, description, expires)
        answer = await self.call("POST", f"/v1/secrets/{segment(name)}/rotate", content=body, headers=_JSON)
        return credentials.secret_info(answer)

    async def revoke_secret(self, name: str) -> SecretInfo:
        """Destroy its value and keep its name: who uses it is refused, and an event tells. NotFound. Idempotent."""
        return credentials.secret_info(await self.call("POST", f"/v1/secrets/{segment(name)}/revoke", repeatable=True))

    async def delete_secret(self, name: str) -> None:
        """Forget it. Conflict while grants name it. Idempotent."""
        await self.call("DELETE", f"/v1/secrets/{segment(name)}", repeatable=True)

    async def grants(self, *, secret: str | None = None) -> AsyncIterator[GrantInfo]:
        """All of them, by name; or only those of a secret."""
        async for one in self._named("grants", {} if secret is None else {"secret": secret}):
            yield credentials.grant_info(one)

    async def grant(self, name: str) -> GrantInfo:
        """One. NotFound."""
        return credentials.grant_info(await self.call("GET", f"/v1/grants/{segment(name)}"))

    async def put_grant(self, name: str, grant: GrantSource, *, replace: bool = False) -> GrantInfo:
        """Let sandboxes use a secret toward a host: it holds when this returns, for those that run as well. replace: in place of the one
        that is there; else Conflict.

        grant: a table, TOML text, or a path (docs/howto/credentials.md). InvalidArgument has the place of the mistake.
        """
        method, wanted = "PUT" if replace else "POST", credentials.grant_table(grant)
        return credentials.grant_info(await self.call(method, f"/v1/grants/{segment(name)}", json=wanted))

    async def revoke_grant(self, name: str) -> GrantInfo:
        """End it at once and keep its name: who uses it is cut, and refused from now on. NotFound. Idempotent."""
        return credentials.grant_info(await self.call("POST", f"/v1/grants/{segment(name)}/revoke", repeatable=True))

    async def delete_grant(self, name: str) -> None:
        """End it at once and forget it. Idempotent."""
        await self.call("DELETE", f"/v1/grants/{segment(name)}", repeatable=True)

    async def credential_log(
        self,
        after: str | None = None,
        *,
        secret: str | None = None,
        grant: str | None = None,
        sandbox: str | None = None,
        follow: bool = False,
        since: str | None = None,
        denied: bool = False,
    ) -> AsyncGenerator[EgressRecord | EgressGap, None]:
        """Every credential that was asked for, released or refused, oldest first, each record once; as a sandbox's `egress_log`."""
        log = RecordLog(after)
        only = {"secret": secret, "grant": grant, "sandbox": sandbox}
        params = asked(since, denied, ()) | {name: named for name, named in only.items() if named is not None}
        async with aclosing(told(self, "/v1/credentials/log", log, params, follow)) as found:
            async for record in found:
                yield record

    async def _named(self, what: str, params: dict[str, str]) -> AsyncIterator[Any]:
        cursor: str | None = None
        while True:
            wanted = {**params, "limit": "200"} | ({} if cursor is None else {"cursor": cursor})
            found, cursor = credentials.page(await self.call("GET", f"/v1/{what}", params=wanted), what)
            for one in found:
                yield one
            if cursor is None:
                return
