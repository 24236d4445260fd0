"""SimNode's records of decisions: a list a chain that a test writes, told as a node tells them.

node.egress_log.add("sb-...", type="request", name="www.example.com", status=200)
node.egress_log.add("sb-...", "dialer", type="dial", name="www.example.com", address="192.0.2.1")
node.egress_log.remove(2)                         # the oldest two of the gateway's are kept no longer
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from space.model.errors import SpaceError
from space.rpc import node_api as api
from space.rpc.session import Stream

_HEARTBEAT = 5.0


class SimEgressLog:
    """Part of a SimNode's verbs. refuse: what the next question is answered with. told: how many messages went out."""

    def __init__(self) -> None:
        self._records: list[api.EgressRecord] = []
        self._ends = {"gateway": 0, "dialer": 0, "broker": 0}
        self._first = {"gateway": 1, "dialer": 1, "broker": 1}
        self._news = asyncio.Event()
        self.refuse: SpaceError | None = None
        self.told = 0
        self.verbs: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {"egress_log": self._log}

    def add(self, sandbox: str, chain: str = "gateway", **fields: Any) -> int:
        """One more; its number."""
        self._ends[chain] += 1
        number = self._ends[chain]
        at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"at": at, "generation": 1, "n": number, "sandbox": sandbox, "type": "request", **fields, "h": "0" * 64}
        self._records.append(api.EgressRecord(chain, number, json.dumps(line, separators=(",", ":")).encode()))
        self._news.set()
        self._news = asyncio.Event()
        return number

    def remove(self, count: int, chain: str = "gateway") -> None:
        """The oldest are kept no longer."""
        self._first[chain] += count
        self._records = [one for one in self._records if one.chain != chain or one.n >= self._first[chain]]

    async def _log(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=api.EgressLog)
        if self.refuse is not None:
            raise self.refuse
        places = dict(self._ends) if asked.after is None and asked.follow and not asked.since else {"gateway": 0, "dialer": 0, "broker": 0}
        places = {chain: place for chain, place in places.items() if chain in asked.chains}
        places |= asked.after or {}
        left = asked.limit or 1 << 60
        while True:
            news = self._news
            removed = {chain: first - 1 for chain, first in self._first.items() if places.get(chain, first) < first - 1}
            places |= removed
            found = [one for one in self._records if one.chain in places and one.n > places[one.chain]]
            wanted = [one for one in found if _wanted(one, asked)][:left]
            places |= {one.chain: one.n for one in (found if len(wanted) < left else wanted)}
            await stream.send_message(api.EgressRecords(wanted, dict(places), removed))
            self.told += 1
            left -= len(wanted)
            if left <= 0 or not asked.follow:
                return
            try:
                await asyncio.wait_for(news.wait(), _HEARTBEAT)
            except TimeoutError:
                continue


def _wanted(record: api.EgressRecord, asked: api.EgressLog) -> bool:
    fields = json.loads(record.line)
    return (
        asked.sandbox in ("", fields["sandbox"])
        and (not asked.denied or bool(fields.get("reason")))
        and (not asked.since or fields["at"] >= asked.since)
    )
