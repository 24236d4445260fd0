"""Whether `/dev/kvm` runs code, by having it run one instruction: a device that opens, and even makes a VM, may have no hardware behind it.

The guest is a page with HLT in real mode. It runs in a child of its own for at most some seconds, because a broken KVM may not come back.
This is quicker and less than what the node does (it boots a guest's kernel); where they differ, the node's verdict counts.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import signal
import struct
from contextlib import suppress

DEVICE = "/dev/kvm"
WITHIN = 5.0
_API_VERSION, _CREATE_VM, _VCPU_MMAP_SIZE = 0xAE00, 0xAE01, 0xAE04
_CREATE_VCPU, _SET_TSS_ADDR, _RUN = 0xAE41, 0xAE47, 0xAE80
_SET_USER_MEMORY_REGION, _SET_REGS = 0x4020_AE46, 0x4090_AE82
_GET_SREGS, _SET_SREGS = 0x8138_AE83, 0x4138_AE84
_EXIT_REASON_AT, _EXIT_HLT = 8, 5
_RIP_AT, _RFLAGS_AT, _SREGS, _REGS = 128, 136, 312, 144
_HLT = b"\xf4"


def probe() -> str | None:
    """None when KVM ran the instruction, else why not, in words. Needs no right but the device's."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, _attempt().encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], WITHIN)
        said = os.read(reader, 512).decode(errors="replace") if ready else f"one instruction did not end within {WITHIN:g} s"
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)  # ours and unreaped: nobody else has that pid
        os.waitpid(child, 0)
    if said == "ok":
        return None
    return said or "the process that tried it died"


def _attempt() -> str:
    step = f"open {DEVICE}"
    try:
        device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        step = "read its version"
        if (version := fcntl.ioctl(device, _API_VERSION, 0)) != 12:
            return f"{DEVICE} speaks version {version}, not 12"
        step = "make a VM"
        machine = fcntl.ioctl(device, _CREATE_VM, 0)
        with suppress(OSError):
            fcntl.ioctl(machine, _SET_TSS_ADDR, 0x7000_0000)  # three pages that old processors need for real mode
        step = "give it memory"
        memory = mmap.mmap(-1, 4096)
        memory[:1] = _HLT
        where = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        fcntl.ioctl(machine, _SET_USER_MEMORY_REGION, struct.pack("=IIQQQ", 0, 0, 0, 4096, where))
        step = "make a processor"
        processor = fcntl.ioctl(machine, _CREATE_VCPU, 0)
        shared = mmap.mmap(processor, fcntl.ioctl(device, _VCPU_MMAP_SIZE, 0))
        step = "set its registers"
        special = bytearray(_SREGS)
        fcntl.ioctl(processor, _GET_SREGS, special)
        struct.pack_into("=QIH", special, 0, 0, 0xFFFF, 0)  # the code segment begins at 0
        fcntl.ioctl(processor, _SET_SREGS, special)
        registers = bytearray(_REGS)
        struct.pack_into("=Q", registers, _RIP_AT, 0)
        struct.pack_into("=Q", registers, _RFLAGS_AT, 2)
        fcntl.ioctl(processor, _SET_REGS, bytes(registers))
        step = "run an instruction"
        fcntl.ioctl(processor, _RUN, 0)
    except OSError as error:
        return f"cannot {step}: {error.strerror}"
    (reason,) = struct.unpack_from("=I", shared, _EXIT_REASON_AT)
    return "ok" if reason == _EXIT_HLT else f"one instruction ended with exit reason {reason}, not {_EXIT_HLT}"
