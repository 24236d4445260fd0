"""The plan of one VMM: QEMU's command line, the guest kernel's, and the limits of the process around it. Pure.

Everything that QEMU uses comes by descriptor, except the kernel and the initramfs: its ELF loader opens a plain path (no
`/dev/fdset`), and there is no /proc in the jail for `/proc/self/fd`. These two are bound into the jail, read-only. Memory that is
a file goes by path as well: for it the jail has the one directory of /proc that shows the VMM its own descriptors.

A machine that goes on from a snapshot has no kernel and no initramfs (only a boot reads them), memory that is a private mapping of
a file, and stands still once it has loaded its state.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

from space.core.plan.ruleset import GUEST_MAC

BINARY: Final = "/usr/bin/qemu-system-x86_64"
FIRMWARE: Final = "/usr/share/qemu"
KERNEL: Final = "/tmp/kernel"  # noqa: S108 (the jail's own /tmp, a read-only tmpfs that holds these two)
INITRAMFS: Final = "/tmp/initramfs"  # noqa: S108

DESCRIPTORS: Final = "/tmp/fd"  # noqa: S108 (the VMM's own descriptors, as names)

TRANSLATION_MIB: Final = 32  # QEMU's default is 1 GiB outside of the guest's memory; at 32 a boot was measured no slower
# What QEMU needs beside guest memory and translation buffer. Measured after booting the base template with 256 MiB, 1 GiB and
# two vCPUs: 19 to 21 MiB (heaps, stacks, firmware). The rest is for the disk's 64 threads, page tables and the cgroup's batches.
SLACK_MIB: Final = 48
VMM_OVERHEAD_MIB: Final = TRANSLATION_MIB + SLACK_MIB  # what a VMM takes beside its guest: admission counts it, the cgroup allows it
# Threads beside the vCPUs: main loop, RCU, and the 64 of the pool for disk requests, with some room.
_THREADS: Final = 96
_CPU_PERIOD_USEC: Final = 100_000

# What one sandbox may ask of the host's disk, for long and, from a full bucket, for ten seconds. Generous: about a third of what a plain
# SATA SSD moves (550 MB/s), and far more operations than a spinning disk has; the rest is its neighbours'.
DISK_BYTES_PER_SECOND: Final = 200_000_000
DISK_OPERATIONS_PER_SECOND: Final = 5_000
DISK_BURST: Final = 4  # times the lasting rate
DISK_BURST_SECONDS: Final = 10

GUEST_ADDRESS: Final = "10.0.0.2/30"
GATEWAY: Final = "10.0.0.1"

DISK_LIMITS: Final = "disk-limits"  # the name of the throttle group in QEMU
DISK_NODE: Final = "limited"  # and of the disk behind it
# No lock: rootd starts one VMM for a disk, and QEMU's probe for the kind of lock wants a /dev/null.
_DISK_FILE: Final = "file.driver=file,file.filename=/dev/fdset/1,file.discard=unmap,file.locking=off"


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The numbers under which the VMM finds what it was given."""

    qmp: int
    control: int
    bulk: int
    serial: int
    disk: int
    tap: int
    memory: int = -1
    state: int = -1


@dataclass(frozen=True, slots=True)
class Machine:
    """One microVM. accelerator: `tcg` or `kvm`. tsc_khz, tsc_sure: the host's rate, for emulation, and whether it is certain.
    restore: go on from a state, do not boot.
    """

    cpus: int
    memory_mib: int
    accelerator: str
    tsc_khz: int
    tsc_sure: bool = False
    restore: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What the cgroup allows one sandbox. cpu_quota_usec is for a period of cpu_period_usec."""

    memory_bytes: int
    pids: int
    cpu_quota_usec: int
    cpu_period_usec: int


def limits(cpus: int, memory_mib: int) -> Limits:
    """The limits of a sandbox's cgroup.

    Memory: guest, translation buffer and slack. CPU: what the guest was promised, and half a processor for the devices,
    whose thread would otherwise be held back by a guest that computes.
    """
    return Limits(
        memory_bytes=(memory_mib + VMM_OVERHEAD_MIB) << 20,
        pids=cpus + _THREADS,
        cpu_quota_usec=cpus * _CPU_PERIOD_USEC + _CPU_PERIOD_USEC // 2,
        cpu_period_usec=_CPU_PERIOD_USEC,
    )


def kernel_arguments(machine: Machine) -> str:
    """The guest kernel's command line.

    Without `tsc_early_khz` every second emulated boot hangs in the calibration of the clock. Under KVM the guest asks the
    host for the frequency, and a figure from /proc/cpuinfo could only be worse. Unless it is told that the rate is right, a guest whose
    ticks come late in its first second takes the counter for broken and goes by ticks alone: a clock that loses time and moves in
    steps of 4 ms, and a timer that wakes an idle guest 250 times a second.
    """
    words = ["console=ttyS0", "quiet", "panic=-1", "mitigations=off", "no_timer_check"]
    if machine.accelerator == "tcg":
        words.append(f"tsc_early_khz={machine.tsc_khz}")
        if machine.tsc_sure:
            words.append("tsc=reliable")
    words += ["space.root=/dev/vda", f"space.ip={GUEST_ADDRESS}", f"space.gateway={GATEWAY}"]
    return " ".join(words)


def qemu_argv(machine: Machine, fds: Descriptors) -> list[str]:
    """QEMU's command line; ValueError for an accelerator that is neither tcg nor kvm."""
    return [
        BINARY,
        *("-L", FIRMWARE),
        *("-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none"),
        # ACPI stays on: Debian's kernel is built without virtio devices on its command line, it finds them by ACPI only
        *("-M", "microvm,rtc=on,memory-backend=ram" if machine.restore else "microvm,rtc=on"),
        *_accelerator(machine.accelerator),
        *("-m", f"{machine.memory_mib}M"),
        *("-smp", str(machine.cpus)),
        *(_origin(machine, fds) if machine.restore else ("-kernel", KERNEL, "-initrd", INITRAMFS, "-append", kernel_arguments(machine))),
        *("-chardev", _listener("qmp", fds.qmp), "-mon", "chardev=qmp,mode=control"),
        *("-chardev", _listener("serial", fds.serial), "-serial", "chardev:serial"),
        *("-device", "virtio-serial-device,max_ports=3"),  # port 0 is the console's
        *("-chardev", _listener("control", fds.control), "-device", "virtserialport,chardev=control,name=space.control,nr=1"),
        *("-chardev", _listener("bulk", fds.bulk), "-device", "virtserialport,chardev=bulk,name=space.bulk,nr=2"),
        *("-add-fd", f"fd={fds.disk},set=1"),
        *("-object", _disk_limits()),
        *("-blockdev", f"driver=raw,node-name=disk,discard=unmap,{_DISK_FILE}"),
        *("-blockdev", f"driver=throttle,node-name={DISK_NODE},discard=unmap,throttle-group={DISK_LIMITS},file=disk"),
        *("-device", f"virtio-blk-device,drive={DISK_NODE}"),
        # QEMU shapes no network device. A TAP that leads nowhere needs no shape; once there is egress, the gateway's worker holds
        # each sandbox to its rate, because all that leaves passes through it.
        *("-netdev", f"tap,id=network,fd={fds.tap},vhost=off"),
        *("-device", f"virtio-net-device,netdev=network,mac={GUEST_MAC}"),
        *("-device", "virtio-rng-device"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
    ]


def cpu(accelerator: str) -> str:
    """QEMU's name of the processor that a guest sees; ValueError for an accelerator that is neither tcg nor kvm."""
    if accelerator not in ("tcg", "kvm"):
        raise ValueError(f"no such accelerator: {accelerator!r}")
    return "max" if accelerator == "tcg" else "host"


def devices(machine: Machine) -> list[str]:
    """The command line as far as it makes devices: what must be the same where a state is saved and where it is loaded."""
    plain = replace(machine, tsc_khz=0, tsc_sure=False, restore=False)
    return qemu_argv(plain, Descriptors(0, 0, 0, 0, 0, 0))


def _accelerator(name: str) -> tuple[str, ...]:
    words = f"tcg,thread=multi,tb-size={TRANSLATION_MIB}" if name == "tcg" else name
    return ("-accel", words, "-cpu", cpu(name))


def _origin(machine: Machine, fds: Descriptors) -> tuple[str, ...]:
    """Memory from a file, of which what the guest writes stays the VMM's own; devices and processors from a state; then stand still.

    `xen-save-devices-state`, which is what saves it, writes no configuration section. The event says when all is loaded.
    """
    memory = f"memory-backend-file,id=ram,size={machine.memory_mib}M,mem-path={DESCRIPTORS}/{fds.memory},share=off"
    return (
        *("-object", memory),
        *("-global", "migration.send-configuration=off", "-global", "migration.x-events=on"),
        *("-incoming", f"fd:{fds.state}", "-S"),
    )


def _disk_limits() -> str:
    limits: dict[str, int] = {}
    for unit, rate in (("bps", DISK_BYTES_PER_SECOND), ("iops", DISK_OPERATIONS_PER_SECOND)):
        limits |= {f"{unit}-total": rate, f"{unit}-total-max": DISK_BURST * rate, f"{unit}-total-max-length": DISK_BURST_SECONDS}
    # as JSON: QEMU 7.2 refuses some of these names when they are written with dots
    return json.dumps({"qom-type": "throttle-group", "id": DISK_LIMITS, "limits": limits})


def _listener(name: str, fd: int) -> str:
    # a listening socket, not a connected one: a node that died can connect again
    return f"socket,id={name},fd={fd},server=on,wait=off"
