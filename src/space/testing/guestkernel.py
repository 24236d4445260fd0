"""A guest kernel of a few bytes, so that a VMM can be looked at without any build.

An ELF file with the PVH note that QEMU's microvm boots, entered in 32-bit mode without paging. `talker` waits for a byte on
the serial port, says its word there and then does what it was made for.
"""

from __future__ import annotations

import struct

_ADDRESS = 0x10_0000
_XEN_ELFNOTE_PHYS32_ENTRY = 18

_WAIT_FOR_BYTE = bytes.fromhex("66bafd03 ec a801 74fb")  # mov dx, 0x3fd; again: in al, dx; test al, 1; jz again
_SAY = "66baf803 b0%02x ee"  # mov dx, 0x3f8; mov al, character; out dx, al

STAY = bytes.fromhex("fa f4 ebfd")  # cli; again: hlt; jmp again
DIE = bytes.fromhex("0f011d00002000 cc")  # lidt of zeros; int3: a triple fault, which ends QEMU
SPIN = bytes.fromhex("ebfe")  # jmp to itself: all of a processor


def kernel(code: bytes) -> bytes:
    """The file of a kernel that runs `code`."""
    note = struct.pack("<III4sI", 4, 4, _XEN_ELFNOTE_PHYS32_ENTRY, b"Xen\0", _ADDRESS)
    note_at = 64 + 2 * 56
    code_at = note_at + len(note)
    elf = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, _ADDRESS, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 7, code_at, _ADDRESS, _ADDRESS, len(code), len(code), 1)
    notes = struct.pack("<IIQQQQQQ", 4, 4, note_at, 0, 0, len(note), len(note), 4)
    return elf + load + notes + note + code


def talker(word: bytes, then: bytes) -> bytes:
    """The file of a kernel that waits for a byte on the serial port, answers `word` and goes on with `then`."""
    return kernel(_WAIT_FOR_BYTE + b"".join(bytes.fromhex(_SAY % character) for character in word) + then)
