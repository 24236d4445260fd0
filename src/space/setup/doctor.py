"""What `space doctor` looks at: facts about this machine, each with a verdict and, where it is not well, a remedy.

Nothing here changes anything but two probe files for the reflink. Without root some facts cannot be seen, and are said so.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from space.config.artefacts import Store
from space.config.instance import DATA_ROOT, RUN_ROOT, instances, is_abandoned
from space.host.cgroups import LEAF
from space.model.errors import SpaceError
from space.model.isolation import EMULATED, isolation
from space.setup import command, deps, runtime, shelf, storage, template
from space.setup.faults import SetupFailed

_SETUP = "run `make setup` in a checkout"
_OLDEST_KERNEL = (5, 15)
_CAPABILITIES = {"CAP_CHOWN": 0, "CAP_SETUID": 7, "CAP_NET_ADMIN": 12, "CAP_SYS_CHROOT": 18, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}
_NAMESPACES = ("mnt", "net", "pid", "ipc", "uts")
_CONTROLLERS = ("memory", "pids", "cpu")
_LEAST_FREE = storage.GIB


@dataclass(frozen=True, slots=True)
class Check:
    """One fact. ok: whether sandboxes can work with it. remedy: what to do, empty when nothing is."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def checks() -> list[Check]:
    """All facts, in the order in which they build on each other; a check that fails to look is a fact too."""
    looks: tuple[Callable[[], Check], ...] = (
        kernel, rights, namespaces, tun, firewall, cgroups, reflinks, space_left, accelerator, artefacts, installed, services, leftovers,
    )  # fmt: skip
    return [guarded(look) for look in looks]


def guarded(look: Callable[[], Check]) -> Check:
    """The check; what kept it from looking becomes one too."""
    try:
        return look()
    except (OSError, ValueError, KeyError, SpaceError) as error:
        return Check(look.__name__.replace("_", " "), ok=False, detail=f"cannot be seen: {error}", remedy="run `space doctor` as root")


def kernel() -> Check:
    """Release and seccomp."""
    release = platform.release()
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    seccomp = "\nSeccomp:" in Path("/proc/self/status").read_text()
    ok = version >= _OLDEST_KERNEL and seccomp and platform.machine() == "x86_64"
    wanted = ".".join(map(str, _OLDEST_KERNEL))
    detail = f"Linux {release} on {platform.machine()}, seccomp {'there' if seccomp else 'missing'}"
    return Check("kernel", ok, detail, "" if ok else f"a kernel of {wanted} or newer with seccomp, on x86_64, is needed")


def rights() -> Check:
    """root's capabilities."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    bits = int(status["CapBnd"], 16)
    lacking = [name for name, bit in _CAPABILITIES.items() if not bits >> bit & 1]
    who = "root" if os.geteuid() == 0 else f"uid {os.geteuid()} (serve and set-up need root)"
    if lacking:
        return Check(
            "rights",
            ok=False,
            detail=f"{who}; not to be had here: {', '.join(lacking)}",
            remedy="use a virtual machine or a privileged container",
        )
    return Check("rights", ok=True, detail=f"{who}, every capability that rootd needs can be had")


def namespaces() -> Check:
    """Kinds of namespaces that the jail uses."""
    lacking = [kind for kind in _NAMESPACES if not Path(f"/proc/self/ns/{kind}").exists()]
    return Check(
        "namespaces",
        not lacking,
        f"missing: {', '.join(lacking)}" if lacking else ", ".join(_NAMESPACES),
        "a kernel with them is needed" if lacking else "",
    )


def tun() -> Check:
    """The device behind every TAP."""
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        return Check("tun", os.geteuid() != 0, "/dev/net/tun is there; whether it opens only root can see")
    except OSError as error:
        return Check("tun", ok=False, detail=f"/dev/net/tun: {error.strerror}", remedy="modprobe tun; " + _SETUP)
    return Check("tun", ok=True, detail="/dev/net/tun opens")


def firewall() -> Check:
    """nftables, asked for its tables."""
    if os.geteuid() != 0:
        found = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin")
        return Check(
            "nftables",
            found is not None,
            "nft is installed; whether the kernel answers only root can see" if found else "there is no nft",
            "" if found else _SETUP,
        )
    try:
        command.run(["nft", "list", "tables"], what="list nftables' tables", timeout=10)
    except SetupFailed as error:
        return Check("nftables", ok=False, detail=error.message, remedy="modprobe nf_tables; " + _SETUP)
    return Check("nftables", ok=True, detail="nft lists its tables")


def cgroups() -> Check:
    """Every controller with the hierarchy that it is in, mounted or not (rootd mounts what is not)."""
    places = {}
    for line in Path("/proc/cgroups").read_text().splitlines()[1:]:
        controller, hierarchy, _, enabled = line.split()
        if controller in _CONTROLLERS:
            places[controller] = "disabled" if enabled == "0" else "v2" if hierarchy == "0" else "v1"
    lacking = [name for name in _CONTROLLERS if places.get(name, "disabled") == "disabled"]
    detail = ", ".join(f"{name} {places.get(name, 'missing')}" for name in _CONTROLLERS)
    return Check("cgroups", not lacking, detail, f"boot with cgroup_enable={','.join(lacking)}" if lacking else "")


def reflinks() -> Check:
    """Whether sandboxes' disks can be reflinks."""
    if not DATA_ROOT.is_dir():
        return Check("storage", ok=False, detail=f"there is no {DATA_ROOT}", remedy=_SETUP)
    if not os.access(DATA_ROOT, os.W_OK):
        return Check("storage", ok=True, detail=f"{DATA_ROOT} is there; whether it has reflinks only root can see")
    found = storage.has_reflinks(DATA_ROOT)
    where = f"loop file {storage.IMAGE}" if storage.backing() else "the host's own file system"
    return Check(
        "storage",
        found,
        f"{DATA_ROOT} on {where}, reflinks {'work' if found else 'do not work'}",
        "" if found else _SETUP + ", or start `space serve`",
    )


def space_left() -> Check:
    """Free bytes below the data directory."""
    facts = os.statvfs(DATA_ROOT if DATA_ROOT.is_dir() else DATA_ROOT.parent)
    free, whole = facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize
    ok = free >= _LEAST_FREE
    detail = f"{free / storage.GIB:.1f} of {whole / storage.GIB:.1f} GiB below {DATA_ROOT}"
    return Check(
        "free space",
        ok,
        detail,
        "" if ok else "delete sandboxes (`space list`), or `make clean` and set up with a larger SPACE_STORAGE_GIB",
    )


def accelerator() -> Check:
    """Which accelerator guests get, and what that is worth: the node decides at the first sandbox and keeps its verdict."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for directory in (RUN_ROOT, *(instance.node_data for instance in instances())):
        try:
            verdict = json.loads((directory / "accelerator.json").read_text())
        except (OSError, ValueError):
            continue
        if verdict.get("boot_id") == boot:
            return Check("isolation", ok=True, detail=f"isolation: {isolation(verdict['accelerator'])}; {verdict['why']}")
    if not Path("/dev/kvm").exists():
        return Check("isolation", ok=True, detail=f"isolation: {EMULATED}; this host has no /dev/kvm")
    return Check("isolation", ok=True, detail="/dev/kvm is there; a probe guest decides when the first sandbox is created")


def artefacts() -> Check:
    """The base template and everything that it names."""
    store = Store(DATA_ROOT / "artefacts")
    manifest = store.template(template.NAME)
    parts = {"kernel": manifest.kernel, "initramfs": manifest.initramfs, "qemu": manifest.qemu, "template": manifest.digest}
    lost = [kind for kind, digest in parts.items() if not store.path(kind, digest).is_dir()]
    detail = f"template {manifest.name}: {manifest.source}, kernel {manifest.kernel_release}"
    return Check("artefacts", not lost, detail if not lost else f"gone: {', '.join(lost)}", _SETUP if lost else "")


def installed() -> Check:
    """The runtime behind `space`."""
    if not runtime.COMMAND.is_symlink() or not runtime.COMMAND.exists():
        return Check("runtime", ok=False, detail=f"{runtime.COMMAND} leads nowhere", remedy=_SETUP)
    place = runtime.COMMAND.resolve().parents[1]
    facts = place.stat()
    ok = facts.st_uid == 0 and not facts.st_mode & 0o222
    return Check(
        "runtime",
        ok,
        f"{place}" + ("" if ok else f" belongs to uid {facts.st_uid} with mode {facts.st_mode & 0o7777:o}"),
        "" if ok else _SETUP,
    )


def services() -> Check:
    """Whether every service's uid can import its package, by doing it where we are root."""
    python = runtime.python()
    if os.geteuid() != 0:
        return Check("services' Python", python.exists(), f"{python}; whether each uid can use it only root can see")
    runtime.prove(python.parents[1], runtime.proofs())
    return Check("services' Python", ok=True, detail=f"{deps.PYTHON} {platform.python_version()}: every uid imports its package")


def leftovers() -> Check:
    """What nobody accounts for: private instances whose serve was killed, stages of a set-up that died, run directories and empty
    cgroups of instances that are gone.

    A cgroup with processes may belong to an instance of another root file system on this kernel.
    """
    here = list(instances())
    known, groups_known = {str(instance.name) for instance in here}, {instance.cgroup for instance in here}
    found = [f"instance {instance.name}, whose serve was killed" for instance in here if is_abandoned(instance)]
    if not storage.is_locked():
        found += [str(stage) for kind in (DATA_ROOT / "artefacts", deps.OPT) for stage in kind.glob(f"**/{shelf.STAGE}*") if kind.is_dir()]
    found += [str(entry) for entry in _entries(RUN_ROOT) if entry.is_dir() and not entry.name.startswith(".") and entry.name not in known]
    empty: set[str] = set()
    for mount in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = mount.partition(" - ")
        if right.startswith("cgroup"):
            groups = [group for group in Path(left.split()[4]).glob("space-*") if group.name not in {*groups_known, LEAF}]
            empty |= {f"cgroup {group.name}" for group in groups if not any(file.read_text() for file in group.glob("**/cgroup.procs"))}
    found += empty
    found.sort()
    return Check(
        "leftovers",
        not found,
        ", ".join(found) if found else "none",
        "`make clean` removes everything; a set-up removes stages and abandoned instances" if found else "",
    )


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []
