"""The keeper of the records, as those see it who register sources, and as a source sees it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from space.model.errors import Unavailable
from space.rpc import audit_api as api
from space.rpc.asking import Asker


class AuditControl:
    """The node's, and serve's. ended: called when the keeper hangs up."""

    def __init__(self, sock: socket.socket, ended: Callable[[], None] | None = None) -> None:
        self._asker = Asker(sock, api.Answer, who="the keeper of the records", ended=ended, most=api.MOST_ANSWER)

    @classmethod
    def connect(cls, path: Path, ended: Callable[[], None] | None = None) -> Self:
        """Unavailable when nobody listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(os.fspath(path))
        except OSError as error:
            sock.close()
            raise Unavailable(f"the keeper of the records cannot be reached at {path}: {error.strerror}") from error
        return cls(sock, ended)

    async def bind_source(self, sock: socket.socket, writer: str, sandbox: str, generation: int) -> None:
        """Hand over the other end of a source's socket; this end is closed here."""
        await self._do(api.BindSource(self._asker.number(), writer, sandbox, generation), sock)

    async def end_source(self, writer: str, sandbox: str, generation: int) -> None:
        """What it has sent is written; it can send no more."""
        await self._do(api.EndSource(self._asker.number(), writer, sandbox, generation))

    async def bind_broker(self, sock: socket.socket) -> None:
        """Hand over a socket that the broker has bound to these chains; this end is closed here."""
        await self._do(api.BindBroker(self._asker.number()), sock)

    async def status(self) -> api.Standing:
        """How it stands."""
        number = self._asker.number()
        return await self._asker.ask(number, api.encode(api.Status(number)), api.Standing)

    async def read(
        self, writer: str, sandbox: str = "", after: int = 0, *, limit: int = 100, since: str = "", denied: bool = False
    ) -> api.Records:
        """A page of a chain (`api.Read`)."""
        number = self._asker.number()
        question = api.Read(number, writer, sandbox, after, limit, since, denied)
        return await self._asker.ask(number, api.encode(question), api.Records)

    async def follow(
        self, writer: str, sandbox: str = "", after: int | None = None, *, limit: int = 100, seconds: float = 5.0, denied: bool = False
    ) -> api.Records:
        """The next page that holds something (`api.Follow`); to be asked again from its place."""
        number = self._asker.number()
        question = api.Follow(number, writer, sandbox, after, limit, seconds, denied)
        return await self._asker.ask(number, api.encode(question), api.Records)

    @property
    def open(self) -> bool:
        """Whether it can be asked."""
        return self._asker.open

    def close(self) -> None:
        """Hang up."""
        self._asker.close()

    async def _do(self, question: api.ToControl, sock: socket.socket | None = None) -> None:
        try:
            await self._asker.ask(question.id, api.encode(question), api.Written, None if sock is None else sock.fileno())
        finally:
            if sock is not None:
                sock.close()


_ANSWERS = msgspec.msgpack.Decoder(api.Answer)  # made once, before there are workers


class RecordSocket:
    """A source's. Messages are encoded notes (`space.audit.records.encode`)."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._asker = Asker(sock, _ANSWERS, who="the keeper of the records")

    def note(self, message: bytes) -> None:
        """Send a note without an id, at once. Unavailable when it is not taken: then what it tells of must not happen."""
        try:
            self._sock.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            raise Unavailable("the keeper of the records is behind") from None
        except OSError as error:
            raise Unavailable(f"the keeper of the records is gone: {error.strerror}") from error

    async def told(self, message: bytes) -> None:
        """Send a note without an id, as soon as it is taken. Unavailable: nobody takes it any more."""
        await self._asker.tell(message)

    @property
    def open(self) -> bool:
        """Whether the keeper has not hung up."""
        return self._asker.open

    def number(self) -> int:
        """An id for the next note that is to be answered."""
        return self._asker.number()

    async def written(self, number: int, message: bytes) -> None:
        """Send a note with that id; returns once it is in the file. NoCapacity, Conflict or Unavailable: it is not."""
        await self._asker.ask(number, message, api.Written)

    def close(self) -> None:
        """Hang up."""
        self._asker.close()
