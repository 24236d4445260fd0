"""A container's root of v2 is a cgroup like any other: it may have children with controllers, or processes, not both."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from space.host import cgroups, process, syscalls
from space.host.cgroups import Hierarchies, Tree
from space.testing import mountns

_CLONE_NEWCGROUP = 0x0200_0000
_WHOLE_PROCESSES = ("memory", "io", "hugetlb", "rdma", "misc")  # controllers under which a cgroup has children or processes


def _in_a_container(outside: Path, inside: Path) -> bytes:
    """In a fork: a cgroup and a mount namespace of its own, a v2 root that is none, an instance's cgroup in it, and back."""
    mountns.enter()
    syscalls.mount("cgroup2", str(outside), "cgroup2", 0)
    offered = (outside / "cgroup.controllers").read_text().split()
    controller = next(name for name in _WHOLE_PROCESSES if name in offered)
    before = (outside / "cgroup.subtree_control").read_text().split()
    ours = outside / f"test-{os.getpid()}"
    ours.mkdir()
    (outside / "cgroup.subtree_control").write_text(f"+{controller}")
    (ours / "cgroup.procs").write_text(str(os.getpid()))
    try:
        syscalls.unshare(_CLONE_NEWCGROUP)
        syscalls.mount("cgroup2", str(inside), "cgroup2", 0)
        tree = Tree(Hierarchies(inside, frozenset({controller}), {}), "space-x-1")
        tree.child("sb").create()
        during = [(tree.directory(controller) / "cgroup.controllers").read_text().split(), _pids(inside), _pids(inside / cgroups.LEAF)]
        assert during == [[controller], [], [os.getpid()]], during
        cgroups.give_back(tree.hierarchies)
        assert (inside / cgroups.LEAF).is_dir(), "an instance still needs it"
        tree.remove()
        for _ in range(2):
            cgroups.give_back(tree.hierarchies)
            after = [_pids(inside), (inside / "cgroup.subtree_control").read_text().split(), (inside / cgroups.LEAF).exists()]
            assert after == [[os.getpid()], [], False], after
    finally:
        (outside / "cgroup.procs").write_text(str(os.getpid()))
        with suppress(FileNotFoundError):
            (ours / cgroups.LEAF).rmdir()
        ours.rmdir()
        if controller not in before:
            (outside / "cgroup.subtree_control").write_text(f"-{controller}")
    return b"well"


def _pids(group: Path) -> list[int]:
    return [int(line) for line in (group / "cgroup.procs").read_text().split()]


def test_processes_that_made_room_for_an_instance_are_put_back_when_it_is_gone(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    assert process.forked(lambda: _in_a_container(outside, inside)) == b"well"
