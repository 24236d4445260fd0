"""A file's bytes as an answer: ETag, conditions and one range (RFC 9110, sections 13 and 14), verified before it ends well.

The head goes out when the guest has said what the file is. Its Content-Length is that size: what is added to the file meanwhile is not
sent, and a file that shrinks cuts the connection. Files that say no size (of /proc) come in chunks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import msgspec
from starlette.types import Send

from space.control.answers import Answer
from space.control.call import Call, CutOff
from space.control.problems import PreconditionFailed, RangeNotSatisfiable
from space.control.services import Services
from space.control.transfer import Count, events
from space.core.wire import files as guest
from space.core.wire.events import Data
from space.core.wire.guest import expect
from space.model.errors import GuestError, ProtocolError, SpaceError
from space.rpc.node_api import Forward

_RANGE = re.compile(r"bytes\s*=\s*(?:(?P<first>[0-9]{1,19})-(?P<last>[0-9]{1,19})?|-(?P<suffix>[0-9]{1,19}))\s*\Z")
_ETAG = re.compile(r'(?:W/)?"[^"]*"')
_MEDIA_TYPE = "application/octet-stream"
_FAR = 2**63 - 1
# A file that grows this much while it is read is not waited for: whether what was sent is right is known at its end only.
_MOST_GROWTH = 64 << 20


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. first, last: of a range, last inclusive and None for the end. suffix: so many bytes from the end."""

    first: int | None = None
    last: int | None = None
    suffix: int | None = None
    match: str | None = None
    none_match: str | None = None
    if_range: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """The conditions alone."""
        return cls(match=headers.get("if-match"), none_match=headers.get("if-none-match"), if_range=headers.get("if-range"))

    @property
    def ranged(self) -> bool:
        return self.first is not None

    @property
    def offset(self) -> int:
        return self.first or 0

    @property
    def length(self) -> int | None:
        return None if self.first is None or self.last is None else self.last - self.first + 1

    def of_size(self, size: int) -> Wish:
        """A range from the end, counted from the beginning; one that holds nothing begins at the end."""
        if self.suffix is None:
            return self
        some = self.suffix and size
        return replace(self, first=max(0, size - self.suffix) if some else size, last=size - 1 if some else None, suffix=None)


def wish(headers: Mapping[str, str]) -> Wish:
    """The wish of a request. A Range that is none, or more than one, is as if it were not there (RFC 9110, 14.2)."""
    asked = Wish.of(headers)
    found = _RANGE.match(headers.get("range", "").strip().lower())
    if found is None:
        return asked
    if found["suffix"] is not None:
        return replace(asked, suffix=min(int(found["suffix"]), _FAR))
    first = int(found["first"])
    last = None if found["last"] is None else min(int(found["last"]), _FAR)
    if first > _FAR or (last is not None and last < first):
        return asked
    return replace(asked, first=first, last=last)


def etag(file: guest.File) -> str:
    """A strong one: a file that was written has another time, and one that was replaced another inode."""
    return f'"{file.inode:x}-{file.size:x}-{file.mtime_ns:x}"'


def head_fields(file: guest.File) -> dict[str, str]:
    """What every answer says of a file."""
    return {"ETag": etag(file), "Accept-Ranges": "bytes", "Cache-Control": "no-cache"}


def precondition(asked: Wish, file: guest.File) -> bool:
    """Whether the client has it as it is. PreconditionFailed."""
    mine = etag(file)
    if asked.match is not None and not _named(asked.match, mine, weak=False):
        raise PreconditionFailed(f"the file's ETag is {mine}, and If-Match names another", hint="read it again")
    return asked.none_match is not None and _named(asked.none_match, mine, weak=True)


def _named(field: str, mine: str, *, weak: bool) -> bool:
    if field.strip() == "*":
        return True
    return any((tag.removeprefix("W/") if weak else tag) == mine for tag in _ETAG.findall(field))


@dataclass(frozen=True, slots=True)
class ContentAnswer:
    """Bytes that are read while the answer is sent."""

    call: Call
    services: Services
    sandbox: str
    path: bytes
    user: str | None
    asked: Wish

    async def send(self, send: Send) -> None:
        """Send it. SpaceError only before the head has gone out, then CutOff; ClientGone."""
        await self.call.while_there(self._send(_Body(send)))

    async def _send(self, body: _Body) -> None:
        try:
            with self.services.activity.during(self.sandbox):
                if not await self._read(body, self.asked):
                    # If-Range names another state of the file than this one.
                    await self._read(body, Wish())
        except SpaceError as error:
            if body.started:
                raise CutOff(error) from error
            raise

    async def _read(self, body: _Body, asked: Wish) -> bool:
        """Whether the answer was given; False when all of the file is wanted instead of a range."""
        request = guest.FileRead(self.path, self.user, asked.offset, asked.length)
        forward = Forward(self.sandbox, msgspec.msgpack.encode(request))
        async with await self.services.link.open("file_read", forward, bulk=True, finish=True) as stream:
            coming = aiter(events(stream, "the file"))
            first = await anext(coming)
            if isinstance(first, Data):
                raise ProtocolError("the guest sent bytes before it said what the file is")
            file = expect(guest.FileAnswer, first.payload).file
            if precondition(asked, file):
                await Answer(304, headers=head_fields(file)).send(body.send)
                return True
            if asked.ranged and asked.if_range is not None and asked.if_range.strip() != etag(file):
                return False
            body.begin(file, asked)
            count = Count()
            async for event in coming:
                if isinstance(event, Data):
                    count.add(event.payload)
                    await body.piece(event.payload)
                    continue
                told = expect(guest.Content, event.payload)
                count.verify("the file", told.bytes, told.crc32)
                await body.end()
                return True
        raise ProtocolError("the node ended the file's stream before its count")


class _Body:
    """The head, once it is known what the answer is, and then as many bytes as it has promised."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.started = False
        self._status = 200
        self._fields: dict[str, str] = {}
        self._promised: int | None = None
        self._taken = 0
        self._beyond = 0
        self._held = b""  # until more comes, or it is known that all was right: the last bytes are the end mark

    def begin(self, file: guest.File, asked: Wish) -> None:
        """Decide the head. RangeNotSatisfiable."""
        self._fields = {**head_fields(file), "Content-Type": _MEDIA_TYPE}
        if asked.ranged:
            if asked.offset >= file.size:
                raise RangeNotSatisfiable(f"the range begins at {asked.offset}, and the file has {file.size} bytes", size=file.size)
            last = file.size - 1 if asked.last is None else min(asked.last, file.size - 1)
            self._status, self._promised = 206, last - asked.offset + 1
            self._fields["Content-Range"] = f"bytes {asked.offset}-{last}/{file.size}"
        elif file.size:
            self._promised = file.size
        if self._promised is not None:
            self._fields["Content-Length"] = str(self._promised)

    async def piece(self, data: bytes) -> None:
        """Bytes of the file."""
        room = len(data) if self._promised is None else min(len(data), self._promised - self._taken)
        self._taken += room
        self._beyond += len(data) - room
        if self._beyond > _MOST_GROWTH:
            raise GuestError(f"the file grew by more than {_MOST_GROWTH} bytes while it was read", hint="ask for a range of it")
        if room:
            held, self._held = self._held, data[:room]
            await self._send_some(held)

    async def end(self) -> None:
        """What was sent is right. GuestError when less came than was promised."""
        if self._promised is not None and self._taken < self._promised:
            raise GuestError(f"the file has shrunk: {self._taken} of {self._promised} bytes came", hint="repeat the transfer")
        await self._start()
        await self.send({"type": "http.response.body", "body": self._held})

    async def _send_some(self, data: bytes) -> None:
        if data:
            await self._start()
            await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            headers = [(name.lower().encode(), text.encode()) for name, text in self._fields.items()]
            await self.send({"type": "http.response.start", "status": self._status, "headers": headers})
