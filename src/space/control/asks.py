"""What the node's levels say of a sandbox's egress beside its policy: requests that wait for a person, and workers that crashed.

Both are told as events, and bounded: code in the guest makes as many of them as it likes.
"""

from __future__ import annotations

import time

from space.control import limits
from space.control.book import Book
from space.control.entry import Entry
from space.control.events import News
from space.control.link import NodeLink
from space.model.egress import Ask
from space.model.errors import NotFound
from space.rpc.node_api import Done, EgressAnswer, EgressState, PendingAsk

_DETAIL = 200


class Asks:
    """Who tells and answers them."""

    def __init__(self, book: Book, link: NodeLink) -> None:
        self._book = book
        self._link = link

    def heed(self, entry: Entry, pending: list[PendingAsk], egress: EgressState) -> None:
        """A level of the node: all that wait now."""
        record = entry.record
        before = entry.asks
        found = [_ask(record.id, one) for one in pending[: limits.ASKS_PER_SANDBOX]]
        entry.asks = {one.ask: one for one in found}
        news = [News("egress_asked", record, ask=one) for one in found if one.ask not in before and self._may_tell(entry)]
        crashes, known = egress.worker_crashes, entry.worker_crashes
        entry.worker_crashes = crashes
        if known is not None and crashes != known:
            # A lower count is one that began anew, with a new node: all of it is news.
            count = crashes - known if crashes > known else crashes
            if count:
                detail = None if egress.last_crash is None else egress.last_crash[:_DETAIL]
                news.append(News("egress_worker_ended", record, count=count, detail=detail))
        if news and not record.ended:
            self._book.move(entry, *news)

    async def answer(self, entry: Entry, ask: str, *, allow: bool) -> None:
        """Answer one. NotFound when it waits no longer."""
        if ask not in entry.asks:
            raise NotFound(
                f"sandbox {entry.record.id} has no request {ask[:64]!r} that waits", hint="it may have been answered, or given up"
            )
        await self._link.call("egress_answer", EgressAnswer(entry.record.id, ask, allow), Done)
        entry.asks.pop(ask, None)

    def _may_tell(self, entry: Entry) -> bool:
        """Whether a minute has room for one more event; the list shows all that wait."""
        minute = int(time.monotonic() // 60)
        if entry.asks_told[0] != minute:
            entry.asks_told = (minute, 0)
        entry.asks_told = (minute, entry.asks_told[1] + 1)
        return entry.asks_told[1] <= limits.ASK_EVENTS_PER_MINUTE


def _ask(sandbox: str, one: PendingAsk) -> Ask:
    return Ask(one.ask, sandbox, one.host, one.port, one.scheme, one.method, one.path, one.rule, one.asked_us / 1e6)
