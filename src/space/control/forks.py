"""Forks: children of one instant of a sandbox, each a sandbox of its own with an id, an identity, a policy and a time to live.

    rows of all children (one transaction) -> node.fork -> all run, or none is kept and whoever asked is told why

A child has what its parent was created with and the policy that the parent is to have, judged anew by what the tenant may have now.
Grants and placeholders are a sandbox's own and are not copied: a child has those that the fork names, and those that select it; what the
parent's processes hold in their memory they hold in the children too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from space.control.book import Book
from space.control.creation import Creation
from space.control.entry import Entry
from space.control.events import News
from space.control.lives import Lives
from space.control.policies import Policies
from space.control.quotas import Quotas
from space.control.records import USED, USED_HINT, WANTED, Record, Repeat
from space.core.lifecycle.table import Refuse, Request, answer
from space.model.errors import Conflict, Gone, SpaceError, Unavailable
from space.model.ids import new_sandbox_id
from space.model.sandbox import Phase, SandboxInfo, SandboxSpec

Asked = tuple[str, bytes]  # an idempotency key, and the digest of what was asked with it


class Forks:
    """Who forks."""

    def __init__(self, book: Book, policies: Policies, lives: Lives, creation: Creation, quotas: Quotas) -> None:
        self._book = book
        self._policies = policies
        self._lives = lives
        self._creation = creation
        self._quotas = quotas

    async def again(self, tenant: str, sandbox: str, count: int, repeat: Asked | None) -> list[SandboxInfo] | None:
        """What the first request with this idempotency key got; None: this is the first. Conflict, Gone, or why there are none."""
        earlier = None if repeat is None else self._book.repeated(tenant, repeat[0])
        if earlier is None or repeat is None:
            return None
        if earlier.digest != repeat[1]:
            raise Conflict(USED, hint=USED_HINT)
        # One instant's children have one time, which is that of the key's use as well.
        made = [entry for entry in self._book.live.values() if _of(entry.record, sandbox, earlier) and not entry.record.ended]
        if len(made) < count:
            raise Gone(f"{count - len(made)} of the {count} children of this Idempotency-Key have ended", hint="use a new key for new ones")
        return [await self._creation.running(entry) for entry in made]

    async def fork(
        self,
        parent: Entry,
        spec: SandboxSpec,
        count: int,
        room: Callable[[int], None],
        repeat: Asked | None = None,
        grants: Sequence[str] = (),
    ) -> list[SandboxInfo]:
        """The children. room: NoCapacity unless there is room for so many more. repeat: idempotency key, and digest of what was asked.

        grants: names of those that each of them has besides.
        """

        async def work() -> list[SandboxInfo]:
            there = await self.again(parent.record.tenant, parent.record.id, count, repeat)  # it may have come while this one waited
            if there is not None:
                return there
            children = await self._begin(parent, spec, count, room, repeat)
            for child in children:
                child.grants = list(grants)
            try:
                await self._creation.forked(parent, children)
            except SpaceError as fault:
                if not isinstance(fault, Unavailable):  # then the list says what became of them, and so does a repeat
                    self._book.release(children[0])
                raise
            return [child.record.info() for child in children]

        return await self._lives.alone(parent, work, f"fork {parent.record.id}")

    async def _begin(self, parent: Entry, spec: SandboxSpec, count: int, room: Callable[[int], None], repeat: Asked | None) -> list[Entry]:
        record = parent.record
        chosen = await self._policies.inherited(record, count)
        record = parent.record
        self._may(parent)
        room(count)
        # Counted and taken with nothing awaited between.
        self._quotas.admit(record.tenant, spec, lambda: self._book.usage(record.tenant), count=count)
        now = time.time_ns() // 1000
        generation = 1 if chosen.made.digest else 0
        made = [
            Record(
                id=new_sandbox_id(),
                tenant=record.tenant,
                spec=spec,
                desired=WANTED,
                phase=Phase.REQUESTED,
                isolation=record.isolation,
                created_us=now,
                expires_us=now + spec.ttl_seconds * 1_000_000,
                policy_generation=generation,
                policy_applied=generation,
                parent=record.id,
                **chosen.fields,
            )
            for _ in range(count)
        ]
        told = News("forked", record, children=[child.id for child in made])
        used = None if repeat is None else Repeat(record.tenant, *repeat, made[0].id, now)
        children = await self._book.add_all(made, used, self._policies.keep(chosen), [told])
        for child in children:
            self._policies.begun(child, chosen)
        return children

    def _may(self, parent: Entry) -> None:
        record = parent.record
        said = answer(Phase.DELETING if record.desired != WANTED else record.phase, Request.FORK)
        if isinstance(said, Refuse):
            raise said.fault(record.id, record.reason)
        if not self._creation.can:
            raise Unavailable("the node is not connected", hint="it is being restarted if it died; repeat in a few seconds")


def _of(record: Record, parent: str, earlier: Repeat) -> bool:
    return record.parent == parent and record.created_us == earlier.created_us
