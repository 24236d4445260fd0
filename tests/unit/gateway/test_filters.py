"""What zygote and worker may ask of the kernel, by the programs that they load."""

from __future__ import annotations

import os

import pytest

from space.core.plan.seccomp import ALLOW, EPERM, KILL, Arch, number
from space.gateway import filters
from space.testing.bpf import run

ARCH: Arch = "x86_64" if os.uname().machine == "x86_64" else "aarch64"
AUDIT = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}[ARCH]
SAME, GATEWAY, FIRST, LAST = 0xFFFF_FFFF, 5004, 7560, 9095
CALLS = {"socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "openat": (257, 56), "openat2": (437, 437)}
CALLS |= {"memfd_create": (319, 279), "io_uring_setup": (425, 425), "kill": (62, 129), "setuid": (105, 146), "clone3": (435, 435)}
EXECUTABLE = (0, 4096, 7)


def verdict(program: bytes, name: str, *arguments: int) -> int:
    found = CALLS[name][ARCH != "x86_64"] if name in CALLS else number(ARCH, name)
    assert found is not None
    return run(program, AUDIT, found, *arguments)


@pytest.mark.parametrize("name", ["read", "sendmsg", "recvmsg", "accept4", "epoll_ctl", "close", "getrandom", "exit_group"])
def test_a_worker_moves_bytes_over_what_it_has(name: str) -> None:
    assert verdict(filters.worker(), name) == ALLOW


@pytest.mark.parametrize("name", [*CALLS, "socketpair", "clone", "prctl", "capset", "setresuid", "setresgid", "setgroups", "prlimit64"])
def test_a_worker_makes_nothing_new(name: str) -> None:
    assert verdict(filters.worker(), name) == EPERM


@pytest.mark.parametrize("name", ["execve", "ptrace", "process_vm_readv", "process_vm_writev", "setns", "unshare", "mount", "bpf"])
def test_what_only_an_attacker_tries_ends_either(name: str) -> None:
    assert verdict(filters.worker(), name) == verdict(filters.zygote(GATEWAY, range(FIRST, LAST + 1)), name) == KILL


def test_nobody_gets_memory_that_can_be_executed_or_another_request_of_a_device() -> None:
    for program in (filters.worker(), filters.zygote(GATEWAY, range(FIRST, LAST + 1))):
        assert verdict(program, "mmap", *EXECUTABLE) == verdict(program, "mprotect", *EXECUTABLE) == EPERM
        assert verdict(program, "mmap", 0, 4096, 3) == verdict(program, "mprotect", 0, 4096, 3) == ALLOW
        assert verdict(program, "ioctl", 3, 0x5421) == ALLOW
        assert verdict(program, "ioctl", 3, 0x8912) == EPERM, "SIOCGIFCONF"


@pytest.mark.parametrize("call", ["setresuid", "setresgid"])
def test_the_zygote_becomes_a_worker_and_nobody_else(call: str) -> None:
    program = filters.zygote(GATEWAY, range(FIRST, LAST + 1))
    for uid in (FIRST, LAST):
        assert verdict(program, call, uid, uid, uid) == verdict(program, call, SAME, uid, SAME) == ALLOW
    assert verdict(program, call, SAME, GATEWAY, SAME) == ALLOW
    for uid in (0, 1, GATEWAY - 1, GATEWAY + 1, FIRST - 1, LAST + 1):
        for place in range(3):
            assert verdict(program, call, *[uid if at == place else FIRST for at in range(3)]) == EPERM
    assert verdict(program, "setgroups", 0) == ALLOW
    assert verdict(program, "setgroups", 1) == EPERM
    assert {verdict(program, name) for name in ("socket", "connect", "bind", "openat", "setuid", "kill")} == {EPERM}
    assert verdict(program, "clone", 17) == ALLOW
    assert verdict(program, "clone", 17 | 0x1000_0000) == EPERM, "CLONE_NEWUSER"
