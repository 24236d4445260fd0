"""What handlers return, and how it goes out. A stream that fails after its head is cut off: never a clean end after a fault."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Send

from space.control import wire
from space.control.call import ClientGone, CutOff
from space.control.problems import MEDIA_TYPE, describe, headers
from space.model.errors import SpaceError


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    body: bytes = b""
    media_type: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    async def send(self, send: Send) -> None:
        """Send it."""
        head = {**self.headers, **({} if self.status == 204 else {"Content-Length": str(len(self.body))})}
        if self.media_type is not None:
            head["Content-Type"] = self.media_type
        await send({"type": "http.response.start", "status": self.status, "headers": _raw(head)})
        await send({"type": "http.response.body", "body": self.body})


@dataclass(frozen=True, slots=True)
class Stream:
    """A chunked answer. chunks: its end is the end of the answer; a fault in it cuts the connection."""

    media_type: str
    chunks: AsyncIterator[bytes]

    async def send(self, send: Send) -> None:
        """Send it as it comes."""
        head = {"Content-Type": self.media_type, "Cache-Control": "no-store"}
        await send({"type": "http.response.start", "status": 200, "headers": _raw(head)})
        try:
            async for chunk in self.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except SpaceError as error:
            raise CutOff(error) from error
        except ClientGone:
            raise
        await send({"type": "http.response.body", "body": b""})


def value(answer: Any, status: int = 200) -> Answer:
    """JSON."""
    return Answer(status, wire.encode(answer), "application/json")


def nothing() -> Answer:
    """204."""
    return Answer(204)


def problem(error: SpaceError, request_id: str) -> Answer:
    """A fault."""
    return Answer(error.status, wire.encode(describe(error, request_id)), MEDIA_TYPE, headers(error))


def _raw(head: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in head.items()]
