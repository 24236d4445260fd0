"""Want of memory in a guest, as the node counts it: told as events, one a second for each sandbox at most.

The count comes from inside the guest, where code may have itself killed as often as it likes: what comes faster is added up.
"""

from __future__ import annotations

from functools import partial

from space.control.book import Book
from space.control.entry import Entry
from space.control.events import News

_APART_SECONDS = 1.0
_NAME = 64


class Memory:
    """Who tells it."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def heed(self, entry: Entry, kills: int, last: str | None) -> None:
        """The node's level says that so many processes were killed, the last of them `last`."""
        if entry.memory_told is not None:
            entry.memory_news = (kills, last)
        elif kills != entry.record.oom_kills and not entry.record.ended:
            self._tell(entry, kills, last)
            entry.memory_told = self._book.timers.after(_APART_SECONDS, partial(self._due, entry.record.id))

    def _due(self, sandbox: str) -> None:
        entry = self._book.live.get(sandbox)
        if entry is None:
            return
        entry.memory_told, news, entry.memory_news = None, entry.memory_news, None
        if news is not None:
            self.heed(entry, *news)

    def _tell(self, entry: Entry, kills: int, last: str | None) -> None:
        known = entry.record.oom_kills
        # A lower count is one that began anew, with a new guest or a new node: all of it is news.
        count = kills - known if kills > known else kills
        changed = entry.record.changed(oom_kills=kills)
        name = None if last is None else last[:_NAME]
        news = [News("out_of_memory", changed, count=count, process=name)] if count else []
        self._book.move(entry, *news, oom_kills=kills)
