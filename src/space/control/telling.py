"""Which policy each sandbox is to have, told to the node until it decides by it.

    wanted (digest, generation) == what the node's level says    applied
    otherwise                                                    set_policy, again and again while there is a session
    not within POLICY_CUT_SECONDS                                set_policy to none, then the wanted one further

The wish is in the store before it is told, so it outlives every process. While the node is away it is not told: the next session's list
shows what holds, and what is not as wanted is told then. Nothing is wider than wanted for longer than it takes to cut, as long as
the node answers at all. A sandbox without a life (suspended, stopped, failed) is told of at its next one: the wish stays `pending`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

from space.control import limits
from space.control.book import Book
from space.control.entry import Entry
from space.control.events import News
from space.control.link import LinkLost, NodeLink, decoded
from space.control.policy_store import Texts
from space.control.records import UNWANTED
from space.core.wire.events import Message
from space.model.egress import PolicyState
from space.model.errors import NotFound, ProtocolError, SpaceError
from space.model.sandbox import Phase
from space.rpc.node_api import Done, EgressState, PolicyPut, SetPolicy

log = logging.getLogger("space.control.policies")
_PIECE = 64 * 1024
_FIRST_PAUSE = 0.1
_THERE = (Phase.RUNNING, Phase.PAUSED)
# Its next life begins with the policy of then; a node is not told of one that has none.
_LATER = frozenset({Phase.SUSPENDED, Phase.STOPPED, Phase.FAILED})


class Telling:
    """Who tells the node. `heed` takes its levels."""

    def __init__(self, book: Book, link: NodeLink, texts: Texts) -> None:
        self._book = book
        self._link = link
        self._texts = texts
        self._room = asyncio.Semaphore(limits.POLICY_TELLING)
        self._there: set[str] = set()  # digests that the node has taken in this session
        self._putting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def down(self) -> None:
        """The session has ended: another node may have none of it."""
        self._there.clear()
        self._putting.clear()

    def heed(self, entry: Entry, egress: EgressState) -> None:
        """A level of the node."""
        record = entry.record
        # The node tells what it wishes as well: while it is being told only its answer counts, and where a service is away nothing does.
        held = (egress.policy, egress.policy_generation)
        if entry.telling is not None or (egress.waiting_for and held == (record.policy_digest, record.policy_generation)):
            return
        entry.policy_seen = held
        if record.ended or record.desired == UNWANTED:
            return
        if egress.policy_generation > record.policy_generation:
            # A store that was put back from a copy: the node would take our numbers for old ones.
            self._book.move(entry, policy_generation=egress.policy_generation + 1, policy_state="pending")
        self.look(entry)

    def look(self, entry: Entry) -> None:
        """Tell it if that is due."""
        record = entry.record
        if record.ended or record.desired == UNWANTED or entry.creating or record.phase not in _THERE or entry.policy_seen is None:
            return
        if entry.policy_seen == (record.policy_digest, record.policy_generation):
            self._settled(entry)
        elif entry.telling is None:  # its first step comes after this turn: the first levels of a session come before it counts as up
            entry.telling = self._book.spawn(self._tell(entry), f"policy of {record.id}")

    async def settled(self, entry: Entry, seconds: float) -> None:
        """Wait until the node decides by it, or was cut, or the time is over."""
        await entry.until(
            lambda record: record.ended or record.policy_state != "pending" or record.phase in _LATER or not self._link.is_up, seconds
        )

    def lacks(self, digest: str) -> bool:
        """Whether the node is to be given that document before it can be named."""
        return bool(digest) and digest not in self._there

    async def ensure(self, digest: str, *, again: bool = False) -> None:
        """The node has that document. again: it says that it has not."""
        if again:
            self._there.discard(digest)
        if not digest or digest in self._there:
            return
        async with self._putting[digest]:
            if digest in self._there:
                return
            data = await self._texts.get(digest)
            async with (
                asyncio.timeout(limits.CALL_SECONDS),
                await self._link.open("policy_put", PolicyPut(digest, len(data)), bulk=True) as stream,
            ):
                for at in range(0, len(data), _PIECE):
                    await stream.send(data[at : at + _PIECE])
                await stream.close()
                async for event in stream:
                    if isinstance(event, Message):
                        decoded(event, Done)
                        self._there.add(digest)
                        return
            raise ProtocolError("the node ended policy_put without an answer")

    async def _tell(self, entry: Entry) -> None:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + limits.POLICY_CUT_SECONDS, _FIRST_PAUSE
        try:
            while self._due(entry):
                record = entry.record
                try:
                    async with self._room:
                        await self._set(record.id, record.policy_digest, record.policy_generation)
                except LinkLost:
                    return
                except (SpaceError, TimeoutError) as error:
                    log.warning("the policy of %s is not told yet: %s", record.id, error, extra={"sandbox": record.id})
                    if not self._link.is_up:
                        return
                    if loop.time() >= deadline:
                        await self._cut(entry, str(error))
                        deadline = loop.time() + limits.POLICY_CUT_SECONDS
                else:
                    entry.policy_seen = (record.policy_digest, record.policy_generation)
                    deadline, pause = loop.time() + limits.POLICY_CUT_SECONDS, _FIRST_PAUSE
                    continue
                await asyncio.sleep(pause)
                pause = min(pause * 2, limits.POLICY_LONGEST_PAUSE)
        finally:
            entry.telling = None
        if not entry.record.ended and entry.policy_seen == (entry.record.policy_digest, entry.record.policy_generation):
            self._settled(entry)

    def _due(self, entry: Entry) -> bool:
        record = entry.record
        wanted = (record.policy_digest, record.policy_generation)
        return not record.ended and record.desired != UNWANTED and record.phase in _THERE and entry.policy_seen != wanted

    async def _set(self, sandbox: str, digest: str, generation: int) -> None:
        asked = SetPolicy(sandbox, digest, generation)
        await self.ensure(digest)
        try:
            await self._link.call("set_policy", asked, Done, seconds=limits.POLICY_CALL_SECONDS)
        except NotFound:
            await self.ensure(digest, again=True)
            await self._link.call("set_policy", asked, Done, seconds=limits.POLICY_CALL_SECONDS)

    async def _cut(self, entry: Entry, why: str) -> None:
        """Nothing leaves it, until what is wanted can be told; that gets a later number, since the node takes no earlier one."""
        generation = entry.record.policy_generation + 1
        self._book.set(entry, policy_generation=generation + 1)
        try:
            async with self._room:
                await self._link.call("set_policy", SetPolicy(entry.record.id, "", generation), Done, seconds=limits.POLICY_CALL_SECONDS)
        except SpaceError as error:
            why = f"{why}; and it could not be cut either: {error.message}"
            self._told(entry, "pending", entry.record.policy_applied, why)
        else:
            self._told(entry, "cut", generation, why)

    def _settled(self, entry: Entry) -> None:
        record = entry.record
        state: PolicyState = "applied" if record.policy_digest or record.policy_state != "refused" else "refused"
        if (record.policy_state, record.policy_applied) != (state, record.policy_generation):
            self._told(entry, state, record.policy_generation, record.policy_reason if state == "refused" else None)

    def _told(self, entry: Entry, state: PolicyState, applied: int, reason: str | None) -> None:
        fields = {"policy_state": state, "policy_applied": applied, "policy_reason": None if reason is None else reason[:300]}
        told = entry.record.changed(**fields)
        self._book.move(entry, News("egress_policy", told, policy=told.policy()), **fields)
