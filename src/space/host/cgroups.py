"""cgroups of instances and sandboxes, over both hierarchies: every controller is looked up on its own.

A machine may have everything in v2, everything in v1, or a mixture; in a chroot with a bare /sys nothing is mounted at all,
although the kernel has it. `find` answers where each controller is, mounting it privately where it has to. A `Tree` is one
cgroup name in all of the hierarchies that are used.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from space.host import namespaces, syscalls

_STANDARD = Path("/sys/fs/cgroup")
NEEDED = ("memory", "pids", "cpu")
LEAF = "space-init"  # who was in the root of a container's v2 hierarchy, while instances have cgroups in it
_V1_EXTRA = ("cpuacct", "freezer")  # in v2 these are part of every cgroup


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where the controllers are. unified: v2's mount, if there is one; v1: controller to its v1 mount."""

    unified: Path | None
    in_unified: frozenset[str]
    v1: dict[str, Path]

    def roots(self) -> list[Path]:
        """Every hierarchy once."""
        return list(dict.fromkeys([*([self.unified] if self.unified else []), *self.v1.values()]))


class Missing(Exception):
    """A controller that this kernel does not offer us; the message names it."""


def find(private: Path) -> Hierarchies:
    """Look every controller up; what is mounted nowhere (or read-only) is mounted below `private`. Missing when one is not to be had."""
    unified, v1 = _mounted(Path("/proc/self/mountinfo").read_text(), (_STANDARD, private))
    bound = _bound_to_v1(Path("/proc/self/cgroup").read_text())
    for controller in (*NEEDED, *_V1_EXTRA):
        if controller in bound and controller not in v1:
            v1[controller] = _mount(private / controller, "cgroup", bound[controller])
    if unified is None:
        # also where every controller is in v1: its cgroup.kill works without any
        with suppress(OSError):
            unified = _mount(private / "unified", "cgroup2", "")
    offered = frozenset((unified / "cgroup.controllers").read_text().split()) if unified else frozenset()
    found = Hierarchies(unified, frozenset(NEEDED) & offered, {name: path for name, path in v1.items() if name in (*NEEDED, *_V1_EXTRA)})
    for controller in NEEDED:
        if controller not in found.in_unified and controller not in found.v1:
            raise Missing(f"the cgroup controller {controller!r} is in no hierarchy of this machine")
    if "freezer" not in found.v1 and not found.unified:
        raise Missing("there is neither a freezer nor a unified cgroup hierarchy on this machine")
    return found


def _mounted(mountinfo: str, within: tuple[Path, ...]) -> tuple[Path | None, dict[str, Path]]:
    """What is mounted `within` these places: a hierarchy elsewhere (in somebody's chroot, say) may be gone at any moment."""
    unified: Path | None = None
    v1: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        fields = left.split()
        if kind not in ("cgroup", "cgroup2") or "ro" in fields[5].split(","):
            continue
        path = Path(fields[4].encode().decode("unicode_escape"))
        if not any(place == path or place in path.parents for place in within):
            continue
        if kind == "cgroup2":
            unified = unified or path
        else:
            for controller in options.split(","):
                v1.setdefault(controller, path)
    return unified, v1


def _bound_to_v1(own: str) -> dict[str, str]:
    """Controller to the option that names its whole v1 hierarchy (`cpu,cpuacct` can only be mounted together)."""
    bound: dict[str, str] = {}
    for line in own.splitlines():
        number, controllers, _ = line.split(":", 2)
        if number != "0":
            bound.update(dict.fromkeys(controllers.split(","), controllers))
    return bound


def _mount(path: Path, kind: str, options: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    if not any(path.iterdir()):
        syscalls.mount(kind, str(path), kind, syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC, options)
    return path


def unmount_private(private: Path) -> None:
    """Undo what `find` mounted; one that is in use stays."""
    for path in private.iterdir() if private.is_dir() else ():
        with suppress(OSError):
            syscalls.umount2(str(path))
        with suppress(OSError):
            path.rmdir()
    with suppress(OSError):
        private.rmdir()


@dataclass(frozen=True, slots=True)
class Tree:
    """One cgroup, by its name below the root of every hierarchy."""

    hierarchies: Hierarchies
    name: str

    # -- where ---------------------------------------------------------------------------------------------------
    def directories(self) -> list[Path]:
        """The cgroup in every hierarchy, whether or not it is there."""
        return [root / self.name for root in self.hierarchies.roots()]

    def directory(self, controller: str) -> Path:
        """The cgroup in the hierarchy of a controller."""
        if controller in self.hierarchies.in_unified:
            assert self.hierarchies.unified is not None
            return self.hierarchies.unified / self.name
        return self.hierarchies.v1[controller] / self.name

    def child(self, name: str) -> Tree:
        """A cgroup below this one."""
        return Tree(self.hierarchies, f"{self.name}/{name}")

    def exists(self) -> bool:
        """Whether anything of it is there."""
        return any(path.is_dir() for path in self.directories())

    # -- what may happen in it -----------------------------------------------------------------------------------
    def create(self) -> None:
        """Make it in every hierarchy, with its parents; idempotent."""
        for root in self.hierarchies.roots():
            path = root
            for part in Path(self.name).parts:
                if path == self.hierarchies.unified or self.hierarchies.unified in path.parents:
                    self._delegate(path)
                path /= part
                with suppress(FileExistsError):
                    path.mkdir(mode=0o755)

    def _delegate(self, path: Path) -> None:
        """Let children of a v2 cgroup have the controllers that we need."""
        enabled = (path / "cgroup.subtree_control").read_text().split()
        wanted = [f"+{name}" for name in sorted(self.hierarchies.in_unified) if name not in enabled]
        if not wanted:
            return
        try:
            (path / "cgroup.subtree_control").write_text(" ".join(wanted))
        except OSError as error:
            # A container's root of v2 is no real root: it must hold no process before its children may have controllers.
            if error.errno != errno.EBUSY or path != self.hierarchies.unified:
                raise
            leaf = path / LEAF
            leaf.mkdir(exist_ok=True)
            _move_all(path, leaf)
            (path / "cgroup.subtree_control").write_text(" ".join(wanted))

    def limit(self, *, memory_bytes: int, pids: int, cpu_quota_usec: int, cpu_period_usec: int) -> None:
        """Set the limits. Swap is not to be used where the kernel can say so."""
        memory, cpu = self.directory("memory"), self.directory("cpu")
        if "memory" in self.hierarchies.in_unified:
            (memory / "memory.max").write_text(str(memory_bytes))
            if (memory / "memory.swap.max").exists():
                (memory / "memory.swap.max").write_text("0")
        else:
            (memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            if (memory / "memory.memsw.limit_in_bytes").exists():
                (memory / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))
        (self.directory("pids") / "pids.max").write_text(str(pids))
        if "cpu" in self.hierarchies.in_unified:
            (cpu / "cpu.max").write_text(f"{cpu_quota_usec} {cpu_period_usec}")
        else:
            (cpu / "cpu.cfs_period_us").write_text(str(cpu_period_usec))
            (cpu / "cpu.cfs_quota_us").write_text(str(cpu_quota_usec))

    def add(self, pid: int) -> None:
        """Put a process into it, in every hierarchy."""
        for path in self.directories():
            (path / "cgroup.procs").write_text(str(pid))

    # -- what did happen in it -----------------------------------------------------------------------------------
    def pids(self) -> set[int]:
        """The processes in it or below it, in any hierarchy, zombies left out."""
        found = {pid for top in self.directories() if top.is_dir() for path in _below(top) for pid in _pids(path)}
        return {pid for pid in found if namespaces.start_time(pid) is not None}

    def memory_bytes(self) -> int:
        """Memory charged to it now."""
        name = "memory.current" if "memory" in self.hierarchies.in_unified else "memory.usage_in_bytes"
        return int((self.directory("memory") / name).read_text())

    def cpu_usec(self) -> int:
        """CPU time used so far."""
        if "cpuacct" in self.hierarchies.v1:
            return int((self.directory("cpuacct") / "cpuacct.usage").read_text()) // 1000
        assert self.hierarchies.unified is not None
        stat = (self.hierarchies.unified / self.name / "cpu.stat").read_text()
        return next(int(line.split()[1]) for line in stat.splitlines() if line.startswith("usage_usec"))

    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory; 0 where the kernel does not count (before 4.13)."""
        name = "memory.events" if "memory" in self.hierarchies.in_unified else "memory.oom_control"
        counts = dict(line.split() for line in (self.directory("memory") / name).read_text().splitlines())
        return int(counts.get("oom_kill", 0))

    # -- ending it -----------------------------------------------------------------------------------------------
    def kill(self) -> None:
        """Send SIGKILL to everything in it and return at once; nothing there is fine."""
        unified = self.hierarchies.unified / self.name if self.hierarchies.unified else None
        if unified is not None and (unified / "cgroup.kill").exists():
            (unified / "cgroup.kill").write_text("1")
            if not any(map(namespaces.is_headless, self.pids())):
                return
        self._freeze(frozen=True)  # so that nothing forks away while it is being killed
        try:
            for pid in self.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            self._freeze(frozen=False)

    def _freeze(self, *, frozen: bool) -> None:
        if "freezer" in self.hierarchies.v1:
            file, word = self.directory("freezer") / "freezer.state", "FROZEN" if frozen else "THAWED"
        else:
            assert self.hierarchies.unified is not None
            file, word = self.hierarchies.unified / self.name / "cgroup.freeze", "1" if frozen else "0"
        with suppress(FileNotFoundError):
            file.write_text(word)

    def kill_and_wait(self, seconds: float = 10.0) -> set[int]:
        """Kill until it is empty; the pids that still lived after `seconds`, none if all went well."""
        deadline = time.monotonic() + seconds
        while living := self.pids():
            self.kill()
            for pid in living:
                with suppress(OSError):
                    pidfd = os.pidfd_open(pid)
                    try:
                        namespaces.wait_ended(pidfd, max(0.0, deadline - time.monotonic()))
                    finally:
                        os.close(pidfd)
            if time.monotonic() >= deadline:
                return self.pids()
        return set()

    def remove(self, seconds: float = 2.0) -> None:
        """Remove it and all below it, in every hierarchy; nothing there is fine. OSError while a process is in it."""
        deadline = time.monotonic() + seconds
        for top in self.directories():
            for path in reversed(list(_below(top))) if top.is_dir() else ():
                _remove(path, deadline)


def give_back(hierarchies: Hierarchies) -> None:
    """Undo what `create` did to a container's root of v2, unless somebody has a cgroup in it: that one's limits need it to be so.

    OSError when it does not go back.
    """
    root = hierarchies.unified
    if root is None or not (root / LEAF).is_dir():
        return
    if any(entry.is_dir() and entry.name != LEAF for entry in root.iterdir()):
        return
    # With processes in it no controller that takes whole processes was enabled before us, and without children none is of use.
    if enabled := (root / "cgroup.subtree_control").read_text().split():
        (root / "cgroup.subtree_control").write_text(" ".join(f"-{name}" for name in enabled))
    _move_all(root / LEAF, root)
    (root / LEAF).rmdir()


def _move_all(source: Path, target: Path) -> None:
    """Until nobody new is there: a process may fork while it is moved."""
    moved: set[int] = set()
    while pids := set(_pids(source)) - moved:
        for pid in pids:
            with suppress(ProcessLookupError):
                (target / "cgroup.procs").write_text(str(pid))
        moved |= pids


def _remove(path: Path, deadline: float) -> None:
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            # a task that has just died leaves its cgroup a moment after its pidfd says so, and v1 has no event for that
            if error.errno != errno.EBUSY or time.monotonic() > deadline or any(namespaces.start_time(pid) for pid in _pids(path)):
                raise
            time.sleep(0.002)
        else:
            return


def _below(top: Path) -> Iterator[Path]:
    """`top` and every cgroup below it, parents first."""
    yield top
    with suppress(FileNotFoundError):
        for entry in top.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                yield from _below(entry)


def _pids(path: Path) -> list[int]:
    try:
        return [int(line) for line in (path / "cgroup.procs").read_text().split()]
    except (FileNotFoundError, OSError):
        return []
