"""An allowed name is only a name: whoever has its zone says where it leads."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

KINDS = (
    "inner", "host", "metadata", "loopback", "loopback6", "mixed", "mapped", "nat64", "sixtofour", "teredo", "unspecified", "cgnat",
    "multicast", "broadcast", "benchmark", "documentation", "metadata6", "linklocal6", "azure", "alias",
)  # fmt: skip
TECHNIQUE = Technique(
    tries="Use an allowed name whose zone leads to an address of the host, of its network, or of a cloud's metadata service.",
    claim="E3",
    defences=("address table", "dial check: vet", "the dialer's packet filter"),
    stopped_by=("address_",),
    goals=(HOST_SECRET,),
    variants={kind: kind for kind in KINDS},
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    case.http(case.ground.bad[what], f"/{case.token}")
