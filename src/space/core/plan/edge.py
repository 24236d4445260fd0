"""The network of a slot with egress: addresses, the packet filter's text, and what reading it back must give.

    guest --tap0--> ingress: a whitelist (netdev) --> prerouting: TPROXY (inet) --> the slot's listener
                        |                                  |
                        counted by kind and dropped        to the gateway's own address: DNS

What is not written here as admitted is dropped where it enters: the chain of the TAP has policy drop and is loaded before the TAP
comes up. TCP to where nobody listens for the guest is reset, so that a refusal is fast: counted and marked where it enters, refused by the
first rule of prerouting, for not every kernel (none of Debian 12's) has `reject` on a device. Every other refusal is silence, and so is
that of 127.0.0.0/8, from which nothing can come. Nothing is forwarded, and out goes only what answers: DNS from the gateway's port, and
TCP segments that carry ACK or RST, never a new connection. No connection tracking: it would be state that a guest can fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from typing import Any, Final

from space.core.plan.machine import GATEWAY, GUEST_ADDRESS
from space.core.plan.ruleset import GUEST_MAC, TABLE, TAP, canonical

GUEST: Final = str(IPv4Interface(GUEST_ADDRESS).ip)
LINK: Final = IPv4Interface(GUEST_ADDRESS).network
DNS_PORT: Final = 53
_ICMP, _TCP, _UDP = 1, 6, 17  # by number: without /etc/protocols nft knows no names when it lists
LISTENER_PORT: Final = 15001  # of the transparent listener; the guest cannot address it, TPROXY looks it up
MARK: Final = 1
REFUSED_MARK: Final = 2  # of TCP that is to be reset
ROUTES: Final = 100  # the routing table in which every address is local

# What no plan may take for a guest's destination: this network, this host, multicast and reserved, the link itself.
_NEVER = tuple(IPv4Network(text) for text in ("0.0.0.0/8", str(LINK), "127.0.0.0/8", "224.0.0.0/3"))

REFUSED: Final = (
    "foreign_mac",  # another sender than the guest's interface
    "guest_vlan",  # a tag, also of VLAN 0, which the kernel would take off
    "guest_ipv6",
    "guest_other",  # any other kind of frame
    "arp_forged",  # ARP with another sender than the guest, or about another address than the gateway's
    "guest_group",  # multicast or broadcast
    "foreign_target",  # to another interface than the TAP
    "ip_header",  # options, or a header that is none
    "ip_fragment",
    "foreign_source",  # another address than the guest's
    "guest_icmp",
    "guest_protocol",  # neither TCP nor UDP nor ICMP
    "gateway_port",  # the gateway's address, but not DNS
    "guest_udp",
    "guest_tcp",  # to an address that no name has: reset
)
ADMITTED: Final = ("admitted_arp", "admitted_dns", "admitted_tcp", "admitted_literal")
HOST: Final = ("host_stray", "host_forward", "host_output")  # entered, but nobody's; would be forwarded; the namespace's own

Expression = dict[str, Any]
Part = tuple[str, Expression]  # nft's text, and nft's JSON of the same
Rule = tuple[str, list[Expression]]
Chain = tuple[str, tuple[str, int] | None, list[Rule]]  # name, hook and priority (none: only reached by `goto`), rules

_ACCEPT: Final[Part] = ("accept", {"accept": None})


@dataclass(frozen=True, slots=True)
class Plan:
    """synthetic: the addresses that stand for names. literal: TCP to every other address reaches the listener as well."""

    synthetic: IPv4Network
    literal: bool = False

    def __post_init__(self) -> None:
        if not 8 <= self.synthetic.prefixlen <= 24:
            raise ValueError(f"a synthetic range has a prefix of 8 to 24 bits, not {self.synthetic.prefixlen}")
        for network in _NEVER:
            if self.synthetic.overlaps(network):
                raise ValueError(f"the synthetic range {self.synthetic} overlaps {network}")


def parse_range(text: str) -> IPv4Network:
    """A synthetic range in the one spelling that it has; ValueError for everything else."""
    network = IPv4Network(text) if len(text) <= len("255.255.255.255/32") else None
    if network is None or str(network) != text:
        raise ValueError(f"not an IPv4 network as address/prefix: {text!r:.40}")
    return Plan(network).synthetic


def ruleset(plan: Plan) -> str:
    """The ruleset as nft's own text; loaded into an empty namespace that holds the TAP."""
    return _table("netdev", (*REFUSED, *ADMITTED), _netdev(plan)) + _table("inet", HOST, _inet())


def change(plan: Plan) -> str:
    """nft's text that makes the ruleset of a plan that differs in its destinations that of this one: one transaction."""
    rules = "".join(f"add rule netdev {TABLE} guest_tcp {text}\n" for text, _ in _guest_tcp(plan))
    return f"flush chain netdev {TABLE} guest_tcp\n{rules}"


def expected(plan: Plan) -> list[dict[str, Any]]:
    """What `loaded` makes of the kernel's answer when exactly `ruleset` is loaded."""
    items = _table_read("netdev", (*REFUSED, *ADMITTED), _netdev(plan)) + _table_read("inet", HOST, _inet())
    return _ordered(items)


def loaded(listing: Any) -> list[dict[str, Any]]:
    """`nft -j list ruleset` as `expected` has it; ValueError when it is no listing."""
    return _ordered(canonical(listing))


# -- the chains ------------------------------------------------------------------------------------------------------


def _netdev(plan: Plan) -> list[Chain]:
    return [
        ("guest_tcp", None, _guest_tcp(plan)),
        ("guest_udp", None, _guest_udp()),
        ("guest_ip", None, _guest_ip()),
        ("guest_arp", None, _guest_arp()),
        ("from_guest", ("ingress", 0), _from_guest()),
    ]


def _from_guest() -> list[Rule]:
    # Asked of the frame's bytes (`ether type`), not of the kernel's idea of them (`meta protocol`): there, a VLAN tag is off already.
    return [
        _drop("foreign_mac", _match("ether", "saddr", "!=", GUEST_MAC)),
        _drop("guest_vlan", _match("ether", "type", "==", "8021q")),
        _drop("guest_vlan", _match("ether", "type", "==", "8021ad")),
        _drop("guest_ipv6", _match("ether", "type", "==", "ip6")),
        _goto("guest_arp", _match("ether", "type", "==", "arp")),
        _goto("guest_ip", _match("ether", "type", "==", "ip")),
        _drop("guest_other"),
    ]


def _guest_arp() -> list[Rule]:
    return [
        _accept(
            "admitted_arp",
            _match("arp", "htype", "==", 1),
            _match("arp", "ptype", "==", "ip"),
            _match("arp", "hlen", "==", 6),
            _match("arp", "plen", "==", 4),
            _match("arp", "operation", "==", "request"),  # the host asks nothing, so there is nothing to reply to
            _match("arp", "saddr ether", "==", GUEST_MAC),
            _match("arp", "saddr ip", "==", GUEST),
            _match("arp", "daddr ip", "==", GATEWAY),
        ),
        _drop("arp_forged"),
    ]


def _guest_ip() -> list[Rule]:
    return [
        _drop("ip_header", _match("ip", "version", "!=", 4)),
        _drop("ip_header", _match("ip", "hdrlength", "!=", 5)),
        _drop("ip_fragment", _any_bit("ip", "frag-off", 0xBFFF)),  # all but "do not fragment", the reserved bit as well
        _drop("foreign_source", _match("ip", "saddr", "!=", GUEST)),
        _drop("guest_group", _meta("pkttype", "==", "broadcast")),
        _drop("guest_group", _meta("pkttype", "==", "multicast")),
        _drop("foreign_target", _meta("pkttype", "!=", "host")),
        _drop("guest_group", _to("==", [IPv4Network("224.0.0.0/4")])),
        _drop("guest_group", _match("ip", "daddr", "==", "255.255.255.255")),
        _drop("guest_group", _match("ip", "daddr", "==", str(LINK.broadcast_address))),
        _drop("guest_icmp", _match("ip", "protocol", "==", _ICMP)),
        _goto("guest_udp", _match("ip", "protocol", "==", _UDP)),
        _goto("guest_tcp", _match("ip", "protocol", "==", _TCP)),
        _drop("guest_protocol"),
    ]


def _guest_udp() -> list[Rule]:
    to_gateway = _match("ip", "daddr", "==", GATEWAY)
    return [
        _accept("admitted_dns", to_gateway, _match("udp", "dport", "==", DNS_PORT)),
        _drop("gateway_port", to_gateway),
        _drop("guest_udp"),
    ]


def _guest_tcp(plan: Plan) -> list[Rule]:
    to_gateway, tcp = _match("ip", "daddr", "==", GATEWAY), _match("ip", "protocol", "==", _TCP)
    return [
        _accept("admitted_dns", to_gateway, _match("tcp", "dport", "==", DNS_PORT)),
        _accept("admitted_tcp", _to("==", [plan.synthetic])),
        *([_accept("admitted_literal", _to("!=", _NEVER))] if plan.literal else []),
        _reset("gateway_port", to_gateway, tcp),
        _reset("guest_tcp", tcp),
    ]


def _inet() -> list[Chain]:
    entered, leaving = _meta("iifname", "==", TAP), _meta("oifname", "==", TAP)
    to_gateway, to_guest = _match("ip", "daddr", "==", GATEWAY), _match("ip", "daddr", "==", GUEST)
    prerouting = [
        _rule(
            entered,
            _meta("mark", "==", REFUSED_MARK),
            _meta("l4proto", "==", _TCP),
            ("reject with tcp reset", {"reject": {"type": "tcp reset"}}),
        ),
        _rule(entered, _meta("mark", "==", REFUSED_MARK), ("drop", {"drop": None})),
        _rule(entered, to_gateway, _ACCEPT),
        _rule(
            entered,
            _meta("l4proto", "==", _TCP),
            (f"tproxy ip to {GATEWAY}:{LISTENER_PORT}", {"tproxy": {"family": "ip", "addr": GATEWAY, "port": LISTENER_PORT}}),
            _mark(MARK),
            _ACCEPT,
        ),
        _drop("host_stray"),
    ]
    dns = _match("udp", "sport", "==", DNS_PORT)
    output = [
        _rule(leaving, _match("ip", "saddr", "==", GATEWAY), to_guest, dns, _ACCEPT),
        *(_rule(leaving, to_guest, _flag(flag), _ACCEPT) for flag in ("ack", "rst")),
        _drop("host_output"),
    ]
    return [
        ("prerouting", ("prerouting", -150), prerouting),
        ("forward", ("forward", 0), [_drop("host_forward")]),
        ("output", ("output", 0), output),
    ]


# -- nft's two languages ---------------------------------------------------------------------------------------------


def _table(family: str, counters: tuple[str, ...], chains: list[Chain]) -> str:
    lines = [f"table {family} {TABLE} {{", *(f"\tcounter {name} {{ }}" for name in counters)]
    for name, hook, rules in chains:
        lines.append(f"\tchain {name} {{")
        if hook is not None:
            device = f' device "{TAP}"' if family == "netdev" else ""
            lines.append(f"\t\ttype filter hook {hook[0]}{device} priority {hook[1]}; policy drop;")
        lines += [*(f"\t\t{text}" for text, _ in rules), "\t}"]
    return "\n".join([*lines, "}", ""])


def _table_read(family: str, counters: tuple[str, ...], chains: list[Chain]) -> list[dict[str, Any]]:
    table = {"family": family, "table": TABLE}
    items: list[dict[str, Any]] = [{"table": {"family": family, "name": TABLE}}]
    items += [{"counter": {**table, "name": name}} for name in counters]
    for name, hook, rules in chains:
        base = {"type": "filter", "hook": hook[0], "prio": hook[1], "policy": "drop"} if hook is not None else {}
        items.append({"chain": {**table, "name": name, **base}})
        items += [{"rule": {**table, "chain": name, "expr": expressions}} for _, expressions in rules]
    return items


def _ordered(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chains before rules, as some versions of nft print them and others do not; within one chain the order stays."""
    kinds = ("table", "counter", "chain", "rule")

    def key(item: dict[str, Any]) -> tuple[bool, int, str]:
        ((kind, body),) = item.items()
        within = str(body.get("chain", body.get("name"))) if kind in ("rule", "chain") else ""
        return body.get("family") != "netdev", kinds.index(kind) if kind in kinds else len(kinds), within

    return sorted(items, key=key)


def _rule(*parts: Part) -> Rule:
    return " ".join(text for text, _ in parts), [expression for _, expression in parts]


def _drop(counter: str, *parts: Part) -> Rule:
    return _rule(*parts, _count(counter), ("drop", {"drop": None}))


def _reset(counter: str, *parts: Part) -> Rule:
    return _rule(*parts, _count(counter), _mark(REFUSED_MARK), _ACCEPT)


def _mark(value: int) -> Part:
    return f"meta mark set {value}", {"mangle": {"key": {"meta": {"key": "mark"}}, "value": value}}


def _accept(counter: str, *parts: Part) -> Rule:
    return _rule(*parts, _count(counter), _ACCEPT)


def _goto(chain: str, *parts: Part) -> Rule:
    return _rule(*parts, (f"goto {chain}", {"goto": {"target": chain}}))


def _count(counter: str) -> Part:
    return f'counter name "{counter}"', {"counter": counter}


def _match(protocol: str, field: str, op: str, right: str | int) -> Part:
    sign = "" if op == "==" else f"{op} "
    left = {"payload": {"protocol": protocol, "field": field}}
    return f"{protocol} {field} {sign}{right}", {"match": {"op": op, "left": left, "right": right}}


def _meta(key: str, op: str, right: str | int) -> Part:
    sign, word = "" if op == "==" else f"{op} ", f'"{right}"' if key in ("iifname", "oifname") else right
    return f"meta {key} {sign}{word}", {"match": {"op": op, "left": {"meta": {"key": key}}, "right": right}}


def _to(op: str, networks: Sequence[IPv4Network]) -> Part:
    """The destination is, or is not, in one of these networks."""
    left = {"payload": {"protocol": "ip", "field": "daddr"}}
    prefixes = [{"prefix": {"addr": str(network.network_address), "len": network.prefixlen}} for network in networks]
    text = ", ".join(map(str, networks))
    right: Any = {"set": prefixes} if len(prefixes) > 1 else prefixes[0]
    sign = "" if op == "==" else f"{op} "
    return f"ip daddr {sign}" + (f"{{ {text} }}" if len(prefixes) > 1 else text), {"match": {"op": op, "left": left, "right": right}}


def _any_bit(protocol: str, field: str, mask: int) -> Part:
    left = {"&": [{"payload": {"protocol": protocol, "field": field}}, mask]}
    return f"{protocol} {field} & {mask:#x} != 0", {"match": {"op": "!=", "left": left, "right": 0}}


def _flag(name: str) -> Part:
    return f"tcp flags {name}", {"match": {"op": "in", "left": {"payload": {"protocol": "tcp", "field": "flags"}}, "right": name}}
