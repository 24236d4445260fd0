"""The packet filter of the dialer's uid, in the host's own namespace: the text that is loaded, and what reading it back must give.

It is the second layer: the dialer checks every address itself (`core.policy.addresses`), and what it opens by mistake, or because
somebody has taken it, goes no further than here. By uid and not by process: a socket keeps the uid of who opened it, also after it
was passed on. What that uid may send:

    to a resolver, exactly its address and port     by UDP and TCP
    by TCP to an address listed by itself           also one of the host's own
    by TCP to a listed range                        unless it is one of the host's own (the kernel's routing says which those are)
    by TCP to what the table does not refuse        nothing else; UDP, ICMP and the rest never

Ranges stand as sets of intervals. The table has no ISATAP: an interface identifier is no range, and the dialer refuses it itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, collapse_addresses, ip_address, ip_network
from typing import Any, Literal

from space.core.plan import ruleset
from space.core.policy.addresses import Address, Network, refused_ranges

COUNTERS = ("not_public", "own", "not_tcp")
PREFIX = "space_dial_"
_TCP = 6  # by number: without /etc/protocols nft knows no names when it lists
_FIELDS: dict[Literal[4, 6], str] = {4: "ip", 6: "ip6"}
_TYPES: dict[Literal[4, 6], str] = {4: "ipv4_addr", 6: "ipv6_addr"}
_VERSIONS: tuple[Literal[4, 6], ...] = (4, 6)
# Broadcast and multicast of an interface are no address of anybody's, whatever range holds them.
_LOCAL = ("local", "broadcast", "anycast", "multicast")

Interval = tuple[Address, Address]


@dataclass(frozen=True, slots=True)
class Outbound:
    """Whose packets, and what is let through besides public addresses. resolvers: addresses and ports."""

    uid: int
    resolvers: tuple[tuple[Address, int], ...]
    listed: tuple[Network, ...] = ()

    @property
    def table(self) -> str:
        """One for each uid: instances on one host have a filter each."""
        return table_of(self.uid)


def table_of(uid: int) -> str:
    """What the filter of a dialer's uid is called."""
    return f"{PREFIX}{uid}"


def text(outbound: Outbound) -> str:
    """As nft's own text. Loading it replaces what was there under that name, in one step."""
    name = outbound.table
    sets = "".join(_set_text(title, version, ranges) for title, version, ranges in _sets(outbound))
    rules = "".join(f"\t\t{rule}\n" for rule, _ in _rules(outbound))
    counters = "".join(f"\tcounter {counter} {{ }}\n" for counter in COUNTERS)
    return (
        f"table inet {name} {{ }}\n"
        f"delete table inet {name}\n"
        f"table inet {name} {{\n"
        f"{counters}{sets}"
        "\tchain dialer {\n"
        f"{rules}"
        "\t}\n"
        "\tchain output {\n"
        "\t\ttype filter hook output priority 0; policy accept;\n"
        # A match, not its negation: what has no socket of a process (a reset, a neighbour's solicitation) is nobody's and matches neither.
        f"\t\tmeta skuid {outbound.uid} jump dialer\n"
        "\t}\n"
        "}\n"
    )


def expected(outbound: Outbound) -> list[dict[str, Any]]:
    """What `canonical` makes of `nft -j list table inet NAME` when exactly `text` is loaded."""
    here = {"family": "inet", "table": outbound.table}
    return [
        {"table": {"family": "inet", "name": outbound.table}},
        *({"counter": {**here, "name": counter}} for counter in COUNTERS),
        *(
            {
                "set": {
                    **here,
                    "name": title,
                    "type": _TYPES[version],
                    "flags": ["interval"],
                    "elem": [list(map(str, one)) for one in ranges],
                }
            }
            for title, version, ranges in _sets(outbound)
        ),
        {"chain": {**here, "name": "dialer"}},
        {"chain": {**here, "name": "output", "type": "filter", "hook": "output", "prio": 0, "policy": "accept"}},
        *({"rule": {**here, "chain": "dialer", "expr": expression}} for _, expression in _rules(outbound)),
        {
            "rule": {
                **here,
                "chain": "output",
                "expr": [_match({"meta": {"key": "skuid"}}, outbound.uid), {"jump": {"target": "dialer"}}],
            }
        },
    ]


def canonical(listing: Any) -> list[dict[str, Any]]:
    """`nft -j list table` without what differs between two loads of one text, or between versions; ValueError when it is no listing.

    Chains come before rules, and elements of sets are first and last address, in order: versions print ranges and prefixes each its way.
    """
    items = ruleset.canonical(listing)
    for item in items:
        if "set" in item:
            held = {key: value for key, value in item["set"].items() if key != "elem"}
            item["set"] = held | {"flags": _listed(held.get("flags")), "elem": _elements(item["set"].get("elem"))}
        for expression in item.get("rule", {}).get("expr", ()):
            match expression:
                case {"match": {"left": {"fib": dict(fib)}}}:
                    fib["flags"] = _listed(fib.get("flags"))
    order = ("table", "counter", "set", "chain", "rule")
    if any(next(iter(item)) not in order for item in items):
        return items  # something else is in there: it is not what was written
    return sorted(items, key=lambda item: order.index(next(iter(item))))


def _sets(outbound: Outbound) -> list[tuple[str, Literal[4, 6], list[Interval]]]:
    found: list[tuple[str, Literal[4, 6], list[Interval]]] = []
    for version in _VERSIONS:
        listed = [network for network in outbound.listed if network.version == version]
        alone = [network for network in listed if network.num_addresses == 1]
        found += [
            (f"alone{version}", version, _intervals(alone)),
            (f"listed{version}", version, _intervals(listed)),
            (f"refused{version}", version, refused_ranges(version)),
        ]
    return found


def _intervals(networks: Sequence[Network]) -> list[Interval]:
    """Disjoint and as long as can be: overlapping ones do not load."""
    merged: list[Interval] = []
    for network in sorted(collapse_addresses(networks), key=lambda one: int(one.network_address)):  # type: ignore[type-var]
        first, last = network.network_address, network.broadcast_address
        if merged and int(merged[-1][1]) + 1 == int(first):
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged


def _set_text(title: str, version: Literal[4, 6], ranges: Iterable[Interval]) -> str:
    elements = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    held = f" elements = {{ {elements} }}" if elements else ""
    return f"\tset {title} {{ type {_TYPES[version]}; flags interval;{held} }}\n"


def _rules(outbound: Outbound) -> list[tuple[str, list[dict[str, Any]]]]:
    """Each as text and as what it reads back as."""
    tcp = _match({"meta": {"key": "l4proto"}}, _TCP)
    rules: list[tuple[str, list[dict[str, Any]]]] = []
    for address, port in outbound.resolvers:
        field = _FIELDS[address.version]
        rules += [
            (
                f"{field} daddr {address} {protocol} dport {port} accept",
                [_match(_payload(field, "daddr"), str(address)), _match(_payload(protocol, "dport"), port), {"accept": None}],
            )
            for protocol in ("udp", "tcp")
        ]
    rules += [_membership("alone", version, tcp=True, verdict="accept") for version in _VERSIONS]
    rules.append(
        (
            f'fib daddr type {{ {", ".join(_LOCAL)} }} counter name "own" drop',
            [_match({"fib": {"result": "type", "flags": ["daddr"]}}, {"set": list(_LOCAL)}), *_count_and_drop("own")],
        )
    )
    rules += [_membership("listed", version, tcp=True, verdict="accept") for version in _VERSIONS]
    rules += [_membership("refused", version, tcp=False, verdict="drop") for version in _VERSIONS]
    rules.append(
        (f'meta l4proto != {_TCP} counter name "not_tcp" drop', [{"match": {**tcp["match"], "op": "!="}}, *_count_and_drop("not_tcp")])
    )
    return rules


def _membership(title: str, version: Literal[4, 6], *, tcp: bool, verdict: Literal["accept", "drop"]) -> tuple[str, list[dict[str, Any]]]:
    field = _FIELDS[version]
    words, expression = f"{field} daddr @{title}{version}", [_match(_payload(field, "daddr"), f"@{title}{version}")]
    if tcp:
        words, expression = f"{words} meta l4proto {_TCP}", [*expression, _match({"meta": {"key": "l4proto"}}, _TCP)]
    if verdict == "drop":
        return f'{words} counter name "not_public" drop', [*expression, *_count_and_drop("not_public")]
    return f"{words} accept", [*expression, {"accept": None}]


def _elements(elements: Any) -> list[list[str]]:
    found: list[tuple[int, int, int]] = []
    for element in elements or ():
        match element:
            case str():
                first = last = ip_address(element)
            case {"prefix": {"addr": str(address), "len": int(length)}}:
                network = ip_network(f"{address}/{length}")
                first, last = network.network_address, network.broadcast_address
            case {"range": [str(low), str(high)]}:
                first, last = ip_address(low), ip_address(high)
            case _:
                raise ValueError(f"not an element of a set of addresses: {element!r:.80}")
        found.append((first.version, int(first), int(last)))
    merged: list[tuple[int, int, int]] = []
    for version, start, end in sorted(found):
        if merged and merged[-1][0] == version and merged[-1][2] + 1 == start:
            merged[-1] = (version, merged[-1][1], end)
        else:
            merged.append((version, start, end))
    kinds = {4: IPv4Address, 6: IPv6Address}
    return [[str(kinds[version](start)), str(kinds[version](end))] for version, start, end in merged]


def _listed(flags: Any) -> Any:
    """One flag by itself is a string to some versions."""
    return [flags] if isinstance(flags, str) else flags


def _match(left: dict[str, Any], right: Any) -> dict[str, Any]:
    return {"match": {"op": "==", "left": left, "right": right}}


def _payload(protocol: str, field: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": field}}


def _count_and_drop(counter: str) -> list[dict[str, Any]]:
    return [{"counter": counter}, {"drop": None}]
