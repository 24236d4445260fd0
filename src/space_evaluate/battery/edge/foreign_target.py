"""A frame for another card is taken by a bridge."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send frames to cards that are not the gateway's.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("foreign_target", "guest_group", "guest_other"),
    policies=BOTH,
    variants={"a neighbour's": "525400000099", "nobody's": "000000000000", "itself": "525400000002"},
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground
    query = inside.udp(inside.question(f"{case.token}.{ground.callback}"), to=ground.gateway, port=53)

    case.frames(*(inside.ether(one, target=bytes.fromhex(what)) for one in (query, inside.tcp(ground.callback_at, 443))), rounds=3)
