"""Creations: from the row to running or failed, and those who wait for it.

It belongs to no request: a caller may leave. A session that breaks in the middle leaves the decision to the next one's list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from space.control import limits
from space.control.book import Book
from space.control.ends import Ends
from space.control.entry import SETTLED, THERE, Entry
from space.control.link import LinkLost, NodeLink
from space.control.records import UNWANTED, USED, USED_HINT, WANTED, Record, Repeat
from space.control.telling import Telling
from space.model.errors import (
    Conflict,
    DeadlineExceeded,
    Gone,
    InvalidArgument,
    NoCapacity,
    NotFound,
    SandboxDied,
    SpaceError,
    TooLarge,
    Unavailable,
)
from space.model.sandbox import Phase, SandboxInfo
from space.rpc.life_api import Child, Fork, Forked
from space.rpc.node_api import Create, SandboxState

_NEVER_BEGUN = (InvalidArgument, NotFound, TooLarge)  # of these a node's words before `preparing` mean that it made nothing


class Creation:
    """Who makes sandboxes. heed: takes a level of the node. absent: the node has no such sandbox.

    resolve: name and digest of a template's reference.
    """

    def __init__(
        self,
        book: Book,
        ends: Ends,
        link: NodeLink,
        heed: Callable[[SandboxState], None],
        absent: Callable[[Entry], None],
        resolve: Callable[[str, str], tuple[str, str]],
        telling: Telling,
    ) -> None:
        self._book = book
        self._telling = telling
        self._ends = ends
        self._link = link
        self._heed = heed
        self._absent = absent
        self._resolve = resolve
        self._stopping = False

    def stopping(self) -> None:
        """The server ends: those who wait are told now, what is being made goes on at the node."""
        self._stopping = True
        for entry in self._book.live.values():
            entry.look()

    async def drive(self, entry: Entry, *, keep_refused: bool) -> None:
        """A create, from its row to running or failed."""
        record, spec = entry.record, entry.record.spec
        try:
            name, digest = self._resolve(record.tenant, spec.template)
            request = Create(
                record.id, record.tenant, record.generation, name, spec.cpus, spec.memory_mib, spec.disk_mib, dict(spec.env),
                record.policy_digest, record.policy_generation, digest=digest,
                labels=dict(spec.metadata), grants=sorted(set(entry.grants)),
            )  # fmt: skip
            if record.desired == UNWANTED:
                return
            async with asyncio.timeout(limits.CREATE_SECONDS):
                await self._make(entry, request)
            await entry.committed()
            if entry.record.phase not in SETTLED:
                self._ends.fail(entry, _ended(entry) or SandboxDied("the node ended the creation without a result"))
        except LinkLost as error:
            entry.fault = Unavailable(error.message, hint="the list shows what became of it")
            entry.creating = False
            await self._settle(entry)
            entry.lost = True
            entry.look()
        except TimeoutError:
            self._ends.fail(entry, DeadlineExceeded(f"the sandbox was not running after {limits.CREATE_SECONDS:g} s"))
        except SpaceError as error:
            if entry.unkept:
                self._ends.delete_there(record.id)
                return
            refused = isinstance(error, NoCapacity | Unavailable) or (
                isinstance(error, _NEVER_BEGUN) and entry.record.phase is Phase.REQUESTED
            )
            if refused and not keep_refused and entry.record.desired == WANTED:
                await self._book.remove(entry, error)
            else:
                self._ends.fail(entry, _ended(entry) or error)
        finally:
            entry.creating = False
            self._telling.look(entry)  # it may have got another policy meanwhile

    @property
    def can(self) -> bool:
        """Whether there is a node to make something."""
        return self._link.is_up

    async def forked(self, parent: Entry, children: list[Entry]) -> None:
        """Children, from their rows to running: all, or none of them is kept. The fault of the first that failed."""
        begun = False
        try:
            asked = [
                Child(
                    sandbox=one.id,
                    generation=one.generation,
                    policy=one.policy_digest,
                    policy_generation=one.policy_generation,
                    labels=dict(one.spec.metadata),
                    grants=sorted(set(child.grants)),
                )
                for child, one in ((child, child.record) for child in children)
            ]
            async with asyncio.timeout(limits.CREATE_SECONDS):
                await self._telling.ensure(children[0].record.policy_digest)
                async for said in self._link.messages("fork", Fork(sandbox=parent.record.id, children=asked), Forked | SandboxState):
                    begun = True
                    if isinstance(said, SandboxState):
                        self._heed(said)
        except LinkLost as error:
            for child in children:
                child.creating = False
                await self._settle(child)
            raise Unavailable(error.message, hint="the list shows what became of the children") from error
        except TimeoutError:
            fault: SpaceError | None = DeadlineExceeded(f"the children did not run after {limits.CREATE_SECONDS:g} s")
        except SpaceError as error:
            fault = error
        else:
            fault = next((_failed_child(child) for child in children
                          if child.record.phase is not Phase.RUNNING), None)  # fmt: skip
        finally:
            for child in children:
                child.creating = False
        if fault is not None:
            await self._none(children, fault, begun=begun)
            raise fault
        for child in children:
            self._telling.look(child)

    async def _none(self, children: list[Entry], fault: SpaceError, *, begun: bool) -> None:
        for child in children:
            if child.record.ended:
                continue
            if begun:
                await self._ends.unwant(child, f"its fork failed: {fault.message}"[:300])
            else:
                await self._book.remove(child, fault)

    async def _make(self, entry: Entry, request: Create) -> None:
        """The node makes it; it gets the policy first if it lacks that, which may be in the row's own transaction.

        The node is told while the row is committed. What a control that dies between has the node make is of no row, and so is deleted.
        """
        if self._telling.lacks(request.policy):
            await entry.committed()
            await self._telling.ensure(request.policy)
        try:
            async for level in self._link.create(request):
                self._heed(level)
        except NotFound:
            if not request.policy or entry.record.phase is not Phase.REQUESTED:
                raise
            await self._telling.ensure(request.policy, again=True)
            async for level in self._link.create(request):
                self._heed(level)

    async def running(self, entry: Entry) -> SandboxInfo:
        """Wait until it runs; the fault of it otherwise."""
        settled = await self._until(entry, lambda record: record.phase in SETTLED or entry.lost, limits.CREATE_SECONDS)
        if entry.lost and entry.record.phase not in SETTLED:
            settled = await self._until(entry, lambda record: record.phase in SETTLED, limits.NODE_BACK_SECONDS)
            if not settled and self._link.is_up:  # it is being made there
                settled = await self._until(entry, lambda record: record.phase in SETTLED, limits.CREATE_SECONDS)
        record = entry.record
        if record.phase in THERE:
            return record.info()
        if entry.fault is not None:
            raise entry.fault
        if not settled:
            raise DeadlineExceeded(
                f"sandbox {record.id} is still {record.phase} after {limits.CREATE_SECONDS:g} s", hint="GET shows its phase"
            )
        if record.phase is Phase.GONE:
            raise _ended(entry) or Gone(f"sandbox {record.id} has ended: {record.reason}")
        raise SandboxDied(f"sandbox {record.id} failed: {record.reason}", hint="the server's log has the stages")

    async def join(self, tenant: str, earlier: Repeat, digest: bytes, *, wait: bool) -> SandboxInfo:
        """What the first request with this idempotency key got."""
        if earlier.digest != digest:
            raise Conflict(USED, hint=USED_HINT)
        entry = self._book.live.get(earlier.sandbox)
        if entry is not None and not entry.record.ended:
            await entry.committed()
            return await self.running(entry) if wait else entry.record.info()
        try:
            return (await self._book.find(tenant, earlier.sandbox)).info()
        except NotFound:
            raise Gone(f"sandbox {earlier.sandbox} of this Idempotency-Key has ended", hint="use a new key for a new sandbox") from None

    async def _until(self, entry: Entry, claim: Callable[[Record], bool], seconds: float) -> bool:
        found = await entry.until(lambda record: claim(record) or self._stopping, seconds)
        if self._stopping and not claim(entry.record):
            raise Unavailable(
                f"the server is stopping while sandbox {entry.record.id} is made", hint="the list shows what became of it when it is back"
            )
        return found

    async def _settle(self, entry: Entry) -> None:
        """After a lost create: the next session's list decides; if that session is there already, ask it."""
        if not self._link.is_up or entry.record.phase in SETTLED:
            return
        try:
            there = await self._link.list()
        except SpaceError:
            return  # and the session after that decides
        level = next((one for one in there if one.sandbox == entry.record.id), None)
        if level is not None:
            self._heed(level)
        else:
            self._absent(entry)


def _ended(entry: Entry) -> Gone | None:
    """Somebody ended it on purpose: that is what its creator is told."""
    record = entry.record
    return None if record.desired == WANTED else Gone(f"sandbox {record.id} was ended while it was made: {record.reason}")


def _failed_child(child: Entry) -> SpaceError:
    record = child.record
    return (
        SandboxDied(f"child {record.id} failed: {record.reason}")
        if record.phase is Phase.FAILED
        else _ended(child) or Gone(f"child {record.id} is {record.phase}")
    )
