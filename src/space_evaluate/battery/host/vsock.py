"""vsock leads to the host, past every network."""

import socket
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BLOCKED, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Connect by vsock to the host, the hypervisor and neighbours, at many ports.",
    claim="G1",
    defences=("jail",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    policies=(BLOCKED,),
    seconds=60.0,
    quick=True,
    blank="the machine has no vsock device",
)


def attack(case: Case, what: Any) -> None:
    tried, said = 0, set()
    for cid in (0, 1, 2, 3, 4):
        for port in (22, 52, 1024, 1025, 5000, 9999, 0xFFFFFFFF):
            tried += 1
            try:
                with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as sock:
                    sock.settimeout(0.5)
                    sock.connect((cid, port))
                    raise RuntimeError(f"{cid}:{port} answered")
            except OSError as error:
                said.add(str(error))
    case.did(f"tried {tried} ports: {sorted(said)}")
    case.refused(", ".join(sorted(said)))
