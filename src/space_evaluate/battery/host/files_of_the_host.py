"""Shared folders and file systems of the host are files for the guest."""

import contextlib
import subprocess
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BLOCKED, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Mount every kind of shared file system, and read the host's secret by its path.",
    claim="G1",
    defences=("jail",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    policies=(BLOCKED,),
    seconds=60.0,
    blank="no device of the machine has a file system of the host: there is nothing to take away",
)


def attack(case: Case, what: Any) -> None:
    said = []
    for kind, source in (("9p", "hostshare"), ("virtiofs", "myfs"), ("9p", "/dev/root"), ("nfs", "10.0.0.1:/"), ("cifs", "//10.0.0.1/c")):
        done = subprocess.run(["mount", "-t", kind, source, "/mnt"], capture_output=True, text=True, check=False, timeout=10)
        said.append(f"{kind}: {done.returncode} {done.stderr.strip()[:60]}")
        if not done.returncode:
            raise RuntimeError(f"{kind} is mounted")
    for path in (case.ground.secret_file, f"/proc/1/root{case.ground.secret_file}", "/mnt"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            case.got(file.read())
    case.did("; ".join(said))
    case.refused("no file system of the host")
