"""The second published bypass: behind a CDN an allowed name shares its address with every other customer's."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Over a connection to an allowed name ask, in the Host field, for another name at the same address.",
    claim="E3",
    defences=("authority check, ports agreement",),
    stopped_by=("authority_",),
    variants={
        "hidden": "{hidden}", "with the port": "{hidden}:443", "in capitals with a dot": "{HIDDEN}.", "another allowed name": "{second}",
        "another port": "{packages}:8443",
    },
    source="published evaluation of sandboxes' egress: domain fronting behind one CDN",
    quick=True,
)  # fmt: skip


def attack(case: Case, what: Any) -> None:
    ground = case.ground
    host = what.format(hidden=ground.hidden, HIDDEN=ground.hidden.upper(), second=ground.second, packages=ground.packages)
    case.http(ground.packages, f"/simple/{case.token}/", host=host)
