"""A URL that a person asks about, taken strictly: what a guest's connection and request would be if it asked for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from typing import Literal

from space.core.policy.names import NameRefused, canon
from space.core.policy.paths import Path, PathRefused, normalise

_URL = re.compile(r"(https?|wss?|tcp)://([^/?#\\\s]*)([^#]*)(#.*)?\Z", re.DOTALL)
_HOST = re.compile(r"([^:\[\]@]+)(?::([1-9][0-9]{0,4}))?\Z")
_PORTS = {"https": 443, "http": 80}


class UrlRefused(ValueError):
    """No URL that a request could be made of. The message never repeats what stands before an `@`."""


@dataclass(frozen=True, slots=True)
class Url:
    """scheme: tcp for an opaque stream, which has no path. host: a canonical name, or an address in the one form that has no other."""

    scheme: Literal["https", "http", "tcp"]
    host: str | IPv4Address
    port: int
    path: Path
    websocket: bool = False


def parse(text: str) -> Url:
    """`https://host[:port][/path][?query]`, the same with http, ws and wss, or `tcp://host:port`. UrlRefused."""
    found = _URL.match(text)
    if found is None:
        raise UrlRefused("a URL begins with https://, http://, wss://, ws:// or tcp://")
    if "@" in found[2]:
        raise UrlRefused("the URL holds user information: a guest's request carries that as a header, and so would a grant")
    if found[4] is not None:
        raise UrlRefused("the URL has a fragment, which is never sent")
    place = _HOST.match(found[2])
    if place is None or int(place[2] or 1) > 65535:
        raise UrlRefused(f"{found[2][:80]!r} is no host, and no host:port")
    websocket = found[1] in ("ws", "wss")
    scheme: Literal["https", "http", "tcp"] = "tcp" if found[1] == "tcp" else "https" if found[1] in ("https", "wss") else "http"
    if scheme == "tcp" and (not place[2] or found[3]):
        raise UrlRefused("an opaque stream is written tcp://host:port, without a path")
    target = found[3] if found[3].startswith("/") else "/" + found[3]
    try:
        path = normalise(target.encode("ascii"))
    except UnicodeEncodeError:
        raise UrlRefused("the path holds a character that is not ASCII: write it percent-encoded, as it is sent") from None
    except PathRefused as refused:
        raise UrlRefused(f"{refused} (the gateway would answer 400)") from None
    return Url(scheme, _host(place[1]), int(place[2]) if place[2] else _PORTS[scheme], path, websocket)


def _host(text: str) -> str | IPv4Address:
    try:
        return IPv4Address(text)
    except AddressValueError:
        pass
    try:
        return canon(text)
    except NameRefused as refused:
        raise UrlRefused(str(refused)) from None
