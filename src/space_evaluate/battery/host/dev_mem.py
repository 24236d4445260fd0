"""What root may do to the memory and ports of its machine, it does to its own machine."""

import os
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Read physical memory through the kernel's windows to it, and look for what is not the guest's.",
    claim="G1",
    defences=("jail",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    policies=BOTH,
    variants={one: one for one in ("/dev/mem", "/dev/port", "/proc/kcore", "/dev/kmem")},
    blank="what holds is the machine's own memory: there is no defence of ours to take away",
)


def attack(case: Case, what: Any) -> None:
    try:
        with open(what, "rb", buffering=0) as file:
            found = b""
            for at in (0, 0x1000, 0xA0000, 0xF0000, 0xFEB00000, 0xFEC00000):
                try:
                    os.lseek(file.fileno(), at, os.SEEK_SET)
                    found += file.read(4096)
                except OSError as error:
                    case.did(f"{what} at {at:#x}: {error}")
            case.did(f"read {len(found)} bytes of {what}")
            case.got(found)
            case.refused(f"{what} has the guest's own")
    except OSError as error:
        case.did(f"opened {what}: {error}")
        case.refused(str(error))
