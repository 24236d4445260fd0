"""Where a webhook may lead. Pure: a tenant chooses the URL, and this server connects, so an address that only it can reach is refused.

The name is judged by what it resolves to, at each delivery, and the connection goes to the address that was judged. The table of addresses
is `core.policy.addresses`, for webhooks as for sandboxes: a second one would be a way round the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from space.core.policy.addresses import Address, Network, Ranges, Undialable, judge
from space.model.errors import InvalidArgument

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?\Z")
HINT = "the operator's setting webhook_networks names what is allowed besides (an address of this machine by itself, as /32 or /128)"


@dataclass(frozen=True, slots=True)
class Destination:
    """A checked URL. host: a name or an address, without brackets. target: path and query."""

    secure: bool
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """The setting's networks, which `settings` has checked."""
    return tuple(ip_network(text) for text in texts)


def destination(url: str, *, allow_http: bool, allowed: Sequence[Network]) -> Destination:
    """A URL as what it leads to; InvalidArgument says what is wrong with it. A name is not resolved here."""
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise InvalidArgument("url: only printable ASCII", hint="write a name in its xn-- form, and anything else with %")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").rstrip(".")
    except ValueError as error:
        raise InvalidArgument(f"url: {error}", hint="https://example.com/hook") from None
    if parts.scheme not in ("https", "http") or not host or port == 0:
        raise InvalidArgument(f"url: {url[:80]!r} is no https URL", hint="https://example.com/hook")
    if parts.username is not None or parts.password is not None or parts.fragment or "%" in host:
        raise InvalidArgument("url: no user, password, fragment or zone", hint="the signature proves who delivers")
    literal = literal_address(host)
    if literal is None and not _NAME.match(host):
        raise InvalidArgument(f"url: {host[:80]!r} is no name of a host", hint="https://example.com/hook")
    if parts.scheme == "http" and not allow_http and not (host == "localhost" or (literal is not None and literal.is_loopback)):
        raise InvalidArgument(
            f"url: http to {host[:80]} would show the events to everybody on the way",
            hint="use https, or have the operator set allow_http_webhooks",
        )
    if literal is not None and (why := refusal(literal, allowed)) is not None:
        raise InvalidArgument(f"url: {why}", hint=HINT)
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(secure, host, port or (443 if secure else 80), target)


def literal_address(host: str) -> Address | None:
    """An address that is written as one."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def refusal(address: Address, allowed: Sequence[Network], *, own: bool = False) -> str | None:
    """Why the server must not connect there for a tenant; None when it may.

    own: it is one of this machine's, whose firewall does not stand between the server and what listens there.
    """
    verdict = judge(address, Ranges(frozenset({address} if own else ()), tuple(allowed)))
    return f"{address} is not an address of the public internet ({verdict.kind})" if isinstance(verdict, Undialable) else None
