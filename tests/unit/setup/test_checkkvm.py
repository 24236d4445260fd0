"""What doctor says of Firecrackers and of a host on which tenants share KVM: each point by its fact, its cost, its remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from space.setup import checkkvm
from space.setup.checkkvm import Host, Shelf
from space.setup.checkup import FAILURE, OK, WARNING

GOOD = Host(
    swaps="Filename Type Size Used Priority",
    ksm="0",
    smt="0",
    nested={"kvm_intel": "N"},
    vulnerabilities={
        "meltdown": "Mitigation: PTI",
        "mds": "Mitigation: Clear CPU buffers; SMT vulnerable",
        "itlb_multihit": "KVM: Mitigation",
    },
    hugepages="Y",
)


@pytest.mark.parametrize(
    ("found", "point", "words"),
    [
        (replace(GOOD, swaps=f"{GOOD.swaps}\n/dev/vdb partition 1 0 -2"), "host: swap", "/dev/vdb"),
        (replace(GOOD, ksm="1"), "host: ksm", "echo 2"),
        (replace(GOOD, smt="1"), "host: smt", "nosmt"),
        (replace(GOOD, nested={"kvm_amd": "1"}), "host: nested KVM", "options kvm_amd nested=0"),
        (replace(GOOD, vulnerabilities={"retbleed": "Vulnerable"}), "host: processor", "not mitigated: retbleed"),
        (replace(GOOD, hugepages="N"), "host: huge pages", "nx_huge_pages"),
    ],
)
def test_each_point_is_told_with_its_cost_and_its_remedy(found: Host, point: str, words: str) -> None:
    checks = {check.name: check for check in checkkvm.judge_host(found)}
    assert [name for name, check in checks.items() if check.level != OK] == [point]
    told = checks[point]
    assert told.level == WARNING
    assert words in f"{told.detail} {told.remedy}"
    assert "costs:" in told.remedy


def test_a_host_as_the_guide_wants_it_is_told_as_such_and_what_a_kernel_does_not_have_is_left_out() -> None:
    assert {check.level for check in checkkvm.judge_host(GOOD)} == {OK}
    assert [check.name for check in checkkvm.judge_host(Host(None, None, None, {}, {}, None))] == ["host: swap"]


def test_the_facts_are_read_where_the_kernel_has_them(tmp_path: Path) -> None:
    files = {
        "proc/swaps": "Filename",
        "sys/kernel/mm/ksm/run": "1\n",
        "sys/devices/system/cpu/smt/active": "1\n",
        "sys/module/kvm_amd/parameters/nested": "1\n",
        "sys/devices/system/cpu/vulnerabilities/mds": "Vulnerable\n",
        "sys/module/kvm/parameters/nx_huge_pages": "N\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert checkkvm.see_host(tmp_path) == Host("Filename", "1", "1", {"kvm_amd": "1"}, {"mds": "Vulnerable"}, "N")
    assert checkkvm.see_host(tmp_path / "nothing") == Host(None, None, None, {}, {}, None)


@pytest.mark.parametrize(
    ("versions", "setting", "kvm", "level", "chosen", "words"),
    [
        ([], "auto", False, OK, "qemu", "emulated by QEMU"),
        ([], "auto", True, WARNING, "qemu", "QEMU drives KVM"),
        ([], "firecracker", True, FAILURE, "", "there is none on this machine"),
        (["1.12.1"], "auto", True, OK, "firecracker 1.12.1", "1.12.1 (proven: the contract suite runs on it)"),
        (["1.12.1"], "auto", False, OK, "qemu", "proven"),
        (["1.12.1"], "kvm", True, OK, "qemu", "proven"),
        (["1.12.1", "1.14.0"], "auto", True, WARNING, "firecracker 1.14.0", "1.14.0 (untested: proven is 1.12.1)"),
        (["1.16.0"], "firecracker", True, FAILURE, "", "1.16.0 (refused: its vsock is dead after a restore"),
        (["1.11.0"], "auto", True, WARNING, "qemu", "it is older than 1.12.0"),
        (["nonsense"], "auto", True, WARNING, "qemu", "of no known version"),
    ],
)
def test_versions_are_proven_untested_or_refused(versions: list[str], setting: str, kvm: bool, level: str, chosen: str, words: str) -> None:
    shelf = Shelf({f"{number:016x}": version for number, version in enumerate(versions)}, f"{len(versions) - 1:016x}" if versions else "")
    check = checkkvm.judge_firecrackers(shelf, setting=setting, kvm=kvm)
    assert (check.level, check.chosen) == (level, chosen)
    assert words in f"{check.detail} {check.remedy}"
