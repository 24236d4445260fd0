"""An interpreter of the few BPF instructions that seccomp programs here are made of: what the kernel would do with a system call."""

from __future__ import annotations

import struct


def run(code: bytes, arch: int, call: int, *arguments: int) -> int:
    """What the kernel does with such a program."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", call, arch, 0, *given)
    instructions = list(struct.iter_unpack("=HBBI", code))
    accumulator, at = 0, 0
    while True:
        operation, yes, no, constant = instructions[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, constant)
        elif operation == 0x06:
            return int(constant)
        else:
            holds = {
                0x15: accumulator == constant,
                0x25: accumulator > constant,
                0x35: accumulator >= constant,
                0x45: accumulator & constant != 0,
            }[operation]
            at += yes if holds else no
