"""The gateway's records for control: pages of the two chains, put in the order of time, then what comes.

    read    both chains have something in hand -> the older one goes; one has no more -> the other goes
    follow  each chain is asked for what comes and told as it comes

The keeper of the records is asked page by page, so a control that is slow holds up nobody, and nothing is kept here but a page a chain.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from space.model.errors import InvalidArgument
from space.node.process_verbs import decode
from space.rpc import node_api as api
from space.rpc.audit_api import Records
from space.rpc.audit_client import AuditControl
from space.rpc.session import Stream

_PAGE = 200
_BATCH = 100
_WAITED = 5.0  # then a sign of life


class _Stamped(msgspec.Struct):
    n: int
    at: str = ""


_STAMPED = msgspec.json.Decoder(_Stamped)


@dataclass(slots=True)
class _Chain:
    """How far one was told. read: how far it was read. over: there is no more for now."""

    name: str
    told: int
    read: int
    over: bool = False
    page: deque[tuple[str, api.EgressRecord]] = field(default_factory=deque)

    def take(self, found: Records) -> dict[str, int]:
        """A page; what of it is kept no longer."""
        for line in found.records:
            stamped = _STAMPED.decode(line)
            self.page.append((stamped.at, api.EgressRecord(self.name, stamped.n, line)))
        self.read, self.over = found.place, not found.more
        if not self.page:
            self.told = self.read
        return {self.name: found.removed} if found.removed else {}

    def next(self) -> api.EgressRecord:
        record = self.page.popleft()[1]
        self.told = record.n if self.page else self.read
        return record


class EgressLog:
    """The verb. audit: the keeper's socket."""

    def __init__(self, audit: Path) -> None:
        self._audit = audit
        self._client: AuditControl | None = None
        self.verbs: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {"egress_log": self._told}

    async def _told(self, stream: Stream, request: bytes) -> None:
        asked = decode(api.EgressLog, request)
        if asked.after is not None and (asked.after.keys() - set(asked.chains) or min(asked.after.values(), default=0) < 0):
            raise InvalidArgument(f"after: numbers of {' and '.join(asked.chains)}, not {str(asked.after)[:80]}")
        left = asked.limit or None
        async for page in self._pages(asked):
            told = page if left is None else _cut(page, left)
            await stream.send_message(told)
            if left is not None:
                left -= len(told.records)
                if left <= 0:
                    return

    async def _pages(self, asked: api.EgressLog) -> AsyncIterator[api.EgressRecords]:
        chains = await self._begin(asked)
        if asked.after is not None or not asked.follow or asked.since:
            async for page in self._read(asked, chains):
                yield page
        else:
            yield _said([], chains)  # from now on: this is the place
        if asked.follow:
            async for page in self._follow(asked, chains):
                yield page

    async def _begin(self, asked: api.EgressLog) -> list[_Chain]:
        if asked.after is None and asked.follow and not asked.since:
            standing = await self._keeper().status()
            ends = {chain.writer: chain.records for chain in standing.chains}
        else:
            ends = asked.after or {}
        return [_Chain(name, ends.get(name, 0), ends.get(name, 0)) for name in asked.chains]

    async def _read(self, asked: api.EgressLog, chains: list[_Chain]) -> AsyncIterator[api.EgressRecords]:
        while True:
            removed: dict[str, int] = {}
            for chain in chains:
                if not chain.page and not chain.over:
                    found = await self._keeper().read(
                        chain.name, asked.sandbox, chain.read, limit=_PAGE, since=asked.since, denied=asked.denied
                    )
                    removed |= chain.take(found)
            batch: list[api.EgressRecord] = []
            while len(batch) < _BATCH and all(chain.page or chain.over for chain in chains):
                there = [chain for chain in chains if chain.page]
                if not there:
                    break
                batch.append(min(there, key=lambda chain: chain.page[0][0]).next())
            yield _said(batch, chains, removed)
            if all(chain.over and not chain.page for chain in chains):
                return

    async def _follow(self, asked: api.EgressLog, chains: list[_Chain]) -> AsyncIterator[api.EgressRecords]:
        waiting: dict[asyncio.Task[Records], _Chain] = {}

        def wait_for(chain: _Chain) -> None:
            coming = self._keeper().follow(chain.name, asked.sandbox, chain.read, limit=_BATCH, seconds=_WAITED, denied=asked.denied)
            waiting[asyncio.ensure_future(coming)] = chain

        try:
            for chain in chains:
                wait_for(chain)
            while True:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                batch: list[api.EgressRecord] = []
                removed: dict[str, int] = {}
                for task in done:
                    chain = waiting.pop(task)
                    removed |= chain.take(task.result())
                    while chain.page:
                        batch.append(chain.next())
                yield _said(batch, chains, removed)
                for chain in chains:
                    if chain not in waiting.values():
                        wait_for(chain)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _keeper(self) -> AuditControl:
        """Connected; Unavailable when the keeper is away."""
        if self._client is None or not self._client.open:
            self._client = AuditControl.connect(self._audit)
        return self._client


def _said(records: list[api.EgressRecord], chains: list[_Chain], removed: dict[str, int] | None = None) -> api.EgressRecords:
    return api.EgressRecords(records, {chain.name: chain.told for chain in chains}, removed or {})


def _cut(page: api.EgressRecords, left: int) -> api.EgressRecords:
    """Its first records; of what was cut off nothing was told."""
    places = dict(page.places)
    for record in reversed(page.records[left:]):
        places[record.chain] = record.n - 1
    return msgspec.structs.replace(page, records=page.records[:left], places=places)
