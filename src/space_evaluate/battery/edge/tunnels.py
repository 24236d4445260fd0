"""A packet in a packet is for whoever unpacks it."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send IPv6 in IPv4, IPv4 in IPv4, GRE, and other protocols that carry packets.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_protocol", "ip_header"),
    policies=BOTH,
    variants={
        "IPv4 in IPv4": 4,
        "IPv6 in IPv4": 41,
        "GRE": 47,
        "ESP": 50,
        "AH": 51,
        "SCTP": 132,
        "UDP-Lite": 136,
        "IGMP": 2,
        "the last": 255,
    },
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    inner = inside.tcp(ground.callback_at, 443, source=ground.host_at)
    for to in (ground.gateway, ground.host_at, ground.callback_at):
        case.frames(inside.ether(inside.ipv4(inner, to=to, protocol=what)))
