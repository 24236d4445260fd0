"""Tunnels over UDP are for kernels that know them."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send VXLAN, GENEVE, WireGuard, QUIC and Teredo to the gateway and outwards.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("gateway_port", "guest_udp"),
    policies=BOTH,
    variants={"VXLAN": 4789, "GENEVE": 6081, "WireGuard": 51820, "QUIC": 443, "Teredo": 3544, "FOU": 5555},
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    inner = inside.ether(inside.tcp(ground.callback_at, 443))
    for to in (ground.gateway, ground.callback_at, "198.18.0.9"):
        case.frames(inside.ether(inside.udp(b"\x08\0\0\0\0\0\0\0" + inner, to=to, port=what)))
