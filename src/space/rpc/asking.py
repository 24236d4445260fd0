"""Questions over SEQPACKET, each with a number that its answer repeats: the side that asks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from space.model.errors import ProtocolError, Unavailable, from_code
from space.rpc.packets import MOST, Packets, send_with


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """No answer. code: of `space.model.errors`."""

    id: int
    code: str
    message: str
    hint: str = ""


A = TypeVar("A")


class Asker:
    """One end, which it takes over. Unavailable: the other side is gone, now or before. Cancelling a question leaves the others alone.

    answers: their type, or a decoder of it, made once for many. most: bytes of an answer. unasked: gets messages without a number.
    ended: called once when the other side is gone, or sent what is no answer. first: questions are counted from there, for a socket on
    which somebody has asked before.
    """

    def __init__(
        self,
        sock: socket.socket,
        answers: object,
        *,
        who: str,
        most: int = MOST,
        unasked: Callable[[object], None] | None = None,
        ended: Callable[[], None] | None = None,
        first: int = 0,
    ) -> None:
        self._sock = sock
        self._who = who
        self._decoder = answers if isinstance(answers, msgspec.msgpack.Decoder) else msgspec.msgpack.Decoder(answers)
        self._unasked = unasked
        self._ended = ended
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._number = first
        self._turn = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._packets = Packets(sock, self._received, self._lost, most=most, burst=16)

    def number(self) -> int:
        """For the next question."""
        self._number += 1
        return self._number

    async def ask(self, number: int, question: bytes, kind: type[A], descriptors: int | Sequence[int] | None = None) -> A:
        """The answer. The error that a refusal names; ProtocolError for an answer of another kind."""
        if not self._packets.open:
            raise Unavailable(f"{self._who} is gone")
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._send(question, descriptors)
            answer = await future
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, Refused):
            raise from_code(answer.code, answer.message, hint=answer.hint or None)
        if not isinstance(answer, kind):
            raise ProtocolError(f"{self._who} answered with {type(answer).__name__} where {kind.__name__} belongs")
        return answer

    async def tell(self, message: bytes) -> None:
        """Send what is not answered; waits while the other side is behind. Unavailable: it is gone."""
        await self._send(message, None)

    @property
    def open(self) -> bool:
        """Whether the other side has not hung up."""
        return self._packets.open

    def close(self) -> None:
        """Hang up; what waits fails."""
        if self._packets.open:
            self._packets.close()
            self._lost()

    async def _send(self, question: bytes, descriptors: int | Sequence[int] | None) -> None:
        async with self._turn:
            while self._packets.open:
                try:
                    send_with(self._sock, question, descriptors)
                except BlockingIOError:
                    await self._writable()
                except OSError as error:
                    raise Unavailable(f"{self._who} is gone: {error.strerror}") from error
                else:
                    return
        raise Unavailable(f"{self._who} is gone")

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = self._room = loop.create_future()
        loop.add_writer(self._sock, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            if self._packets.open:
                loop.remove_writer(self._sock)

    def _received(self, message: bytes, _descriptor: int | None) -> None:
        try:
            answer = self._decoder.decode(message)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, OverflowError):
            self.close()
            return
        number = getattr(answer, "id", None)
        if number is None:
            if self._unasked is not None:
                self._unasked(answer)
            return
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(answer)

    def _lost(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Unavailable(f"{self._who} is gone"))
        if self._ended is not None:
            ended, self._ended = self._ended, None
            ended()
