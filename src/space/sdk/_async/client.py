"""A connection to one server: requests, repeats where they are safe, foreign exceptions turned into ours. Keys, templates and
the list of sandboxes are here; a single sandbox is `AsyncSandbox`.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from space.model.errors import ConnectionFailed, InvalidArgument, ProtocolError, SpaceError, StreamCut
from space.model.sandbox import SandboxInfo
from space.sdk.answers import Key, KeyCreated, problem, record, sandbox_info
from space.sdk.endpoint import Endpoint, resolve
from space.sdk.request import segment
from space.sdk.retry import wait_before

from ._wait import sleep

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
HEARTBEAT_LIMIT_SECONDS = 30.0  # the server sends a heartbeat every 5 s


class AsyncClient:
    """A server, and a key for it. Use it as a context manager, or `aclose()` it.

    Where neither `api_url` nor `api_key` is given: SPACE_API_URL and SPACE_API_KEY, then (for root) the instance of this
    machine that `instance` or SPACE_INSTANCE names. `transport` replaces the network, as `space.sdk.testing.MockServer` does.
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
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {self.endpoint.key}", "user-agent": "space-python/0.1", "accept-encoding": "identity"},
            transport=transport,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            # A proxy of the environment must not see requests, and the key, that are meant for this machine.
            trust_env=not self.endpoint.is_loopback,
            # Without TLS there is nothing to verify, and reading the CA bundle takes 30 ms.
            verify=self.endpoint.is_tls,
        )
        # The server sets no cookies, and looking for them in an answer takes longer than reading it.
        self._http.cookies.extract_cookies = _nothing  # type: ignore[method-assign, assignment]
        # httpx parses an address in Python, and with a base twice; most requests go where one went before.
        self._url = lru_cache(256)(lambda path: httpx.URL(self.endpoint.url + path))

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

    async def templates(self) -> list[dict[str, Any]]:
        """The templates that sandboxes can be made of."""
        answer = await self.call("GET", "/v1/templates")
        return [dict(item) for item in _items(answer, "templates")]

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

    async def create_key(self, *, tenant: str, scope: str = "tenant", name: str = "") -> KeyCreated:
        """A new key; its secret is in this answer only. scope: `tenant` (that tenant's sandboxes) or `admin` (keys and metrics besides)."""
        answer = await self.call("POST", "/v1/keys", json={"tenant": tenant, "scope": scope, "name": name})
        return record(KeyCreated, answer)

    async def revoke_key(self, key_id: str) -> None:
        """Make a key invalid, at once and for good."""
        await self.call("DELETE", f"/v1/keys/{segment(key_id)}")

    # -- requests ------------------------------------------------------------------------------------------------------
    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
        repeatable: bool | None = None,
    ) -> Any:
        """One request and its JSON answer (None for an empty one). seconds: how long an answer may take.

        Raises the server's error as its class, ConnectionFailed, StreamCut, ProtocolError. GET and DELETE are repeated
        after a lost connection or an `unavailable`; `repeatable` says so of another request.
        """
        safe = method in ("GET", "DELETE") if repeatable is None else repeatable
        attempt = 1
        while True:
            try:
                async with self.stream(method, path, params=params, json=json, headers=headers, seconds=seconds) as response:
                    with _ours(self.endpoint.url, seconds):
                        body = await response.aread()
                return _json(response, body)
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
    ) -> AsyncIterator[httpx.Response]:
        """One request, and its answer while it arrives: a success, or the server's error is raised. seconds: between two pieces of it.

        Leaving the block closes the connection, whatever was left to read.
        """
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=seconds)
        request = self._http.build_request(
            method, self._url(path), params=params, json=json, content=content, headers=headers, timeout=timeout
        )
        with _ours(self.endpoint.url, seconds):
            response = await self._http.send(request, stream=True)
        try:
            if not response.is_success:
                with _ours(self.endpoint.url, seconds):
                    body = await response.aread()
                raise problem(response.status_code, body, response.headers)
            yield response
        finally:
            await response.aclose()

    async def pieces(self, response: httpx.Response, seconds: float) -> AsyncIterator[bytes]:
        """The body of `response` as it arrives. StreamCut when it breaks off or stands still for `seconds`."""
        with _ours(self.endpoint.url, seconds):
            async for piece in response.aiter_bytes():
                yield piece


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


def _nothing(_: httpx.Response) -> None:
    """No cookies."""


def _json(response: httpx.Response, body: bytes) -> Any:
    if not body:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise ProtocolError(f"the server's answer to {response.request.method} {response.request.url.path} is no JSON") from error


def _items(answer: Any, name: str) -> list[Any]:
    items = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(items, list):
        raise ProtocolError(f"the server's answer holds no list of {name}", hint="is the server of another version?")
    return items
