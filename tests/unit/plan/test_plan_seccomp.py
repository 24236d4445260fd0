"""seccomp programs, run by an interpreter of the same few instructions: each call with each kind of argument gets what the table says."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.plan.seccomp import ALLOW, EPERM, KILL, Arch, Call, NoBits, OneOf, number, program
from space.testing.bpf import run

ARCHES: dict[Arch, int] = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
CHECKED = Call("setresuid", (OneOf(0, (0xFFFF_FFFF, 7), low=100, high=200), OneOf(1, (7,))))
ALLOWED = ("read", CHECKED, Call("mprotect", (NoBits(2, 4),)), "close")


def asked(arch: Arch, name: str, *arguments: int) -> int:
    call = number(arch, name)
    assert call is not None
    return run(program(arch, ALLOWED, ("ptrace", "execve")), ARCHES[arch], call, *arguments)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("name", "arguments", "verdict"),
    [
        ("read", (), ALLOW),
        ("close", (3,), ALLOW),
        ("write", (), EPERM),
        ("recvmsg", (), EPERM),
        ("ptrace", (), KILL),
        ("execve", (), KILL),
        ("mprotect", (0, 0, 3), ALLOW),
        ("mprotect", (0, 0, 5), EPERM),
        ("mprotect", (0, 0, 7), EPERM),
        *[("setresuid", (value, 7), ALLOW) for value in (7, 0xFFFF_FFFF, 100, 150, 200, (1 << 32) + 7)],
        *[("setresuid", (value, 7), EPERM) for value in (0, 6, 8, 99, 201, 0xFFFF_FFFE)],
        ("setresuid", (150, 8), EPERM),
        ("setresuid", (150, 0), EPERM),
    ],
)
def test_call_with_arguments_gets_its_verdict(arch: Arch, name: str, arguments: tuple[int, ...], verdict: int) -> None:
    assert asked(arch, name, *arguments) == verdict


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_numbers_of_another_architecture_end_the_process(arch: Arch) -> None:
    code = program(arch, ALLOWED)
    call = number(arch, "read")
    assert call is not None
    for other in (*ARCHES.values(), 0x4000_0003, 0):
        assert run(code, other, call) == (ALLOW if other == ARCHES[arch] else KILL)
    assert run(code, ARCHES[arch], call | 0x4000_0000) == EPERM  # x32


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_nothing_is_allowed_but_what_is_named(call: int, one: int, two: int, three: int) -> None:
    code = program("x86_64", ALLOWED, ("ptrace",))
    verdict = run(code, ARCHES["x86_64"], call, one, two, three)
    one, two, three = one & 0xFFFF_FFFF, two & 0xFFFF_FFFF, three & 0xFFFF_FFFF
    expected = {
        number("x86_64", "read"): True,
        number("x86_64", "close"): True,
        number("x86_64", "mprotect"): not three & 4,
        number("x86_64", "setresuid"): (one in (7, 0xFFFF_FFFF) or 100 <= one <= 200) and two == 7,
    }.get(call, False)
    assert (verdict == ALLOW) is expected
    assert verdict in (ALLOW, EPERM) or call == number("x86_64", "ptrace")


def test_a_call_is_named_once_and_known() -> None:
    with pytest.raises(ValueError, match="read"):
        program("x86_64", ["read", "read"])
    with pytest.raises(ValueError, match="read"):
        program("x86_64", ["read"], ["read"])
    with pytest.raises(KeyError):
        program("x86_64", ["readd"])


def test_a_call_that_an_architecture_lacks_is_left_out() -> None:
    assert program("aarch64", ["fork", "read"]) == program("aarch64", ["read"])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the header is this machine's")
def test_numbers_are_those_of_this_machines_header() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    from space.core.plan import seccomp

    found = {name: int(call) for name, call in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
    ours = {name: numbers[0] for name, numbers in seccomp._NUMBERS.items()}
    assert ours == {name: found[name] for name in ours}
