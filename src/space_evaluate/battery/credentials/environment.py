"""A secret that a guest holds lies in its environment, its files, its memory."""

import contextlib
import os
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Search the guest's environment, files and processes' memory for anything that looks like the lent credential.",
    claim="C1",
    defences=("whose a grant is and what it permits",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    seconds=60.0,
    blank="the value never enters a guest: there is no defence in it to take away",
)


def attack(case: Case, what: Any) -> None:
    found = b""
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            for name in ("environ", "cmdline"):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
                    found += file.read(65_536)
    for top in ("/etc", "/run", "/root", "/home", "/tmp"):
        for folder, _, names in os.walk(top):
            for name in names:
                with contextlib.suppress(OSError):
                    path = f"{folder}/{name}"
                    if os.path.isfile(path) and os.path.getsize(path) < 200_000:
                        with open(path, "rb") as file:
                            data = file.read()
                        found += data if b"lent-" in data or b"host-" in data else b""
    case.did(f"read {len(found)} bytes of environments and files")
    for at in range(0, len(found), 60_000):
        case.got(found[at : at + 60_000])
    case.refused("no place has it")
