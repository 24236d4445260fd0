"""What the tests of the E2B face stand on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import space
from space.serve.private import Served
from space.testing.egresstown import Town

Js = Callable[..., Any]  # the body of an async function, and what it is given, to what it returns


@dataclass(frozen=True, slots=True)
class Running:
    """A server that the SDKs are pointed at. served: its own side."""

    served: Served
    key: str = field(repr=False)

    @property
    def env(self) -> dict[str, str]:
        """What a user sets."""
        return {"E2B_API_KEY": self.key, "E2B_API_URL": self.served.url, "E2B_SANDBOX_URL": self.served.url}

    @property
    def options(self) -> dict[str, str]:
        """The same as options of a call."""
        return {"api_key": self.key, "api_url": self.served.url, "sandbox_url": self.served.url}

    def admin(self) -> space.Client:
        """Our own SDK, with the admin's key; the tests' tenant is `e2b`."""
        return space.Client(api_url=self.served.url, api_key=self.served.api_key)

    def ours(self) -> space.Client:
        """Our own SDK, with the same key as E2B's."""
        return space.Client(api_url=self.served.url, api_key=self.key)


SHOP, OTHER = "shop.example.com", "other.example.com"


@dataclass(frozen=True, slots=True)
class Outside:
    """heads: of every request that arrived."""

    place: Town
    opened: Running
    closed: Running
    heads: list[bytes] = field(repr=False)


def echo(heads: list[bytes]) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A server that answers each request with its own head."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            heads.append(head)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(head), head))
            await writer.drain()

    return serve
