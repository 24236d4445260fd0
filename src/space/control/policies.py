"""Policies of tenants: stored ones, layers, and what each sandbox has of them.

    change of a stored policy, a layer, or a sandbox's own -> on the disk -> each sandbox that it concerns: document made anew; if it is
    another one, the next generation, on the disk -> told to the node (`telling`)

A process that dies between leaves the wish in the store: at the next start every sandbox's document is made anew and compared. Layers that
make no document any more (a preset is gone, it grew too large) leave a sandbox with nothing allowed, and a reason.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from space.control import limits
from space.control import policy_store as rows
from space.control.book import Book
from space.control.compiler import Compiler, Judged, Made
from space.control.entry import Entry
from space.control.events import News
from space.control.link import NodeLink
from space.control.policy_store import OPERATOR, LayerRow, Named, Texts
from space.control.problems import QuotaPassed
from space.control.records import Record
from space.control.telling import Telling
from space.core.policy import document
from space.core.policy.document import Document
from space.model.egress import NamedPolicy, Permission, PolicyLayer, PolicyNote, SandboxPolicy
from space.model.errors import Conflict, InvalidArgument, NotFound, PermissionDenied

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_AT_A_TIME = 32
Asked = Mapping[str, Any] | str | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A policy for a sandbox. fields: of its record. own, made: to be stored with it. basis: what it was made of."""

    fields: dict[str, Any]
    own: tuple[str, bytes]
    made: Made
    basis: tuple[LayerRow, LayerRow, str]
    warnings: tuple[PolicyNote, ...] = ()


class Policies:
    """The service behind the routes."""

    def __init__(self, book: Book, link: NodeLink) -> None:
        self._book = book
        self._store = book.store
        self._texts = Texts(book.store)
        self._compiler = Compiler(self._texts)
        self._named: dict[tuple[str, str], Named] = {}
        self._layers: dict[str, LayerRow] = {}
        self._changing: dict[str, asyncio.Lock] = {}
        self.telling = Telling(book, link, self._texts)
        # called when a tenant's layer is another, or (None) the operator's
        self.on_layer: Callable[[str | None], None] = lambda tenant: None

    async def load(self) -> None:
        """Take up what the store holds, and make anew what may have changed since."""
        named, self._layers = await self._store.read(rows.everything)
        self._named = {(one.tenant, one.name): one for one in named}
        self._sweep()
        self._book.spawn(self._refresh(list(self._book.live.values())), "policies of all sandboxes")

    # -- of sandboxes -----------------------------------------------------------------------------------------------------

    async def choose(self, tenant: str, asked: Asked, *, default: bool = False) -> Chosen:
        """What a sandbox gets. default: whether None is the tenant's default. InvalidArgument, NotFound, PermissionDenied, QuotaPassed."""
        name, own, warnings = asked if isinstance(asked, str) else None, ("", b""), ()
        if asked is None and default:
            name = self.layer_row(tenant).default
        if name is not None:
            self._find(tenant, name)
        elif isinstance(asked, Mapping):
            judged = await self._judged(tenant, asked)
            own, warnings = (judged.source, judged.data), judged.warnings  # type: ignore[assignment]  # a tuple of any length
            self._admit(tenant, len(judged.data))
        while True:
            basis = self._basis(tenant, name, own[0])
            if own[0]:
                self._texts.remember(*own)
            made = await self._compiler.make(*basis)
            if basis == self._basis(tenant, name, own[0]):
                break
        if made.reason is not None:
            raise InvalidArgument(
                f"the policy makes no document with the layers above it: {made.reason}", hint="the operator can see these layers"
            )
        fields = {
            "policy_name": name,
            "policy_source": own[0],
            "policy_bytes": len(own[1]),
            "policy_digest": made.digest,
            "policy_open": made.open,
        }
        return Chosen(fields, own, made, basis, warnings)

    async def told(self, tenant: str, asked: Mapping[str, Any] | str) -> str:
        """The digest of the document that a policy makes now for what is no sandbox; the node has it. As `choose`."""
        chosen = await self.choose(tenant, asked)
        if chosen.made.digest:
            self._texts.remember(chosen.made.digest, chosen.made.data)
        await self.telling.ensure(chosen.made.digest)
        return chosen.made.digest

    async def inherited(self, parent: Record, count: int) -> Chosen:
        """What `count` children of a sandbox get: what it is to have, as if it were asked for now. As `choose`."""
        asked: Asked = parent.policy_name
        if parent.policy_name is None and parent.policy_source:
            asked = msgspec.json.decode(await self._texts.get(parent.policy_source))
            self._admit(parent.tenant, count * parent.policy_bytes)
        return await self.choose(parent.tenant, asked)

    def keep(self, chosen: Chosen) -> Any:
        """The change that stores a choice's texts, for the transaction of the sandbox's row."""
        if chosen.made.digest:
            self._texts.remember(chosen.made.digest, chosen.made.data)

        def change(connection: Any) -> None:
            rows.keep_text(connection, *chosen.own)
            rows.keep_text(connection, chosen.made.digest, chosen.made.data)

        return change

    def begun(self, entry: Entry, chosen: Chosen) -> None:
        """A sandbox with this choice is in the book: make it anew if something has changed meanwhile."""
        if chosen.basis != self._basis_of(entry.record):
            self._book.spawn(self._refresh([entry]), f"policy of {entry.record.id}")

    async def set(self, entry: Entry, asked: Asked) -> SandboxPolicy:
        """Another policy for a sandbox: on the disk, then told; waits a while for the node."""
        chosen = await self.choose(entry.record.tenant, asked)
        record = entry.record
        if record.ended:
            raise Conflict(f"sandbox {record.id} has ended")
        same = all(getattr(record, name) == value for name, value in chosen.fields.items()) and record.policy_reason is None
        if not same:
            await self._give(entry, chosen.made, self.keep(chosen), **chosen.fields)
        self.begun(entry, chosen)
        await self.telling.settled(entry, limits.POLICY_WAIT_SECONDS)
        return replace(await self.of(entry.record), warnings=chosen.warnings)

    async def of(self, record: Record) -> SandboxPolicy:
        """A sandbox's policy, whole."""
        source = self._basis_of(record)[2]
        layers = [level for level, tenant in (("operator", OPERATOR), ("tenant", record.tenant)) if self.layer_row(tenant).source]
        policy: Any = msgspec.Raw(await self._texts.get(source)) if source else None
        return SandboxPolicy(record.policy(), policy, layers)

    async def document(self, record: Record) -> Document:
        """What holds for it, loaded."""
        data = await self._texts.get(record.policy_digest) if record.policy_digest else document.compose({})
        return await asyncio.to_thread(document.read, data)

    # -- stored ones --------------------------------------------------------------------------------------------------------

    def infos(self, tenant: str) -> list[NamedPolicy]:
        """All of a tenant's, by name."""
        return [self._info(one) for (owner, _), one in sorted(self._named.items()) if owner == tenant]

    async def info(self, tenant: str, name: str) -> NamedPolicy:
        """One, whole."""
        found = self._find(tenant, name)
        policy: Any = msgspec.Raw(await self._texts.get(found.source))
        return replace(self._info(found), policy=policy)

    async def put(self, tenant: str, name: str, policy: Mapping[str, Any]) -> tuple[NamedPolicy, bool]:
        """Store one, and give it to every sandbox that follows it; whether it is new."""
        if not _NAME.match(name):
            raise InvalidArgument(f"{name[:64]!r} is no name for a policy", hint="1 to 63 of a-z, 0-9, '.', '_' and '-', such as agents")
        judged = await self._judged(tenant, policy)
        async with self._change(tenant):
            before = self._named.get((tenant, name))
            if before is None and sum(owner == tenant for owner, _ in self._named) >= limits.POLICIES_PER_TENANT:
                raise QuotaPassed(f"tenant {tenant} has {limits.POLICIES_PER_TENANT} policies", hint="delete one")
            self._admit(tenant, len(judged.data) - (before.bytes if before is not None else 0))
            revision, now = 1 if before is None else before.revision + 1, time.time_ns() // 1000
            named = Named(tenant, name, judged.source, revision, len(judged.data), judged.rules, judged.open, now)
            if before is None or before.source != named.source:
                await self._store.write(lambda connection: rows.put_named(connection, named, judged.data), durable=True)
                self._texts.remember(judged.source, judged.data)
                self._named[tenant, name] = named
        await self._spread([entry for entry in self._of_tenant(tenant) if entry.record.policy_name == name])
        return replace(self._info(self._find(tenant, name)), warnings=judged.warnings), before is None

    async def delete(self, tenant: str, name: str) -> None:
        """Forget one that nothing follows. NotFound, Conflict."""
        async with self._change(tenant):
            self._find(tenant, name)
            if users := sum(entry.record.policy_name == name for entry in self._of_tenant(tenant)):
                raise Conflict(
                    f"policy {name!r} is followed by {users} sandbox{'' if users == 1 else 'es'}",
                    hint="give them another one, or delete them",
                )
            if self.layer_row(tenant).default == name:
                raise Conflict(f"policy {name!r} is the default of tenant {tenant}", hint="the operator can set another one")
            del self._named[tenant, name]
            await self._store.write(lambda connection: rows.drop_named(connection, tenant, name), durable=True)

    # -- layers ---------------------------------------------------------------------------------------------------------------

    def layer_row(self, tenant: str) -> LayerRow:
        """The layer that counts."""
        return self._layers.get(tenant, LayerRow())

    async def layer(self, tenant: str) -> PolicyLayer:
        """A tenant's layer, or the operator's."""
        found = self.layer_row(tenant)
        policy: Any = msgspec.Raw(await self._texts.get(found.source)) if found.source else None
        return PolicyLayer(found.revision, policy, found.default, found.permits)

    async def set_layer(
        self, tenant: str, policy: Mapping[str, Any] | None, default: str | None = None, permits: Iterable[Permission] = ()
    ) -> PolicyLayer:
        """Set it, whole, for every sandbox below it."""
        judged = None if policy is None else await self._compiler.judge(policy, "operator" if tenant == OPERATOR else "tenant")
        async with self._change(tenant):
            if default is not None:
                self._find(tenant, default)
            source, data = ("", b"") if judged is None else (judged.source, judged.data)
            layer = LayerRow(source, default, tuple(sorted(set(permits))), self.layer_row(tenant).revision + 1)
            await self._store.write(lambda connection: rows.put_layer(connection, tenant, layer, data), durable=True)
            if source:
                self._texts.remember(source, data)
            self._layers[tenant] = layer
        self.on_layer(None if tenant == OPERATOR else tenant)
        await self._spread(list(self._book.live.values()) if tenant == OPERATOR else self._of_tenant(tenant))
        return replace(await self.layer(tenant), warnings=() if judged is None else judged.warnings)

    # -- helpers ------------------------------------------------------------------------------------------------------------

    async def _spread(self, entries: list[Entry]) -> None:
        """Give entries what is theirs now, and wait a while for the node. It goes on when whoever asked leaves."""
        await asyncio.shield(self._book.spawn(self._refresh(entries), "policies that changed"))
        deadline = time.monotonic() + limits.POLICY_WAIT_SECONDS
        for entry in entries:
            await self.telling.settled(entry, max(0.0, deadline - time.monotonic()))

    async def _refresh(self, entries: list[Entry]) -> None:
        room = asyncio.Semaphore(_AT_A_TIME)

        async def one(entry: Entry) -> None:
            async with room:
                await self._remake(entry)

        await asyncio.gather(*(one(entry) for entry in entries))

    async def _remake(self, entry: Entry) -> None:
        while True:
            basis = self._basis_of(entry.record)
            made = await self._compiler.make(*basis)
            if basis == self._basis_of(entry.record):
                break
        record = entry.record
        if record.ended or (
            (made.digest, made.open) == (record.policy_digest, record.policy_open)
            and (made.reason is not None) == (record.policy_state == "refused")
        ):
            return
        if made.digest:
            self._texts.remember(made.digest, made.data)
        await self._give(
            entry,
            made,
            lambda connection: rows.keep_text(connection, made.digest, made.data),
            policy_digest=made.digest,
            policy_open=made.open,
        )

    async def _give(self, entry: Entry, made: Made, keep: Any, **fields: Any) -> None:
        """The next generation of a sandbox's policy: on the disk, then told."""
        fields["policy_generation"] = entry.record.policy_generation + 1
        fields |= {"policy_state": "pending" if made.reason is None else "refused", "policy_reason": made.reason}
        self._book.set(entry, **fields)
        record = entry.record
        await self._book.save(entry, keep, [News("egress_policy", record, policy=record.policy())])
        self.telling.look(entry)

    def _basis(self, tenant: str, name: str | None, own: str) -> tuple[LayerRow, LayerRow, str]:
        source = own if name is None else self._named[tenant, name].source if (tenant, name) in self._named else ""
        return self.layer_row(OPERATOR), self.layer_row(tenant), source

    def _basis_of(self, record: Record) -> tuple[LayerRow, LayerRow, str]:
        return self._basis(record.tenant, record.policy_name, record.policy_source)

    def _find(self, tenant: str, name: str) -> Named:
        found = self._named.get((tenant, name))
        if found is None:
            raise NotFound(f"there is no policy {name[:64]!r}", hint="GET /v1/policies lists those of this key's tenant")
        return found

    def _info(self, named: Named) -> NamedPolicy:
        followers = [entry.record for entry in self._of_tenant(named.tenant) if entry.record.policy_name == named.name]
        return named.info(len(followers), sum(record.policy_state != "applied" for record in followers))

    async def _judged(self, tenant: str, policy: Mapping[str, Any]) -> Judged:
        judged = await self._compiler.judge(policy, "sandbox")
        permits = self.layer_row(tenant).permits
        for what, there in (("open", judged.open), ("record", judged.records)):
            if there and what not in permits:
                said = "open: any public host" if what == "open" else "mode record: what no rule allows is let through"
                raise PermissionDenied(
                    f"tenant {tenant} may not have a policy with {said}", hint=f"an admin permits it: PUT /v1/tenants/{tenant}/policy"
                )
        return judged

    def _admit(self, tenant: str, more: int) -> None:
        """QuotaPassed when what a tenant's policies say grows too large."""
        has = sum(one.bytes for (owner, _), one in self._named.items() if owner == tenant)
        has += sum(entry.record.policy_bytes for entry in self._of_tenant(tenant))
        if has + more > limits.POLICY_BYTES_PER_TENANT:
            raise QuotaPassed(
                f"the policies of tenant {tenant} have {has} bytes, and {more} more would be above {limits.POLICY_BYTES_PER_TENANT}",
                hint="store a policy once, under a name, for all sandboxes that have it",
            )

    def _of_tenant(self, tenant: str) -> list[Entry]:
        return [entry for entry in self._book.live.values() if entry.record.tenant == tenant and not entry.record.ended]

    def _change(self, tenant: str) -> asyncio.Lock:
        return self._changing.setdefault(tenant, asyncio.Lock())

    def _sweep(self) -> None:
        self._store.post(rows.drop_unused)
        self._book.timers.after(limits.SWEEP_SECONDS, self._sweep)
