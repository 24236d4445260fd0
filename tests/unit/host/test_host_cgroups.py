"""Where controllers are looked for, and what is written for a limit in either kind of hierarchy (on plain directories)."""

from __future__ import annotations

from pathlib import Path

import pytest

from space.host import cgroups
from space.host.cgroups import Hierarchies, Tree

_STANDARD = (Path("/sys/fs/cgroup"),)
V2_ONLY = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 30 0:29 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    "34 30 0:30 / /sys/fs/cgroup/a\\040b rw - cgroup cgroup rw,pids\n"
    "35 30 0:31 / /srv/tree/sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
)


def test_everything_in_v2() -> None:
    assert cgroups._mounted(V2_ONLY, _STANDARD) == (Path("/sys/fs/cgroup"), {})


def test_mixture_without_what_is_read_only_or_in_somebodys_chroot() -> None:
    unified, v1 = cgroups._mounted(HYBRID, _STANDARD)
    assert unified == Path("/sys/fs/cgroup/unified")
    both = Path("/sys/fs/cgroup/cpu,cpuacct")
    assert {name: path for name, path in v1.items() if name != "rw"} == {"cpu": both, "cpuacct": both, "pids": Path("/sys/fs/cgroup/a b")}


def test_controllers_that_can_only_be_mounted_together() -> None:
    found = cgroups._bound_to_v1("5:cpu,cpuacct:/\n4:memory:/x\n3:name=systemd:/\n0::/\n")
    assert (found["cpu"], found["cpuacct"], found["memory"]) == ("cpu,cpuacct", "cpu,cpuacct", "memory")
    assert cgroups._bound_to_v1("0::/\n") == {}


def _files(directory: Path, *names: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_text("")


def test_limits_and_usage_in_v2(tmp_path: Path) -> None:
    tree = Tree(Hierarchies(tmp_path, frozenset(cgroups.NEEDED), {}), "space-x").child("sb-1")
    for level in (tmp_path, tmp_path / "space-x"):
        _files(level, "cgroup.subtree_control", "cgroup.procs")
    tree.create()
    for level in (tmp_path, tmp_path / "space-x"):
        assert (level / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    own = tmp_path / "space-x" / "sb-1"
    _files(own, "memory.swap.max")
    tree.limit(memory_bytes=1 << 28, pids=97, cpu_quota_usec=150_000, cpu_period_usec=100_000)
    written = {path.name: path.read_text() for path in own.iterdir()}
    assert written == {"memory.max": str(1 << 28), "memory.swap.max": "0", "pids.max": "97", "cpu.max": "150000 100000"}
    (own / "memory.current").write_text("4096\n")
    (own / "cpu.stat").write_text("usage_usec 1234\nuser_usec 1000\n")
    assert (tree.memory_bytes(), tree.cpu_usec()) == (4096, 1234)
    (own / "memory.events").write_text("low 0\nhigh 0\nmax 17\noom 3\noom_kill 2\n")
    assert tree.oom_kills() == 2


def test_limits_and_usage_in_v1(tmp_path: Path) -> None:
    v1 = {name: tmp_path / name for name in (*cgroups.NEEDED, "cpuacct", "freezer")}
    for path in v1.values():
        path.mkdir()
    tree = Tree(Hierarchies(None, frozenset(), v1), "space-x").child("sb-1")
    tree.create()
    tree.limit(memory_bytes=1 << 28, pids=97, cpu_quota_usec=150_000, cpu_period_usec=100_000)
    memory = tmp_path / "memory" / "space-x" / "sb-1"
    assert {path.name: path.read_text() for path in memory.iterdir()} == {"memory.limit_in_bytes": str(1 << 28)}
    assert (tmp_path / "cpu/space-x/sb-1/cpu.cfs_quota_us").read_text() == "150000"
    assert (tmp_path / "pids/space-x/sb-1/pids.max").read_text() == "97"
    (memory / "memory.usage_in_bytes").write_text("8192\n")
    (tmp_path / "cpuacct/space-x/sb-1/cpuacct.usage").write_text("7000000\n")
    assert (tree.memory_bytes(), tree.cpu_usec()) == (8192, 7000)
    (tmp_path / "freezer/space-x/sb-1/freezer.state").write_text("")
    tree.kill()  # nothing in it: frozen, nothing killed, thawed
    assert (tmp_path / "freezer/space-x/sb-1/freezer.state").read_text() == "THAWED"


def test_containers_root_is_emptied_before_its_children_get_controllers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _files(tmp_path, "cgroup.subtree_control")
    (tmp_path / "cgroup.procs").write_text("4194999\n4194998\n")
    moved: list[str] = []
    write = Path.write_text

    def busy_until_empty(path: Path, text: str, *rest: str) -> int:
        if path == tmp_path / "cgroup.subtree_control" and len(moved) < 2:
            raise OSError(16, "Device or resource busy")
        if path == tmp_path / cgroups.LEAF / "cgroup.procs":
            moved.append(text)
        return write(path, text, *rest)

    monkeypatch.setattr(Path, "write_text", busy_until_empty)
    Tree(Hierarchies(tmp_path, frozenset(cgroups.NEEDED), {}), "space-x").create()
    assert sorted(moved) == ["4194998", "4194999"]
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
