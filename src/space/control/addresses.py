"""Where a webhook may lead. Pure: a tenant chooses the URL, and this server connects, so an address that only it can reach is refused.

The name is judged by what it resolves to, at each delivery, and the connection goes to the address that was judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from space.model.errors import InvalidArgument

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?\Z")
_GLOBAL_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
# Global by its number, and answered by the host's hypervisor on one cloud.
_METADATA = frozenset({IPv4Address("168.63.129.16")})
_HINT = "the operator's setting webhook_networks names networks that are allowed besides"


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
        raise InvalidArgument(f"url: {why}", hint=_HINT)
    secure = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Destination(secure, host, port or (443 if secure else 80), target)


def literal_address(host: str) -> Address | None:
    """An address that is written as one."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def refusal(address: Address, allowed: Sequence[Network]) -> str | None:
    """Why the server must not connect there for a tenant; None when it may."""
    judged = _inner(address)
    if any(one in network for network in allowed for one in {address, judged}):
        return None
    if isinstance(judged, IPv4Address):
        fine = judged.is_global and not judged.is_multicast and judged not in _METADATA
    else:
        # Tunnels (6to4, Teredo) carry an address of another network inside; nothing outside of 2000::/3 is given to hosts of the internet.
        fine = judged in _GLOBAL_6 and judged.is_global and judged.sixtofour is None and judged.teredo is None
    return None if fine else f"{address} is not an address of the public internet"


def _inner(address: Address) -> Address:
    """The IPv4 address that the kernel, or a translator on the way, would take from it."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
