"""What a resolver of the C library takes for an address is a name for others."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Ask for names that some resolver reads as an address of the host or of the attacker.",
    claim="E3",
    defences=("names: canon",),
    stopped_by=("name_not_allowed", "dns_malformed", "name_invalid"),
    policies=BOTH,
    variants={
        "decimal": "2130706433",
        "hex": "0x7f000001",
        "octal": "0177.0.0.1",
        "short": "127.1",
        "dotted": "{callback}",
        "hex parts": "0x7f.0x0.0x0.0x1",
        "with a dot": "{callback}.",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.query(what.format(callback=case.ground.callback_at))
