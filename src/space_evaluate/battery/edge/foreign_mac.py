"""Frames as another machine would send them."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Put frames on the wire with the sender of another interface, or of the gateway's own.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("foreign_mac",),
    policies=BOTH,
    variants={"another's": "525400000099", "the gateway's": "525400000001", "a group's": "010000000002"},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground
    packets = (
        inside.udp(inside.question(f"{case.token}.{ground.callback}"), to=ground.gateway, port=53),
        inside.tcp(ground.callback_at, 443),
    )
    case.frames(*(inside.ether(one, source=bytes.fromhex(what)) for one in packets), rounds=3)
