"""What the settings of egress mean: resolvers, networks, the synthetic range, token endpoints. One reading for whoever goes by them.

The dialer, and rootd for the packet filter of the dialer's uid, take the same values from here: the two layers cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from space.core.plan.outbound import Outbound
from space.core.policy.addresses import Address, Network
from space.model.errors import InvalidArgument, Unavailable

RESOLV_CONF = Path("/etc/resolv.conf")
CA_BUNDLES = Path("/etc/space/ca")  # <name>.pem: what a rule's `ca` names
DNS_PORT = 53
MOST_RESOLVERS = 8
# The guest's own link: a name's address there would be on the guest's own wire.
_LINK = IPv4Network("10.0.0.0/30")
_NAMES = 4096  # that a sandbox may use at a time

# An address of IPv6 with a port stands in brackets; without one it may.
_RESOLVER = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<bare>[^:]+|[^:]*:[^:]*:.*))(?::(?P<port>[0-9]{1,5}))?", re.ASCII)

Resolver = tuple[Address, int]
MOST_ENDPOINTS = 64
_ENDPOINT = re.compile(r"([a-z0-9][a-z0-9._-]{0,62})=(.+)", re.ASCII)
# A canonical name (`core.policy.names`) without the library that reads others: set-up runs on the standard library alone.
_HOST = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_TARGET = re.compile(r"/[!-~]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where tokens are exchanged: https alone. host: canonical. target: path and query."""

    host: str
    port: int
    target: str


def resolvers(listed: Sequence[str]) -> tuple[Resolver, ...]:
    """Addresses and ports of `egress_resolvers`. InvalidArgument names the wrong one. Empty stays empty: `machine_resolvers` are meant."""
    if len(listed) > MOST_RESOLVERS:
        raise InvalidArgument(f"setting egress_resolvers has {len(listed)} resolvers, {MOST_RESOLVERS} are possible")
    return tuple(map(_resolver, listed))


def chosen_resolvers(listed: Sequence[str], resolv_conf: Path = RESOLV_CONF) -> tuple[Resolver, ...]:
    """Those of the setting, else the machine's. Unavailable when there is none: nothing can be resolved then."""
    found = resolvers(listed) or machine_resolvers(resolv_conf)
    if not found:
        raise Unavailable(f"there is no resolver: {resolv_conf} names none", hint="set egress_resolvers")
    return found


def machine_resolvers(resolv_conf: Path = RESOLV_CONF) -> tuple[Resolver, ...]:
    """`nameserver` lines; a line that is none, and a file that cannot be read, name nobody."""
    try:
        lines = resolv_conf.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    found: list[Resolver] = []
    for words in map(str.split, lines):
        if len(words) < 2 or words[0] != "nameserver":
            continue
        try:
            address = ip_address(words[1])
        except ValueError:
            continue
        if (address, DNS_PORT) not in found:
            found.append((address, DNS_PORT))
    return tuple(found[:MOST_RESOLVERS])


def outbound(uid: int, listed: Sequence[str], networks: Iterable[str], resolv_conf: Path = RESOLV_CONF) -> Outbound:
    """What the packet filter of the dialer's uid lets out, by these settings, as the dialer reads them."""
    return Outbound(uid, resolvers(listed) or machine_resolvers(resolv_conf), reachable(networks))


def reachable(listed: Iterable[str]) -> tuple[Network, ...]:
    """Networks of `egress_reachable`. InvalidArgument names the wrong one."""
    return tuple(_network("egress_reachable", text) for text in listed)


def synthetic(text: str) -> IPv4Network:
    """The network of `egress_synthetic`. InvalidArgument when it is none, is the guest's own link, or is too small."""
    network = _network("egress_synthetic", text)
    if not isinstance(network, IPv4Network):
        raise InvalidArgument(f"setting egress_synthetic is an IPv4 network, not {text}")
    if network.overlaps(_LINK):
        raise InvalidArgument(f"setting egress_synthetic: {network} holds {_LINK}, which is the guest's own link")
    if network.num_addresses - 2 < _NAMES:
        raise InvalidArgument(
            f"setting egress_synthetic: {network} has {network.num_addresses} addresses, and a sandbox may use {_NAMES} names",
            hint="a prefix of /19 is large enough",
        )
    return network


def token_endpoints(listed: Iterable[str]) -> dict[str, Endpoint]:
    """Those of `token_endpoints`, by name. InvalidArgument names the wrong one, without what its URL holds."""
    found: dict[str, Endpoint] = {}
    for text in listed:
        matched = _ENDPOINT.fullmatch(text)
        if matched is None:
            raise InvalidArgument(
                f"setting token_endpoints: {text.partition('=')[0][:80]!r} is no endpoint",
                hint='such as "mail=https://auth.example.com/token"',
            )
        name = matched[1]
        if name in found:
            raise InvalidArgument(f"setting token_endpoints names {name} twice")
        found[name] = _endpoint(name, matched[2])
    if len(found) > MOST_ENDPOINTS:
        raise InvalidArgument(f"setting token_endpoints has {len(found)} endpoints, {MOST_ENDPOINTS} are possible")
    return found


def _endpoint(name: str, url: str) -> Endpoint:
    where = f"setting token_endpoints: {name}"
    try:
        parts = urlsplit(url)
        port = 443 if parts.port is None else parts.port
    except ValueError as error:
        raise InvalidArgument(f"{where} is no URL: {error}") from None
    if parts.scheme != "https" or parts.username is not None or parts.password is not None or parts.fragment or not port:
        raise InvalidArgument(f"{where} is not https, or has user information or a fragment", hint="such as https://auth.example.com/token")
    host = parts.hostname or ""
    if not _HOST.fullmatch(host):
        raise InvalidArgument(f"{where} has no host's name in letters, digits and hyphens", hint="such as https://auth.example.com/token")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _TARGET.fullmatch(target):
        raise InvalidArgument(f"{where}: its path has characters that have to be escaped")
    return Endpoint(host, port, target)


def _resolver(text: str) -> Resolver:
    found = _RESOLVER.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        address = ip_address(found["six"] or found["bare"])
        port = int(found["port"] or DNS_PORT)
        if not 1 <= port <= 65535 or (found["six"] and address.version != 6):
            raise ValueError
    except ValueError:
        examples = '"192.0.2.53", "192.0.2.53:5353", "[2001:db8::53]:53"'
        raise InvalidArgument(f"setting egress_resolvers: {text!r} is no address of a resolver", hint=f"such as {examples}") from None
    if address.is_unspecified or address.is_multicast or getattr(address, "scope_id", None) is not None:
        raise InvalidArgument(f"setting egress_resolvers: {text!r} is not the address of one machine")
    return address, port


def _network(key: str, text: str) -> Network:
    try:
        network = ip_network(text)
    except ValueError as error:
        raise InvalidArgument(f"setting {key}: {error}", hint='networks look like "10.1.0.0/16"') from None
    if network.prefixlen == 0:
        raise InvalidArgument(f"setting {key}: {text} is every address there is", hint="name the networks that are meant")
    if network.is_multicast or network.is_unspecified or getattr(network.network_address, "scope_id", None) is not None:
        raise InvalidArgument(f"setting {key}: nobody can be connected to at {text}")
    return network
