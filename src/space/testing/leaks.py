"""What is on this host, in words, so that a test's teardown can prove that nothing was left.

Three views, each a set of sentences: everything of one instance, what its sandboxes hold, and what belongs to no instance.
Each instance is looked at by what hangs on its name and uids, so that instances beside it do not disturb the answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from space.config.instance import Instance, instances
from space.core.plan.outbound import table_of
from space.host import namespaces
from space.node.limits import READY_SLOTS

Things = frozenset[str]


def of_instance(instance: Instance) -> Things:
    """Everything of an instance: processes, mounts, loop devices, cgroups, shared memory, files, packet filters, its uid block."""
    found = set(_processes(instance, instance.uid_range)) | set(_kernel_things(instance))
    found |= {f"directory {path}" for path in (instance.data, instance.run) if path.exists()}
    found |= {f"nft {line}" for line in _tables() if line == f"table inet {table_of(instance.dialer_uid)}"}
    block = instance.data_root / "instances" / ".blocks" / str(instance.index)
    if block.exists() and block.read_text() == instance.name:
        found.add(f"uid block {block}")
    return frozenset(found)


def of_sandboxes(instance: Instance) -> Things:
    """What the sandboxes of a running instance hold: VMMs, namespaces, mounts, cgroups, directories, sockets.

    Beside living sandboxes a node keeps up to READY_SLOTS slots of nobody; more of them are a leak, and so is any once no sandbox is there.
    """
    found = set(_processes(instance, range(instance.vm_uid(0), instance.uid_range.stop)))
    found |= {thing for thing in _kernel_things(instance) if not thing.endswith(f"/{instance.cgroup}")}
    for directory in (instance.sandboxes, instance.run / "vm", instance.run / "netns"):
        found |= {f"file {path}" for path in _entries(directory)}
    used = _used_slots(instance)
    spare = {path.stem for path in _entries(instance.run / "netns") if int(path.stem) not in used}
    # a worker lives on for a while after its sandbox's last connection
    workers = {f"of uid {instance.worker_uid(slot)}:" for slot in used}
    found = {thing for thing in found if not (thing.startswith("process ") and any(worker in thing for worker in workers))}
    if used and len(spare) <= READY_SLOTS:
        found = {thing for thing in found if not _of_slots(thing, instance, spare)}
    return frozenset(found)


def of_host() -> Things:
    """What belongs to no instance: interfaces and nft tables of the root namespace, loop devices, our mounts."""
    filters = {f"table inet {table_of(each.dialer_uid)}" for each in instances()}
    return frozenset(
        {
            # a town's (testing.egresstown) is a test's own, which may outlast one that looks here
            *(f"interface {path.name}" for path in _entries(Path("/sys/class/net")) if not path.name.startswith("town")),
            *(f"nft {line}" for line in _tables() if line not in filters),
            *(f"loop device of {backing}" for backing in _loops() if backing.startswith("/var/lib/space")),
            *(f"mount {point}" for point in _mounts() if _is_shared(point)),
        }
    )


def descriptors(pid: int) -> list[str]:
    """What a process has open, for a count and for the words when the count grew."""
    found = []
    for path in _entries(Path(f"/proc/{pid}/fd")):
        try:
            found.append(str(path.readlink()))
        except OSError:
            continue
    return sorted(found)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settle(look: Callable[[], Things], expected: Things = frozenset(), *, within: float = 10.0) -> None:
    """Wait until `look` sees nothing beyond `expected`; AssertionError names what is left after `within` seconds."""
    deadline = time.monotonic() + within
    while left := look() - expected:
        if time.monotonic() > deadline:
            raise AssertionError(f"left on the host after {within:g} s:\n  " + "\n  ".join(sorted(left)))
        time.sleep(0.05)


def _tables() -> list[str]:
    return subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=False).stdout.splitlines()


def _processes(instance: Instance, uids: range) -> Iterator[str]:
    """Processes of those uids, in the instance's cgroup, or started for it by name; zombies left out: they hold nothing."""
    argument = b"--instance\0" + instance.name.encode() + b"\0"
    for entry in _entries(Path("/proc")):
        if not entry.name.isdigit():
            continue
        try:
            owner = entry.stat().st_uid
            command = (entry / "cmdline").read_bytes()
            groups = (entry / "cgroup").read_text()
        except OSError:
            continue
        named = owner == 0 and b"space." in command and argument in command and uids == instance.uid_range
        if (owner in uids or named or f"/{instance.cgroup}/" in groups + "/") and namespaces.start_time(int(entry.name)) is not None:
            words = command.replace(b"\0", b" ").decode(errors="replace").strip()
            yield f"process {entry.name} of uid {owner}: {words[:160]}"


def _of_slots(thing: str, instance: Instance, slots: set[str]) -> bool:
    """Whether it is what a slot without a sandbox is: a namespace, the mark of its edge, the cgroups of its worker to be."""
    kind, _, where = thing.partition(" ")
    path = Path(where)
    if kind in ("file", "mount"):
        return path.parent == instance.run / "netns" and path.stem in slots
    return kind == "cgroup" and path.parent.name == Path(instance.cgroup).name and path.name in {f"worker-{slot}" for slot in slots}


def _used_slots(instance: Instance) -> set[int]:
    found = set()
    for path in _entries(instance.sandboxes):
        try:
            found.add(int(json.loads((path / "sandbox.json").read_text())["slot"]))
        except OSError:  # half made, or half gone
            continue
    return found


def _kernel_things(instance: Instance) -> Iterator[str]:
    places = (f"{instance.run}/", f"{instance.data}/")
    yield from (f"mount {point}" for point in _mounts() if point.startswith(places))
    yield from (f"loop device of {backing}" for backing in _loops() if backing.startswith(places))
    for root in _cgroup_roots():
        top = root / instance.cgroup
        yield from (f"cgroup {path}" for path in [top, *_directories(top)] if path.is_dir())
    for path in _entries(Path("/dev/shm")):
        try:
            if path.lstat().st_uid in instance.uid_range:
                yield f"shared memory {path}"
        except FileNotFoundError:
            continue


def _mounts() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def _is_shared(point: str) -> bool:
    """Whether a mount lies where `space` mounts, and not in an instance's own directories. What others mount is theirs."""
    if not point.startswith(("/run/space", "/var/lib/space")):
        return False
    if Path(point).parent == Path("/var/lib/space/instances"):  # a disk of an instance's own (testing.smalldisk), which `of_instance` sees
        return False
    return not any(point.startswith((f"{each.run}/", f"{each.data}/")) for each in instances())


def _cgroup_roots() -> list[Path]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] in ("cgroup", "cgroup2"):
            found.append(Path(left.split()[4]))
    return found


def _loops() -> Iterator[str]:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            yield path.read_text().strip()
        except OSError:
            continue


def _directories(top: Path) -> Iterator[Path]:
    for path in _entries(top):
        if path.is_dir():
            yield path
            yield from _directories(path)


def _entries(directory: Path) -> Iterable[Path]:
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return []
