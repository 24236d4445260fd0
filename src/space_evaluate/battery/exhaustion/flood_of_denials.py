"""Each denial is a record, and a disk is finite."""

import socket
import time
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Be denied by the thousand: the records are counted together.",
    claim="E3",
    defences=("limits",),
    stopped_by=("name_not_allowed",),
    alone=True,
    seconds=60.0,
)


def attack(case: Case, what: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for number in range(2500):
            sock.sendto(inside.question(f"d{number}.example.net"), (case.ground.gateway, 53))
            if not number % 100:
                time.sleep(0.3)
    case.did("asked 2500 times for names of no rule")
