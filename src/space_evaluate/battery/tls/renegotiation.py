"""By TLS 1.2 a client may begin the handshake again, with another name."""

import subprocess
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Ask for a second handshake within the first connection.",
    claim="E3",
    defences=("resumption and tickets; verification of upstreams",),
    stopped_by=("guest:", "tls", "hello", "sni_mismatch"),
)


def attack(case: Case, what: Any) -> None:
    to = f"-connect {case.address(case.ground.packages)}:443 -servername {case.ground.packages}"
    program = f"printf 'R\\n' | timeout 6 openssl s_client -tls1_2 {to} 2>&1"
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=False, timeout=15)
    case.did(f"renegotiated by openssl: {done.stdout[-200:]!r}")
    if "RENEGOTIATING" in done.stdout and "verify return:1" in done.stdout.split("RENEGOTIATING")[1]:
        raise RuntimeError("a second handshake was made")
    case.refused(done.stdout[-100:])
