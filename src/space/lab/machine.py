"""The level-1 machine: booted once and saved, restored for each use.

    booted -> prepared -> stopped -> device state written -> ended        (its memory is a file, its disks are files)
    restored -> told the time -> the checkout unpacked -> used -> killed   (what it wrote goes with it)

The guest's daemon is its PID 1, so it is spoken to as any guest. Nothing runs in a VM of its own when it is saved: a state that was saved
while a level-2 processor ran cannot be restored.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from space.core.wire import guest
from space.host import clockrate
from space.lab import plan
from space.model.errors import Internal, SandboxDied
from space.node.vmm.qmp import Qmp
from space.rpc.session import Data, Session

_BOOT, _RESTORE = 120.0, 30.0  # seconds; 3 and 0.4 were measured
_LIFE = 1  # it is one machine, however often it is restored: it needs no identity of its own
_IGNORE_SHARED = [{"capability": "x-ignore-shared", "state": True}]


@dataclass(frozen=True, slots=True)
class Saved:
    """A machine that was saved: its files in a directory of its own, and what it boots."""

    directory: Path
    kernel: Path
    initramfs: Path
    data: Path

    @property
    def state(self) -> Path:
        """What QEMU says of devices and processors."""
        return self.directory / "state"

    def files(self, run: Path, source: Path) -> plan.Files:
        """With sockets in `run`."""
        return plan.Files(run, self.kernel, self.initramfs, self.directory / "memory", self.directory / "root.ext4", self.data, source)


class Level1:
    """One that runs. Made by `restored`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def run(self, command: str, write: Callable[[bytes], None]) -> int:
        """A shell command, as root; its output as it comes, standard error too. Its status."""
        environment = [(b"PATH", b"/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), (b"PYTHONDONTWRITEBYTECODE", b"1")]
        request = guest.Exec(
            argv=[b"/bin/sh", b"-c", command.encode()], cwd=b"/", env=environment, user="root", timeout_ms=None,
            stdin=False, pty=None, keep=None,
        )  # fmt: skip
        stream, status = await self._session.open("exec", request, finish=True), 1
        async for event in stream:
            if isinstance(event, Data):
                write(bytes(event.payload))
            else:
                said = msgspec.msgpack.decode(event.payload)
                if said.get("t") == "exited":
                    status = said["code"] if said["code"] is not None else 128 + said["signal"]
        return int(status)


async def build(saved: Saved) -> None:
    """Boot it, prepare it, save it; the directory holds the root disk already."""
    with tempfile.TemporaryDirectory(prefix="space-lab-") as run:
        source = Path(run) / "source.tar"
        source.touch()
        os.truncate(source, plan.SOURCE_BYTES)
        async with _running(saved.files(Path(run), source), saved=False) as (qmp, session):
            level1, said = Level1(session), bytearray()
            if await level1.run(plan.prepare(), said.extend):
                raise Internal(f"the lab's machine could not be prepared: {said[-500:].decode(errors='replace')}")
            guest.expect(guest.Done, await session.call("prepare_snapshot", guest.PrepareSnapshot(drop_caches=False)))
            await session.aclose()
            await qmp.execute("stop")
            await qmp.execute("migrate-set-capabilities", capabilities=_IGNORE_SHARED)
            await qmp.execute("migrate", uri=f"exec:cat > {saved.state}")
            while (status := (await qmp.execute("query-migrate")).get("status")) != "completed":
                if status == "failed":
                    raise Internal("the lab's machine could not be saved")
                await asyncio.sleep(0.01)


@asynccontextmanager
async def restored(saved: Saved, source: Path) -> AsyncIterator[Level1]:
    """One that goes on from the saved state, with the checkout `source` in it; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="space-lab-") as directory:
        run = Path(directory)
        archive = _archive(source, run / "source.tar")
        async with _running(saved.files(run, archive), saved=True, state=saved.state) as (_, session):
            level1, said = Level1(session), bytearray()
            if await level1.run(plan.enter(), said.extend):
                raise Internal(f"the lab's machine could not be entered: {said[-500:].decode(errors='replace')}")
            yield level1
            await session.aclose()


@asynccontextmanager
async def _running(files: plan.Files, *, saved: bool, state: Path | None = None) -> AsyncIterator[tuple[Qmp, Session]]:
    async with AsyncExitStack() as stack:
        await _start(files, stack, saved=saved)
        qmp = await Qmp.open(await _connected(files.directory / "qmp"))
        stack.push_async_callback(qmp.aclose)
        if state is not None:
            await qmp.execute("migrate-set-capabilities", capabilities=_IGNORE_SHARED)
            await qmp.execute("migrate-incoming", uri=f"exec:cat {state}")
            while (await qmp.execute("query-status")).get("status") == "inmigrate":  # noqa: ASYNC110 (QEMU is asked)
                await asyncio.sleep(0.005)
            await qmp.execute("cont")
        async with asyncio.timeout(_RESTORE if saved else _BOOT):
            pipes = [await _connected(files.directory / name) for name in ("control", "bulk")]
            session = await Session.open_guest(pipes[0], pipes[1], _LIFE, reconnect=True)
            stack.push_async_callback(session.aclose)
            # the time above all: it goes on from the moment of the save
            request = guest.Configure(time.time_ns(), os.urandom(64), "lab", [], _LIFE)
            guest.expect(guest.Configured, await session.call("configure", request))
        yield qmp, session


async def _start(files: plan.Files, stack: AsyncExitStack, *, saved: bool) -> None:
    khz, _ = clockrate.tsc()
    with (files.directory / "output").open("wb") as output:
        process = subprocess.Popen(plan.argv(files, khz, saved=saved), stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: ASYNC220 (once)
    stack.callback(process.wait)
    stack.callback(process.send_signal, signal.SIGKILL)
    until = time.monotonic() + _RESTORE
    while not (files.directory / "control").exists() or not (files.directory / "bulk").exists():
        if process.poll() is not None or time.monotonic() > until:
            said = (files.directory / "output").read_text(errors="replace")
            lines = [line for line in said.splitlines() if "TCG doesn't support" not in line]
            raise SandboxDied(f"the lab's machine does not start: {' '.join(lines[-3:])[:400]}")
        await asyncio.sleep(0.01)


async def _connected(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(link, str(path))
    except BaseException:
        link.close()
        raise
    return link


def _archive(source: Path, target: Path) -> Path:
    """The checkout as far as tests need it, padded to the disk's size. Compiled here: in there that takes ten times as long, each time."""
    with tempfile.TemporaryDirectory(prefix="space-lab-", dir=target.parent) as directory:
        Path(directory).chmod(0o755)
        for name in ("src", "tests", "pyproject.toml"):
            if (source / name).exists():
                subprocess.run(["cp", "-a", source / name, directory], check=True)
        for stale in [*Path(directory).rglob("__pycache__"), *Path(directory).glob("tests/fuzz/corpus")]:
            shutil.rmtree(stale)
        compiling = [
            sys.executable,
            "-m",
            "compileall",
            "-q",
            "-j",
            "0",
            "-s",
            directory,
            "-p",
            "/src",
            "--invalidation-mode",
            "unchecked-hash",
        ]
        subprocess.run([*compiling, f"{directory}/src"], check=True)
        subprocess.run(["tar", "-C", directory, "-cf", target, "."], check=True)
    if target.stat().st_size > plan.SOURCE_BYTES:
        raise Internal(f"the checkout has {target.stat().st_size} bytes, at most {plan.SOURCE_BYTES} fit on its disk")
    os.truncate(target, plan.SOURCE_BYTES)
    return target
