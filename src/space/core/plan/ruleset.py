"""The packet filter of a slot's network namespace: the text that is loaded, and what reading it back must give.

There is no egress yet, so nothing is accepted: every frame of the guest is counted by kind and dropped where it enters, and
whatever the namespace itself would send is dropped as well. The counters say what a guest tried.
"""

from __future__ import annotations

from typing import Any

TAP = "tap0"
GUEST_MAC = "52:54:00:00:00:02"
TABLE = "space"

# A counter may not be called by a keyword of the language (`arp`), hence the prefix.
_KINDS = (("guest_arp", "arp"), ("guest_ipv4", "ip"), ("guest_ipv6", "ip6"))
COUNTERS = ("foreign_mac", *(name for name, _ in _KINDS), "guest_other")


def ruleset() -> str:
    """The ruleset as nft's own text; loaded into an empty namespace that holds the TAP."""
    counters = "".join(f"\tcounter {name} {{ }}\n" for name in COUNTERS)
    kinds = "".join(f'\t\tether type {kind} counter name "{name}" drop\n' for name, kind in _KINDS)
    return (
        f"table netdev {TABLE} {{\n"
        f"{counters}"
        "\tchain from_guest {\n"
        f'\t\ttype filter hook ingress device "{TAP}" priority 0; policy drop;\n'
        f'\t\tether saddr != {GUEST_MAC} counter name "foreign_mac" drop\n'
        f"{kinds}"
        '\t\tcounter name "guest_other" drop\n'
        "\t}\n"
        "}\n"
        f"table inet {TABLE} {{\n"
        "\tcounter host_output { }\n"
        "\tchain output {\n"
        "\t\ttype filter hook output priority 0; policy drop;\n"
        '\t\tcounter name "host_output" drop\n'
        "\t}\n"
        "}\n"
    )


def expected() -> list[dict[str, Any]]:
    """What `canonical` makes of the kernel's answer when exactly `ruleset` is loaded."""
    netdev, inet = {"family": "netdev", "table": TABLE}, {"family": "inet", "table": TABLE}
    from_guest, output = {**netdev, "chain": "from_guest"}, {**inet, "chain": "output"}
    return [
        {"table": {"family": "netdev", "name": TABLE}},
        *({"counter": {**netdev, "name": name}} for name in COUNTERS),
        {"chain": {**netdev, "name": "from_guest", "type": "filter", "hook": "ingress", "prio": 0, "policy": "drop"}},
        {"rule": {**from_guest, "expr": [_match("!=", "saddr", GUEST_MAC), *_count_and_drop("foreign_mac")]}},
        *({"rule": {**from_guest, "expr": [_match("==", "type", kind), *_count_and_drop(name)]}} for name, kind in _KINDS),
        {"rule": {**from_guest, "expr": _count_and_drop("guest_other")}},
        {"table": {"family": "inet", "name": TABLE}},
        {"counter": {**inet, "name": "host_output"}},
        {"chain": {**inet, "name": "output", "type": "filter", "hook": "output", "prio": 0, "policy": "drop"}},
        {"rule": {**output, "expr": _count_and_drop("host_output")}},
    ]


def canonical(listing: Any) -> list[dict[str, Any]]:
    """`nft -j list ruleset` without what differs between two loads of one text; ValueError when it is no listing.

    Handles, counts and nft's version go. The chain's device goes too: nft 1.0.6 leaves it out, later ones print a string
    or a list; a namespace holds one TAP, and a chain on a device that is not there does not load.
    """
    if not isinstance(listing, dict) or not isinstance(listing.get("nftables"), list):
        raise ValueError("not a listing of nftables")  # noqa: TRY004 (it came from outside: a value that is wrong)
    kept: list[dict[str, Any]] = []
    for item in listing["nftables"]:
        if not isinstance(item, dict) or len(item) != 1:
            raise ValueError(f"not an object of one kind: {item!r:.80}")
        ((kind, body),) = item.items()
        if kind == "metainfo":
            continue
        if not isinstance(body, dict):
            raise ValueError(f"not an object: {kind}")  # noqa: TRY004
        noise = ("handle", "packets", "bytes", "dev") if kind in ("counter", "chain") else ("handle",)
        kept.append({kind: {key: value for key, value in body.items() if key not in noise}})
    return kept


def counters(listing: Any) -> dict[str, int]:
    """Packets by counter, from `nft -j list ruleset`."""
    return {item["counter"]["name"]: int(item["counter"]["packets"]) for item in listing["nftables"] if "counter" in item}


def _match(op: str, field: str, right: str) -> dict[str, Any]:
    return {"match": {"op": op, "left": {"payload": {"protocol": "ether", "field": field}}, "right": right}}


def _count_and_drop(counter: str) -> list[dict[str, Any]]:
    return [{"counter": counter}, {"drop": None}]
