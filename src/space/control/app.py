"""The ASGI application: every request gets an id, passes the same gates in the same order, and ends in one log line.

    id -> version, Host, Origin -> route -> method -> query -> key -> scope -> room -> handler -> answer
                                -> names a sandbox (E2B): its token -> room -> awake -> envd or ingress

What a gate refuses is a problem object. A fault after the head of an answer cuts the connection.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

from starlette.types import Message, Receive, Scope, Send

from space.config import logs
from space.control import answers, limits
from space.control.call import Call, ClientGone, CutOff, request_id
from space.control.e2b import door, faults, ports
from space.control.e2b import routes as e2b_routes
from space.control.e2b.envd.serve import serve as serve_envd
from space.control.e2b.ids import ENVD_PORT
from space.control.e2b.seat import Seat
from space.control.hosts import Hosts
from space.control.keys import ADMIN, Key
from space.control.paths import Paths
from space.control.problems import MethodNotAllowed, TooMany, unexpected
from space.control.route import Access, Route
from space.control.routes import ROUTES
from space.control.services import Services
from space.model.errors import InvalidArgument, NotFound, PermissionDenied, SpaceError, Unauthenticated, Unavailable, Unsupported
from space.model.ids import new_request_id

log = logging.getLogger("space.control.http")
_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
# Two of these would be two opinions of one thing.
_SINGLE = frozenset(
    b"host authorization x-api-key idempotency-key content-type content-encoding content-length accept x-request-id "
    b"range if-match if-none-match if-range".split()
)
_NOWHERE = "(no route)"
K = TypeVar("K")


@dataclass(slots=True)
class _Exchange:
    """A request and what became of it."""

    request_id: str
    route: str = _NOWHERE
    tenant: str = ""
    status: int = 0
    face: bool = False  # it is E2B's: so are its faults
    call: Call | None = None  # once it was let in, if its route is recorded
    began: float = field(default_factory=time.perf_counter)


class Api:
    """The application."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._hosts = Hosts(services.settings)
        paths: dict[str, dict[str, Route]] = {}
        for route in ROUTES:
            paths.setdefault(route.path, {})[route.method] = route
        room = Room(
            limits.MAX_REQUESTS,
            limits.MAX_REQUESTS_PER_TENANT,
            limits.MAX_REQUESTS_PER_SANDBOX,
            limits.RESERVED_REQUESTS,
            limits.RESERVED_REQUESTS_PER_TENANT,
        )
        self._room = room
        self._paths = Paths({path: _Path(path, methods, services, room) for path, methods in paths.items()})
        theirs: dict[str, dict[str, Route]] = {}
        for route in e2b_routes.ROUTES:
            theirs.setdefault(route.path, {})[route.method] = route
        self._theirs = Paths({path: _Path(path, methods, services, room) for path, methods in theirs.items()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        socket = scope["type"] == "websocket"
        if socket:
            # To the router it is a GET like any other: the same gates, in the same order.
            scope = {**scope, "type": "http", "method": "GET", "space.socket": True}
        exchange = _Exchange(_chosen_id(scope))
        request_id.set(exchange.request_id)
        logs.sandbox.set("-")
        scope["space.exchange"] = exchange
        echo = (b"x-request-id", exchange.request_id.encode())

        async def told(message: Message) -> None:
            kind = message["type"]
            if kind == "http.response.start":
                exchange.status = message["status"]
                self._audit(exchange)  # now: a stream may last for hours, and this process may not
                message["headers"] = [*message.get("headers", []), echo, (b"x-content-type-options", b"nosniff")]
            elif kind == "websocket.accept":
                exchange.status = 101
                self._audit(exchange)
                message["headers"] = [*message.get("headers", []), echo]
            if socket and kind.startswith("http."):
                message["type"] = "websocket." + kind  # ASGI's denial response
            await send(message)

        try:
            await self._answer(scope, receive, told, exchange)
        finally:
            self._record(scope, exchange)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, exchange: _Exchange) -> None:
        try:
            address = self._admit(scope, exchange)
            if address is not None:
                await self._seated(scope, receive, send, exchange, address)
                return
            found = self._paths.find(scope["path"])
            if found is None and (found := self._theirs.find(_raw_path(scope), decode=unquote)) is not None:
                exchange.face = True
            if found is None:
                raise NotFound(f"there is nothing at {scope['path'][:200]!r}", hint="GET /openapi.json lists the routes")
            path, parameters = found
            await path.serve(scope, receive, send, parameters)
        except ClientGone:
            log.info("the client went away")
        except CutOff as cut:
            log.warning("the answer was cut off: %s", cut.cause)  # and the server closes the connection without an end mark
        except SpaceError as error:
            if error.status >= 500:
                log.warning("%s: %s (cause: %r)", error.code, error, error.__cause__)
            await _problem(error, exchange).send(send)
        except asyncio.CancelledError:
            # Only uvicorn cancels a request: the server stops, and its patience is over.
            if not exchange.status:
                await _problem(_STOPPING, exchange).send(send)
        except Exception:
            log.exception("unexpected")
            if exchange.status == 101:
                await send({"type": "websocket.close", "code": 1011, "reason": "internal"})
            elif not exchange.status:
                await _problem(unexpected(), exchange).send(send)

    async def _seated(self, scope: Scope, receive: Receive, send: Send, exchange: _Exchange, address: door.Address) -> None:
        """A request that names a sandbox: whoever answers at its port."""
        exchange.route = "e2b envd" if address.port == ENVD_PORT else "e2b port"
        if scope.get("space.socket"):
            raise Unsupported("no WebSocket goes this way", hint="ask the ingress, by the host name of the port")
        services, head = self._services, dict(scope["headers"])
        seat = door.find(services, address)
        exchange.tenant = seat.tenant
        logs.sandbox.set(seat.sandbox)
        services.quotas.spend(seat.tenant)
        with self._room.place(seat.tenant, guest=seat.sandbox):
            seat = await door.admitted(scope, services, address, head)
            if seat.port == ENVD_PORT:
                if scope["path"] not in door.LOOKING:
                    exchange.call = _by_token(scope, receive, exchange, seat)
                await serve_envd(scope, receive, send, services, seat)
            else:
                await ports.relay(scope, receive, send, services, seat)

    def _admit(self, scope: Scope, exchange: _Exchange) -> door.Address | None:
        """What is right or wrong before anybody looks at the path. Which sandbox's port it names, if it does."""
        if scope["http_version"] == "1.0":
            # Its bodies end where the connection ends: a cut one would look whole.
            raise Unsupported("HTTP/1.0 cannot tell a whole answer from a part", hint="use HTTP/1.1")
        head = dict(scope["headers"])
        exchange.face = b"e2b-sandbox-id" in head
        address = door.addressed(self._services.settings, head)
        exchange.face = address is not None
        if address is None and (coding := head.get(b"content-encoding", b"identity").strip().lower()) not in (b"identity", b""):
            # Its bytes would be kept, or run, as they are.
            raise Unsupported(f"content encoding {coding.decode('latin-1')[:80]!r} is not understood", hint="send the body as it is")
        if len(head) < len(scope["headers"]):
            names = Counter(name for name, _ in scope["headers"])
            for name in _SINGLE & names.keys():
                if names[name] > 1:
                    raise InvalidArgument(f"header {name.decode()} was given {names[name]} times", hint="send it once")
        host = head.get(b"host", b"").decode("latin-1")
        if not self._hosts.admit(host, (scope.get("server") or ("", None))[0]):
            raise PermissionDenied(f"this server does not answer for host {host[:80]!r}", hint="the setting allowed_hosts names more")
        if b"origin" in head and (address is None or address.port == ENVD_PORT):
            raise PermissionDenied("requests of web pages are refused", hint="call the API from a program, without an Origin header")
        return address

    def _audit(self, exchange: _Exchange) -> None:
        """Once, with the status that the client sees; 0 when it left before."""
        call, exchange.call = exchange.call, None
        if call is not None:
            self._services.audit.note(
                request_id=call.request_id,
                key_id=call.key.id,
                tenant=call.tenant,
                peer=str((call.scope.get("client") or ("?", 0))[0]),
                route=call.route,
                sandbox=call.sandbox,
                status=exchange.status,
            )

    def _record(self, scope: Scope, exchange: _Exchange) -> None:
        self._audit(exchange)
        seconds = time.perf_counter() - exchange.began
        method = scope["method"] if exchange.route != _NOWHERE else "-"
        self._services.figures.request(exchange.tenant, method, exchange.route, exchange.status, seconds)
        log.info("%s %s %d %.1f ms tenant=%s", method, exchange.route, exchange.status, seconds * 1000, exchange.tenant or "-")


class Room:
    """How many requests are inside. Over the limit is an answer at once, not a queue."""

    def __init__(self, most: int, most_per_tenant: int, most_per_sandbox: int, reserve: int, reserve_per_tenant: int) -> None:
        """reserve: for requests that are `reserved`, beyond the rest."""
        self._most = most
        self._most_per_tenant = most_per_tenant
        self._most_per_sandbox = most_per_sandbox
        self._reserve = reserve
        self._reserve_per_tenant = reserve_per_tenant
        # Plain dicts: a Counter takes a microsecond for a key that is not there, in every request.
        self._inside: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        self._waiting: dict[tuple[str, str], int] = {}

    @contextmanager
    def place(self, tenant: str, *, reserved: bool = False, guest: str | None = None) -> Iterator[None]:
        """Be inside. guest: the sandbox whose guest is waited for."""
        if sum(self._inside.values()) >= self._most and not (reserved and sum(self._reserved.values()) < self._reserve):
            raise Unavailable(f"{self._most} requests are in hand", hint="repeat in a second")
        if self._inside.get(tenant, 0) >= self._most_per_tenant and not (
            reserved and self._reserved.get(tenant, 0) < self._reserve_per_tenant
        ):
            raise TooMany(f"tenant {tenant} has {self._most_per_tenant} requests in hand", hint="wait until some have ended")
        if guest is not None and self._waiting.get((tenant, guest), 0) >= self._most_per_sandbox:
            raise TooMany(
                f"{self._most_per_sandbox} requests to the guest of sandbox {guest[:64]} are in hand",
                hint="wait until some have ended; it can be looked at and deleted meanwhile",
            )
        _add(self._inside, tenant)
        if reserved:
            _add(self._reserved, tenant)
        if guest is not None:
            _add(self._waiting, (tenant, guest))
        try:
            yield
        finally:
            _take(self._inside, tenant)
            if reserved:
                _take(self._reserved, tenant)
            if guest is not None:
                _take(self._waiting, (tenant, guest))


def _add(counts: dict[K, int], key: K) -> None:
    counts[key] = counts.get(key, 0) + 1


def _take(counts: dict[K, int], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class _Path:
    """One path: its methods, and the gates behind the path."""

    def __init__(self, path: str, methods: dict[str, Route], services: Services, room: Room) -> None:
        self._path = path
        self._methods = methods
        self._services = services
        self._room = room

    async def serve(self, scope: Scope, receive: Receive, send: Send, parameters: dict[str, str]) -> None:
        """Answer. parameters: of the path."""
        exchange: _Exchange = scope["space.exchange"]
        route = self._methods.get(scope["method"])
        if route is None:
            raise MethodNotAllowed(f"{scope['method'][:16]} is not possible on {self._path}", allowed=tuple(sorted(self._methods)))
        if scope.get("space.socket") and route.socket is None:
            raise Unsupported(f"{self._path} is no WebSocket", hint="ask without Upgrade")
        exchange.route = route.path
        if (sandbox := parameters.get("id")) is not None:
            logs.sandbox.set(sandbox[:64])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        key = self._key(route, headers, scope, parameters)
        exchange.tenant = key.tenant
        query = _query(route, scope["query_string"])
        call = Call(scope, receive, key, exchange.request_id, parameters, query, headers, route.name, parameters.get("id"))
        if route.access is Access.TENANT:
            self._services.quotas.spend(key.tenant)
        if route.audit and route.access is not Access.OPEN:
            exchange.call = call
        if route.access is Access.OPEN:
            await (await route.handler(call, self._services)).send(send)
            return
        guest = call.sandbox if route.waits_for_guest else None
        with self._room.place(key.tenant, reserved=route.reserved, guest=guest):
            await (await route.handler(call, self._services)).send(send)

    def _key(self, route: Route, headers: dict[str, str], scope: Scope, parameters: dict[str, str]) -> Key:
        if route.by is not None:
            return route.by(self._services, parameters, scope["query_string"])
        if route.access is Access.OPEN:
            return _NOBODY
        key = self._services.keys.authenticate(_given_key(headers), (scope.get("client") or ("?", 0))[0])
        if route.access is Access.ADMIN and key.scope != ADMIN:
            raise PermissionDenied("this needs a key with scope admin", hint="the server's own key is one; POST /v1/keys mints more")
        return key


_STOPPING = Unavailable(
    "the server is stopping", hint="repeat in a few seconds; a create goes on: repeat it with its Idempotency-Key, or list"
)
_NOBODY = Key("", "", "", "", b"", 0)


def _problem(error: SpaceError, exchange: _Exchange) -> answers.Answer:
    return faults.answer(error) if exchange.face else answers.problem(error, exchange.request_id)


def _by_token(scope: Scope, receive: Receive, exchange: _Exchange, seat: Seat) -> Call:
    """For the audit: who had a sandbox's token and no key."""
    key = Key("e2b-token", seat.tenant, "", "", b"", 0)
    return Call(scope, receive, key, exchange.request_id, {}, [], {}, f"e2b {scope['path'][:58]}", seat.sandbox)


def _raw_path(scope: Scope) -> str:
    """As it was sent: a segment of E2B's may be a name with a slash in it, percent-encoded."""
    raw: bytes = scope.get("raw_path") or b""
    return raw.partition(b"?")[0].decode("latin-1")


def _given_key(headers: dict[str, str]) -> str | None:
    text = headers.get("authorization")
    if text is None:
        return headers.get("x-api-key")
    scheme, _, rest = text.partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthenticated("only the Bearer scheme is understood", hint="send `Authorization: Bearer <key>`")
    return rest.strip()


def _query(route: Route, raw: bytes) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="surrogateescape", max_num_fields=100)
    except ValueError as error:  # also what is not ASCII
        raise InvalidArgument(f"the query is not right: {error}", hint="percent-encode what is not ASCII") from None
    known = {parameter.name for parameter in route.query}
    any_bytes = {parameter.name for parameter in route.query if parameter.raw}
    seen: set[str] = set()
    for name, value in pairs:
        if not _is_text(name) or (name not in any_bytes and not _is_text(value)):
            raise InvalidArgument("the query is not right: a percent escape is no UTF-8", hint="only paths may be any bytes")
        if name in seen:
            raise InvalidArgument(f"query parameter {name[:64]!r} was given twice", hint="give it once")
        if route.face and name not in known:
            continue
        if name not in known and not (route.open_query is not None and name.startswith(route.open_query)):
            raise InvalidArgument(f"unknown query parameter {name[:64]!r}", hint="known: " + (", ".join(sorted(known)) or "none"))
        seen.add(name)
    return [pair for pair in pairs if pair[0] in known] if route.face else pairs


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _chosen_id(scope: Scope) -> str:
    """The client's id if it is sane, so that both logs can be joined; a fresh one otherwise."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(text := value.decode("latin-1")):
            return str(text)
    return new_request_id()
