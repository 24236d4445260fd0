"""A guest booted by a plain script with the same files: no jail, no cgroup, no namespace, no server. The floor of `start`.

The same QEMU, kernel, initramfs, template and device model; only the network card's other end is nothing instead of a TAP.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from space.bench.wire import Wire
from space.config.artefacts import Store, TemplateManifest
from space.config.instance import DATA_ROOT
from space.core.plan import machine
from space.host import clockrate, syscalls
from space.model.errors import DeadlineExceeded, SpaceError

_BOOT = 60.0
_NAMES = ("qmp", "control", "bulk", "serial")


@contextmanager
def booted(accelerator: str, *, memory_mib: int = 512, disk_mib: int = 2048) -> Iterator[Wire]:
    """A configured guest of the base template, ended with the block."""
    with running(accelerator, memory_mib=memory_mib, disk_mib=disk_mib) as guest, ExitStack() as stack:
        wire = Wire(*guest.connect())
        stack.callback(wire.close)
        try:
            wire.greet(_BOOT)
        except (SpaceError, OSError) as error:
            error.add_note(f"QEMU said: {guest.said()}")
            raise
        wire.configure("bare")
        yield wire


class Running:
    """A QEMU whose guest boots or has booted. Its channel takes one connection after the other."""

    def __init__(self, directory: Path, stderr: IO[bytes]) -> None:
        self._directory = directory
        self._stderr = stderr

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Sockets of the control and the bulk pipe."""
        return _connect(self._directory / "control"), _connect(self._directory / "bulk")

    def said(self) -> str:
        """What QEMU wrote on its standard error."""
        self._stderr.seek(0)
        return self._stderr.read(2000).decode(errors="replace")


@contextmanager
def running(accelerator: str, *, memory_mib: int = 512, disk_mib: int = 2048) -> Iterator[Running]:
    """A guest of the base template that nobody has spoken to, ended with the block."""
    store = Store(DATA_ROOT / "artefacts")
    manifest = store.template("base")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=DATA_ROOT)))
        listeners = [stack.enter_context(_listen(directory / name)) for name in _NAMES]
        disk = _disk(store.path("template", manifest.digest) / "disk.img", directory / "disk.img", disk_mib)
        stack.callback(os.close, disk)
        said = stack.enter_context((directory / "stderr").open("w+b"))
        process = _start(store, manifest, accelerator, memory_mib, [*(each.fileno() for each in listeners), disk], said.fileno())
        stack.callback(_end, process)
        for listener in listeners:
            listener.close()
        # Somebody has to take what the guest writes on its console.
        console = stack.enter_context(_connect(directory / "serial"))
        drain = subprocess.Popen(["cat"], stdin=console.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(_end, drain)
        yield Running(directory, said)


def _start(
    store: Store, manifest: TemplateManifest, accelerator: str, memory_mib: int, given: list[int], stderr: int
) -> subprocess.Popen[bytes]:
    root = store.path("qemu", manifest.qemu) / "root"
    plan = machine.Machine(1, memory_mib, accelerator, *clockrate.tsc())
    argv = machine.qemu_argv(plan, machine.Descriptors(given[0], given[1], given[2], given[3], given[4], 0))
    paths = {
        machine.BINARY: str(root) + machine.BINARY,
        machine.FIRMWARE: str(root) + machine.FIRMWARE,
        machine.KERNEL: str(store.path("kernel", manifest.kernel) / "vmlinux"),
        machine.INITRAMFS: str(store.path("initramfs", manifest.initramfs) / "initrd.cpio"),
        f"tap,id=network,fd={0},vhost=off": "hubport,id=network,hubid=0",
    }
    loader, libraries = root / "lib64/ld-linux-x86-64.so.2", root / "usr/lib/x86_64-linux-gnu"
    words = [str(loader), "--library-path", f"{libraries}:{root / 'lib/x86_64-linux-gnu'}", *(paths.get(word, word) for word in argv)]
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=given,
        env={"QEMU_MODULE_DIR": str(libraries / "qemu")},
    )


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)
    return listener


def _connect(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(str(path))
    return link


def _disk(template: Path, path: Path, size_mib: int) -> int:
    source = os.open(template, os.O_RDONLY | os.O_CLOEXEC)
    target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        syscalls.reflink(source, target)
        os.ftruncate(target, max(size_mib << 20, os.fstat(target).st_size))
    finally:
        os.close(source)
    return target


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded("the bare guest's QEMU does not end") from None


def boot_to_first_exec(accelerator: str) -> tuple[float, float]:
    """Seconds from nothing to a configured guest, and to the end of a first command in it."""
    begun = time.monotonic()
    with booted(accelerator) as wire:
        configured = time.monotonic() - begun
        wire.run(["true"])
        return configured, time.monotonic() - begun
