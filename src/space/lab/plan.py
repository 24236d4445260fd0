"""The level-1 machine's command line. Pure.

What its words cost or save was measured: an ELF kernel and a plain initramfs 1 to 1.7 s each; `tsc=reliable`, for without it the clock
becomes the kernel's ticks; `tsc_early_khz`, without which it does not boot; one processor, for two are no faster and less calm.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MEMORY_MIB: Final = 2560
CPU: Final = "EPYC"  # has `svm`, which QEMU emulates
DATA, SOURCE = "data", "source"  # serial numbers of the disks: the guest tells them apart by these
SOURCE_BYTES: Final = 64 << 20  # of the disk that is a tar file of the checkout: the size is part of the saved state


@dataclass(frozen=True, slots=True)
class Files:
    """What it is made of. directory: where its sockets are. memory: the file that is its RAM."""

    directory: Path
    kernel: Path
    initramfs: Path
    memory: Path
    root: Path
    data: Path
    source: Path


def argv(files: Files, tsc_khz: int, *, saved: bool) -> list[str]:
    """saved: it goes on from a state, with its memory and its disks as they were; what it writes is its own, and is dropped with it."""
    words = ("console=ttyS0", "quiet", "panic=-1", "mitigations=off", "no_timer_check", "nokaslr", "tsc=reliable", "space.root=/dev/vda")
    kernel = " ".join((*words, f"tsc_early_khz={tsc_khz}", f"lpj={4 * tsc_khz}"))
    kept = "on" if saved else "off"
    return [
        "qemu-system-x86_64",
        *("-M", "microvm,rtc=on,memory-backend=ram", "-accel", "tcg,thread=multi", "-cpu", CPU, "-smp", "1", "-m", str(MEMORY_MIB)),
        *("-object", f"memory-backend-file,id=ram,size={MEMORY_MIB}M,mem-path={files.memory},share={'off' if saved else 'on'}"),
        *("-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-serial", f"file:{files.directory}/console"),
        *("-kernel", str(files.kernel), "-initrd", str(files.initramfs), "-append", kernel),
        *("-qmp", f"unix:{files.directory}/qmp,server=on,wait=off"),
        *_disk("root", files.root, kept),
        *_disk(DATA, files.data, "on"),
        *_disk(SOURCE, files.source, "on"),
        *("-device", "virtio-serial-device,max_ports=3"),
        *_port("control", 1, files.directory),
        *_port("bulk", 2, files.directory),
        *("-device", "virtio-rng-device"),
        *(("-incoming", "defer") if saved else ()),
    ]


def _disk(name: str, path: Path, dropped: str) -> tuple[str, ...]:
    drive = f"file={path},if=none,id={name},format=raw,snapshot={dropped}"
    return ("-drive", drive, "-device", f"virtio-blk-device,drive={name},serial={name}")


def _port(name: str, number: int, directory: Path) -> tuple[str, ...]:
    socket = f"socket,id={name},path={directory}/{name},server=on,wait=off"
    return ("-chardev", socket, "-device", f"virtserialport,chardev={name},name=space.{name},nr={number}")


def prepare() -> str:
    """Once, before it is saved: KVM and what else the product asks of a host's kernel."""
    # `modprobe` without udev; a VMM's first nft call would else wait 2 s for these
    modules = "kvm-amd tun loop btrfs nft_reject_ipv4 nft_reject_inet nft_tproxy nft_socket nft_ct nft_limit nft_fib_inet veth"
    return f"""set -ex
modprobe -a {modules}
test -c /dev/kvm
ip link set lo up
nft list ruleset
python3 -c 'import asyncio, json, ssl'
"""


def enter() -> str:
    """After each restore: the disks are where the product and its tests look for them."""
    return f"""set -e
for disk in /sys/block/vd*; do
    case $(cat $disk/serial) in {DATA}) data=/dev/${{disk##*/}};; {SOURCE}) source=/dev/${{disk##*/}};; esac
done
mkdir -p /var/lib/space /src
mount $data /var/lib/space
tar -xf $source -C /src
printf '/src/src\\n/var/lib/space/site\\n' > /usr/local/lib/python3.11/dist-packages/space.pth
"""
