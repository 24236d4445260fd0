"""Faults in the form that E2B's SDKs read: `{"code": <the status>, "message": ...}`, never an empty body, and whether a repeat helps.

JavaScript's SDK decides by `code`, Python's by the status; both must say the same. What is ours alone gets their word for it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from space.control import wire
from space.control.answers import Answer
from space.control.problems import MethodNotAllowed, QuotaPassed, headers
from space.model.errors import (
    DeadlineExceeded,
    Gone,
    NoCapacity,
    RateLimited,
    SandboxDied,
    SpaceError,
    Unavailable,
    Unsupported,
)


class NotHere(Unsupported):
    """E2B has it, this face has not; `docs/e2b.md` says why."""

    status, title = 501, "Not implemented"


class Unprocessable(Unsupported):
    """A status of E2B's own, said with an `error_code`."""

    status, title = 409, "Conflict"

    def __init__(self, message: str, *, error_code: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class Away(SandboxDied):
    """Nobody answers at a sandbox's address: it is gone, or rests, or (port) nothing listens there. sandbox: as E2B's clients know it."""

    title: ClassVar[str] = "Bad gateway"

    def __init__(self, sandbox: str, *, port: int | None = None) -> None:
        super().__init__("The sandbox was not found" if port is None else "The sandbox is running but port is not open")
        self.sandbox = sandbox
        self.port = port


def status(error: SpaceError) -> int:
    """The status that E2B's clients know for it."""
    match error:
        case Gone():
            return 404
        case QuotaPassed():
            return 429
        case _:
            return error.status


def again(error: SpaceError) -> bool:
    """Whether the same request may be sent again: nothing of it was done."""
    return isinstance(error, RateLimited | Unavailable | NoCapacity) and not isinstance(error, QuotaPassed)


def answer(error: SpaceError) -> Answer:
    """The whole answer."""
    code = status(error)
    body: dict[str, Any] = {"code": code, "message": str(error)}
    if isinstance(error, Away):
        body = {"sandboxId": error.sandbox, "message": error.message, "code": code}
        if error.port is not None:
            body["port"] = error.port
    if isinstance(error, Unprocessable):
        body["error_code"] = error.error_code
    head = headers(error) if not isinstance(error, MethodNotAllowed) else {"Allow": ", ".join(error.allowed)}
    head.pop("WWW-Authenticate", None)
    if (code >= 429 and not isinstance(error, DeadlineExceeded | Away)) or code == 409:
        head["Should-Retry"] = "true" if again(error) else "false"
    return Answer(code, wire.encode(body), "application/json", head)
