"""The firmware's configuration holds what the VMM was given."""

import contextlib
import os
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BLOCKED, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Read the firmware configuration device and the tables of the machine for paths and secrets of the host.",
    claim="G1",
    defences=("jail",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    policies=(BLOCKED,),
    blank="the machine is described whole by a golden argument list (tests/golden)",
)


def attack(case: Case, what: Any) -> None:
    found = b""
    for top in ("/sys/firmware", "/proc/cmdline", "/sys/class/dmi/id", "/proc/device-tree"):
        for folder, _, names in os.walk(top) if os.path.isdir(top) else [(os.path.dirname(top), [], [os.path.basename(top)])]:
            for name in names:
                with contextlib.suppress(OSError), open(f"{folder}/{name}", "rb") as file:
                    found += file.read(65_536)
    case.did(f"read {len(found)} bytes of tables")
    case.got(found)
    if b"/var/lib/" in found or b"/run/space" in found:
        raise RuntimeError("a path of the host is told")
    case.refused("the guest's own alone")
