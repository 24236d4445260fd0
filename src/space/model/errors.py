"""One tree of faults. Each class has a stable code, an HTTP status and says whose fault it is.

Words: the fact, with values; then the remedy in `hint`. What crosses the trust boundary is `code`, `message` and `hint`,
never a cause. The SDK raises the same classes: `from_problem` finds the class of a code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class SpaceError(Exception):
    """Base of everything that `space` raises."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    # Where one request has several mistakes: each with `path`, `message` and `hint`.
    details: Sequence[Mapping[str, str]] = ()

    def __init__(self, message: str, *, hint: str | None = None, request_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidArgument(SpaceError):
    """The caller's request is wrong; the message names the field and what would be right."""

    code, status, title = "invalid_argument", 400, "Invalid argument"


class Unauthenticated(SpaceError):
    """No key, or a key that is unknown or revoked."""

    code, status, title = "unauthenticated", 401, "Unauthenticated"


class PermissionDenied(SpaceError):
    """The caller (or the guest's user) may not do this."""

    code, status, title = "permission_denied", 403, "Permission denied"


class NotFound(SpaceError):
    """There is no such thing, or it belongs to another tenant."""

    code, status, title = "not_found", 404, "Not found"


class Conflict(SpaceError):
    """The thing is in a state that does not allow this."""

    code, status, title = "conflict", 409, "Conflict"


class Gone(SpaceError):
    """The sandbox was there and has ended."""

    code, status, title = "gone", 410, "Gone"


class TooLarge(SpaceError):
    """A limit of size was passed; the message names it."""

    code, status, title = "too_large", 413, "Too large"


class Unsupported(SpaceError):
    """This version does not know that verb, media type or option."""

    code, status, title = "unsupported", 415, "Unsupported"


class RateLimited(SpaceError):
    """Too many requests; try again later."""

    code, status, title = "rate_limited", 429, "Rate limited"


class SandboxDied(SpaceError):
    """The sandbox's VM ended, or stopped answering, during the call."""

    code, status, title = "sandbox_died", 502, "Sandbox died"


class GuestError(SpaceError):
    """The guest failed at what it was asked: the guest's fault, not ours."""

    code, status, title = "guest_error", 502, "Guest error"


class Unavailable(SpaceError):
    """A part of the server is not there right now; a repeat may work."""

    code, status, title = "unavailable", 503, "Unavailable"


class NoCapacity(SpaceError):
    """The machine has no room for it: memory, disk, slots. Nothing was kept."""

    code, status, title = "no_capacity", 503, "No capacity"


class DeadlineExceeded(SpaceError):
    """A step did not finish in its time; the message names it."""

    code, status, title = "deadline_exceeded", 504, "Deadline exceeded"


class ProtocolError(SpaceError):
    """The peer broke the wire protocol: it is hostile, broken or of another version."""

    code, status, title = "protocol_error", 502, "Protocol error"


class StreamCut(SpaceError):
    """An answer ended before its end mark: nothing may be concluded from it. Raised by clients."""

    code, status, title = "stream_cut", 502, "Stream cut off"


class ConnectionFailed(SpaceError):
    """The server could not be reached. Raised by clients."""

    code, status, title = "connection_failed", 503, "Connection failed"


class UnsafeArchive(SpaceError):
    """A tree that came from a guest holds an entry that must not be unpacked. Raised by clients."""

    code, status, title = "unsafe_archive", 422, "Unsafe archive"


class BuildFailed(SpaceError):
    """A step of a template's build failed, or it was not ready in time; the message names the step, the log has its output."""

    code, status, title = "build_failed", 422, "Build failed"


class Internal(SpaceError):
    """Our fault. The request id finds the log lines."""


def _walk(cls: type[SpaceError]) -> list[type[SpaceError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _walk(child))]


BY_CODE: dict[str, type[SpaceError]] = {cls.code: cls for cls in _walk(SpaceError) if cls is not SpaceError}


def from_code(code: str, message: str, *, hint: str | None = None, request_id: str | None = None) -> SpaceError:
    """The exception of a code that came over a wire; an unknown code becomes `Internal` and is named in the message."""
    cls = BY_CODE.get(code)
    if cls is None:
        return Internal(f"{message} [{code[:40]}]", hint=hint, request_id=request_id)
    return cls(message, hint=hint, request_id=request_id)
