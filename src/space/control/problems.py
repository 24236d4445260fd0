"""Faults as `application/problem+json` (RFC 9457): a code, a sentence, a remedy, a request id, and never a cause."""

from __future__ import annotations

import msgspec

from space.model.egress import PolicyNote
from space.model.errors import (
    Conflict,
    Internal,
    InvalidArgument,
    NoCapacity,
    RateLimited,
    SpaceError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

MEDIA_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was not done. `code` is stable; `detail` is one sentence; `hint` is the remedy. quota: the tenant's has no room.

    details: of a policy that is not right, each mistake with its place.
    """

    type: str
    code: str
    title: str
    status: int
    detail: str
    request_id: str
    hint: str | None = None
    quota: bool = False
    details: list[PolicyNote] = []


class QuotaPassed(NoCapacity):
    """The tenant's quota, not the machine, has no room: waiting alone does not help."""


class MethodNotAllowed(Unsupported):
    """The path is there, the method is not."""

    status, title = 405, "Method not allowed"

    def __init__(self, message: str, *, allowed: tuple[str, ...]) -> None:
        super().__init__(message, hint="this path knows " + ", ".join(allowed))
        self.allowed = allowed


class UpgradeRequired(Unsupported):
    """The path is a WebSocket's, and the request asks for none."""

    status, title = 426, "Upgrade required"


class PreconditionFailed(Conflict):
    """If-Match names another state of the thing."""

    status, title = 412, "Precondition failed"


class RangeNotSatisfiable(InvalidArgument):
    """The range begins beyond the end. size: bytes that there are."""

    status, title = 416, "Range not satisfiable"

    def __init__(self, message: str, *, size: int) -> None:
        super().__init__(message, hint=f"ask for bytes below {size}, or without Range")
        self.size = size


class TooMany(RateLimited):
    """Too many, and when a repeat may work. retry_after: whole seconds."""

    def __init__(self, message: str, *, hint: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


def headers(error: SpaceError) -> dict[str, str]:
    """What the answer's head says beside the problem."""
    match error:
        case MethodNotAllowed():
            return {"Allow": ", ".join(error.allowed)}
        case UpgradeRequired():
            return {"Upgrade": "websocket", "Connection": "Upgrade"}
        case RangeNotSatisfiable():
            return {"Content-Range": f"bytes */{error.size}"}
        case TooMany():
            return {"Retry-After": str(error.retry_after)}
        case QuotaPassed():
            return {}
        case RateLimited() | Unavailable() | NoCapacity():
            return {"Retry-After": "1"}
        case Unauthenticated():
            return {"WWW-Authenticate": 'Bearer realm="space"'}
        case _:
            return {}


def describe(error: SpaceError, request_id: str) -> Problem:
    """The problem of a fault."""
    return Problem(
        type=f"urn:space:problem:{error.code}",
        code=error.code,
        title=error.title,
        status=error.status,
        detail=error.message,
        request_id=request_id,
        hint=error.hint,
        quota=isinstance(error, QuotaPassed),
        details=[PolicyNote(**one) for one in error.details],
    )


def unexpected() -> SpaceError:
    """What the caller learns of an exception that nobody foresaw."""
    return Internal("the server failed at this request", hint="the server's log has the cause under this request id")
