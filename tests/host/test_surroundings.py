"""The same rootd where less is mounted than here: no cgroup hierarchy, a chroot with a bare /sys."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from space.host import cgroups, namespaces
from space.rootd.sweep import sweep
from space.testing.machine import isolated_python
from space.testing.roothost import WORD, RootHost

_NO_CGROUPS = 'umount -R /sys/fs/cgroup || exit 1; exec "$@"'
# every directory of / below a plain directory, which is then no mount point: what `chroot TREE` is on a real machine
_CHROOT = """
cd "$0" && for path in /*; do
  if [ -L "$path" ]; then cp -P "$path" .
  elif [ -d "$path" ]; then mkdir ".$path" && mount --rbind "$path" ".$path"
  fi
done
umount -R sys && mount -t sysfs sysfs sys || exit 1
exec chroot . "$@"
"""


def _run_a_vmm(host: RootHost) -> None:
    request = host.prepare()
    pidfd = host.start(request)
    assert host.talk(request) == WORD
    usage = host.ask(lambda client: client.usage(request.sandbox, 1))
    assert usage.memory_bytes > 0
    assert usage.cpu_usec > 0
    pid = host.record(request)["pid"]
    mounts = [line.split()[4] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    assert sorted(mounts) == ["/", "/tmp", "/tmp/initramfs", "/tmp/kernel"]
    host.ask(lambda client: client.kill_vmm(request.sandbox, 1))
    assert namespaces.wait_ended(pidfd, 10)
    os.close(pidfd)
    host.ask(lambda client: client.destroy_sandbox(request.sandbox, 1))
    host.ask(lambda client: client.destroy_slot(0))


def test_controllers_that_are_mounted_nowhere_are_mounted_privately(unserved: RootHost) -> None:
    unserved.start_rootd(isolated_python(), "-I", "-m", "space.testing.mountns", "sh", "-c", _NO_CGROUPS, "sh")
    assert unserved.rootd is not None
    _run_a_vmm(unserved)
    private = str(unserved.instance.run_root / ".cgroup")
    mounted = [line.split()[4] for line in Path(f"/proc/{unserved.rootd.pid}/mountinfo").read_text().splitlines() if private in line]
    assert mounted
    for controller in cgroups.NEEDED:
        assert f"{private}/{controller}" in mounted or f"{private}/unified" in mounted


def test_everything_works_inside_a_chroot_with_a_bare_sys(unserved: RootHost, root: Path) -> None:
    tree = root / "tree"
    tree.mkdir()
    unserved.start_rootd(isolated_python(), "-I", "-m", "space.testing.mountns", "sh", "-c", _CHROOT, str(tree))
    _run_a_vmm(unserved)


def test_sweep_unmounts_what_was_mounted_privately(unserved: RootHost) -> None:
    private = unserved.instance.run_root / ".cgroup"
    (private / "unified").mkdir(parents=True)
    cgroups._mount(private / "unified", "cgroup2", "")
    assert (private / "unified" / "cgroup.procs").exists()
    assert sweep(unserved.instance) == []
    unserved.log.unlink(missing_ok=True)
    if private.exists():  # the instance's log was beside it the first time
        assert sweep(unserved.instance) == []
    assert not private.exists()


@pytest.mark.parametrize("way", ["kill", "freeze"])
def test_unified_cgroup_is_killed_with_and_without_its_own_word_for_it(
    unserved: RootHost, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cgroups.find(unserved.instance.run_root / ".cgroup")
    assert found.unified is not None
    tree = cgroups.Tree(cgroups.Hierarchies(found.unified, frozenset(), {}), unserved.instance.cgroup).child("sb-one")
    tree.create()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # in the cgroup from here on, or the test is dead
        for _ in range(3):
            os.fork()
        while True:
            signal.pause()
    os.close(reader)
    tree.add(pid)
    os.close(writer)
    if way == "freeze":
        exists = Path.exists
        monkeypatch.setattr(Path, "exists", lambda path: path.name != "cgroup.kill" and exists(path))
    assert pid in tree.pids()
    assert tree.kill_and_wait() == set()
    monkeypatch.undo()
    tree.remove()
    assert not tree.exists()
