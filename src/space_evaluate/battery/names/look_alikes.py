"""Lists that are compared as text, from one end, let through what looks like an entry."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for names that begin or end like an allowed one.",
    claim="E3",
    defences=("names: canon",),
    stopped_by=("name_not_allowed", "dns_malformed", "name_invalid"),
    variants={
        "suffix": "{name}.example.net",
        "prefix": "{token}{name}",
        "a dash for a dot": "packages-example.com",
        "below": "{token}.{name}",
        "without dots": "packagesexamplecom",
        "userinfo": "{name}@example.net",
        "a path": "{name}/x.example.net",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.query(what.format(name=case.ground.packages, token=case.token))
