"""What a route is: method, path, handler, who may call it, what it takes, answers and refuses. `routes` has the tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from starlette.types import Send

from space.control.call import Call
from space.control.keys import Key
from space.control.problems import UpgradeRequired
from space.control.services import Services
from space.model.errors import (
    Conflict,
    DeadlineExceeded,
    Gone,
    GuestError,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ProtocolError,
    RateLimited,
    SandboxDied,
    SpaceError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unsupported,
)


class Access(Enum):
    """Who may call."""

    OPEN = "no key"
    TENANT = "any key"
    ADMIN = "an admin key"


class Sendable(Protocol):
    """An answer."""

    async def send(self, send: Send) -> None:
        """Send it."""


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter. schema: JSON Schema."""

    name: str
    about: str
    schema: dict[str, Any]
    required: bool = False
    # Its percent escapes may be any bytes: what is no UTF-8 comes as surrogates (PEP 383).
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """What a request carries: media type -> its type, or None for bytes."""

    media: Mapping[str, type | None]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """One way to succeed. exit: what the exit frame of a stream of frames carries. lines: what each line of a stream of lines is."""

    status: int
    about: str
    media: Mapping[str, type | None]
    exit: type | None = None
    lines: type | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. errors: beyond those that every route of its access can give. audit: whether its requests are recorded."""

    method: str
    path: str
    name: str
    about: str
    access: Access
    handler: Callable[[Call, Services], Awaitable[Sendable]]
    replies: tuple[Reply, ...]
    errors: tuple[type[SpaceError], ...] = ()
    query: tuple[Query, ...] = ()
    headers: tuple[Query, ...] = ()
    body: Body | None = None
    # Names of parameters that begin with this are the caller's own.
    open_query: str | None = None
    # A WebSocket: what goes over it. Refusals come before the upgrade, as answers.
    socket: str | None = None
    # It ends something, or looks at what control and the node know: it is let in also when what hangs has filled the room.
    reserved: bool = False
    # False for what only looks and is asked often.
    audit: bool = True
    # E2B's (`e2b/routes`): further parameters are ignored, and faults have its form.
    face: bool = False
    # Who calls by another proof than a key: of the path's parameters and the query. Unauthenticated.
    by: Callable[[Services, Mapping[str, str], bytes], Key] | None = None

    @property
    def waits_for_guest(self) -> bool:
        """Whether a sandbox's guest has a say in when it ends."""
        return self.path.startswith(FACE_SANDBOX if self.face else SANDBOX) and not self.reserved

    @property
    def refusals(self) -> list[type[SpaceError]]:
        """Every fault it can answer with."""
        always: list[type[SpaceError]] = [InvalidArgument, PermissionDenied, Unavailable, Internal]
        if self.access is not Access.OPEN:
            always += [Unauthenticated, RateLimited]
        if self.body is not None:
            always += [TooLarge, Unsupported, DeadlineExceeded]
        if "{" in self.path:
            always.append(NotFound)
        if self.socket is not None:
            always.append(UpgradeRequired)
        return sorted({*always, *self.errors}, key=lambda fault: (fault.status, fault.code))


JSON = "application/json"
TEXT = {"type": "string"}
SANDBOX = "/v1/sandboxes/{id}"
FACE_SANDBOX = "/sandboxes/{id}"
GUEST: tuple[type[SpaceError], ...] = (Conflict, Gone, SandboxDied, GuestError, ProtocolError, DeadlineExceeded)
NDJSON = "application/x-ndjson"
USER = Query("user", "Guest user; missing: `user`", TEXT)
WHERE = (Query("path", "Absolute, or below the user's home", TEXT, required=True), USER)
IDEMPOTENCY = Query(
    "Idempotency-Key", "A repeat within 24 hours with the same body gives what the first made", {"type": "string", "maxLength": 128}
)
