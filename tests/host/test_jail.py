"""The jail of a VMM, as /proc shows it from outside."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from space.core.plan import machine
from space.host import namespaces, process
from space.model.errors import Unsupported
from space.testing.roothost import WORD, RootHost


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _held(pid: int) -> list[str]:
    """What its descriptors are; the one of our connection to the serial port may be closed meanwhile."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return sorted(found)


def _limits(pid: int) -> dict[str, tuple[str, str]]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): (line[26:47].strip(), line[47:68].strip()) for line in lines}


def test_vmm_runs_the_guest_inside_the_jail(host: RootHost) -> None:
    request = host.prepare(slot=3, memory_mib=64, disk_mib=16)
    os.close(host.start(request))
    assert host.talk(request) == WORD  # everything below is said of a VMM that works
    pid = host.record(request)["pid"]
    uid = host.instance.vm_uid(3)
    status = _status(pid)

    # who it is
    assert status["Uid"].split() == [str(uid)] * 4
    assert status["Gid"].split() == [str(uid)] * 4
    assert status["Groups"] == ""
    for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb"):
        assert int(status[f"Cap{kind}"], 16) == 0, kind
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert status["NSpid"].split() == [str(pid), "1"]
    assert status["Umask"] == "0077"
    assert Path(f"/proc/{pid}/environ").read_bytes() == b""

    # what it sees
    for kind in ("mnt", "pid", "ipc", "uts", "net"):
        assert Path(f"/proc/{pid}/ns/{kind}").stat().st_ino != Path(f"/proc/self/ns/{kind}").stat().st_ino, kind
    assert Path(f"/proc/{pid}/ns/net").stat().st_ino == host.instance.netns(3).stat().st_ino
    mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    assert sorted(fields[4] for fields in mounts) == ["/", "/tmp", machine.INITRAMFS, machine.KERNEL]
    for fields in mounts:
        assert {"ro", "nosuid", "nodev"} <= set(fields[5].split(",")), fields
        assert not any(word.startswith(("shared:", "master:")) for word in fields[6:]), fields
    seen = {str(path.relative_to(f"/proc/{pid}/root")) for path in Path(f"/proc/{pid}/root").iterdir()}
    assert not seen & {"sys", "etc", "var", "root", "home", "run"}
    assert list(Path(f"/proc/{pid}/root/proc").iterdir()) == []
    assert list(Path(f"/proc/{pid}/root/dev").iterdir()) == []

    # what it holds: no path of the host beside its disk, and nothing of rootd's
    held = _held(pid)
    disk = str(host.instance.sandboxes / request.sandbox / "disk.img")
    paths = [target for target in held if target.startswith("/")]
    assert set(paths) == {"/dev/null", "/dev/net/tun", disk, "/memfd:stderr (deleted)"}
    assert {target.split(":")[0] for target in held} - set(paths) <= {"socket", "anon_inode", "/memfd"}
    assert str(Path(f"/proc/{pid}/fd/0").readlink()) == "/dev/null"

    # what it may use
    limits = _limits(pid)
    assert limits["Max core file size"] == ("0", "0")
    assert limits["Max open files"] == ("256", "256")
    assert limits["Max processes"] == (str(machine.limits(1, 64).pids),) * 2
    assert limits["Max file size"] == (str(16 << 20),) * 2
    assert limits["Max address space"][1] == "unlimited"
    assert limits["Max realtime priority"] == ("0", "0")
    assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == 700
    tree = host.tree().child(request.sandbox)
    assert tree.pids() == {pid}
    for directory in tree.directories():
        assert str(pid) in (directory / "cgroup.procs").read_text().split(), directory
    assert int((tree.directory("pids") / "pids.max").read_text()) == machine.limits(1, 64).pids


def test_memory_limit_is_the_guest_and_the_measured_rest(host: RootHost) -> None:
    request = host.prepare(memory_mib=64)
    memory = host.tree().child(request.sandbox).directory("memory")
    names = [memory / "memory.max", memory / "memory.limit_in_bytes"]
    assert [int(name.read_text()) for name in names if name.exists()] == [(64 + 32 + 48) << 20]


def test_vmm_cannot_write_or_enter_what_is_not_its_own(host: RootHost) -> None:
    one, other = host.prepare(slot=0), host.prepare(slot=1)
    os.close(host.start(one))
    os.close(host.start(other))
    disk = host.instance.sandboxes / one.sandbox / "disk.img"
    found = disk.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (host.instance.vm_uid(0), host.instance.node_uid, 0o660)
    parent = disk.parent.stat()
    assert (parent.st_uid, parent.st_gid, stat.S_IMODE(parent.st_mode)) == (0, host.instance.node_uid, 0o710)

    def as_the_other() -> bytes:
        uid = host.instance.vm_uid(1)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        denied = b""
        for path in (disk, host.instance.vm_run(one.sandbox) / "qmp.sock", host.instance.rootd_socket, host.instance.netns(0)):
            denied += b"1" if not os.access(path, os.R_OK) and not os.access(path, os.W_OK) else b"0"
        return denied

    assert process.forked(as_the_other) == b"1111"


def test_node_reaches_the_sockets_and_nobody_else_does(host: RootHost) -> None:
    request = host.prepare()
    os.close(host.start(request))
    directory = host.instance.vm_run(request.sandbox)
    found = directory.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, host.instance.node_uid, 0o750)
    for name in ("qmp", "control", "bulk", "serial"):
        path = (directory / f"{name}.sock").stat()
        assert (path.st_uid, path.st_gid, stat.S_IMODE(path.st_mode)) == (0, host.instance.node_uid, 0o660)
    for name in ("qmp", "qmp"):  # a node that died connects again
        with host.socket(request, name) as channel:
            assert channel.recv(4096).startswith(b'{"QMP"')


def test_qemu_holds_the_disk_to_its_limits(host: RootHost) -> None:
    request = host.prepare()
    os.close(host.start(request))
    with host.socket(request, "qmp") as channel, channel.makefile("rwb") as monitor:

        def ask(command: str, **arguments: object) -> Any:
            monitor.write(json.dumps({"execute": command, "arguments": arguments}).encode())
            monitor.flush()
            while "return" not in (answer := json.loads(monitor.readline())):
                assert "error" not in answer, answer
            return answer["return"]

        assert b'{"QMP"' in monitor.readline()
        ask("qmp_capabilities")
        limits = ask("qom-get", path=f"/objects/{machine.DISK_LIMITS}", property="limits")
        (device,) = ask("query-block")
    assert (limits["bps-total"], limits["iops-total"]) == (machine.DISK_BYTES_PER_SECOND, machine.DISK_OPERATIONS_PER_SECOND)
    assert device["inserted"]["drv"] == "throttle"  # what the guest's device reads and writes
    assert device["inserted"]["node-name"] == "limited"


def test_kvm_is_in_the_jail_only_when_asked_for(host: RootHost) -> None:
    request = host.prepare()
    if not Path("/dev/kvm").exists():
        with pytest.raises(Unsupported, match="no /dev/kvm"):
            host.start(request, "kvm")
        return
    pidfd = host.start(request, "kvm")
    pid = host.record(request)["pid"]
    mounts = {fields[4]: fields[5] for fields in (line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines())}
    assert {"ro", "nosuid", "noexec"} <= set(mounts["/dev"].split(","))
    assert [path.name for path in Path(f"/proc/{pid}/root/dev").iterdir()] == ["kvm"]
    node = Path(f"/proc/{pid}/root/dev/kvm").stat()
    assert (node.st_uid, stat.S_IMODE(node.st_mode), node.st_rdev) == (host.instance.vm_uid(0), 0o600, Path("/dev/kvm").stat().st_rdev)
    os.close(pidfd)


def test_what_a_vmm_says_before_it_dies_is_in_the_log(host: RootHost, root: Path) -> None:
    request = host.prepare()
    store = host.instance.artefacts.resolve()
    private = root / "store"
    private.mkdir()
    for kind in ("qemu", "initramfs", "template"):
        (private / kind).symlink_to(store / kind)
    kernel = private / "kernel" / request.template
    kernel.mkdir(parents=True)
    (kernel / "vmlinux").write_bytes(b"\x7fELF no kernel at all")
    host.instance.artefacts.unlink()
    host.instance.artefacts.symlink_to(private)
    pidfd = host.start(request)
    try:
        assert namespaces.wait_ended(pidfd, 20)
    finally:
        os.close(pidfd)
    host.ask(lambda client: client.describe())  # rootd has reaped by then or does so before it answers
    host.stop_rootd()
    assert "ended with 1: qemu-system-x86_64: Error while loading elf kernel" in host.log.read_text()
