"""A wildcard stands for one label, and for no other name."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for names around a wildcard: its own, two labels below, one that ends like it.",
    claim="E3",
    defences=("names: canon",),
    stopped_by=("name_not_allowed", "name_invalid"),
    variants={
        "apex": "{wild}",
        "two labels": "{token}.x.{wild}",
        "ends like it": "{token}x{wild}",
        "a longer one": "x.{wild}.example.net",
        "the asterisk itself": "*.x.{wild}",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.query(what.format(wild=case.ground.wild, token=case.token))
