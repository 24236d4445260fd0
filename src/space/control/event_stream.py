"""GET /v1/events: the log as lines or server-sent events, from a place on, ended or followed (`space.model.events` has the lines).

    page -> lines ... -> no more -> (follow) wait to be woken, a heartbeat every 5 s -> page ...

A client that takes nothing holds no more than a page: the next one is read once this one has gone out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.types import Send

from space.control import limits, problems
from space.control.call import Call, ClientGone, flag
from space.control.events import EventLog, Page, Waiter
from space.control.webhooks import told
from space.model.errors import InvalidArgument, SpaceError, Unsupported
from space.model.events import EVENT_KINDS
from space.model.ids import sandbox_id

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
_LARGEST = 2**53


class Form(Protocol):
    """How lines are written."""

    media_type: str

    def line(self, fields: dict[str, Any]) -> bytes:
        """One line."""


class Lines:
    """One JSON object a line."""

    media_type = NDJSON

    def line(self, fields: dict[str, Any]) -> bytes:
        return msgspec.json.encode(fields) + b"\n"


class ServerSent:
    """Server-sent events. A heartbeat is an id without data: it moves the reader's place and wakes nobody."""

    media_type = SSE

    def line(self, fields: dict[str, Any]) -> bytes:
        if fields["kind"] == "heartbeat":
            return f": heartbeat\nid: {fields['id']}\n\n".encode()
        head = f"id: {fields['id']}\n" if "id" in fields else ""
        return f"{head}event: {fields['kind']}\n".encode() + b"data: " + msgspec.json.encode(fields) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """What to read. after: None for from now on (follow) or from the oldest. limit: None for no end."""

    form: Form
    after: int | None
    follow: bool
    limit: int | None
    sandbox: str | None
    kinds: frozenset[str] | None


def asked(call: Call) -> Asked:
    """From the query and the head. InvalidArgument, Unsupported."""
    form = _form(call.headers.get("accept", ""))
    follow = flag(call.argument("follow"), "follow", default=isinstance(form, ServerSent))
    after = call.argument("after")
    if isinstance(form, ServerSent):
        after = call.headers.get("last-event-id") or after  # a browser repeats the URL as it was
    limit = number(call.argument("limit"), "limit", least=1, most=limits.EVENTS_MAX)
    sandbox = call.argument("sandbox")
    try:
        checked = None if sandbox is None else sandbox_id(sandbox)
    except ValueError as error:
        raise InvalidArgument(f"sandbox: {error}", hint="GET /v1/sandboxes lists them") from None
    kinds = call.argument("kind")
    wanted = None if kinds is None else frozenset(kinds.split(","))
    if wanted is not None and (unknown := wanted - set(EVENT_KINDS)):
        raise InvalidArgument(f"kind: {min(unknown)[:32]!r} is no kind", hint="some of " + ",".join(EVENT_KINDS))
    place = number(after, "after", least=0, most=_LARGEST)
    return Asked(form, place, follow, limit if limit or follow else limits.EVENTS_DEFAULT, checked, wanted)


def number(text: str | None, name: str, *, least: int, most: int) -> int | None:
    """A whole number of the query."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 16 or not least <= int(text) <= most:
        raise InvalidArgument(f"{name}: {least} to {most}, not {text[:32]!r}", hint="leave it out for the default")
    return int(text)


def _form(accept: str) -> Form:
    for part in (accept or "*/*").split(","):
        match part.partition(";")[0].strip().lower():
            case "application/x-ndjson" | "*/*" | "application/*":
                return Lines()
            case "text/event-stream" | "text/*":
                return ServerSent()
            case _:
                pass
    raise Unsupported(f"cannot answer as {accept[:80]!r}", hint=f"accept {NDJSON} or {SSE}")


@dataclass(frozen=True, slots=True)
class EventsAnswer:
    """The log while it is sent."""

    call: Call
    log: EventLog
    asked: Asked

    async def send(self, send: Send) -> None:
        """Send it. SpaceError only before the head has gone out; ClientGone."""
        with self.log.waiting(self.call.tenant) as waiter:
            gone = asyncio.create_task(self.call.gone())
            gone.add_done_callback(lambda _: waiter.wake(closed=True))
            try:
                await _Telling(self, waiter, gone, send).run()
            finally:
                gone.cancel()


class _Telling:
    def __init__(self, answer: EventsAnswer, waiter: Waiter, gone: asyncio.Task[None], send: Send) -> None:
        self._answer = answer
        self._asked = answer.asked
        self._waiter = waiter
        self._gone = gone
        self._send = send
        self._left = answer.asked.limit
        self._place = 0
        self._written = 0.0
        self._now = asyncio.get_running_loop().time

    async def run(self) -> None:
        after = self._asked.after
        self._place = after if after is not None else await self._answer.log.newest() if self._asked.follow else 0
        page = await self._page()
        headers = [(b"content-type", self._asked.form.media_type.encode()), (b"cache-control", b"no-store")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await self._tell(page, gap=page.gap and after is not None)
        except SpaceError as fault:
            problem = msgspec.to_builtins(problems.describe(fault, self._answer.call.request_id))
            await self._write([{"kind": "error", "problem": problem}])
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, page: Page, *, gap: bool) -> None:
        if gap:
            await self._write([{"kind": "gap", "oldest": page.oldest}])
        elif self._asked.follow:
            await self._write([self._heartbeat()])
        while True:
            await self._write(self._lines(page))
            if self._left == 0 or (not page.more and not self._asked.follow):
                return
            if not page.more:
                await self._wait()
            if self._gone.done():
                raise ClientGone
            if self._waiter.closed:
                return  # the server ends: the client comes back to the next one
            page = await self._page()
            if page.gap:  # it was pruned under a reader that slept
                await self._write([{"kind": "gap", "oldest": page.oldest}])

    def _lines(self, page: Page) -> list[dict[str, Any]]:
        """What is asked for of a page; the place moves behind what was looked at."""
        wanted: list[dict[str, Any]] = []
        for event in page.events:
            if self._left == 0:
                return wanted
            self._place = event.id
            if self._asked.sandbox not in (None, event.sandbox) or (self._asked.kinds is not None and event.kind not in self._asked.kinds):
                continue
            wanted.append(told(event))
            if self._left is not None:
                self._left -= 1
        self._place = page.last
        return wanted

    async def _wait(self) -> None:
        """Until there may be more; heartbeats meanwhile, also while there is much that was not asked for."""
        while not self._waiter.closed:
            due = self._written + limits.HEARTBEAT_SECONDS - self._now()
            if due <= 0:
                await self._write([self._heartbeat()])
            elif await self._waiter.news(due):
                return

    def _heartbeat(self) -> dict[str, Any]:
        return {"kind": "heartbeat", "id": self._place}

    async def _page(self) -> Page:
        return await self._answer.log.page(self._answer.call.tenant, self._place)

    async def _write(self, lines: Sequence[dict[str, Any]]) -> None:
        if lines:
            body = b"".join(self._asked.form.line(fields) for fields in lines)
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self._written = self._now()
