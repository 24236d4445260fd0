"""The Connect protocol with its JSON codec, as clients of E2B speak it: one answer, or a stream of envelopes that ends with one more.

A fault of a call with one answer is its HTTP answer; a fault of a stream comes in its last envelope, always under status 200.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from starlette.types import Send

from space.control.answers import Answer
from space.control.call import Call
from space.core.wire import envelopes
from space.model.errors import (
    Conflict,
    DeadlineExceeded,
    Gone,
    GuestError,
    InvalidArgument,
    NoCapacity,
    NotFound,
    PermissionDenied,
    RateLimited,
    SandboxDied,
    SpaceError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

T = TypeVar("T")
UNARY = "application/json"
STREAM = "application/connect+json"
# A message of a client: a command with its environment, or a piece of standard input.
MOST_MESSAGE = 4 << 20
_MOST_TIMEOUT_DIGITS = 10
_KEEPALIVE_SECONDS = 90.0
_LEAST_KEEPALIVE = 1.0
_CODES: tuple[tuple[type[SpaceError], str], ...] = (
    (InvalidArgument, "invalid_argument"),
    (Unauthenticated, "unauthenticated"),
    (PermissionDenied, "permission_denied"),
    (NotFound, "not_found"),
    (Conflict, "failed_precondition"),
    (Gone, "unavailable"),
    (SandboxDied, "unavailable"),
    (TooLarge, "resource_exhausted"),
    (NoCapacity, "resource_exhausted"),
    (RateLimited, "resource_exhausted"),
    (Unsupported, "unimplemented"),
    (Unavailable, "unavailable"),
    (DeadlineExceeded, "deadline_exceeded"),
    (GuestError, "internal"),
)
_STATUS = {
    "canceled": 499, "unknown": 500, "invalid_argument": 400, "deadline_exceeded": 504, "not_found": 404, "already_exists": 409,
    "permission_denied": 403, "resource_exhausted": 429, "failed_precondition": 400, "aborted": 409, "out_of_range": 400,
    "unimplemented": 501, "internal": 500, "unavailable": 503, "data_loss": 500, "unauthenticated": 401,
}  # fmt: skip


class Fault(Exception):
    """What a call ends with, in the protocol's words. code: one of its codes. message: a sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message

    @classmethod
    def of(cls, error: SpaceError) -> Fault:
        """A fault of ours."""
        return cls(next((code for kind, code in _CODES if isinstance(error, kind)), "internal"), error.message)

    @property
    def status(self) -> int:
        """Of the HTTP answer to a call with one answer."""
        return _STATUS[self.code]


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str


class _End(msgspec.Struct, frozen=True, omit_defaults=True):
    error: _Error | None = None


def failed(fault: Fault) -> Answer:
    """The answer to a call with one answer."""
    return Answer(fault.status, msgspec.json.encode(_Error(fault.code, fault.message)), UNARY)


def deadline(headers: Mapping[str, str]) -> float | None:
    """Seconds that the client gives the call; None: no end. Fault."""
    text = headers.get("connect-timeout-ms")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_TIMEOUT_DIGITS:
        raise Fault("invalid_argument", f"Connect-Timeout-Ms: {text[:32]!r} is no number of at most {_MOST_TIMEOUT_DIGITS} digits")
    return int(text) / 1000


def interval(headers: Mapping[str, str]) -> float:
    """Seconds of silence after which a stream shows that it lives."""
    text = headers.get("keepalive-ping-interval", "")
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        return _KEEPALIVE_SECONDS
    return max(_LEAST_KEEPALIVE, float(text))


@asynccontextmanager
async def within(seconds: float | None, what: str) -> AsyncIterator[None]:
    """Fault deadline_exceeded when it takes longer."""
    try:
        async with asyncio.timeout(seconds) as scope:
            yield
    except TimeoutError:
        if scope.expired():
            raise Fault("deadline_exceeded", f"{what} was not done within {seconds:g} s") from None
        raise


def decode(payload: bytes, cls: type[T]) -> T:
    """A message. Fields that are not known are passed over, as the codec wants it. Fault."""
    try:
        return msgspec.json.decode(payload or b"{}", type=cls, strict=False)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Fault("invalid_argument", f"the message is not right: {str(error)[:200]}") from None


async def messages(call: Call) -> AsyncIterator[bytes]:
    """The messages of a client's stream. Fault."""
    decoder = envelopes.Decoder(MOST_MESSAGE)
    async for piece in call.pieces(None):
        try:
            found = decoder.feed(piece)
        except envelopes.BadEnvelope as error:
            raise Fault("invalid_argument", str(error)) from None
        for envelope in found:
            if envelope.flags & envelopes.COMPRESSED:
                raise Fault("unimplemented", "compressed messages are not understood: send them as they are")
            if not envelope.ends:
                yield envelope.payload
    if decoder.pending:
        raise Fault("invalid_argument", f"the body ends within an envelope ({decoder.pending} bytes of it)")


async def first(call: Call, cls: type[T]) -> T:
    """The one message of a call whose answer is a stream. Fault."""
    found: bytes | None = None
    async for payload in messages(call):
        if found is not None:
            raise Fault("invalid_argument", "the request has more than one message")
        found = payload
    if found is None:
        raise Fault("invalid_argument", "the request has no message")
    return decode(found, cls)


class Outlet:
    """The answer as a stream of messages."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = False

    async def say(self, message: Any) -> None:
        """A message; waits for the client."""
        await self._piece(envelopes.encode(msgspec.json.encode(message)), more=True)

    async def end(self, fault: Fault | None = None) -> None:
        """The last envelope."""
        last = _End() if fault is None else _End(_Error(fault.code, fault.message))
        await self._piece(envelopes.encode(msgspec.json.encode(last), envelopes.END), more=False)

    async def _piece(self, body: bytes, *, more: bool) -> None:
        if not self._started:
            self._started = True
            headers = [(b"content-type", STREAM.encode()), (b"cache-control", b"no-store")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def streamed(outlet: Outlet, work: Callable[[], Awaitable[None]]) -> None:
    """Do it, and end the stream as it ended. ClientGone."""
    try:
        await work()
    except Fault as fault:
        await outlet.end(fault)
    except SpaceError as error:
        await outlet.end(Fault.of(error))
    else:
        await outlet.end()


async def answered(call: Call, send: Send, work: Callable[[bytes], Awaitable[Any]]) -> None:
    """Do it with the request's message while the client is there, and answer with what came of it. ClientGone."""
    try:
        seconds = deadline(call.headers)
        payload = await call.body(MOST_MESSAGE)
        async with within(seconds, "the call"):
            found = await call.while_there(work(payload))
    except Fault as fault:
        await failed(fault).send(send)
    except SpaceError as error:
        await failed(Fault.of(error)).send(send)
    else:
        await Answer(200, msgspec.json.encode(found), UNARY).send(send)
