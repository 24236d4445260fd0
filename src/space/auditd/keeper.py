"""The keeper: takes records of sources, stamps, chains and appends them, and has the broker vouch for the end.

    records -> decode (or hung up) -> of each: denial above the rate: counted | credential: written, then answered
                                               | else: written with what came in this round
    one second after something new: counts written, files synced, heads vouched for and kept, old files removed

A chain whose disk takes nothing is tried again every second, and none of its sources is listened to meanwhile: a worker that cannot tell
what happens lets nothing happen, and nothing that it has told is lost.

Sandbox, generation and time come from the socket and from here; a record that names another sandbox is kept with what it claimed. Nothing
is done while nothing is new. Without a broker records are written on and nobody vouches for them; a chain that is not the one that the
broker knows takes no credential events and is vouched for no more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from space.audit.chain import MOST_LINE, body_of
from space.audit.records import CredentialRead, Kept, RecordRefused, decode_all
from space.auditd.book import Book, Entry
from space.auditd.denials import Denials
from space.core.rates import Bucket
from space.model.errors import Conflict, NotFound, SpaceError
from space.rpc import audit_api as api
from space.rpc.asking import Refused
from space.rpc.broker_client import Voucher
from space.rpc.packets import Packets

log = logging.getLogger("space.auditd")

_BURST = 32
_LAST = 5.0
_JSON = msgspec.json.Encoder()
_MOST_BODY = MOST_LINE - 64  # beside its number and hash


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one source: records a second and at once (above: it waits in its socket), denials likewise (above: they are counted)."""

    rate: float = 20_000.0
    burst: int = 20_000
    denials_rate: float = 10.0
    denials_burst: int = 50
    every: float = 1.0


@dataclass(slots=True, eq=False)
class Source:
    """Who speaks over one socket. sandbox: empty for one that names them itself."""

    book: Book
    sandbox: str
    generation: int
    rate: Bucket
    denials: Denials
    end: Packets | None = None


class Keeper:
    """Within the event loop. stamp: the time for records; clock: seconds that only go forward; second: since 1970."""

    def __init__(
        self, books: dict[str, Book], stamp: Callable[[], str], clock: Callable[[], float], second: Callable[[], int], limits: Limits
    ) -> None:
        self.books = books
        self._stamp = stamp
        self._clock = clock
        self._second = second
        self._limits = limits
        self._sources: dict[tuple[str, str, int], Source] = {}
        self._voucher: Voucher | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sources)

    def bind(self, sock: socket.socket, writer: str, sandbox: str, generation: int) -> None:
        """That socket speaks for that life from now on. NotFound: no such chain."""
        if writer not in self.books:
            raise NotFound(f"there is no chain {writer}, only {', '.join(sorted(self.books))}")
        self.unbind(writer, sandbox, generation)
        limits = self._limits
        # One that speaks for all counts each sandbox's denials itself: held to a sandbox's rate, one sandbox's flood would hide another's.
        denials = Bucket(limits.denials_rate, limits.denials_burst) if sandbox else Bucket(limits.rate, limits.burst)
        source = Source(
            self.books[writer],
            sandbox,
            generation,
            Bucket(limits.rate, limits.burst),
            Denials(denials),
        )
        key = (writer, sandbox, generation)
        source.end = Packets(sock, partial(self._received, source), partial(self._gone, key, source), burst=_BURST)
        source.end.halt(source.book.stuck)
        self._sources[key] = source

    def unbind(self, writer: str, sandbox: str, generation: int) -> None:
        """Take what it has sent, and hang up. Idempotent."""
        source = self._sources.get((writer, sandbox, generation))
        if source is not None and source.end is not None:
            source.end.drain()
            source.end.hang_up()

    async def bind_broker(self, sock: socket.socket) -> None:
        """Have that broker vouch, after its memory of each chain was compared with the files."""
        voucher = Voucher(sock)
        async with self._turn:  # nothing is vouched for before it was compared
            if self._voucher is not None:
                self._voucher.close()
                self._voucher = None
            try:
                for book in self.books.values():
                    book.broken = _difference(book, *await voucher.head(book.file.writer))
            except BaseException:
                voucher.close()
                raise
            self._voucher = voucher
        await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write what was counted and is pending, sync, have the ends vouched for, remove what is too old. Never raises."""
        async with self._turn:
            self._write_counts()
            for book in self.books.values():
                self._flush(book)
                try:
                    await self._vouch(book)
                except SpaceError as error:
                    log.error("%s: nobody vouches for its end: %s", book.file.writer, error)  # noqa: TRY400
                except OSError as error:
                    log.error("%s: its end cannot be kept: %s", book.file.writer, error.strerror)  # noqa: TRY400

    async def stop(self) -> None:
        """Take what was sent, and have it vouched for."""
        for key in list(self._sources):
            self.unbind(*key)
        if self._timer is not None:
            self._timer.cancel()
        with suppress(TimeoutError):  # a broker that says nothing: what is not vouched for is chained all the same
            async with asyncio.timeout(_LAST):
                await self.checkpoint()
        if self._voucher is not None:
            self._voucher.close()
        for book in self.books.values():
            book.file.close()

    def standing(self) -> list[api.Chain]:
        """Every chain."""
        return [api.Chain(writer, book.file.end[0], max(book.vouched[0], 0), book.lost, book.broken) for writer, book in self.books.items()]

    # -- records -------------------------------------------------------------------------------------------------
    def _received(self, source: Source, message: bytes, _: int | None) -> None:
        assert source.end is not None
        try:
            records, number = decode_all(message)
            entries = self._entries(source, records)
        except RecordRefused:
            self._note(source, self._told(source, {"type": "malformed", "bytes": len(message)}))
            log.warning("hung up on a source (sandbox %s) that sent no record", source.sandbox or "-")
            source.end.hang_up()
            return
        now = self._clock()
        if not source.rate.take(now, len(records)):
            source.end.hold(0.1)
        if not number and not any(record.reason or isinstance(record, CredentialRead) for record in records):
            self._note(source, *entries)  # as most are
            return
        for record, entry in zip(records, entries, strict=True):
            if record.reason and source.denials.counted(record, now, self._second()):
                self._arm()
                if number:
                    source.end.send(api.encode(api.Written(number)))
            elif number or isinstance(record, CredentialRead):
                self._written(source, number, entry, refuse=isinstance(record, CredentialRead))
            else:
                self._note(source, entry)

    def _written(self, source: Source, number: int, entry: Entry, *, refuse: bool) -> None:
        assert source.end is not None
        answer: api.Answer = api.Written(number)
        if source.book.broken and refuse:
            answer = Refused(number, "conflict", f"no event of a credential is kept: {source.book.broken}")
        else:
            was = source.book.stuck
            try:
                source.book.write(entry)
                self._arm()
            except OSError as error:
                answer = Refused(number, "no_capacity", f"the record cannot be written: {error.strerror}")
            if was or source.book.stuck:
                self._listen(source.book)
        if number:
            source.end.send(api.encode(answer))

    def _note(self, source: Source, *entries: Entry) -> None:
        if source.book.note(entries):
            asyncio.get_running_loop().call_soon(self._flush, source.book)  # with whatever else came in this round: one write
        self._arm()

    def _flush(self, book: Book) -> None:
        was = book.stuck
        book.flush()
        if book.stuck or was:
            self._listen(book)

    def _listen(self, book: Book) -> None:
        """To its sources, unless the disk takes nothing; then it is tried again soon."""
        for source in self._sources.values():
            if source.book is book and source.end is not None:
                source.end.halt(book.stuck)
        if book.stuck:
            self._arm()

    def _entries(self, source: Source, records: Sequence[Kept]) -> list[Entry]:
        """As they will stand: the record's own JSON behind what is known here. RecordRefused: one that no line can hold."""
        stamp = self._stamp().encode()
        known = b'{"at":"%s","generation":%d,' % (stamp, source.generation) if source.sandbox else b'{"at":"%s",' % stamp
        found, own = [], source.sandbox
        for record in records:
            if not own or (record.sandbox == own and not getattr(record, "generation", 0)):
                entry = Entry(record.sandbox, known + _JSON.encode(record)[1:])
            else:  # what it says of itself stands under what is known
                told: dict[str, Any] = msgspec.to_builtins(record)
                entry = self._told(source, told if record.sandbox == own else {**told, "claimed": record.sandbox})
            if len(entry.body) > _MOST_BODY:  # control characters take six bytes each
                raise RecordRefused("a record that no line can hold")
            found.append(entry)
        return found

    def _told(self, source: Source, fields: dict[str, Any]) -> Entry:
        stamped = {"at": self._stamp(), "sandbox": source.sandbox, "generation": source.generation}
        return Entry(source.sandbox, body_of({**fields, **stamped}))

    def _gone(self, key: tuple[str, str, int], source: Source) -> None:
        self._counted(source)
        if self._sources.get(key) is source:
            del self._sources[key]

    def _write_counts(self) -> None:
        for source in self._sources.values():
            self._counted(source)

    def _counted(self, source: Source) -> None:
        for fields in source.denials.flush():
            self._note(source, self._told(source, fields))

    # -- heads ---------------------------------------------------------------------------------------------------
    def _arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limits.every, self._tick)

    def _tick(self) -> None:
        self._timer = None
        task = asyncio.get_running_loop().create_task(self.checkpoint(), name="checkpoint")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _vouch(self, book: Book) -> None:
        if self._voucher is None or book.broken or book.stuck or not book.is_new:
            return
        loop, (count, last) = asyncio.get_running_loop(), book.file.end
        await loop.run_in_executor(None, book.file.sync)
        try:
            mac = await self._voucher.vouch(book.file.writer, "head", count, last)
        except Conflict as error:
            book.broken = error.message
            raise
        await loop.run_in_executor(None, book.file.keep_head, count, last, mac)
        book.vouched = (count, last)
        begin = book.file.expired()
        if begin is not None:
            book.file.remove(*begin, await self._voucher.vouch(book.file.writer, "base", *begin))
            log.info("%s: records up to %d were removed: too many files, or too old", book.file.writer, begin[0])


def _difference(book: Book, count: int, last: bytes) -> str:
    """Why a chain is not the one that the broker knows up to that record; empty when it is."""
    if not count or book.file.hash_at(count) == last:
        return ""
    why = f"the broker vouched for {count} records, and these files do not hold them ({book.file.end[0]} are here)"
    log.error("%s: %s", book.file.writer, why)
    return why
