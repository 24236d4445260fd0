"""What control may ask about credentials (`rpc.credential_api`): passed on to the broker, which holds and decides everything.

A value is in the hands of this process while one message is turned into another; it is logged and kept nowhere. What a sandbox has
attached is a row of the ledger before the broker is told, so that it is forgotten with the sandbox whatever happens between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from space.model.errors import Conflict, NotFound
from space.model.sandbox import Phase
from space.model.secret import Secret
from space.node.ledger import Holding, Kind
from space.node.node import Node
from space.node.process_verbs import decode, pages
from space.rpc import broker_api
from space.rpc import credential_api as api
from space.rpc.broker_client import BrokerControl
from space.rpc.node_api import Done, Target
from space.rpc.session import Stream

T = TypeVar("T", bound=msgspec.Struct)
P = TypeVar("P", api.SecretPage, api.GrantPage)


class House(Protocol):
    """Whose verbs these are."""

    def broker(self) -> BrokerControl:
        """Unavailable while it is away."""

    def of(self, sandbox: str) -> tuple[str, Phase, int]:
        """Its tenant, phase and generation. NotFound."""

    def attaching(self, sandbox: str, tenant: str, generation: int) -> None:
        """Something may be attached to it from now on."""

    def changed(self, tenant: str) -> None:
        """Its grants are others now."""


class NodesHouse:
    """A node's."""

    def __init__(self, node: Node) -> None:
        self._around, self._find = node.around, node.find

    def broker(self) -> BrokerControl:
        """Unavailable while it is away."""
        return self._around.egress.services.broker.now()

    def of(self, sandbox: str) -> tuple[str, Phase, int]:
        """Its tenant, phase and generation. NotFound."""
        record = self._find(Target(sandbox)).record
        return record.tenant, record.phase, record.generation

    def attaching(self, sandbox: str, tenant: str, generation: int) -> None:
        """A row in the ledger."""
        self._around.ledger.hold(Holding(Kind.GRANTS, sandbox, sandbox, generation, tenant))

    def changed(self, tenant: str) -> None:
        """Its sandboxes' placeholders are asked for again."""
        self._around.egress.grants_changed(tenant)


class CredentialVerbs:
    """Part of the table of `verbs`."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.table: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "secret_put": self._secret_put,
            "secret_get": self._secret_get,
            "secret_list": self._secret_list,
            "secret_revoke": self._secret_revoke,
            "secret_delete": self._secret_delete,
            "grant_put": self._grant_put,
            "grant_get": self._grant_get,
            "grant_list": self._grant_list,
            "grant_revoke": self._grant_revoke,
            "grant_delete": self._grant_delete,
            "grants_attach": self._attach,
            "grant_detach": self._detach,
            "grants_attached": self._attached,
        }

    @property
    def _broker(self) -> BrokerControl:
        return self._house.broker()

    # -- secrets -------------------------------------------------------------------------------------------------

    async def _secret_put(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.SecretPut, request)
        found = await self._broker.put_secret(
            asked.tenant, asked.name, asked.kind, Secret(asked.value),
            public=asked.public, labels=asked.labels, description=asked.description, expires=asked.expires, mode=asked.mode,
        )  # fmt: skip
        await stream.send_message(_as(api.SecretInfo, found), last=True)

    async def _secret_get(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Named, request)
        await stream.send_message(_as(api.SecretInfo, await self._broker.secret(asked.tenant, asked.name)), last=True)

    async def _secret_list(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Listing, request)
        found = await self._broker.secrets(asked.tenant, asked.after, asked.limit)
        await _paged(stream, api.SecretPage, [_as(api.SecretInfo, one) for one in found.secrets], more=found.more)

    async def _secret_revoke(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Named, request)
        await stream.send_message(_as(api.SecretInfo, await self._broker.revoke_secret(asked.tenant, asked.name)), last=True)

    async def _secret_delete(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Named, request)
        await self._broker.delete_secret(asked.tenant, asked.name)
        await stream.send_message(Done(), last=True)

    # -- grants --------------------------------------------------------------------------------------------------

    async def _grant_put(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.GrantPut, request)
        found = await self._broker.put_grant(asked.tenant, asked.grant, replace=asked.replace)
        self._changed(asked.tenant)
        await stream.send_message(_as(api.GrantInfo, found), last=True)

    async def _grant_get(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Named, request)
        await stream.send_message(_as(api.GrantInfo, await self._broker.grant(asked.tenant, asked.name)), last=True)

    async def _grant_list(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Listing, request)
        found = await self._broker.grants(asked.tenant, asked.after, asked.limit, asked.secret)
        await _paged(stream, api.GrantPage, [_as(api.GrantInfo, one) for one in found.grants], more=found.more)

    async def _grant_revoke(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Named, request)
        found = await self._broker.revoke_grant(asked.tenant, asked.name)
        self._changed(asked.tenant)
        await stream.send_message(_as(api.GrantInfo, found), last=True)

    async def _grant_delete(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.Named, request)
        await self._broker.delete_grant(asked.tenant, asked.name)
        self._changed(asked.tenant)
        await stream.send_message(Done(), last=True)

    # -- what a sandbox has besides ------------------------------------------------------------------------------

    async def _attach(self, stream: Stream, request: bytes) -> None:
        asked, generation = self._attachment(request)
        self._house.attaching(asked.sandbox, asked.tenant, generation)
        await self._broker.attach_grants(asked.tenant, asked.sandbox, asked.names)
        self._changed(asked.tenant)
        await stream.send_message(Done(), last=True)

    async def _detach(self, stream: Stream, request: bytes) -> None:
        asked, _ = self._attachment(request)
        for name in asked.names:
            await self._broker.detach_grant(asked.tenant, asked.sandbox, name)
        self._changed(asked.tenant)
        await stream.send_message(Done(), last=True)

    async def _attached(self, stream: Stream, request: bytes) -> None:
        asked, _ = self._attachment(request)
        await stream.send_message(api.GrantNames(await self._broker.attached(asked.tenant, asked.sandbox)), last=True)

    def _attachment(self, request: bytes) -> tuple[api.Attachment, int]:
        """A sandbox that is here, and that tenant's; its generation."""
        asked = decode(api.Attachment, request)
        tenant, phase, generation = self._house.of(asked.sandbox)
        if tenant != asked.tenant:
            raise NotFound(f"sandbox {asked.sandbox} is not on this node")
        if phase is Phase.DELETING:
            raise Conflict(f"sandbox {asked.sandbox} is being deleted")
        return asked, generation

    def _changed(self, tenant: str) -> None:
        self._house.changed(tenant)


def _as(kind: type[T], found: broker_api.SecretInfo | broker_api.GrantInfo) -> T:
    return msgspec.convert(found, kind, from_attributes=True)


async def _paged(stream: Stream, kind: type[P], found: Sequence[msgspec.Struct], *, more: bool) -> None:
    """As many messages as it takes; the last one says whether there are more."""
    told = list(pages(found))
    for page in told[:-1]:
        await stream.send_message(kind(page))  # type: ignore[arg-type]  # its own
    await stream.send_message(kind(told[-1], more), last=True)  # type: ignore[arg-type]
