"""Whoever takes a reply for a question, or believes its answers, learns what the guest wants."""

from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Send replies with answers to the gateway's own port, from the guest's own address.",
    claim="E3",
    defences=("DNS strictness",),
    stopped_by=("dns_malformed", "gateway_port"),
    policies=BOTH,
    variants={"ident 0": 0, "ident 7": 7, "ident 65535": 65535},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    reply = inside.answer_of(case.ground.packages, case.ground.callback_at, what)
    case.send_query(reply, seconds=1)
    case.send_query(reply, port=33_000, seconds=1)
    case.connect(case.ground.callback_at, 443, seconds=1)
