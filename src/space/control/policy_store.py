"""Rows of policies: what they say, by digest; those with names; layers. And the texts that were asked for last, in memory."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select, union

from space.control import limits
from space.control.store.schema import policies, policy_layers, policy_texts, sandboxes
from space.control.store.store import Store
from space.model.egress import NamedPolicy, Permission
from space.model.errors import Internal

OPERATOR = ""


@dataclass(frozen=True, slots=True)
class Named:
    """A stored policy. source: the digest of what it says."""

    tenant: str
    name: str
    source: str
    revision: int
    bytes: int
    rules: int
    open: bool
    updated_us: int

    def info(self, sandboxes: int = 0, pending: int = 0) -> NamedPolicy:
        """As the API shows it, without what it says."""
        return NamedPolicy(self.name, self.revision, self.bytes, self.rules, self.open, self.updated_us / 1e6, sandboxes, pending)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer. source: empty where it does not narrow."""

    source: str = ""
    default: str | None = None
    permits: tuple[Permission, ...] = ()
    revision: int = 0


def everything(connection: Connection) -> tuple[list[Named], dict[str, LayerRow]]:
    """Named policies, and layers by tenant."""
    named = [
        Named(row.tenant, row.name, row.source, row.revision, row.bytes, row.rules, row.open, row.updated_us)
        for row in connection.execute(select(policies))
    ]
    layers = {
        row.tenant: LayerRow(row.source, row.default_name, tuple(row.permits), row.revision)
        for row in connection.execute(select(policy_layers))
    }
    return named, layers


def keep_text(connection: Connection, digest: str, data: bytes) -> None:
    """What a policy says, or a document; once."""
    if digest and connection.execute(select(policy_texts.c.digest).where(policy_texts.c.digest == digest)).scalar() is None:
        connection.execute(insert(policy_texts).values(digest=digest, data=data))


def put_named(connection: Connection, named: Named, data: bytes) -> None:
    """A stored policy, whole."""
    keep_text(connection, named.source, data)
    connection.execute(delete(policies).where(policies.c.tenant == named.tenant, policies.c.name == named.name))
    connection.execute(insert(policies).values(**asdict(named)))


def drop_named(connection: Connection, tenant: str, name: str) -> None:
    """Forget one."""
    connection.execute(delete(policies).where(policies.c.tenant == tenant, policies.c.name == name))


def put_layer(connection: Connection, tenant: str, layer: LayerRow, data: bytes) -> None:
    """A layer, whole."""
    keep_text(connection, layer.source, data)
    connection.execute(delete(policy_layers).where(policy_layers.c.tenant == tenant))
    values = {"source": layer.source, "default_name": layer.default, "permits": list(layer.permits), "revision": layer.revision}
    connection.execute(insert(policy_layers).values(tenant=tenant, **values))


def drop_unused(connection: Connection) -> None:
    """Forget texts that nothing names."""
    named = union(
        select(policies.c.source), select(policy_layers.c.source), select(sandboxes.c.policy_source), select(sandboxes.c.policy_digest)
    )
    connection.execute(delete(policy_texts).where(policy_texts.c.digest.not_in(named)))


class Texts:
    """Texts by digest."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    async def get(self, digest: str) -> bytes:
        """One that something names."""
        found = self._kept.get(digest)
        if found is None:
            query = select(policy_texts.c.data).where(policy_texts.c.digest == digest)
            found = await self._store.read(lambda connection: connection.execute(query).scalar())
            if found is None:
                raise Internal("what a policy says is not in the state store", hint="set the policy again")
        self.remember(digest, found)
        return found

    def remember(self, digest: str, data: bytes) -> None:
        """Keep it at hand, instead of what was asked for longest ago."""
        self._size += len(data) - len(self._kept.pop(digest, b""))
        self._kept[digest] = data
        while self._size > limits.POLICY_CACHE and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            self._size -= len(gone)
