"""Take everything off the host that space put there; the Debian packages stay. Works half set up, and a second time.

    python3 -m space.setup.clean

Instances go first, each by its own sweep, which needs no server to be alive; then the data's mount and loop file, the
runtimes, the command. What stays is said.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from space.config.instance import DATA_ROOT, RUN_ROOT, Instance, instances
from space.host import cgroups, namespaces
from space.model.errors import SpaceError
from space.setup import command, deps, runtime, shelf, storage, systemd
from space.setup.faults import SetupFailed
from space.setup.progress import complain

_SOURCE = Path(__file__).resolve().parents[2]
_PATIENCE = 30.0
_BUILT = ("guest/target", "build", "dist", "report", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache")


def main() -> int:
    """The exit status: 0 when nothing is left but what is said."""
    if os.geteuid() != 0:
        complain("what space put on this host belongs to root: clean as root.")
        return 1
    try:
        for line in clean(_SOURCE.parent):
            print(f"clean: {line}", flush=True)
    except SpaceError as error:
        complain(str(error))
        return 1
    for line in stays():
        print(f"clean: stays: {line}")
    print(
        "clean: nothing else of space is left on this host; "
        "Debian packages that set-up installed stay, and so does cargo's own cache of crates"
    )
    return 0


def clean(checkout: Path) -> list[str]:
    """Remove all of it; what was removed, in words. SetupFailed says what would not go."""
    done = systemd.remove()
    for instance in list(instances()):
        stop(instance)
        done.append(sweep(instance))
    done += _run_directory()
    done += storage.undo()
    if runtime.COMMAND.is_symlink() and str(runtime.COMMAND.readlink()).startswith(f"{deps.OPT}/"):
        runtime.COMMAND.unlink()
        done.append(f"removed {runtime.COMMAND}")
    if DATA_ROOT.is_mount():  # a file system that somebody else mounted for us
        for entry in sorted(DATA_ROOT.iterdir()):
            shelf.remove(entry)
        done.append(f"emptied {DATA_ROOT}, which stays mounted")
    for place in (*(() if DATA_ROOT.is_mount() else (DATA_ROOT,)), deps.OPT, *(checkout / name for name in _BUILT)):
        if place.exists():
            shelf.remove(place)
            done.append(f"removed {place}")
    return done


def stays() -> list[str]:
    """What of ours is left and why, in words: cgroups that another root file system's instances may be using."""
    found = {}
    for mount in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = mount.partition(" - ")
        if right.startswith("cgroup"):
            found.update({path.name: path for path in Path(left.split()[4]).glob("space-*")})
    return [f"cgroup {path}: {_reason(path)}" for _, path in sorted(found.items())]


def _reason(path: Path) -> str:
    if path.name == cgroups.LEAF:
        return "it has the processes of this container's root cgroup, which somebody's cgroups beside it need to be without any"
    return "it is of an instance of another root file system on this kernel"


def sweep(instance: Instance) -> str:
    """Remove an instance that nobody serves; what was done, in words."""
    command.run(
        [deps.PYTHON, "-m", "space.rootd.sweep", "--instance", instance.name, "--data"],
        what=f"sweep instance {instance.name}", env={"PYTHONPATH": str(_SOURCE)}, timeout=120,
    )  # fmt: skip
    return f"swept instance {instance.name}"


def stop(instance: Instance) -> None:
    """End the serve of an instance, if one holds its lock, so that nobody starts again what the sweep ends."""
    try:
        descriptor = os.open(instance.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    finally:
        os.close(descriptor)
    if not text.isdigit():
        raise SetupFailed(f"instance {instance.name} is held by a process that left no pid", hint=f"end it (fuser {instance.lock})")
    try:
        process = os.pidfd_open(int(text))
    except ProcessLookupError:
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
            if namespaces.wait_ended(process, _PATIENCE):
                return
    finally:
        os.close(process)
    raise SetupFailed(f"serve of instance {instance.name} (pid {text}) does not end")


def _run_directory() -> list[str]:
    """Remove /run/space, with mounts that no instance accounts for."""
    if not RUN_ROOT.exists():
        return []
    shelf.remove(RUN_ROOT)
    return [f"removed {RUN_ROOT}"]


if __name__ == "__main__":
    sys.exit(main())
