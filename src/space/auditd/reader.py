"""Reading while records are written: pages out of the files, and those who wait for what comes. The writer does nothing for a reader.

    read    a page of the files, in a thread, one at a time, bounded in bytes looked at
    follow  a page that holds something; else wait until the chain's next record of that sandbox, then a page

Who waits is told by the count before that record, so nothing is looked through twice and what other sandboxes wrote costs it nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from space.audit import reading
from space.audit.reading import Filter, Page
from space.auditd.book import Book
from space.model.errors import NotFound
from space.rpc import audit_api as api

_GATHERED = 0.02  # what comes within is one page


class Followers:
    """Those who wait for records of one chain."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def told(self, before: int, sandboxes: Iterable[str]) -> None:
        """Records of these were written behind record `before`."""
        for sandbox in {"", *sandboxes}:
            for future in self._waiting.pop(sandbox, ()):
                if not future.done():
                    future.set_result(before)

    @contextmanager
    def waiting(self, sandbox: str) -> Iterator[asyncio.Future[int]]:
        """The count before the next record of that sandbox (empty: of any), from now on."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sandbox, set()).add(future)
        try:
            yield future
        finally:
            future.cancel()
            there = self._waiting.get(sandbox)
            if there is not None:
                there.discard(future)
                if not there:
                    del self._waiting[sandbox]


class Reader:
    """Of all chains, within the event loop."""

    def __init__(self, books: dict[str, Book]) -> None:
        self._books = books
        self._turn = asyncio.Lock()
        self._followers = {writer: Followers() for writer in books}
        for writer, book in books.items():
            book.followers = self._followers[writer]

    async def read(self, asked: api.Read) -> api.Records:
        """A page. NotFound: no such chain."""
        found = await self._page(self._book(asked.writer), asked.after, asked.limit, Filter(asked.sandbox, asked.denied, asked.since))
        return _told(asked.id, found)

    async def follow(self, asked: api.Follow) -> api.Records:
        """The next page that holds something; an empty one when nothing came in time."""
        book = self._book(asked.writer)
        place = book.file.end[0] if asked.after is None else asked.after
        wanted = Filter(asked.sandbox, asked.denied)
        due = asyncio.get_running_loop().time() + asked.seconds
        while True:
            with self._followers[asked.writer].waiting(asked.sandbox) as news:
                found = await self._page(book, place, asked.limit, wanted)
                place = found.place
                if found.lines or found.removed:
                    return _told(asked.id, found)
                if found.more:
                    continue
                try:
                    async with asyncio.timeout_at(due):
                        place = max(place, await news)
                except TimeoutError:
                    return api.Records(asked.id, [], place, more=False)
            await asyncio.sleep(_GATHERED)

    def _book(self, writer: str) -> Book:
        book = self._books.get(writer)
        if book is None:
            raise NotFound(f"there is no chain {writer}, only {', '.join(sorted(self._books))}")
        return book

    async def _page(self, book: Book, place: int, limit: int, wanted: Filter) -> Page:
        async with self._turn:
            end = book.file.end[0]
            directory, writer = book.file.directory, book.file.writer
            work = partial(reading.page, directory, writer, place, end=end, wanted=wanted, most=limit, most_bytes=api.MOST_PAGE)
            return await asyncio.get_running_loop().run_in_executor(None, work)


def _told(number: int, found: Page) -> api.Records:
    return api.Records(number, found.lines, found.place, found.more, found.removed)
