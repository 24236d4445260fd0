"""A device that nobody needs is one more way to the host."""

import contextlib
import os
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BLOCKED, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="List the machine's devices and look for any but disk, network, console, entropy and the channel.",
    claim="G1",
    defences=("jail",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    policies=(BLOCKED,),
    quick=True,
    blank="the machine is described whole by a golden argument list (tests/golden)",
)


def attack(case: Case, what: Any) -> None:
    found = []
    for top in ("/sys/bus/virtio/devices", "/sys/bus/pci/devices", "/sys/bus/platform/devices"):
        with contextlib.suppress(OSError):
            for one in os.listdir(top):
                with contextlib.suppress(OSError), open(f"{top}/{one}/modalias") as file:
                    found.append(f"{one} {file.read().strip()}")
    case.did(f"{len(found)} devices: {found[:30]}"[:390])
    kinds = {one.split("virtio:d")[1][:8] for one in found if "virtio:d" in one}
    odd = kinds - {"00000001", "00000002", "00000003", "00000004", "00000005"}
    if odd or any("pci:" in one for one in found):
        raise RuntimeError(f"devices that nobody needs: {odd} {[one for one in found if 'pci:' in one]}")
    case.refused("only what is needed")
