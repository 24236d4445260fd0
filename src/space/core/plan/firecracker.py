"""The plan of one Firecracker: the jailer's command line, and the calls of its API for each operation. Pure.

Firecracker takes paths, and those are of its jail, a directory of the sandbox's own: kernel, initramfs, disk, memory and state are hard
links there. `/api` is the directory of the node's: the API's socket and the vsock's. The names in a snapshot are the same in every jail,
so that a clone finds its own files under them.

Which versions are driven is a table: one is proven when the contract suite has run on it, one that is refused has its reason.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from space.core.plan import machine
from space.core.plan.ruleset import GUEST_MAC, TAP

NAME: Final = "firecracker"  # the accelerator that stands for it: KVM, driven by Firecracker
PROVEN: Final = ("1.12.1",)
OLDEST: Final = (1, 12, 0)
REFUSED: Final = {"1.16.0": "its vsock is dead after a restore; 1.16.1 mends that"}
_VERSION = re.compile(r"^Firecracker v(\d{1,3})\.(\d{1,3})\.(\d{1,3})$", re.MULTILINE)

API: Final = "/api"
API_SOCKET, VSOCK_SOCKET, SERIAL = "api.sock", "v.sock", "serial"
# In the jail, and in the directory that rootd makes for it.
KERNEL, INITRAMFS, DISK, MEMORY, STATE = "kernel", "initramfs", "disk.img", "memory", "state"
TAKEN: Final = "taken"  # a directory: what a snapshot writes
GUEST_CID: Final = 3
CONTROL_PORT, BULK_PORT = 1024, 1025  # the daemon listens there (guest/daemon/src/vsock.rs)
_OPEN_FILES = 256
_DRIVE, _INTERFACE = "root", "eth0"


@dataclass(frozen=True, slots=True)
class Call:
    """A request of the API; a body is JSON."""

    method: str
    path: str
    body: dict[str, Any]

    def line(self) -> str:
        """As a golden has it."""
        return f"{self.method} {self.path} {json.dumps(self.body, sort_keys=True)}"


@dataclass(frozen=True, slots=True)
class Support:
    """What is known of a version. state: `proven`, `untested` or `refused`, with why."""

    version: str
    state: str
    why: str


def version(said: str) -> str:
    """The version out of what `firecracker --version` printed; ValueError when it is none."""
    found = _VERSION.search(said)
    if found is None:
        raise ValueError(f"not the version of a Firecracker: {said[:80]!r}")
    return ".".join(str(int(number)) for number in found.groups())


def support(version: str) -> Support:
    """How that version stands to this driver; ValueError when it is none."""
    major, minor, patch = (int(number) for number in version.split("."))
    if version in REFUSED:
        return Support(version, "refused", REFUSED[version])
    if (major, minor, patch) < OLDEST:
        return Support(
            version, "refused", f"it is older than {'.'.join(map(str, OLDEST))}, from which on its API is the one that is driven"
        )
    if version in PROVEN:
        return Support(version, "proven", "the contract suite runs on it")
    return Support(version, "untested", f"proven is {', '.join(PROVEN)}")


def jailer_argv(jailer: str, binary: str, *, name: str, uid: int, base: str, largest_file: int) -> list[str]:
    """The jailer's command line. Namespaces of process ids and of the network, and the cgroup, are those that it is started in."""
    return [
        jailer,
        *("--id", name, "--exec-file", binary),
        *("--uid", str(uid), "--gid", str(uid)),
        *("--chroot-base-dir", base),
        *("--resource-limit", f"fsize={largest_file}", "--resource-limit", f"no-file={_OPEN_FILES}"),
        *("--", "--api-sock", f"{API}/{API_SOCKET}"),
    ]


def kernel_arguments() -> str:
    """The guest kernel's command line. ACPI stays on: Debian's kernel finds virtio devices by it only. No keyboard is looked for."""
    words = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "no_timer_check", "pci=off"]
    words += ["i8042.noaux", "i8042.nomux", "i8042.nopnp", "i8042.dumbkbd"]
    words += ["space.root=/dev/vda", "space.channel=vsock", f"space.ip={machine.GUEST_ADDRESS}", f"space.gateway={machine.GATEWAY}"]
    return " ".join(words)


def boot(cpus: int, memory_mib: int) -> list[Call]:
    """From an API that has just answered to a guest that boots."""
    return [*devices(cpus, memory_mib), Call("PUT", "/actions", {"action_type": "InstanceStart"})]


def devices(cpus: int, memory_mib: int) -> list[Call]:
    """What makes the machine: the same where a state is saved and where it is loaded."""
    source = {"kernel_image_path": f"/{KERNEL}", "initrd_path": f"/{INITRAMFS}", "boot_args": kernel_arguments()}
    shape = {"vcpu_count": cpus, "mem_size_mib": memory_mib, "smt": False, "track_dirty_pages": False}
    return [
        Call("PUT", "/machine-config", shape),
        Call("PUT", "/boot-source", source),
        Call("PUT", f"/drives/{_DRIVE}", _drive()),
        Call("PUT", f"/network-interfaces/{_INTERFACE}", {"iface_id": _INTERFACE, "guest_mac": GUEST_MAC, "host_dev_name": TAP}),
        Call("PUT", "/vsock", {"guest_cid": GUEST_CID, "uds_path": f"{API}/{VSOCK_SOCKET}"}),
        Call("PUT", "/entropy", {}),
    ]


def load() -> list[Call]:
    """A state and its memory; the machine stands still then. What it writes is tracked, so that a snapshot of it has that alone."""
    backend = {"backend_type": "File", "backend_path": f"/{MEMORY}"}
    # 1.12 knows this name; later releases have `track_dirty_pages` beside it
    return [
        Call(
            "PUT",
            "/snapshot/load",
            {"snapshot_path": f"/{STATE}", "mem_backend": backend, "enable_diff_snapshots": True, "resume_vm": False},
        )
    ]


def pause() -> Call:
    """Stop the vCPUs."""
    return Call("PATCH", "/vm", {"state": "Paused"})


def resume() -> Call:
    """Let them run."""
    return Call("PATCH", "/vm", {"state": "Resumed"})


def create_snapshot(*, diff: bool) -> Call:
    """Of a machine that stands still. diff: only what it wrote since it was loaded."""
    kind = "Diff" if diff else "Full"
    where = {"snapshot_path": f"/{TAKEN}/{STATE}", "mem_file_path": f"/{TAKEN}/{MEMORY}"}
    return Call("PUT", "/snapshot/create", {"snapshot_type": kind, **where})


def show_disk() -> Call:
    """Look at the disk's size again."""
    return Call("PATCH", f"/drives/{_DRIVE}", {"drive_id": _DRIVE, "path_on_host": f"/{DISK}"})


def look() -> Call:
    """What state it is in."""
    return Call("GET", "/", {})


def _drive() -> dict[str, Any]:
    """With the limits that every driver holds a disk to (`machine`): a rate for long, and four times that for ten seconds."""
    burst = (machine.DISK_BURST - 1) * machine.DISK_BURST_SECONDS
    limiter = {
        name: {"size": rate, "one_time_burst": burst * rate, "refill_time": 1000}
        for name, rate in (("bandwidth", machine.DISK_BYTES_PER_SECOND), ("ops", machine.DISK_OPERATIONS_PER_SECOND))
    }
    return {
        "drive_id": _DRIVE,
        "path_on_host": f"/{DISK}",
        "is_root_device": False,  # it would add words to the kernel's command line
        "is_read_only": False,
        "rate_limiter": limiter,
    }
