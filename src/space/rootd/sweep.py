"""Remove everything that an instance has put on this host, and nothing of any other. Needs nobody of it to be alive.

    python -I -m space.rootd.sweep --instance NAME [--data]

Processes go first (by cgroup, then by the instance's own uid range), then namespaces and mounts, cgroups, files. Every step
is idempotent, so a sweep that was cut off is simply run again.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from space.config import instance as instances
from space.config.instance import DATA_ROOT, RUN_ROOT, Instance
from space.host import cgroups, files, namespaces, syscalls
from space.rootd.log import log


def sweep(instance: Instance, *, data: bool = False) -> list[str]:
    """Remove all of it; with `data` also its data directory, and give its uid block back. What could not be removed, in sentences."""
    hierarchies = cgroups.find(instance.run_root / ".cgroup")
    tree = cgroups.Tree(hierarchies, instance.cgroup)
    left: list[str] = []
    for step in (
        lambda: _end_rootd(instance),
        lambda: _end_processes(instance, tree),
        lambda: _unmount(instance),
        tree.remove,
        lambda: _remove(instance.sandboxes.parent, instance.sandboxes.name),
        lambda: _remove(instance.run.parent, instance.run.name),
        *((lambda: _remove_data(instance),) if data else ()),
    ):
        _attempt(step, left)
    if not any(path.name != ".cgroup" for path in _entries(instance.run_root)):
        cgroups.unmount_private(instance.run_root / ".cgroup")
    return left


def _attempt(step: Callable[[], object], left: list[str]) -> None:
    try:
        step()
    except OSError as error:  # the others are still worth doing
        left.append(str(error))
        log(f"sweep: {error}")


def _end_rootd(instance: Instance) -> None:
    """rootd runs as root, so no uid range finds it; it left its pid and start time."""
    with suppress(FileNotFoundError, ValueError):
        pid, started = map(int, (instance.run / "rootd.pid").read_text().split())
        if pid != os.getpid():
            _kill(pid, started)


def _end_processes(instance: Instance, tree: cgroups.Tree) -> None:
    if stuck := tree.kill_and_wait():
        raise OSError(f"processes {sorted(stuck)} of {tree.name} do not end")
    for entry in _entries(Path("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            if entry.name.isdigit() and entry.stat().st_uid in instance.uid_range:
                started = namespaces.start_time(int(entry.name))
                if started is not None:
                    _kill(int(entry.name), started)


def _kill(pid: int, started: int) -> None:
    pidfd = namespaces.open_process(pid, started)
    if pidfd is None:
        return
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not namespaces.wait_ended(pidfd, 10.0):
            raise OSError(f"process {pid} does not end")
    finally:
        os.close(pidfd)


def _unmount(instance: Instance) -> None:
    for path in _entries(instance.run / "netns"):
        namespaces.let_go(path)
    ours = [f"{instance.run}/", f"{instance.data}/"]
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    for line in reversed(lines):  # later mounts lie on earlier ones
        target = line.split()[4].encode().decode("unicode_escape")
        if any(f"{target}/".startswith(prefix) for prefix in ours):
            syscalls.umount2(target, syscalls.MNT_DETACH)


def _remove(parent: Path, name: str) -> None:
    with suppress(FileNotFoundError):
        directory = files.open_directory(parent)
        try:
            files.remove_tree(directory, name)
        finally:
            os.close(directory)


def _remove_data(instance: Instance) -> None:
    # instance.json last: until then the instance is still known, and a sweep can be run again
    for path in _entries(instance.data):
        if path.name != "instance.json":
            _remove(instance.data, path.name)
    instances.release(instance)
    _remove(instance.data.parent, instance.data.name)


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def main() -> int:
    """0 when nothing is left."""
    parser = argparse.ArgumentParser(prog="space.rootd.sweep", description="remove everything of one instance from this host")
    parser.add_argument("--instance", required=True)
    parser.add_argument("--data", action="store_true", help="also its data directory")
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT, help="for tests: where instances are")
    parser.add_argument("--run-root", type=Path, default=RUN_ROOT, help="for tests")
    options = parser.parse_args()
    instance = instances.load(options.instance, data_root=options.data_root, run_root=options.run_root)
    if instance is None:
        return 0
    return 1 if sweep(instance, data=options.data) else 0


if __name__ == "__main__":
    raise SystemExit(main())
