"""GET .../egress/log and /v1/credentials/log: what gateway and broker decided, as lines of JSON, from a place on, ended or followed.

    {"kind": "request", "id": "12.7", "chain": "gateway", "n": 12, "at": "...", "sandbox": "sb-...", ...}      a record
    {"kind": "gap", "id": "9.0", "chain": "gateway", "removed": 9}              records up to that number are kept no longer
    {"kind": "heartbeat", "id": "12.7"}       every 5 s while nothing comes      {"kind": "error", "problem": {...}}      the last line

An id is a place: how far both chains were told, `gateway.dialer`. Whoever asks again with `after` goes on there, so each record comes once.
Of another tenant's sandboxes nothing is told, also after they are gone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.types import Send

from space.control import limits, problems
from space.control.call import Call, ClientGone, flag
from space.control.event_stream import number
from space.control.keys import ADMIN
from space.control.link import decoded
from space.control.route import NDJSON
from space.control.services import Services
from space.control.wire import check_tenant
from space.core.wire.events import Message
from space.model.egresslog import CHAINS, RECORD_KINDS
from space.model.errors import InvalidArgument, PermissionDenied, ProtocolError, SpaceError, Unsupported
from space.model.ids import sandbox_id
from space.rpc.node_api import Chain, EgressLog, EgressRecord, EgressRecords
from space.rpc.stream import Stream

_NUMBER = re.compile(r"\d{1,18}\Z", re.ASCII)
_SINCE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z\Z", re.ASCII)


async def of_sandbox(call: Call, services: Services) -> LogAnswer:
    """GET /v1/sandboxes/{id}/egress/log."""
    sandbox = call.params["id"]
    await services.sandboxes.was(call.tenant, sandbox)
    return _answer(call, services, sandbox_id(sandbox), call.tenant)


async def of_tenant(call: Call, services: Services) -> LogAnswer:
    """GET /v1/egress/log."""
    return _answer(call, services, "", _whose(call))


async def of_credentials(call: Call, services: Services) -> LogAnswer:
    """GET /v1/credentials/log: the broker's own chain. An id is a number there."""
    tenant, sandbox = _whose(call, everybody=False), call.argument("sandbox")
    if sandbox is not None:
        await services.sandboxes.was(tenant or call.tenant, sandbox)
    only = {field: named for field in ("secret", "grant") if (named := call.argument(field)) is not None}
    return _answer(call, services, "" if sandbox is None else sandbox_id(sandbox), tenant, ("broker",), only)


def _whose(call: Call, *, everybody: bool = True) -> str | None:
    """Which tenant's records; None: everybody's, which is an admin's. everybody: whether that is so unless one is named."""
    tenant = call.argument("tenant")
    if tenant is not None:
        check_tenant(tenant)
    if call.key.scope == ADMIN:
        return tenant if everybody or tenant is not None else call.tenant
    if tenant not in (None, call.tenant):
        raise PermissionDenied("the records of another tenant need a key with scope admin")
    return call.tenant


def _answer(
    call: Call,
    services: Services,
    sandbox: str,
    tenant: str | None,
    chains: tuple[Chain, ...] = CHAINS,
    only: Mapping[str, str] = MappingProxyType({}),
) -> LogAnswer:
    accept = call.headers.get("accept", "*/*")
    if not any(part.partition(";")[0].strip().lower() in (NDJSON, "*/*", "application/*", "") for part in accept.split(",")):
        raise Unsupported(f"cannot answer as {accept[:80]!r}", hint=f"accept {NDJSON}")
    follow = flag(call.argument("follow"), "follow", default=False)
    limit = number(call.argument("limit"), "limit", least=1, most=limits.EVENTS_MAX)
    kinds = call.argument("kind")
    wanted = None if kinds is None else frozenset(kinds.split(","))
    if wanted is not None and (unknown := wanted - set(RECORD_KINDS)):
        raise InvalidArgument(f"kind: {min(unknown)[:32]!r} is no kind", hint="some of " + ",".join(RECORD_KINDS))
    asked = EgressLog(
        sandbox=sandbox,
        after=_after(call.argument("after"), chains),
        follow=follow,
        since=_since(call.argument("since")),
        denied=flag(call.argument("denied"), "denied", default=False),
        chains=chains,
    )
    return LogAnswer(call, services, asked, wanted, limit if limit or follow else limits.EVENTS_DEFAULT, tenant, only)


def _after(text: str | None, chains: tuple[Chain, ...]) -> dict[str, int] | None:
    if text is None:
        return None
    found = text.split(".")
    if len(found) != len(chains) or not all(map(_NUMBER.match, found)):
        raise InvalidArgument(f"after: {text[:40]!r} is no place", hint="the `id` of the last line that you have; leave it out to begin")
    return dict(zip(chains, map(int, found), strict=True))


def _since(text: str | None) -> str:
    if text is None:
        return ""
    if not _SINCE.match(text):
        raise InvalidArgument(f"since: {text[:40]!r} is no time", hint="such as 2026-01-31T12:00:00Z, in UTC")
    return text


@dataclass(slots=True)
class LogAnswer:
    """Records that are told while the answer is sent. tenant: whose; None for everybody's. left: how many more lines, None for no end.

    only: fields that a record has to have.
    """

    call: Call
    services: Services
    asked: EgressLog
    kinds: frozenset[str] | None
    left: int | None
    tenant: str | None
    only: Mapping[str, str]
    places: dict[str, int] = field(default_factory=dict)
    placed: bool = False  # the node has said where this begins: before that a place would be a wrong one
    started: bool = False
    written: float = 0.0

    async def send(self, send: Send) -> None:
        """Send it. SpaceError only before the head has gone out; ClientGone."""
        self.places = dict.fromkeys(self.asked.chains, 0) | (self.asked.after or {})
        gone = asyncio.ensure_future(self.call.gone())
        try:
            async with await self.services.link.open("egress_log", self.asked, finish=True) as stream:
                await self._follow(stream, gone, send)
        except SpaceError as error:
            if not self.started:
                raise
            problem = msgspec.to_builtins(problems.describe(error, self.call.request_id))
            await self._write(send, [{"kind": "error", "problem": problem}])
        finally:
            gone.cancel()
        if not self.started:
            await self._write(send, [])
        await send({"type": "http.response.body", "body": b""})

    async def _follow(self, stream: Stream, gone: asyncio.Future[None], send: Send) -> None:
        events = aiter(stream)
        while True:
            coming: asyncio.Future[Any] = asyncio.ensure_future(anext(events, None))
            try:
                while not coming.done():
                    await asyncio.wait({coming, gone}, timeout=limits.HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    if gone.done():
                        raise ClientGone
                    await self._beat(send)
                event = coming.result()
            finally:
                coming.cancel()
            if event is None:
                if self.asked.follow:
                    raise ProtocolError("the node ended the records that were followed")
                return
            if not isinstance(event, Message):
                raise ProtocolError("the node's records are no stream of messages")
            page: EgressRecords = decoded(event, EgressRecords)
            await self._write(send, await self._lines(page))
            self.placed = True
            await self._beat(send)
            if self.left == 0:
                return

    async def _lines(self, page: EgressRecords) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for chain, removed in page.removed.items():
            if self.asked.after is not None:  # who begins with the oldest misses nothing
                lines.append({"kind": "gap", "id": self._move(chain, removed), "chain": chain, "removed": removed})
        for record in page.records:
            place = self._move(record.chain, record.n)
            line = await self._line(record, place)
            if line is not None:
                lines.append(line)
                if self.left is not None:
                    self.left -= 1
                    if self.left == 0:
                        return lines
        self.places |= page.places
        return lines

    async def _line(self, record: EgressRecord, place: str) -> dict[str, Any] | None:
        fields: dict[str, Any] = msgspec.json.decode(record.line)
        kind, sandbox = str(fields.pop("type", "")), str(fields.get("sandbox", ""))
        if (self.kinds is not None and kind not in self.kinds) or any(fields.get(name) != named for name, named in self.only.items()):
            return None
        owner = self.tenant
        if not self.asked.sandbox:
            owner = await self.services.sandboxes.owner(sandbox) if sandbox else None
            if self.tenant is not None and owner != self.tenant:
                return None
        fields.pop("h", None)
        if "id" in fields:  # of a connection or a request, as the guest was told it; a line's id is its place
            fields["request_id"] = fields.pop("id")
        return {**fields, "kind": kind, "id": place, "chain": record.chain, "tenant": owner}

    def _move(self, chain: str, place: int) -> str:
        self.places[chain] = max(self.places.get(chain, 0), place)
        return ".".join(str(self.places[name]) for name in self.asked.chains)

    async def _beat(self, send: Send) -> None:
        if self.asked.follow and self.placed and asyncio.get_running_loop().time() - self.written >= limits.HEARTBEAT_SECONDS:
            await self._write(send, [{"kind": "heartbeat", "id": self._move(self.asked.chains[0], 0)}])

    async def _write(self, send: Send, lines: list[dict[str, Any]]) -> None:
        if not self.started:
            self.started = True
            headers = [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        if lines:
            body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self.written = asyncio.get_running_loop().time()
