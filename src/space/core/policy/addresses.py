"""Which addresses may be dialled: a table of our own over every address there is.

`ipaddress.is_global` calls some of these global (NAT64 and IPv4-compatible forms of metadata addresses, 168.63.129.16, `fec0::1`,
multicast), so it is not asked. The table follows the IANA special-purpose registries of IPv4 and IPv6 and adds what clouds serve
secrets from. Of IPv6 only 2000::/3 is unicast in use; everything else is refused as a whole. Forms of IPv6 that carry an IPv4 address
are refused in themselves: nobody needs to dial a name through them, and what they lead to depends on the host's routes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# kind, blocks. Where two hold the same address the first one names it.
_REFUSED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "metadata",
        (
            *("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
            *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"),
        ),
    ),
    ("loopback", ("127.0.0.0/8", "::1")),
    ("unspecified", ("0.0.0.0/8", "::")),
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")),
    ("shared", ("100.64.0.0/10",)),
    ("link-local", ("169.254.0.0/16", "fe80::/10")),
    ("site-local", ("fec0::/10",)),
    ("benchmark", ("198.18.0.0/15", "2001:2::/48")),
    ("documentation", ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20")),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    ("broadcast", ("255.255.255.255",)),
    ("reserved", ("240.0.0.0/4",)),
    ("6to4", ("192.88.99.0/24", "2002::/16")),
    ("teredo", ("2001::/32",)),
    ("protocol", ("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "2001::/23", "2620:4f:8000::/48")),
    ("mapped", ("::ffff:0:0/96", "::ffff:0:0:0/96")),
    ("nat64", ("64:ff9b::/96", "64:ff9b:1::/48")),
    ("compatible", ("::/96",)),
    ("discard", ("100::/64", "100:0:0:1::/64")),
    ("segment-routing", ("5f00::/16",)),
)
_UNICAST6 = IPv6Network("2000::/3")
# ISATAP (RFC 5214): an interface identifier that holds an IPv4 address, in any prefix.
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})


@dataclass(frozen=True, slots=True)
class Dialable:
    """It may be dialled. listed: only because the operator lists its range."""

    listed: bool


@dataclass(frozen=True, slots=True)
class Undialable:
    """It may not. kind: what it is, a stable word."""

    kind: str


@dataclass(frozen=True, slots=True)
class Ranges:
    """The host's own addresses, and the ranges that its operator lists. Own ones count as listed only when listed as that one address."""

    own: frozenset[Address] = frozenset()
    listed: tuple[Network, ...] = ()

    @classmethod
    def of(cls, own: Iterable[str] = (), listed: Iterable[str] = ()) -> Ranges:
        """From text; ValueError for what is no address or network (host bits set are an error too)."""
        return cls(frozenset(ip_address(text) for text in own), tuple(ip_network(text) for text in listed))


NO_RANGES = Ranges()


def judge(address: Address, ranges: Ranges = NO_RANGES) -> Dialable | Undialable:
    """Whether an address that a name resolved to may be dialled.

    An IPv6 address with a zone is refused: a zone chooses an interface. Ranges hold for the family in which they are written: listing
    10.0.0.0/8 does not open ::ffff:10.0.0.1.
    """
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return Undialable("scoped")
    if address in ranges.own:
        alone = any(network.num_addresses == 1 and address in network for network in ranges.listed)
        return Dialable(listed=True) if alone else Undialable("own")
    if any(address.version == network.version and address in network for network in ranges.listed):
        return Dialable(listed=True)
    kind = kind_of(address)
    if kind is None and isinstance(address, IPv6Address):
        inner = _isatap(address)
        if inner is not None and not isinstance(judge(inner, ranges), Dialable):
            return Undialable("isatap")
    return Dialable(listed=False) if kind is None else Undialable(kind)


def judge_all(answers: Collection[Address], ranges: Ranges = NO_RANGES) -> Dialable | Undialable:
    """An answer as a whole: one address that may not be dialled condemns all (a mixed answer is a rebinding, or might as well be)."""
    if not answers:
        return Undialable("none")
    verdicts = [judge(address, ranges) for address in answers]
    return next((verdict for verdict in verdicts if isinstance(verdict, Undialable)), verdicts[0])


def kind_of(address: Address) -> str | None:
    """What special thing an address is, or None for one of the public internet."""
    starts, rows = _TABLE[address.version]
    value = int(address)
    at = bisect_right(starts, value) - 1
    return rows[at] if at >= 0 else None


def refused_ranges(version: Literal[4, 6]) -> list[tuple[Address, Address]]:
    """First and last address of every range that is special, in order, the longest there are: for a packet filter as the second layer."""
    starts, rows = _TABLE[version]
    kind = IPv4Address if version == 4 else IPv6Address
    merged: list[tuple[int, int]] = []
    for start, end, row in zip(starts, [*starts[1:], 1 << (32 if version == 4 else 128)], rows, strict=True):
        if row is None:
            continue
        if merged and merged[-1][1] + 1 == start:
            merged[-1] = (merged[-1][0], end - 1)
        else:
            merged.append((start, end - 1))
    return [(kind(first), kind(last)) for first, last in merged]


def _isatap(address: IPv6Address) -> IPv4Address | None:
    value = int(address)
    return IPv4Address(value & 0xFFFFFFFF) if (value >> 32) & 0xFFFFFFFF in _ISATAP else None


def _tabled(version: int) -> tuple[list[int], list[str | None]]:
    """Starts of ranges, and what begins there: the first row of `_REFUSED` that holds it, or None."""
    blocks = [(kind, ip_network(text)) for kind, texts in _REFUSED for text in texts if ip_network(text).version == version]
    edges = {0}
    for _, block in blocks:
        edges |= {int(block.network_address), int(block.broadcast_address) + 1}
    if version == 6:
        edges |= {int(_UNICAST6.network_address), int(_UNICAST6.broadcast_address) + 1}
    top = 1 << (32 if version == 4 else 128)
    starts = sorted(edge for edge in edges if edge < top)

    def named(value: int) -> str | None:
        address: Address = IPv4Address(value) if version == 4 else IPv6Address(value)
        found = next((kind for kind, block in blocks if address in block), None)
        if found is None and version == 6 and address not in _UNICAST6:
            return "unassigned"
        return found

    return starts, [named(start) for start in starts]


_TABLE = {4: _tabled(4), 6: _tabled(6)}
