"""Servers for tests and benches over real guests: which runtime is tested, and an instance whose processes can be killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from space.config.instance import DATA_ROOT, Instance, load
from space.host import namespaces
from space.serve import records, runtime
from space.serve.private import Launch, Served, private_instance, random_name
from space.serve.remove import remove

INSTALLED = Path("/usr/local/bin/space")
ACCELERATOR = os.environ.get("SPACE_TEST_ACCELERATOR", "")  # what tests' instances have, where they would take another (the lab's)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What is tested. dev: it is a developer's environment, which serve accepts only when told so."""

    python: Path
    dev: bool

    def space(self, *arguments: str) -> list[str]:
        """The command line of the CLI."""
        return [str(self.python), "-I", "-m", "space.cli.main", *arguments]


class NotSetUp(Exception):
    """Something that set-up makes is not there; a test fails with it, none is skipped."""


def find_runtime(python: Path | None = None) -> Runtime:
    """The installed runtime, or that of an interpreter named by the caller. NotSetUp with the remedy."""
    if not (DATA_ROOT / "artefacts" / "names" / "base").exists():
        raise NotSetUp(f"there is no base template below {DATA_ROOT} (make setup builds it)")
    if python is not None:
        return Runtime(python, dev=True)
    if not INSTALLED.exists():
        raise NotSetUp(f"there is no {INSTALLED} (make setup installs it)")
    found = INSTALLED.resolve().parent / "python"
    if not found.exists():
        raise NotSetUp(f"{INSTALLED} does not lead to a runtime: there is no {found} (make setup installs it again)")
    return Runtime(found, dev=False)


def this_runtime() -> Runtime:
    """The interpreter that runs this."""
    return Runtime(Path(sys.executable), dev=any(map(runtime.objection, runtime.locations())))


@cache
def isolated_python() -> str:
    """An interpreter that finds `space` with `-I`, as services are started: this one's environment if it can, else the installed runtime.

    The environment that tests run in has only the path of a checkout in its variables, which `-I` ignores.
    """
    able = subprocess.run([sys.executable, "-I", "-c", "import space"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return sys.executable if able.returncode == 0 else str(find_runtime().python)


@contextmanager
def private(which: Runtime, log: Path | None = None, **settings: str) -> Iterator[Served]:
    """A private instance under that runtime."""
    with private_instance({**settings, **_accelerated()}, python=which.python, dev=which.dev, log=log) as served:
        yield served


def _accelerated() -> dict[str, str]:
    return {"accelerator": ACCELERATOR} if ACCELERATOR else {}


class Server:
    """An instance that outlives its serve, so that any of its processes can be killed and followed by another.

    If this process dies, serve stops by itself; `close` removes everything in whatever state it is.
    """

    def __init__(self, which: Runtime, log: Path, settings: Mapping[str, str] | None = None) -> None:
        self.name = random_name()
        self._which, self._log = which, log
        self._settings = {"port": "0", "warm_templates": "0", **(settings or {}), **_accelerated()}
        self._launch: Launch | None = None
        self.served: Served | None = None

    def start(self) -> Served:
        """Start serve; it adopts what runs."""
        assert self._launch is None, "it is served already"
        self._launch = Launch(self.name, self._settings, ephemeral=False, python=self._which.python, dev=self._which.dev, log=self._log)
        self.served = self._launch.wait_until_ready()
        return self.served

    @property
    def instance(self) -> Instance:
        found = load(self.name)
        assert found is not None
        return found

    def pid(self, role: str) -> int:
        """The process of `serve`, or of one of its services, now."""
        if role == "serve":
            assert self._launch is not None
            return self._launch.process.pid
        return next(record.pid for record in records.load(self.instance.services) if record.role == role)

    def kill(self, role: str) -> int:
        """SIGKILL that process and wait until it is dead; its pid."""
        pid = self.pid(role)
        kill(pid)
        if role == "serve":
            assert self._launch is not None
            self._launch.process.wait()
            self._launch.hang_up()
            self._launch = None
        return pid

    def stop(self) -> None:
        """Let serve stop the services; sandboxes run on."""
        if self._launch is not None:
            self._launch.stop()
            self._launch = None

    def close(self) -> None:
        """Stop and remove everything; idempotent."""
        self.stop()
        found = load(self.name)
        if found is not None:
            remove(found)


def kill(pid: int) -> None:
    """SIGKILL, and return when the process is dead; one that is gone already is fine."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], 30)
        finally:
            os.close(descriptor)


def vmm_pids(instance: Instance) -> list[int]:
    """Every living process of a VM uid of the instance."""
    uids = range(instance.vm_uid(0), instance.worker_uid(0))
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid in uids and namespaces.start_time(int(entry.name)) is not None:
                found.append(int(entry.name))
    return found
