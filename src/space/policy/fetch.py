"""One GET, for discovery: bounded in size and in time as a whole, with the machine's proxies and authorities, without any credential."""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage
from ipaddress import ip_address
from typing import IO, Any

from space.core.policy.addresses import Address

MOST_BYTES = 4 << 20
SECONDS = 20.0
_MOST_REDIRECTS = 3


class FetchFailed(Exception):
    """Nothing was fetched. The message is a reason without the URL."""


@dataclass(frozen=True, slots=True)
class Access:
    """How this machine reaches a package manager's hosts. proxy, authorities: its own settings; None: those of the environment."""

    proxy: str | None = field(default=None, repr=False)
    authorities: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """What was there. visited: every URL on the way, the last one the page's."""

    visited: tuple[str, ...]
    body: bytes


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = _MOST_REDIRECTS

    def __init__(self) -> None:
        self.visited: list[str] = []

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and not newurl.startswith("https://"):
            raise urllib.error.URLError("it redirects from https to something else")
        self.visited.append(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def addresses_of(host: str, seconds: float = 5.0) -> list[Address]:
    """What this machine's resolver says of a name; nothing where it says nothing in time."""
    found: list[Address] = []

    def resolve() -> None:
        with suppress(OSError, ValueError):
            found.extend(ip_address(str(row[4][0])) for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))

    thread = threading.Thread(target=resolve, daemon=True, name="discover")
    thread.start()
    thread.join(seconds)
    return list(found)


def get(url: str, access: Access, *, accept: str, seconds: float = SECONDS, most: int = MOST_BYTES) -> Page:
    """The page, cut off at `most` bytes. FetchFailed, at the latest after `seconds`."""
    found: list[Page | FetchFailed] = []
    # In a thread, since neither the resolver nor a server that sends a byte a second keeps to a socket's timeout.
    thread = threading.Thread(target=lambda: found.append(_get(url, access, accept, seconds, most)), daemon=True, name="discover")
    thread.start()
    thread.join(seconds)
    answer = found[0] if found else FetchFailed(f"no whole answer in {seconds:g} s")
    if isinstance(answer, FetchFailed):
        raise answer
    return answer


def _get(url: str, access: Access, accept: str, seconds: float, most: int) -> Page | FetchFailed:
    redirects = _Redirects()
    proxies: Mapping[str, str] | None = {"http": access.proxy, "https": access.proxy} if access.proxy else None
    request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "space-policy-discover"})  # noqa: S310
    try:
        handlers: list[Any] = [urllib.request.ProxyHandler(dict(proxies) if proxies is not None else None), redirects]
        context = ssl.create_default_context(cafile=access.authorities)
        opener = urllib.request.build_opener(*handlers, urllib.request.HTTPSHandler(context=context))
        with opener.open(request, timeout=seconds) as answer:
            return Page((url, *redirects.visited), answer.read(most))
    except urllib.error.HTTPError as error:
        error.close()
        return FetchFailed(f"it answers with {error.code}")
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        return FetchFailed(f"it cannot be reached ({type(reason).__name__})")
