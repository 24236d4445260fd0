"""Sandboxes: files, cgroups, and the life of a VMM by rootd's operations."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from space.host import namespaces, process, syscalls
from space.model.errors import Conflict, Gone, InvalidArgument, NoCapacity, NotFound, SpaceError
from space.model.rootd import CreateSandbox, StartVmm
from space.rootd import sandboxes, slots, vmm
from space.rootd.sweep import sweep
from space.rpc.rootd_client import RootdClient, SandboxOnHost
from space.testing import roothost
from space.testing.roothost import DIES, DISK_BYTES, SPINS, WORD, RootHost


def _create(host: RootHost, request: CreateSandbox) -> None:
    host.ask(lambda client: client.create_sandbox(request))


def _kill(host: RootHost, request: CreateSandbox, pidfd: int) -> None:
    host.ask(lambda client: client.kill_vmm(request.sandbox, request.generation))
    assert namespaces.wait_ended(pidfd, 10)
    os.close(pidfd)


def test_disk_is_the_templates_made_larger(host: RootHost) -> None:
    request = host.prepare(disk_mib=32)
    disk = host.instance.sandboxes / request.sandbox / "disk.img"
    data = disk.read_bytes()
    assert len(data) == 32 << 20
    assert data[:4096] == b"template" * 512
    assert not data[4096:].strip(b"\0")
    assert disk.stat().st_blocks * 512 < 1 << 20  # holes stay holes
    template = host.instance.artefacts / "template" / roothost.STAYS / "disk.img"
    assert template.stat().st_size == DISK_BYTES


def test_disk_shares_blocks_where_the_file_system_can(root: Path, artefacts: Path) -> None:
    image, mounted = root / "btrfs.img", root / "fs"
    with image.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 256 << 20)
    process.run(["mkfs.btrfs", "-q", str(image)])
    mounted.mkdir()
    process.run(["mount", "-o", "loop", str(image), str(mounted)])
    try:
        host = RootHost(roothost.make_instance(f"b{os.getpid()}", mounted, artefacts, os.getpid()))
        host.instance.artefacts.unlink()
        process.run(["cp", "-a", str(artefacts), str(host.instance.artefacts)])
        try:
            host.start_rootd()
            host.prepare(disk_mib=32)
            host.stop_rootd()
            assert "was copied" not in host.log.read_text()
        finally:
            if host.rootd is not None:
                host.stop_rootd()
            host.listener.close()
            assert sweep(host.instance) == []
            assert host.traces() == []
    finally:
        syscalls.umount2(str(mounted))


@pytest.mark.parametrize("disk_mib", [1, 7])
def test_disk_smaller_than_the_template_is_refused(host: RootHost, disk_mib: int) -> None:
    with pytest.raises(InvalidArgument, match=r"disk_mib is at least 8, the size of template 'test'"):
        host.prepare(disk_mib=disk_mib)
    assert list(host.instance.sandboxes.iterdir()) == []


def test_full_disk_refuses_a_sandbox_and_keeps_nothing_of_it(unserved: RootHost) -> None:
    place = unserved.instance.sandboxes
    place.mkdir(mode=0o711, parents=True, exist_ok=True)
    process.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=711", "none", str(place)])
    try:
        unserved.start_rootd()
        filler = place / ".filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(1 << 20))
        with pytest.raises(NoCapacity, match="the machine is full: No space left"):
            unserved.prepare(disk_mib=32)
        assert [entry.name for entry in place.iterdir()] == [".filler"]
        filler.unlink()
        request = unserved.prepare(disk_mib=32)
        assert (place / request.sandbox / "disk.img").stat().st_size == 32 << 20
        unserved.ask(lambda client: client.destroy_sandbox(request.sandbox, request.generation))
        unserved.stop_rootd()
    finally:
        if unserved.rootd is not None:
            unserved.stop_rootd()
        syscalls.umount2(str(place))


def test_unknown_template_is_not_found(host: RootHost) -> None:
    with pytest.raises(NotFound, match="template dddddddddddddddd is not on this machine"):
        host.prepare(template="d" * 16)
    assert list(host.instance.sandboxes.iterdir()) == []


def test_sandbox_needs_its_slot_to_itself(host: RootHost) -> None:
    first = host.prepare(slot=0)
    with pytest.raises(Conflict, match=f"slot 0 belongs to sandbox {first.sandbox}"):
        host.prepare(slot=0)
    with pytest.raises(Conflict, match="there is no slot 9"):
        host.ask(lambda client: client.create_sandbox(replace(first, sandbox="sb-" + "a" * 20, slot=9)))


def test_creating_again_is_fine_and_another_shape_is_not(host: RootHost) -> None:
    request = host.prepare()
    host.ask(lambda client: client.create_sandbox(request))
    for other in (replace(request, generation=2), replace(request, memory_mib=128), replace(request, disk_mib=64)):
        with pytest.raises(Conflict, match=f"sandbox {request.sandbox} is there already"):
            _create(host, other)


def test_life_of_a_vmm(host: RootHost) -> None:
    request = host.prepare()
    pidfd = host.start(request)
    assert host.talk(request) == WORD
    assert host.ask(lambda client: client.describe()).sandboxes == (SandboxOnHost(request.sandbox, 1, 0, alive=True),)
    with pytest.raises(Conflict, match=f"the VMM of {request.sandbox} lives"):
        host.ask(lambda client: client.destroy_sandbox(request.sandbox, 1))
    _kill(host, request, pidfd)
    assert host.ask(lambda client: client.describe()).sandboxes == (SandboxOnHost(request.sandbox, 1, 0, alive=False),)
    for _ in range(2):
        host.ask(lambda client: client.destroy_sandbox(request.sandbox, 1))
    assert host.ask(lambda client: client.describe()).sandboxes == ()
    assert list(host.instance.sandboxes.iterdir()) == []
    assert list((host.instance.run / "vm").iterdir()) == []
    assert not host.tree().child(request.sandbox).exists()
    host.ask(lambda client: client.kill_vmm(request.sandbox, 1))  # nothing there: fine
    assert host.ask(lambda client: client.adopt_vmm(request.sandbox, 1)) is None


def test_starting_twice_gives_the_same_vmm_and_not_after_its_end(host: RootHost) -> None:
    request = host.prepare()
    first, second = host.start(request), host.start(request)
    assert host.record(request)["answered"] is True
    pids = {
        line.split()[1] for fd in (first, second) for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines() if line[:4] == "Pid:"
    }
    assert len(pids) == 1
    os.close(second)
    _kill(host, request, first)
    with pytest.raises(Gone, match="was started and has ended"):
        host.start(request)


def test_vmm_ends_with_its_guest(host: RootHost) -> None:
    request = host.prepare(template=DIES)
    pidfd = host.start(request)
    assert host.talk(request) == WORD
    assert namespaces.wait_ended(pidfd, 10)
    os.close(pidfd)
    host.ask(lambda client: client.destroy_sandbox(request.sandbox, 1))


def test_other_generation_is_left_alone(host: RootHost) -> None:
    request = replace(host.prepare(slot=0), slot=0)
    pidfd = host.start(request)
    assert host.ask(lambda client: client.adopt_vmm(request.sandbox, 2)) is None
    host.ask(lambda client: client.kill_vmm(request.sandbox, 2))
    assert not namespaces.wait_ended(pidfd, 0.2)
    for ask in (lambda client: client.usage(request.sandbox, 2), lambda client: client.start_vmm(StartVmm(request.sandbox, 2, "tcg"))):
        with pytest.raises(NotFound, match="has generation 1 here, not 2"):
            host.ask(ask)
    with pytest.raises(Conflict, match="has generation 1 here, not 2"):
        host.ask(lambda client: client.destroy_sandbox(request.sandbox, 2))
    os.close(pidfd)


def test_usage_grows_with_a_guest_that_computes(host: RootHost) -> None:
    request = host.prepare(template=SPINS)
    with pytest.raises(NotFound):
        host.ask(lambda client: client.usage("sb-" + "a" * 20, 1))
    pidfd = host.start(request)
    assert host.talk(request) == WORD

    async def grow(client: RootdClient) -> None:
        before = await client.usage(request.sandbox, 1)
        assert 5 << 20 < before.memory_bytes <= (64 + 80) << 20
        deadline = asyncio.get_running_loop().time() + 20
        while (await client.usage(request.sandbox, 1)).cpu_usec < before.cpu_usec + 200_000:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)

    host.ask(grow)
    os.close(pidfd)


def test_usage_counts_what_the_kernel_killed_for_want_of_memory(host: RootHost) -> None:
    request = host.prepare(memory_mib=64)
    assert host.ask(lambda client: client.usage(request.sandbox, 1)).oom_kills == 0
    tree = host.tree().child(request.sandbox)

    def greedy() -> bytes:
        tree.add(os.getpid())
        return bytes(bytearray(b"x") * (300 << 20))[:1]  # the cgroup allows 144 MiB

    with pytest.raises(process.ProcessFailed):
        process.forked(greedy)
    assert host.ask(lambda client: client.usage(request.sandbox, 1)).oom_kills == 1


def test_vmm_whose_record_cannot_be_written_does_not_stay(unserved: RootHost, monkeypatch: pytest.MonkeyPatch) -> None:
    place = sandboxes.open_place(unserved.instance)
    try:
        slots.create(unserved.instance, 0)
        request = CreateSandbox("sb-" + "a" * 20, 1, 0, roothost.STAYS, 16, 64, 1)
        sandboxes.create(place, request)
        save, started = sandboxes.save, []

        def full(place: sandboxes.Place, record: sandboxes.Record) -> None:
            started.append(record.pid)
            if record.answered:
                raise OSError(28, "No space left on device")
            save(place, record)

        monkeypatch.setattr(sandboxes, "save", full)
        with pytest.raises(OSError, match="No space left"):
            vmm.start(place, vmm.Children(), StartVmm(request.sandbox, 1, "tcg"))
        assert started[0] == started[1]
        assert not Path(f"/proc/{started[0]}").exists()
        monkeypatch.undo()
        os.close(vmm.start(place, vmm.Children(), StartVmm(request.sandbox, 1, "tcg")))  # there was no answer: it may be started again
        assert unserved.talk(request) == WORD
    finally:
        os.close(place.directory)


@pytest.fixture
def unreachable(host: RootHost) -> Iterator[Path]:
    """A file outside of everything that no operation may touch."""
    path = host.instance.run_root / "secret"
    path.write_text("secret")
    yield path
    assert path.read_text() == "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_link_in_place_of_a_disk_is_not_followed(host: RootHost, unreachable: Path) -> None:
    # nobody but root can put it there; should it be there all the same, rootd does not open what it points to
    unreachable.chmod(0o644)
    request = host.prepare()
    disk = host.instance.sandboxes / request.sandbox / "disk.img"
    disk.unlink()
    disk.symlink_to(unreachable)
    with pytest.raises(SpaceError, match="rootd failed"):
        host.start(request)
    host.ask(lambda client: client.destroy_sandbox(request.sandbox, 1))
    host.stop_rootd(signal.SIGTERM)
    assert "Too many levels of symbolic links" in host.log.read_text()
    host.log.write_text("")
