"""seccomp programs: which system calls a process may make, with which arguments. Pure: names and checks in, BPF instructions out.

Whatever is not named fails with EPERM, so that a library that tries something it can do without goes on; what only an attacker tries ends
the process. Another architecture's numbers (and with them the x32 ones) end it as well. Checks look at the low 32 bits of an argument: give
them for arguments that the kernel itself takes as 32 bits wide (identities, requests, options), or for bits that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

Arch = Literal["x86_64", "aarch64"]

ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
EPERM = 0x0005_0000 | 1
_AUDIT_ARCH: dict[Arch, int] = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_LOAD, _JEQ, _JGT, _JGE, _JSET, _RET = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_INSTRUCTION = struct.Struct("=HBBI")
MOST_INSTRUCTIONS = 4096

# By name: the numbers on x86-64 and on aarch64 (asm/unistd.h); None where there is no such call.
# fmt: off
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68),
    "lseek": (8, 62), "fstat": (5, 80), "newfstatat": (262, 79), "ftruncate": (77, 46), "close": (3, 57), "recvmsg": (47, 212),
    "sendmsg": (46, 211), "recvfrom": (45, 207), "sendto": (44, 206), "recvmmsg": (299, 243), "sendmmsg": (307, 269),
    "accept": (43, 202), "accept4": (288, 242), "shutdown": (48, 210), "getsockname": (51, 204), "getpeername": (52, 205),
    "getsockopt": (55, 209), "setsockopt": (54, 208), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "epoll_ctl": (233, 21), "epoll_create1": (291, 20), "eventfd2": (290, 19), "pipe2": (293, 59), "socketpair": (53, 199),
    "fcntl": (72, 25), "ioctl": (16, 29), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "mmap": (9, 222), "munmap": (11, 215),
    "mremap": (25, 216), "mprotect": (10, 226), "madvise": (28, 233), "brk": (12, 214), "futex": (202, 98), "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115), "gettimeofday": (96, 169), "getrandom": (318, 278), "getpid": (39, 172), "gettid": (186, 178),
    "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "sched_yield": (24, 124), "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94), "poll": (7, None),
    "ppoll": (271, 73), "membarrier": (324, 283), "rseq": (334, 293), "set_robust_list": (273, 99), "getrusage": (98, 165),
    "clone": (56, 220), "fork": (57, None), "vfork": (58, None), "wait4": (61, 260), "waitid": (247, 95), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "capset": (126, 91),
    "uname": (63, 160), "socket": (41, 198), "connect": (42, 203),
    "prctl": (157, 167), "seccomp": (317, 277), "prlimit64": (302, 261), "close_range": (436, 436), "execve": (59, 221),
    "execveat": (322, 281), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268), "open_by_handle_at": (304, 265), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsmount": (432, 432), "mount_setattr": (442, 442), "reboot": (169, 142), "swapon": (167, 224),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class OneOf:
    """The argument (0 to 5) is one of these or, where a range is given, within it (both ends included)."""

    argument: int
    values: tuple[int, ...] = ()
    low: int = 1
    high: int = 0


@dataclass(frozen=True, slots=True)
class NoBits:
    """The argument has none of these bits."""

    argument: int
    mask: int


Check = OneOf | NoBits


@dataclass(frozen=True, slots=True)
class Call:
    """A call that may be made, when all checks hold."""

    name: str
    checks: tuple[Check, ...] = ()


def number(arch: Arch, name: str) -> int | None:
    """A call's number; None where this architecture has none. KeyError: it is in no table here."""
    return _NUMBERS[name][0 if arch == "x86_64" else 1]


def program(arch: Arch, allowed: Sequence[str | Call], fatal: Sequence[str] = ()) -> bytes:
    """An array of `struct sock_filter`. ValueError when a call is named twice, or the program is longer than the kernel takes."""
    calls = [Call(one) if isinstance(one, str) else one for one in allowed]
    names = [*[one.name for one in calls], *fatal]
    if len(set(names)) != len(names):
        raise ValueError("a call is named twice: " + ", ".join(sorted({name for name in names if names.count(name) > 1})))
    code = [(_LOAD, 0, 0, _ARCH_AT), (_JEQ, 1, 0, _AUDIT_ARCH[arch]), (_RET, 0, 0, KILL), (_LOAD, 0, 0, _NUMBER_AT)]
    for call in calls:
        found = number(arch, call.name)
        if found is not None:
            body = _checked(call.checks)
            code += [(_JEQ, 0, len(body), found), *body]
    for name in fatal:
        found = number(arch, name)
        if found is not None:
            code += [(_JEQ, 0, 1, found), (_RET, 0, 0, KILL)]
    code.append((_RET, 0, 0, EPERM))
    if len(code) > MOST_INSTRUCTIONS:
        raise ValueError(f"{len(code)} instructions, the kernel takes {MOST_INSTRUCTIONS}")
    return b"".join(_INSTRUCTION.pack(*one) for one in code)


def _checked(checks: Sequence[Check]) -> list[tuple[int, int, int, int]]:
    """ALLOW when all hold, else EPERM; at most 255 instructions, which is how far a jump goes."""
    code: list[tuple[int, int, int, int]] = []
    for check in checks:
        code.append((_LOAD, 0, 0, _ARGUMENTS_AT + 8 * check.argument))  # both architectures have the low half first
        match check:
            case NoBits(mask=mask):
                code += [(_JSET, 0, 1, mask), (_RET, 0, 0, EPERM)]
            case OneOf(values=values, low=low, high=high):
                code += _one_of(values, low, high)
            case _:
                assert_never(check)
    code.append((_RET, 0, 0, ALLOW))
    if len(code) > 255:
        raise ValueError("the checks of one call are too many")
    return code


def _one_of(values: Sequence[int], low: int, high: int) -> list[tuple[int, int, int, int]]:
    code: list[tuple[int, int, int, int]] = []
    ranged = low <= high
    rest = len(values) + (2 if ranged else 0)
    for at, value in enumerate(values):
        code.append((_JEQ, rest - at, 0, value))  # over what is left and the refusal
    if ranged:
        code += [(_JGE, 0, 1, low), (_JGT, 0, 1, high)]
    return [*code, (_RET, 0, 0, EPERM)]
