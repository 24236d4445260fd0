"""Remove everything that an instance has put on this host, and nothing of any other. Needs nobody of it to be alive.

    python -I -m space.rootd.sweep --instance NAME [--data]

Processes go first (recorded services, the instance's cgroups, then its uids), then the dialer's packet filter, namespaces and mounts,
cgroups, files. Every
step is idempotent, so a sweep that was cut off is simply run again. A process that has another root than we may belong to an
instance of that root file system, whose uids can be the same: only our cgroups speak for it, as they do for every VMM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from space.config import instance as instances
from space.config.instance import DATA_ROOT, RUN_ROOT, Instance
from space.core.plan import outbound
from space.host import cgroups, files, namespaces, nftables, syscalls
from space.rootd.log import log


def sweep(instance: Instance, *, data: bool = False) -> list[str]:
    """Remove all of it; with `data` also its data directory, and give its uid block back. What could not be removed, in sentences."""
    hierarchies = cgroups.find(instance.run_root / ".cgroup")
    tree = cgroups.Tree(hierarchies, instance.cgroup)
    left: list[str] = []
    for step in (
        lambda: _end_recorded(instance),
        lambda: _end_processes(instance, tree),
        lambda: nftables.remove(outbound.table_of(instance.dialer_uid)),  # now that nobody of that uid is left
        lambda: _unmount(instance),
        tree.remove,
        lambda: cgroups.give_back(hierarchies),
        lambda: _remove(instance.sandboxes.parent, instance.sandboxes.name),
        lambda: _remove(instance.run.parent, instance.run.name),
    ):
        _attempt(step, left)
    if data and not left:  # while anything is left its uids are not free
        _attempt(lambda: _remove_data(instance), left)
    if not any(path.name != ".cgroup" for path in _entries(instance.run_root)):
        cgroups.unmount_private(instance.run_root / ".cgroup")
    return left


def _attempt(step: Callable[[], object], left: list[str]) -> None:
    try:
        step()
    except OSError as error:  # the others are still worth doing
        left.append(str(error))
        log(f"sweep: {error}")


def _end_recorded(instance: Instance) -> None:
    """What serve recorded of its services, and rootd of itself, which runs as root, so that no uid finds it."""
    found: list[tuple[int, int]] = []
    with suppress(FileNotFoundError, ValueError):
        pid, started = map(int, (instance.run / "rootd.pid").read_text().split())
        found.append((pid, started))
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        records = json.loads(instance.services.read_text())
        found += [(int(each["pid"]), int(each["started"])) for each in records if each["boot"] == boot]
    for pid, started in found:
        if pid != os.getpid():
            _kill(pid, started)


def _end_processes(instance: Instance, tree: cgroups.Tree) -> None:
    if stuck := tree.kill_and_wait():
        raise OSError(f"processes {sorted(stuck)} of {tree.name} do not end")
    for entry in _entries(Path("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):
            mine = entry.name.isdigit() and entry.stat().st_uid in instance.uid_range and _has_our_root(entry)
            if mine and (started := namespaces.start_time(int(entry.name))) is not None:
                _kill(int(entry.name), started)


def _has_our_root(entry: Path) -> bool:
    for thread in _entries(entry / "task"):  # one that has ended shows none, and it may have been the first
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            return os.path.samestat((thread / "root").stat(), os.stat("/"))  # noqa: PTH116 (like the one beside it)
    return False


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
    # the record last, and the mark after it: until then the instance is known for what it is, and a sweep can be run again
    for path in _entries(instance.data):
        if path not in (instance.data / "instance.json", instance.ephemeral):
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
