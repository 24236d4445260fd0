"""rootd on this machine without the rest of the server: artefacts from the machine's own QEMU, a private instance, its traces.

For tests as root. The instance's data and run directories are below one of the caller's, its uid block is above every block that
`config.instance.claim` hands out, and its name is the caller's: nothing of a real instance is touched.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from space.config.artefacts import TemplateManifest
from space.config.instance import Instance
from space.config.settings import Settings, save_effective
from space.core.plan.outbound import table_of
from space.host import cgroups, syscalls
from space.model.ids import InstanceName, new_sandbox_id
from space.model.rootd import CreateSandbox, StartVmm
from space.rpc.rootd_client import RootdClient
from space.testing import guestkernel
from space.testing.machine import isolated_python

T = TypeVar("T")

STAYS, DIES, SPINS = "a" * 16, "b" * 16, "c" * 16  # templates by what their guest does after a word
DISK_BYTES = 8 << 20
SYNTHETIC = "198.18.0.0/15"
WORD = b"hello"
_FIRMWARE = ("bios-microvm.bin", "pvh.bin", "linuxboot_dma.bin", "kvmvapic.bin")
_FIRST_FREE_BLOCK, _BLOCKS = 1000, 500_000


def build_artefacts(store: Path) -> None:
    """Fill an artefact store: QEMU as it is installed here, and three templates of a few bytes each."""
    _build_qemu(store / "qemu" / STAYS / "root")
    _write(store / "initramfs" / STAYS / "initrd.cpio", b"none")
    for digest, then in ((STAYS, guestkernel.STAY), (DIES, guestkernel.DIE), (SPINS, guestkernel.SPIN)):
        _write(store / "kernel" / digest / "vmlinux", guestkernel.talker(WORD, then))
        disk = store / "template" / digest / "disk.img"
        _write(disk, b"template" * 512)
        os.truncate(disk, DISK_BYTES)
        TemplateManifest("test", digest, digest, STAYS, STAYS, DISK_BYTES, 1, "none", "test").save(disk.with_name("manifest.json"))
    for path in (store, *store.rglob("*")):
        path.chmod(0o755)


def _build_qemu(root: Path) -> None:
    for directory in ("dev", "proc", "tmp"):
        (root / directory).mkdir(parents=True)
    for program in (Path("/usr/bin/qemu-system-x86_64"), *Path("/usr/lib").glob("*/qemu/accel-tcg-x86_64.so")):
        _copy(program, root)
        listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+\.so\S*)", listing):
            _copy(Path(library), root)
    for name in _FIRMWARE:
        _copy(Path("/usr/share/qemu") / name, root)


def _copy(source: Path, root: Path) -> None:
    target = root / str(source).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source.resolve(), target)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def make_instance(name: str, root: Path, artefacts: Path, block: int) -> Instance:
    """An instance whose directories are below `root`. block: another one for each that lives at the same time."""
    instance = Instance(InstanceName(name), _FIRST_FREE_BLOCK + block % _BLOCKS, root / "d", root / "r")
    for directory in (instance.data, instance.run, instance.sandboxes):
        directory.mkdir(parents=True)
    (instance.data / "instance.json").write_text(json.dumps({"name": name, "index": instance.index}))
    save_effective(instance, Settings(port=0))
    if not instance.artefacts.exists():
        instance.artefacts.symlink_to(artefacts)
    return instance


class RootHost:
    """An instance and its rootd, which the caller starts, stops and kills."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.log = instance.run_root / f"{instance.name}.log"
        self.rootd: subprocess.Popen[bytes] | None = None
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(instance.rootd_socket))
        self.listener.listen(64)
        os.chown(instance.rootd_socket, 0, instance.node_uid)
        instance.rootd_socket.chmod(0o660)
        # what rootd leaves behind when it dies is ours to reap, as it is serve's in the product
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)

    def start_rootd(self, *prefix: str, program: tuple[str, ...] = ("-m", "space.rootd.server")) -> None:
        """Return when it has said that it is ready. prefix: a command that starts it. program: what Python runs."""
        reader, writer = os.pipe()
        number, instance = self.listener.fileno(), self.instance
        command = [*prefix, isolated_python(), "-I", *program, "--instance", instance.name, "--listen-fd", str(number)]
        command += ["--ready-fd", str(writer), "--data-root", str(instance.data_root), "--run-root", str(instance.run_root)]
        with self.log.open("ab") as log:
            self.rootd = subprocess.Popen(
                command, pass_fds=(number, writer), stdin=subprocess.DEVNULL, stderr=log, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
            )
        os.close(writer)
        with os.fdopen(reader, "rb") as ready:
            assert ready.read() == b"ready\n", self.log.read_text()

    def stop_rootd(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it with a signal; its status."""
        assert self.rootd is not None
        self.rootd.send_signal(number)
        status = self.rootd.wait(10)
        self.rootd = None
        return status

    def ask(self, work: Callable[[RootdClient], Awaitable[T]]) -> T:
        """Run `work` with a client of its own."""

        async def run() -> T:
            client = RootdClient(self.instance.rootd_socket)
            try:
                return await work(client)
            finally:
                await client.aclose()

        return asyncio.run(run())

    def prepare(self, slot: int = 0, template: str = STAYS, snapshot: str = "", **shape: int) -> CreateSandbox:
        """A slot and a sandbox in it, not started."""
        fields = {"disk_mib": 16, "memory_mib": 64, "cpus": 1} | shape
        request = CreateSandbox(new_sandbox_id(), 1, slot, template, fields["disk_mib"], fields["memory_mib"], fields["cpus"], snapshot)

        async def work(client: RootdClient) -> None:
            (await client.create_edge(slot, SYNTHETIC, literal=False)).close()
            await client.create_sandbox(request)

        self.ask(work)
        return request

    def start(self, request: CreateSandbox, accelerator: str = "tcg") -> int:
        """Start its VMM: a pidfd."""
        return self.ask(lambda client: client.start_vmm(StartVmm(request.sandbox, request.generation, accelerator)))

    def record(self, request: CreateSandbox) -> dict[str, Any]:
        """Root's record of a sandbox."""
        found: dict[str, Any] = json.loads((self.instance.sandboxes / request.sandbox / "sandbox.json").read_text())
        return found

    def socket(self, request: CreateSandbox, name: str) -> socket.socket:
        """A connection to one of the VM's sockets."""
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.settimeout(20)
        channel.connect(str(self.instance.vm_run(request.sandbox) / f"{name}.sock"))
        return channel

    def talk(self, request: CreateSandbox) -> bytes:
        """Ask the guest for its word over the serial port."""
        with self.socket(request, "serial") as serial:
            serial.sendall(b"?")
            heard = b""
            while len(heard) < len(WORD) and (more := serial.recv(64)):
                heard += more
            return heard

    def tree(self) -> cgroups.Tree:
        """The instance's cgroup."""
        return cgroups.Tree(cgroups.find(self.instance.run_root / ".cgroup"), self.instance.cgroup)

    def traces(self) -> list[str]:
        """Everything of the instance that is on the host, beside its data directory."""
        _reap()
        instance = self.instance
        found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {instance.run}/" in line]
        found += [str(path) for path in self.tree().directories() if path.exists()]
        found += [str(path) for path in (instance.run, instance.sandboxes) if path.exists()]
        tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False).stdout.splitlines()
        found += [line for line in tables if line == f"table inet {table_of(instance.dialer_uid)}"]
        for entry in Path("/proc").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                if entry.name.isdigit() and entry.stat().st_uid in instance.uid_range:
                    found.append((entry / "stat").read_text())
        return found


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
