"""The machine plan: command lines as golden texts, limits, and what must hold for every plan."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.core.plan.machine import Descriptors, Machine, kernel_arguments, limits, qemu_argv

GOLDEN = Path(__file__).parents[2] / "golden" / "plan"
FDS = Descriptors(qmp=3, control=4, bulk=5, serial=6, disk=7, tap=8)

_MACHINES = st.builds(Machine, st.integers(1, 64), st.integers(32, 1 << 20), st.sampled_from(["tcg", "kvm"]), st.integers(1, 10**7))


def _text(machine: Machine) -> str:
    """One option a line, as a reader wants it."""
    words = [shlex.quote(word) for word in qemu_argv(machine, FDS)]
    return " ".join(words).replace(" -", "\n-") + "\n"


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("qemu-tcg.txt", Machine(cpus=1, memory_mib=512, accelerator="tcg", tsc_khz=2_445_404)),
        ("qemu-kvm.txt", Machine(cpus=4, memory_mib=2048, accelerator="kvm", tsc_khz=2_445_404)),
    ],
)
def test_command_line_is_the_golden_one(name: str, machine: Machine) -> None:
    assert _text(machine) == (GOLDEN / name).read_text()


def test_unknown_accelerator_is_refused() -> None:
    with pytest.raises(ValueError, match="no such accelerator: 'xen'"):
        qemu_argv(Machine(1, 512, "xen", 1), FDS)


def test_emulated_guest_is_told_the_clock_and_one_under_kvm_is_not() -> None:
    assert "tsc_early_khz=123" in kernel_arguments(Machine(1, 512, "tcg", 123)).split()
    assert "tsc_early_khz" not in kernel_arguments(Machine(1, 512, "kvm", 123))


def test_only_a_rate_that_is_sure_is_kept_when_ticks_come_late() -> None:
    assert "tsc=reliable" in kernel_arguments(Machine(1, 512, "tcg", 123, tsc_sure=True)).split()
    for other in (Machine(1, 512, "tcg", 123), Machine(1, 512, "kvm", 123, tsc_sure=True)):
        assert "tsc=reliable" not in kernel_arguments(other)


@settings(deadline=None)  # a busy machine is no fault of the plan
@given(_MACHINES)
def test_every_plan_denies_what_the_jail_relies_on(machine: Machine) -> None:
    argv = qemu_argv(machine, FDS)
    after = dict(itertools.pairwise(argv))
    assert after["-sandbox"] == "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
    assert {"-nodefaults", "-no-user-config", "-no-reboot"} <= set(argv)
    assert not any("path=" in word or "script=" in word or "exec:" in word for word in argv)
    assert not any("wait=on" in word or "server=off" in word for word in argv)


@settings(deadline=None)  # a busy machine is no fault of the plan
@given(st.integers(1, 64), st.integers(32, 1 << 20))
def test_limits_leave_room_for_the_vmm_beside_its_guest(cpus: int, memory_mib: int) -> None:
    found = limits(cpus, memory_mib)
    assert found.memory_bytes == (memory_mib + 80) << 20
    assert found.pids > cpus + 66  # vCPUs, main loop, RCU, 64 of the disk's pool
    assert found.cpu_quota_usec == (cpus + 0.5) * found.cpu_period_usec
