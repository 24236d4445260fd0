"""A client that shows a certificate is somebody, upstream too."""

import ssl
import subprocess
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Offer a client certificate, and see that the gateway asks for none and passes none on.",
    claim="E3",
    defences=("resumption and tickets; verification of upstreams",),
    stopped_by=("guest:",),
    blank="the gateway never asks a guest for a certificate, and has no key of the guest to show one upstream",
)


def attack(case: Case, what: Any) -> None:
    made = ssl.create_default_context()
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=guest -keyout /tmp/k -out /tmp/c"
    subprocess.run(words.split(), capture_output=True, check=True)
    made.load_cert_chain("/tmp/c", "/tmp/k")
    case.tls(case.ground.packages, inside.request(case.ground.packages, f"/simple/{case.token}/"), context=made)
    case.refused("nobody asked for it")
