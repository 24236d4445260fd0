"""A connection to one server: requests, repeats where they are safe, foreign exceptions turned into ours. What belongs to no single
sandbox is here: lists, templates, keys, events, webhooks, quotas, the audit. A single sandbox is `AsyncSandbox`.
"""

from __future__ import annotations

import json as jsonlib
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from space.model.errors import Conflict, ConnectionFailed, InvalidArgument, ProtocolError, SpaceError, StreamCut
from space.model.events import Event, EventKind
from space.model.ports import IngressInfo
from space.model.sandbox import SandboxInfo
from space.model.tenants import AuditRecord, Quota, QuotaInfo, WebhookCreated, WebhookInfo
from space.sdk.answers import Key, KeyCreated, problem, quota_info, record, sandbox_info, webhook_created
from space.sdk.endpoint import Endpoint, resolve
from space.sdk.eventlog import EventGap, EventLog
from space.sdk.request import query, segment
from space.sdk.retry import wait_before
from space.sdk.sockets import OPEN_SECONDS, Dial

from ._socket import WebSocket
from ._wait import sleep
from .credentials import AsyncClientCredentials
from .egress import AsyncClientPolicies
from .templates import AsyncClientTemplates

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
HEARTBEAT_LIMIT_SECONDS = 30.0  # the server sends a heartbeat every 5 s
ABANDON_SECONDS = 10.0
MAX_LINE = 4 << 20
# Every command, output or watch that is open holds a connection: httpx's own limit of 100 would make the next one wait for nothing.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=15.0)


class AsyncClient(AsyncClientPolicies, AsyncClientCredentials, AsyncClientTemplates):
    """A server, and a key for it. Use it as a context manager, or `aclose()` it.

    Where neither `api_url` nor `api_key` is given: SPACE_API_URL and SPACE_API_KEY, then (for root) the instance of this
    machine that `instance` or SPACE_INSTANCE names. `transport` replaces the network, as `space.sdk.testing.MockServer` does; if it has a
    method `dial`, that makes the sockets of WebSocket connections. Any number of requests and streams may be open at once.
    """

    def __init__(
        self,
        *,
        api_url: str | None = None,
        api_key: str | None = None,
        instance: str | None = None,
        key_file: Path | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.endpoint: Endpoint = resolve(api_url, api_key, instance=instance, key_file=key_file)
        # Requests go straight to it: what `httpx.AsyncClient` does around one (authentication, redirects, cookies) is not wanted, and took
        # a third of a short call's time. Only a server elsewhere may be behind a proxy of the environment, which the client finds.
        self._direct = transport
        if transport is None and self.endpoint.is_loopback:
            self._direct = httpx.AsyncHTTPTransport(verify=self.endpoint.is_tls, trust_env=False, limits=LIMITS)
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {self.endpoint.key}", "user-agent": "space-python/0.1", "accept-encoding": "identity"},
            transport=self._direct,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            limits=LIMITS,
            # A proxy of the environment must not see requests, and the key, that are meant for this machine.
            trust_env=not self.endpoint.is_loopback,
            # Without TLS there is nothing to verify, and reading the CA bundle takes 30 ms.
            verify=self.endpoint.is_tls,
        )
        # httpx parses an address in Python; most requests go where one went before.
        self._url = lru_cache(256)(lambda path: httpx.URL(self.endpoint.url + path))
        self._dial: Dial | None = getattr(transport, "dial", None)
        self._tls: ssl.SSLContext | None = None

    async def aclose(self) -> None:
        """Close the connections. Streams that are open end, and so do their commands."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    # -- the server ----------------------------------------------------------------------------------------------------
    async def health(self) -> dict[str, Any]:
        """What `/healthz` says: version, isolation, whether the node is there."""
        answer = await self.call("GET", "/healthz")
        return dict(answer)

    async def sandboxes(
        self, *, phase: str | None = None, metadata: Mapping[str, str] | None = None, page_size: int = 100
    ) -> AsyncIterator[SandboxInfo]:
        """Every sandbox of the key's tenant, page after page; `phase` and `metadata` narrow it."""
        params: dict[str, str] = {"limit": str(page_size)}
        if phase is not None:
            params["phase"] = phase
        for name, value in (metadata or {}).items():
            params[f"metadata.{name}"] = value
        while True:
            answer = await self.call("GET", "/v1/sandboxes", params=params)
            for item in _items(answer, "sandboxes"):
                yield sandbox_info(item)
            cursor = answer.get("next_cursor")
            if not cursor:
                return
            params["cursor"] = str(cursor)

    # -- keys ----------------------------------------------------------------------------------------------------------
    async def keys(self) -> list[Key]:
        """Every key that this one may see, without secrets."""
        answer = await self.call("GET", "/v1/keys")
        return [record(Key, item) for item in _items(answer, "keys")]

    async def create_key(self, *, tenant: str, scope: str = "tenant", name: str = "", e2b: bool = False) -> KeyCreated:
        """A new key; its secret is in this answer only. scope: `tenant` (that tenant's sandboxes) or `admin` (keys and metrics besides).
        e2b: of the form that E2B's clients know.
        """
        asked: dict[str, Any] = {"tenant": tenant, "scope": scope, "name": name}
        answer = await self.call("POST", "/v1/keys", json=asked | ({"e2b": True} if e2b else {}))
        return record(KeyCreated, answer)

    async def revoke_key(self, key_id: str) -> None:
        """Make a key invalid, at once and for good."""
        await self.call("DELETE", f"/v1/keys/{segment(key_id)}")

    # -- what happens --------------------------------------------------------------------------------------------------
    async def events(
        self,
        after: int | None = None,
        *,
        follow: bool = True,
        sandbox: str | None = None,
        kinds: Sequence[EventKind] = (),
    ) -> AsyncGenerator[Event | EventGap, None]:
        """What happens to the tenant's sandboxes, in order, each once: what came after the event `after`, then, with `follow`, what comes.

        Without `after`: from now on, or without `follow` from the oldest that is kept. `EventGap` comes first when what follows `after` is
        kept no longer. A connection that breaks is made anew without a gap; after ten that brought nothing (25 s) its error comes out.
        """
        log = EventLog(after)
        params = ({"sandbox": sandbox} if sandbox else {}) | ({"kind": ",".join(kinds)} if kinds else {})
        while not log.done:
            try:
                async with aclosing(self._events(log, params, follow=follow)) as lines:
                    async for event in lines:
                        yield event
            except SpaceError as fault:
                pause = log.wait_after(fault, random.random())  # noqa: S311  # spreads load, guards nothing
                if pause is None:
                    raise
                await sleep(pause)

    async def _events(self, log: EventLog, params: Mapping[str, str], *, follow: bool) -> AsyncGenerator[Event | EventGap, None]:
        limit = HEARTBEAT_LIMIT_SECONDS
        asked = {**params, **log.params(follow=follow)}
        log.begin()
        headers = {"accept": "application/x-ndjson"}
        async with self.stream("GET", "/v1/events", params=asked, headers=headers, seconds=limit) as response:  # noqa: SIM117  # as it reads
            async with aclosing(self.lines(response, limit)) as lines:
                async for line in lines:
                    event = log.receive(line)
                    if event is not None:
                        yield event
        log.finish(follow=follow)

    async def webhooks(self) -> list[WebhookInfo]:
        """Where the tenant's events are delivered, oldest first."""
        answer = await self.call("GET", "/v1/webhooks")
        return [record(WebhookInfo, item) for item in _items(answer, "webhooks")]

    async def create_webhook(self, url: str, *, kinds: Sequence[EventKind] | None = None, secret: str | None = None) -> WebhookCreated:
        """Deliver the events from now on to an https address, at least once each and in order. kinds: all unless given.

        The answer holds the secret of the signatures, this once: see `space.sdk.webhooks.verify`.
        """
        wanted = {"url": url} | ({} if kinds is None else {"kinds": list(kinds)}) | ({} if secret is None else {"secret": secret})
        return webhook_created(await self.call("POST", "/v1/webhooks", json=wanted))

    async def delete_webhook(self, webhook_id: str) -> None:
        """Deliver nothing more there."""
        await self.call("DELETE", f"/v1/webhooks/{segment(webhook_id)}")

    # -- administration ------------------------------------------------------------------------------------------------
    async def quota(self, tenant: str) -> QuotaInfo:
        """What a tenant may have, and has. An admin's key."""
        return quota_info(await self.call("GET", f"/v1/tenants/{segment(tenant)}/quota"))

    async def set_quota(self, tenant: str, quota: Quota) -> QuotaInfo:
        """Set a tenant's quota, whole: what is None of it is the server's default. An admin's key."""
        wanted = {name: getattr(quota, name) for name in Quota.__dataclass_fields__}
        return quota_info(await self.call("PUT", f"/v1/tenants/{segment(tenant)}/quota", json=wanted, repeatable=True))

    async def ingress(self) -> IngressInfo:
        """How exposed ports of sandboxes are reached, and which authority to trust for that."""
        return record(IngressInfo, await self.call("GET", "/v1/ingress"))

    async def audit(
        self, after: int | None = None, *, tenant: str | None = None, page_size: int = 100
    ) -> AsyncGenerator[AuditRecord, None]:
        """Who did what, oldest first, page after page: of the key's tenant, or with an admin's key of `tenant` or all."""
        params = {"limit": str(page_size)} | ({} if tenant is None else {"tenant": tenant})
        while True:
            answer = await self.call("GET", "/v1/audit", params=params | ({} if after is None else {"after": str(after)}))
            for item in _items(answer, "records"):
                yield record(AuditRecord, item)
            after = answer.get("next_after")
            if after is None:
                return

    # -- requests ------------------------------------------------------------------------------------------------------
    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        body: Callable[[], AsyncIterator[bytes]] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
        repeatable: bool | None = None,
    ) -> Any:
        """One request and its JSON answer (None for an empty one). seconds: how long an answer may take.

        body: makes the request's body, each time that it is sent. Raises the server's error as its class, ConnectionFailed, StreamCut,
        ProtocolError. GET and DELETE are repeated after a lost connection or an `unavailable`; `repeatable` says so of another request.
        """
        safe = method in ("GET", "DELETE") if repeatable is None else repeatable
        attempt = 1
        while True:
            try:
                given = body() if body is not None else content
                async with self.stream(method, path, params=params, json=json, content=given, headers=headers, seconds=seconds) as response:
                    with _ours(self.endpoint.url, seconds):
                        answer = await response.aread()
                return _json(response, answer)
            except SpaceError as fault:
                pause = wait_before(attempt, fault, repeatable=safe, chance=random.random())  # noqa: S311  # spreads load, guards nothing
                if pause is None:
                    raise
            await sleep(pause)
            attempt += 1

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | AsyncIterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
        allowed: Collection[int] = (),
    ) -> AsyncIterator[httpx.Response]:
        """One request, and its answer while it arrives: a success, or the server's error is raised. seconds: between two pieces of it.

        allowed: statuses that are no success and are answers all the same.

        Leaving the block closes the connection, whatever was left to read.
        """
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=seconds)
        url = f"{path}?{query(params)}" if params else path
        if json is not None:
            # Its escapes carry names that are no UTF-8; httpx would write them as they are, and fail.
            content, headers = jsonlib.dumps(json).encode(), {**(headers or {}), "content-type": "application/json"}
        request = self._http.build_request(method, self._url(url), content=content, headers=headers, timeout=timeout)
        with _ours(self.endpoint.url, seconds):
            response = await self._send(request)
        try:
            if not response.is_success and response.status_code not in allowed:
                with _ours(self.endpoint.url, seconds):
                    body = await response.aread()
                raise problem(response.status_code, body, response.headers)
            yield response
        finally:
            await response.aclose()

    async def _send(self, request: httpx.Request) -> httpx.Response:
        self._check_open()
        if self._direct is None:
            return await self._http.send(request, stream=True)
        response = await self._direct.handle_async_request(request)
        response.request = request
        return response

    def _check_open(self) -> None:
        if self._http.is_closed:
            raise Conflict("the client is closed", hint="use it, and what was made with it, inside its block or before aclose()")

    async def pieces(self, response: httpx.Response, seconds: float) -> AsyncGenerator[bytes, None]:
        """The body of `response` as it arrives. StreamCut when it breaks off or stands still for `seconds`."""
        with _ours(self.endpoint.url, seconds):
            async for piece in response.aiter_bytes():
                yield piece

    async def lines(self, response: httpx.Response, seconds: float) -> AsyncGenerator[dict[str, Any], None]:
        """The body of `response` as JSON objects, one a line."""
        rest = b""
        async with aclosing(self.pieces(response, seconds)) as pieces:
            async for piece in pieces:
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    yield _line(line)
                if len(rest) > MAX_LINE:
                    raise ProtocolError(f"a line of the server's answer is longer than {MAX_LINE} bytes")
        if rest:
            raise StreamCut("the server's answer ended within a line", request_id=response.headers.get("x-request-id"))

    async def socket(
        self, path: str, *, params: Mapping[str, str] | None = None, subprotocol: str | None = None, seconds: float = OPEN_SECONDS
    ) -> WebSocket:
        """A WebSocket connection, within so many seconds. The server's errors before the upgrade are raised as their classes."""
        self._check_open()
        if self.endpoint.is_tls and self._tls is None:
            self._tls = httpx.create_ssl_context()  # the authorities that requests trust
        return await WebSocket.open(
            self.endpoint, path, params or {}, dial=self._dial, tls=self._tls, subprotocol=subprotocol, seconds=seconds
        )


async def abandon(client: AsyncClient, spec: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Delete the sandbox of a create that nobody waits for any more: its idempotency key tells its id at once.

    What cannot be reached now ends by its time-to-live.
    """
    with suppress(SpaceError):
        answer = await client.call("POST", "/v1/sandboxes", params={"wait": "false"}, json=spec, headers=headers, seconds=ABANDON_SECONDS)
        await client.call("DELETE", f"/v1/sandboxes/{segment(sandbox_info(answer).id)}", seconds=ABANDON_SECONDS, repeatable=False)


class _ours:  # noqa: N801  # reads as a statement
    """Turns httpx's exceptions into ours: the only place that knows them."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        match error:
            case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.PoolTimeout() | httpx.ProxyError():
                raise ConnectionFailed(
                    f"cannot reach {self._url}: {str(error) or type(error).__name__}",
                    hint="is `space serve` running there? SPACE_API_URL names another server",
                ) from error
            case httpx.ReadTimeout():
                raise StreamCut(f"nothing came from {self._url} for {self._seconds:g} s", hint="the server or its machine hangs") from error
            case httpx.TransportError():
                reason = str(error) or type(error).__name__
                raise StreamCut(f"the connection to {self._url} broke: {reason}", hint="the server's log may say why") from error
            case httpx.InvalidURL():
                raise InvalidArgument(f"not a server address: {self._url!r}: {error}") from error
            case _:
                return


def _json(response: httpx.Response, body: bytes) -> Any:
    if not body:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise ProtocolError(f"the server's answer to {response.request.method} {response.request.url.path} is no JSON") from error


def _line(line: bytes) -> dict[str, Any]:
    try:
        found = jsonlib.loads(line)
    except ValueError as error:
        raise ProtocolError(f"a line of the server's answer is no JSON: {line[:80]!r}") from error
    if not isinstance(found, dict):
        raise ProtocolError(f"a line of the server's answer is no object: {line[:80]!r}")
    return found


def _items(answer: Any, name: str) -> list[Any]:
    items = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(items, list):
        raise ProtocolError(f"the server's answer holds no list of {name}", hint="is the server of another version?")
    return items
