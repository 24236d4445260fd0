"""A network that gives out addresses may give out another."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Ask by DHCP, as a client and as a server that answers first.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_group", "gateway_port"),
    policies=BOTH,
    variants={"a client": 1, "a server": 2},
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    packet = bytes([what, 1, 6, 0]) + bytes(24) + inside.GUEST_MAC + bytes(202) + bytes.fromhex("63825363350101ff")
    ports = (68, 67) if what == 1 else (67, 68)
    case.frames(
        inside.ether(
            inside.udp(packet, to="255.255.255.255", port=ports[1], source_port=ports[0], source="10.0.0.2"), target=inside.BROADCAST
        ),
        inside.ether(inside.udp(packet, to=ground.gateway, port=ports[1])),
    )
