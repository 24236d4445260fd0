"""Facts for doctor about KVM in production: which Firecrackers there are, and the points of Firecracker's guide for production hosts.

Each point keeps tenants apart from each other in what hardware and kernel share; each costs something, which is said with the remedy. They
count only where guests run under KVM: emulation is no boundary, and a host without KVM is no production host.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from space.config import firecracker as shelf
from space.config.artefacts import Store
from space.core.plan import firecracker as plan
from space.setup import shelf as artefacts
from space.setup.checkup import Check, failure, fine, warning

GUIDE: Final = "Firecracker's production host setup"
_ADD = "`space setup firecracker --from FILE|URL --sha256 D` adds one"


@dataclass(frozen=True, slots=True)
class Shelf:
    """Firecrackers by digest, with their versions. current: the digest of the one that boots new sandboxes, "" without one."""

    versions: dict[str, str]
    current: str


def see_firecrackers(store: Store) -> Shelf:
    """What set-up has added."""
    versions, place = {}, store.root / shelf.KIND
    for entry in sorted(place.iterdir()) if place.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            versions[entry.name] = str(artefacts.manifest(entry).get("version", ""))
    link = place / shelf.CURRENT
    return Shelf(versions, link.readlink().name if link.is_symlink() else "")


def judge_firecrackers(found: Shelf, *, setting: str, kvm: bool) -> Check:
    """kvm: whether guests run under it, as far as is known."""
    looked = "artefacts/firecracker"
    told = ", ".join(sorted({_told(version) for version in found.versions.values()}))
    if found.current not in found.versions:
        if setting == "firecracker":
            return failure(
                "firecracker", "the setting accelerator is firecracker, and there is none on this machine", _ADD, looked_at=looked
            )
        if kvm:
            return warning("firecracker", "there is none: QEMU drives KVM", _ADD, looked_at=looked, chosen="qemu")
        return fine("firecracker", "there is none, and nothing to drive: guests are emulated by QEMU", looked_at=looked, chosen="qemu")
    known = _support(found.versions[found.current])
    if known is None or known.state == "refused":
        detail = f"the one that is to boot new sandboxes is not used: {told}"
        if setting == "firecracker":
            return failure("firecracker", detail, _ADD, looked_at=looked)
        return warning("firecracker", detail, _ADD, looked_at=looked, chosen="qemu")
    chosen = f"firecracker {known.version}" if setting == "firecracker" or (setting == "auto" and kvm) else "qemu"
    if known.state == "untested":
        remedy = f"proven is {', '.join(plan.PROVEN)}; try the contract of VMMs on this machine before sandboxes depend on it"
        return warning("firecracker", told, remedy, looked_at=looked, chosen=chosen)
    return fine("firecracker", told, looked_at=looked, chosen=chosen)


def _support(version: str) -> plan.Support | None:
    try:
        return plan.support(version)
    except ValueError:
        return None


def _told(version: str) -> str:
    known = _support(version)
    return f"{version} ({known.state}: {known.why})" if known is not None else f"{version or 'one'} (of no known version)"


@dataclass(frozen=True, slots=True)
class Host:
    """Texts of files below /sys and /proc, None where there is none. vulnerabilities: by name, as the kernel says it stands to each."""

    swaps: str | None
    ksm: str | None
    smt: str | None
    nested: dict[str, str]
    vulnerabilities: dict[str, str]
    hugepages: str | None


def see_host(root: Path = Path("/")) -> Host:
    """root: of the file system, for tests."""
    modules = {
        name: text for name in ("kvm_intel", "kvm_amd") if (text := _read(root / f"sys/module/{name}/parameters/nested")) is not None
    }
    known = root / "sys/devices/system/cpu/vulnerabilities"
    stands = {entry.name: _read(entry) or "" for entry in sorted(known.iterdir())} if known.is_dir() else {}
    return Host(
        swaps=_read(root / "proc/swaps"),
        ksm=_read(root / "sys/kernel/mm/ksm/run"),
        smt=_read(root / "sys/devices/system/cpu/smt/active"),
        nested=modules,
        vulnerabilities=stands,
        hugepages=_read(root / "sys/module/kvm/parameters/nx_huge_pages"),
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def judge_host(found: Host) -> list[Check]:
    """One check a point; those that this kernel does not have are left out."""
    return [check for check in (_swap(found), _ksm(found), _smt(found), _nested(found), _vulnerable(found), _pages(found)) if check]


def _swap(found: Host) -> Check:
    looked = "/proc/swaps"
    devices = [line.split()[0] for line in (found.swaps or "").splitlines()[1:] if line.strip()]
    if not devices:
        return fine("host: swap", "none: what guests have in memory stays in memory", looked_at=looked)
    detail = f"{', '.join(devices)}: what guests have in memory may be left on a disk, also of sandboxes that are gone"
    return warning("host: swap", detail, "swapoff -a, and its line out of /etc/fstab; costs: memory is then all there is", looked_at=looked)


def _ksm(found: Host) -> Check | None:
    looked = "/sys/kernel/mm/ksm/run"
    if found.ksm is None:
        return None
    if found.ksm in ("0", "2"):
        return fine("host: ksm", "off: guests share no page by its content", looked_at=looked)
    detail = "on: a guest can find out by the time of a write what is in another's memory"
    return warning("host: ksm", detail, "echo 2 > /sys/kernel/mm/ksm/run; costs: the memory that it merges", looked_at=looked)


def _smt(found: Host) -> Check | None:
    looked = "/sys/devices/system/cpu/smt/active"
    if found.smt is None:
        return None
    if found.smt == "0":
        return fine("host: smt", "off: no two guests share a core at one time", looked_at=looked)
    detail = "on: two guests may share a core at one time, and measure each other through it"
    remedy = "boot with nosmt (or echo off > /sys/devices/system/cpu/smt/control); costs: up to a third of the throughput of full cores"
    return warning("host: smt", detail, remedy, looked_at=looked)


def _nested(found: Host) -> Check | None:
    looked = "/sys/module/kvm_*/parameters/nested"
    if not found.nested:
        return None
    on = [name for name, text in found.nested.items() if text in ("1", "Y")]
    if not on:
        return fine("host: nested KVM", "off: guests reach less of the hypervisor", looked_at=looked)
    remedy = f"options {on[0]} nested=0 in /etc/modprobe.d/kvm.conf; costs: nothing, unless other guests of this host run VMs themselves"
    return warning("host: nested KVM", f"{on[0]} offers it: a part of the hypervisor that sandboxes do not need", remedy, looked_at=looked)


def _vulnerable(found: Host) -> Check | None:
    looked = "/sys/devices/system/cpu/vulnerabilities"
    if not found.vulnerabilities:
        return None
    # "SMT vulnerable" behind a mitigation is what the point of SMT says
    open_ones = [name for name, text in found.vulnerabilities.items() if text.startswith("Vulnerable") or "KVM: Vulnerable" in text]
    if not open_ones:
        return fine("host: processor", f"{len(found.vulnerabilities)} known flaws, mitigated or not its own", looked_at=looked)
    remedy = "boot without mitigations=off, with new microcode and kernel; costs: some percent of the speed of system calls"
    return warning("host: processor", f"not mitigated: {', '.join(open_ones)}", remedy, looked_at=looked)


def _pages(found: Host) -> Check | None:
    looked = "/sys/module/kvm/parameters/nx_huge_pages"
    multihit = found.vulnerabilities.get("itlb_multihit", "")
    if found.hugepages is None or not multihit or multihit.startswith("Not affected"):
        return None
    if found.hugepages not in ("N", "0", "never"):
        return fine("host: huge pages", "KVM makes them not executable: no guest can stop the processor by them", looked_at=looked)
    remedy = "echo force > /sys/module/kvm/parameters/nx_huge_pages; costs: some percent of guests that run from huge pages"
    return warning("host: huge pages", "a guest can stop this processor by executing from them", remedy, looked_at=looked)
