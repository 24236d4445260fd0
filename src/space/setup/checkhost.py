"""What doctor looks at of the host: for each fact a probe (`see_...`), which decides nothing, and a judge, which looks at nothing.

Probes change nothing; what only root can see is None for others.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from space.host import syscalls
from space.model.isolation import EMULATED, isolation
from space.setup import command, kvmprobe
from space.setup.checkup import Check, failure, fine, warning
from space.setup.faults import SetupFailed

SETUP = "run `make setup` in a checkout"
OLDEST_KERNEL = (5, 15)
CAPABILITIES = {"CAP_CHOWN": 0, "CAP_SETUID": 7, "CAP_NET_ADMIN": 12, "CAP_SYS_CHROOT": 18, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}
NAMESPACES = ("mnt", "net", "pid", "ipc", "uts")
CONTROLLERS = ("memory", "pids", "cpu")
_FLAGS = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
_FILES_A_SANDBOX, _FILES_BESIDE = 8, 512  # monitor, console, two pipes, pidfd, streams; listeners, database, log
_BUILT = 1_735_689_600  # 2025-01-01: no clock that runs this code is earlier
_TIME_ERROR = 5


@dataclass(frozen=True, slots=True)
class Kernel:
    """release as uname has it."""

    release: str
    machine: str
    seccomp: bool


def see_kernel() -> Kernel:
    """The running kernel."""
    return Kernel(platform.release(), platform.machine(), "\nSeccomp:" in Path("/proc/self/status").read_text())


def judge_kernel(found: Kernel) -> Check:
    """New enough, with seccomp, on a machine that there are guests for."""
    version = tuple(int("".join(filter(str.isdigit, part)) or "0") for part in found.release.split("-")[0].split(".")[:2])
    detail = f"Linux {found.release} on {found.machine}, seccomp {'there' if found.seccomp else 'missing'}"
    if version >= OLDEST_KERNEL and found.seccomp and found.machine == "x86_64":
        return fine("kernel", detail, looked_at="uname, /proc/self/status")
    wanted = ".".join(map(str, OLDEST_KERNEL))
    return failure(
        "kernel", detail, f"a kernel of {wanted} or newer with seccomp, on x86_64, is needed", looked_at="uname, /proc/self/status"
    )


@dataclass(frozen=True, slots=True)
class Rights:
    """bounding: the capability bounding set."""

    uid: int
    bounding: int


def see_rights() -> Rights:
    """Of this process, and so of a serve that is started like it."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return Rights(os.geteuid(), int(status["CapBnd"], 16))


def judge_rights(found: Rights) -> Check:
    """Every capability that rootd needs can be had."""
    lacking = [name for name, bit in CAPABILITIES.items() if not found.bounding >> bit & 1]
    who = "root" if found.uid == 0 else f"uid {found.uid} (serve and set-up need root)"
    if lacking:
        return failure(
            "rights",
            f"{who}; not to be had here: {', '.join(lacking)}",
            "use a virtual machine or a privileged container",
            looked_at="the capability bounding set",
        )
    return fine("rights", f"{who}, every capability that rootd needs can be had", looked_at="the capability bounding set")


@dataclass(frozen=True, slots=True)
class Namespaces:
    """made: None when all could be made, else why not; False when that was not tried."""

    there: frozenset[str]
    made: str | bool | None


def see_namespaces() -> Namespaces:
    """By making them, in a child that ends at once."""
    there = frozenset(kind for kind in NAMESPACES if Path(f"/proc/self/ns/{kind}").exists())
    if os.geteuid() != 0:
        return Namespaces(there, False)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            syscalls.unshare(_FLAGS)
            os.write(writer, b"ok")
        except OSError as error:
            os.write(writer, (error.strerror or "?").encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    os.waitpid(child, 0)
    return Namespaces(there, None if said == "ok" else said or "the process that tried it died")


def judge_namespaces(found: Namespaces) -> Check:
    """The kinds that the jail uses."""
    lacking = [kind for kind in NAMESPACES if kind not in found.there]
    where = "/proc/self/ns" if found.made is False else "unshare(2)"
    if lacking:
        return failure("namespaces", f"missing: {', '.join(lacking)}", "a kernel with them is needed", looked_at=where)
    if isinstance(found.made, str):
        return failure(
            "namespaces",
            f"they cannot be made: {found.made}",
            "raise the user.max_*_namespaces of sysctl; a container must allow unshare",
            looked_at=where,
        )
    seen = "; whether they can be made only root can see" if found.made is False else ""
    return fine("namespaces", ", ".join(NAMESPACES) + seen, looked_at=where)


@dataclass(frozen=True, slots=True)
class Tun:
    """error: why the device does not open, None when it does; hidden: whether only root can see that."""

    error: str | None
    hidden: bool = False


def see_tun() -> Tun:
    """By opening it."""
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError as error:
        return Tun(error.strerror, hidden=os.geteuid() != 0)
    except OSError as error:
        return Tun(error.strerror)
    return Tun(None)


def judge_tun(found: Tun) -> Check:
    """The device behind every TAP."""
    if found.error is None:
        return fine("tun", "/dev/net/tun opens", looked_at="/dev/net/tun")
    if found.hidden:
        return fine("tun", "/dev/net/tun is there; whether it opens only root can see", looked_at="/dev/net/tun")
    return failure("tun", f"/dev/net/tun: {found.error}", "modprobe tun; " + SETUP, looked_at="/dev/net/tun")


@dataclass(frozen=True, slots=True)
class Firewall:
    """error: what nft said, "" when all was well, None when it was not asked."""

    installed: bool
    error: str | None


def see_firewall() -> Firewall:
    """By asking nft for its tables."""
    installed = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") is not None
    if os.geteuid() != 0 or not installed:
        return Firewall(installed, None)
    try:
        command.run(["nft", "list", "tables"], what="list nftables' tables", timeout=10)
    except SetupFailed as error:
        return Firewall(installed, error.message)
    return Firewall(installed, "")


def judge_firewall(found: Firewall) -> Check:
    """nftables: without it a slot has no ruleset, and there is none."""
    if not found.installed:
        return failure("nftables", "there is no nft", SETUP, looked_at="the nft program")
    if found.error:
        return failure("nftables", found.error, "modprobe nf_tables; " + SETUP, looked_at="nft list tables")
    said = "nft lists its tables" if found.error == "" else "nft is installed; whether the kernel answers only root can see"
    return fine("nftables", said, looked_at="nft list tables" if found.error == "" else "the nft program")


def see_cgroups() -> dict[str, str]:
    """Each needed controller: `v1`, `v2`, or `disabled`; those that the kernel does not have are left out."""
    places = {}
    for line in Path("/proc/cgroups").read_text().splitlines()[1:]:
        controller, hierarchy, _, enabled = line.split()
        if controller in CONTROLLERS:
            places[controller] = "disabled" if enabled == "0" else "v2" if hierarchy == "0" else "v1"
    return places


def judge_cgroups(places: dict[str, str]) -> Check:
    """Mounted or not: rootd mounts what is not."""
    lacking = [name for name in CONTROLLERS if places.get(name, "disabled") == "disabled"]
    detail = ", ".join(f"{name} {places.get(name, 'missing')}" for name in CONTROLLERS)
    if lacking:
        return failure("cgroups", detail, f"boot with cgroup_enable={','.join(lacking)}", looked_at="/proc/cgroups")
    kinds = set(places.values())
    return fine("cgroups", detail, looked_at="/proc/cgroups", chosen="both hierarchies" if len(kinds) > 1 else f"cgroup {kinds.pop()}")


@dataclass(frozen=True, slots=True)
class Kvm:
    """ran: None when KVM ran an instruction, else why not. verdict: the node's, of this boot: (accelerator, why).

    hidden: the device is not ours to open, and whether it runs code only root can see.
    """

    there: bool
    ran: str | None
    setting: str
    verdict: tuple[str, str] | None
    hidden: bool = False

    @property
    def is_used(self) -> bool:
        """Whether guests run under it, as far as is known."""
        if self.setting != "auto":
            return self.setting != "tcg"
        return self.verdict[0] != "tcg" if self.verdict is not None else self.there and self.ran is None and not self.hidden


def see_kvm(setting: str, verdict: tuple[str, str] | None) -> Kvm:
    """By having it run an instruction."""
    there = Path(kvmprobe.DEVICE).exists()
    hidden = there and os.geteuid() != 0 and not os.access(kvmprobe.DEVICE, os.R_OK | os.W_OK)
    return Kvm(there, kvmprobe.probe() if there and not hidden else None, setting, verdict, hidden)


def judge_kvm(found: Kvm) -> Check:
    """Which accelerator guests get, and what that is worth. A guest that the node booted knows better than an instruction."""
    looked = f"{kvmprobe.DEVICE}, by running an instruction" if found.there else kvmprobe.DEVICE
    state = f"{kvmprobe.DEVICE} runs code" if found.ran is None else f"{kvmprobe.DEVICE} is there and not usable: {found.ran}"
    usable = found.there and found.ran is None
    if found.hidden and found.verdict is None:
        chosen = found.setting
        return fine("isolation", f"{kvmprobe.DEVICE} is there; whether it runs code only root can see", looked_at=looked, chosen=chosen)
    if found.setting in ("kvm", "firecracker") and not usable:
        fact = state if found.there else f"this host has no {kvmprobe.DEVICE}"
        return failure(
            "isolation",
            f"the setting accelerator is {found.setting}, and {fact}",
            "enable virtualization in the firmware (nested, in a virtual machine), or set accelerator = auto",
            looked_at=looked,
        )
    if found.setting != "auto":
        return fine("isolation", f"isolation: {isolation(found.setting)}; the operator set it", looked_at=looked, chosen=found.setting)
    if found.verdict is not None:
        accelerator, why = found.verdict
        detail = f"isolation: {isolation(accelerator)}; {why}"
        if accelerator == "tcg" and found.there:
            return warning(
                "isolation",
                f"{detail}; {state}",
                "where KVM should work, look at the firmware's and the hypervisor's settings; development works without",
                looked_at=f"{looked}; the node's verdict of this boot",
                chosen=accelerator,
            )
        return fine("isolation", detail, looked_at="the node's verdict of this boot", chosen=accelerator)
    if not found.there:
        return fine("isolation", f"isolation: {EMULATED}; this host has no {kvmprobe.DEVICE}", looked_at=looked, chosen="tcg")
    if not usable:
        return warning("isolation", f"isolation: {EMULATED}; {state}", "development works without it", looked_at=looked, chosen="tcg")
    return fine("isolation", f"{state}; a probe guest decides when the first sandbox is created", looked_at=looked, chosen="auto")


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB. budget: what sandboxes may take together."""

    total: int
    available: int
    budget: int
    set_by_operator: bool


def see_memory(budget: int, *, set_by_operator: bool) -> Memory:
    """What the kernel says."""
    facts = {line.split(":")[0]: int(line.split()[1]) >> 10 for line in Path("/proc/meminfo").read_text().splitlines()}
    return Memory(facts["MemTotal"], facts["MemAvailable"], budget, set_by_operator)


def judge_memory(found: Memory) -> Check:
    """Memory against the setting."""
    detail = f"{found.available} of {found.total} MiB are free, sandboxes may take {found.budget}"
    looked = "/proc/meminfo, setting memory_mib"
    if found.budget < 256:
        return failure("memory", detail, "one sandbox takes 256 MiB at least: use a larger machine", looked_at=looked)
    if found.set_by_operator and found.budget > found.total * 95 // 100:
        return warning("memory", detail, "lower memory_mib: the host kills a VM when it has no memory left", looked_at=looked)
    if found.available < 512:
        return warning("memory", detail, "end what else takes memory, or delete sandboxes (`space list`)", looked_at=looked)
    return fine("memory", detail, looked_at=looked)


@dataclass(frozen=True, slots=True)
class Clock:
    """synchronised: None when the kernel does not say."""

    now: float
    synchronised: bool | None


def see_clock() -> Clock:
    """adjtimex(2) with no change asked for."""
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    return Clock(time.time(), None if state < 0 else state != _TIME_ERROR)


def judge_clock(found: Clock) -> Check:
    """Guests take the host's clock, certificates and keys are judged by it."""
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(found.now))
    if found.now < _BUILT:
        return failure("time", f"the clock says {day}", "set it", looked_at="clock_gettime, adjtimex")
    if found.synchronised is False:
        return warning(
            "time",
            f"{day}; the clock is not synchronised",
            "run an NTP client (systemd-timesyncd, chrony): guests take their time from here",
            looked_at="clock_gettime, adjtimex",
        )
    said = "" if found.synchronised is None else "; the clock is synchronised"
    return fine("time", f"{day}{said}", looked_at="clock_gettime, adjtimex")


@dataclass(frozen=True, slots=True)
class Limits:
    """files: what a process may open at most; files_left: what the whole system has left; slots: namespaces that may be made."""

    sandboxes: int
    files: int
    files_left: int
    processes: int
    slots: int


def see_limits(sandboxes: int) -> Limits:
    """Of the kernel and this process."""

    def number(name: str, missing: int) -> int:
        path = Path("/proc/sys") / name
        return int(path.read_text().split()[0]) if path.exists() else missing

    used = int(Path("/proc/sys/fs/file-nr").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1 << 31
    return Limits(
        sandboxes,
        most if hard == resource.RLIM_INFINITY else hard,
        number("fs/file-max", most) - used,
        min(number("kernel/pid_max", most), number("kernel/threads-max", most)),
        number("user/max_net_namespaces", most),
    )


def judge_limits(found: Limits) -> Check:
    """Room for max_sandboxes."""
    need = found.sandboxes * _FILES_A_SANDBOX + _FILES_BESIDE
    short = [
        words
        for words, has, wants in (
            (f"a process may open {found.files} files (ulimit -Hn), {need} are needed", found.files, need),
            (f"{found.files_left} open files are left on the system (fs.file-max), {need * 2} are needed", found.files_left, need * 2),
            (f"{found.processes} processes at most (kernel.pid_max, threads-max)", found.processes, found.sandboxes * 16 + 1024),
            (f"{found.slots} network namespaces at most (user.max_net_namespaces)", found.slots, found.sandboxes + 8),
        )
        if has < wants
    ]
    looked = "RLIMIT_NOFILE, fs.file-max, kernel.pid_max, user.max_net_namespaces"
    if short:
        remedy = "raise the limit, or lower max_sandboxes"
        return warning("limits", f"for {found.sandboxes} sandboxes: {'; '.join(short)}", remedy, looked_at=looked)
    return fine("limits", f"room for {found.sandboxes} sandboxes: {found.files} open files a process", looked_at=looked)
