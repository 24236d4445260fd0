"""Whole answers of handlers, and how they go out. Those that stream are `processes` and `trees`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.types import Send

from space.control import wire
from space.control.problems import MEDIA_TYPE, describe, headers
from space.model.errors import SpaceError


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. bare: the answer to a HEAD, which tells the length of a body that does not come, or none."""

    status: int
    body: bytes = b""
    media_type: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    bare: bool = False

    async def send(self, send: Send) -> None:
        """Send it."""
        head = dict(self.headers)
        if self.status not in (204, 304) and not self.bare:
            head["Content-Length"] = str(len(self.body))
        if self.media_type is not None:
            head["Content-Type"] = self.media_type
        await send({"type": "http.response.start", "status": self.status, "headers": _raw(head)})
        await send({"type": "http.response.body", "body": self.body})


def value(answer: Any, status: int = 200, **headers: str) -> Answer:
    """JSON. headers: further ones, with _ for -."""
    return Answer(status, wire.encode(answer), "application/json", {name.replace("_", "-"): text for name, text in headers.items()})


def nothing() -> Answer:
    """204."""
    return Answer(204)


def problem(error: SpaceError, request_id: str) -> Answer:
    """A fault."""
    return Answer(error.status, wire.encode(describe(error, request_id)), MEDIA_TYPE, headers(error))


def _raw(head: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in head.items()]
