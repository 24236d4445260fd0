"""One request on its way: who asks, with which id, and its body in pieces with limits. Handlers see nothing else of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.types import Message, Receive, Scope

from space.config.logs import request_id as request_id
from space.control import limits
from space.control.keys import Key
from space.model.errors import DeadlineExceeded, InvalidArgument, SpaceError, TooLarge, Unsupported

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection: nobody is left to answer."""


class CutOff(Exception):
    """An answer failed in the middle: the connection is closed without its end mark, so that it cannot look whole."""

    def __init__(self, cause: SpaceError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class Call:
    """A request that was let in. query: as given, each name once unless the route says otherwise."""

    scope: Scope
    receive: Receive
    key: Key
    request_id: str
    params: dict[str, str]
    query: list[tuple[str, str]]
    headers: dict[str, str]
    route: str = ""
    sandbox: str | None = None  # which one it is about
    ended: bool = field(default=False)

    @property
    def tenant(self) -> str:
        return self.key.tenant

    def argument(self, name: str) -> str | None:
        """A parameter of the query, or None."""
        return next((value for found, value in self.query if found == name), None)

    @property
    def is_socket(self) -> bool:
        """Whether a WebSocket is asked for."""
        return bool(self.scope.get("space.socket"))

    @property
    def media_type(self) -> str:
        """Of the body, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def pieces(self, limit: int | None, what: str = "the body") -> AsyncIterator[bytes]:
        """The body as it comes; the next piece is read only when asked for. TooLarge, DeadlineExceeded, ClientGone."""
        announced = self.headers.get("content-length", "")
        if limit is not None and announced.isdigit() and int(announced) > limit:
            raise TooLarge(f"{what} of {announced} bytes is larger than {limit}")
        taken = 0
        while not self.ended:
            message = await self._next()
            self.ended = not message.get("more_body", False)
            body: bytes = message.get("body", b"")
            taken += len(body)
            if limit is not None and taken > limit:
                raise TooLarge(f"{what} is larger than {limit} bytes")
            if body:
                yield body

    async def body(self, limit: int) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces(limit)])

    async def json(self, limit: int = limits.MAX_JSON) -> bytes:
        """The whole body, announced as JSON (or as nothing in particular)."""
        if self.media_type not in ("", "application/json"):
            raise Unsupported(f"media type {self.media_type[:80]!r} is not understood here", hint="send application/json")
        return await self.body(limit)

    async def gone(self) -> None:
        """Until the client has closed the connection. Only after the body."""
        while True:
            if (await self.receive())["type"] == "http.disconnect":
                return

    async def while_there(self, work: Awaitable[T]) -> T:
        """What `work` comes to; ClientGone, and it is cancelled, when the client leaves first. Only after the body."""
        scope = asyncio.timeout(None)

        async def watch() -> None:
            await self.gone()
            scope.reschedule(0)

        try:
            async with scope:
                watching = asyncio.create_task(watch())
                try:
                    return await work
                finally:
                    watching.cancel()
        except TimeoutError:
            if scope.expired():
                raise ClientGone from None
            raise

    async def _next(self) -> Message:
        try:
            async with asyncio.timeout(limits.BODY_SECONDS):
                message = await self.receive()
        except TimeoutError:
            raise DeadlineExceeded(f"no piece of the body came for {limits.BODY_SECONDS:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message


def flag(text: str | None, name: str, *, default: bool) -> bool:
    """A boolean parameter of the query."""
    match text:
        case None:
            return default
        case "1" | "true":
            return True
        case "0" | "false":
            return False
        case _:
            raise InvalidArgument(f"{name}: true or false, not {text[:32]!r}", hint="1 and 0 will do")


def number(text: str | None, name: str, *, default: int, least: int, most: int) -> int:
    """A whole number of the query."""
    if text is None:
        return default
    sign = -1 if text.startswith("-") else 1
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 19 or not least <= sign * int(digits) <= most:
        raise InvalidArgument(f"{name}: a whole number from {least} to {most}, not {text[:32]!r}", hint="leave it out for the default")
    return sign * int(digits)
