"""An address of the range that stands for no name may have been another's."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Connect to addresses of the synthetic range that nobody was given.",
    claim="G3",
    defences=("names and budgets over workers",),
    stopped_by=("no_name", "unknown_address", "unmapped", "guest_tcp", "no_such_name", "address_"),
    variants={"443": 443, "80": 80, "2222": 2222},
)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    for at in range(12):
        case.connect(
            f"198.{18 + at % 2}.{(at * 37) % 256}.{(at * 91 + 5) % 256}",
            what,
            f"GET /{case.token} HTTP/1.1\r\nHost: {ground.hidden}\r\n\r\n".encode(),
            seconds=1,
        )
