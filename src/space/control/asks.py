"""What the node's levels say of a sandbox's egress beside its policy: requests that wait for a person, workers that crashed, alarms.

Both are told as events, and bounded: code in the guest makes as many of them as it likes.
"""

from __future__ import annotations

import time

from space.control import limits
from space.control.book import Book
from space.control.entry import Entry
from space.control.events import News
from space.control.link import NodeLink
from space.model.credentials import CredentialAlarm as Alarm
from space.model.egress import Ask
from space.model.errors import NotFound
from space.rpc.node_api import CredentialAlarm, Done, EgressAnswer, EgressState, PendingAsk

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
        news += _alarms(entry, egress.alarms)
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


def _alarms(entry: Entry, told: list[CredentialAlarm]) -> list[News]:
    """What there is more of since the last level. Of before this process nobody knows what was told."""
    known, entry.alarms = entry.alarms, {(one.kind, one.grant): one.count for one in told}
    if known is None:
        return []
    news = []
    for one in told:
        before = known.get((one.kind, one.grant), 0)
        if one.count != before:  # a lower count is one that began anew, with a new node
            count = one.count - before if one.count > before else one.count
            alarm = Alarm(one.kind, one.grant, one.secret, one.host, count)
            news.append(News("credential_alarm", entry.record, count=count, alarm=alarm))
    return news


def _ask(sandbox: str, one: PendingAsk) -> Ask:
    return Ask(one.ask, sandbox, one.host, one.port, one.scheme, one.method, one.path, one.rule, one.asked_us / 1e6)
