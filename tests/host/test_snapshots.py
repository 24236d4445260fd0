"""Snapshots and shared memory by rootd's operations: what lies there, who may write it, and what a death at any step leaves."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import mmap
import os
import signal
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from space.config import snapshots as layout
from space.core.plan import machine
from space.host import clockrate, process
from space.model.errors import Conflict, Gone, InvalidArgument, NotFound, SpaceError
from space.model.ids import new_sandbox_id, new_snapshot_id
from space.model.rootd import BeginSnapshot, CreateSandbox
from space.node.vmm.qemu import QemuMachine, QemuVmm
from space.node.vmm.seam import MachinePlan, SnapshotPlan, Taken
from space.rpc.rootd_client import RootdClient
from space.testing.fakevmm import NO_CHANNEL
from space.testing.roothost import STAYS, WORD, RootHost

T = TypeVar("T")
PROGRAM = """
import os, sys
from space.rootd import memory, sandboxes, server, taking
def reached(step):
    if step == {step!r}:
        os.kill(os.getpid(), 9)
for module in (memory, sandboxes, taking):
    module.reached = reached
sys.exit(server.main())
"""


def _with(host: RootHost, work: Callable[[RootdClient, QemuVmm], Awaitable[T]]) -> T:
    return host.ask(lambda client: work(client, QemuVmm(client, host.instance)))


def _plan(request: CreateSandbox) -> MachinePlan:
    return MachinePlan(request.sandbox, request.generation, request.cpus, request.memory_mib, "tcg")


def _booted(host: RootHost, slot: int = 0) -> CreateSandbox:
    request = host.prepare(slot)
    os.close(host.start(request))
    return request


def _snapshot(host: RootHost, request: CreateSandbox, plan: SnapshotPlan) -> Taken:
    async def work(_: RootdClient, vmm: QemuVmm) -> Taken:
        found = await vmm.adopt(request.sandbox, request.generation)
        assert found is not None
        try:
            return await found.snapshot(plan, NO_CHANNEL)
        finally:
            await found.aclose()

    return _with(host, work)


def _restored(host: RootHost, snapshot: str, slot: int) -> CreateSandbox:
    request = CreateSandbox(new_sandbox_id(), 1, slot, STAYS, 16, 64, 1, snapshot)

    async def work(client: RootdClient, vmm: QemuVmm) -> None:
        await client.create_slot(slot)
        await client.create_sandbox(request)
        found = await vmm.restore(_plan(request))
        await found.aclose()

    _with(host, work)
    return request


def _running(host: RootHost, request: CreateSandbox) -> bool:
    async def work(_: RootdClient, vmm: QemuVmm) -> bool:
        found = await vmm.adopt(request.sandbox, request.generation)
        assert isinstance(found, QemuMachine)
        try:
            return (await found._monitor().execute("query-status"))["running"] is True
        finally:
            await found.aclose()

    return _with(host, work)


def _names(host: RootHost) -> list[str]:
    return sorted(path.name for path in host.instance.snapshots.iterdir())


def _memory_holder(host: RootHost, snapshot: str) -> int:
    (pid,) = host.tree().child(f"memory-{snapshot}").pids()
    return pid


def test_a_snapshot_is_one_directory_of_roots_with_what_a_machine_needs(host: RootHost) -> None:
    request, name = _booted(host), new_snapshot_id()
    taken = _snapshot(host, request, SnapshotPlan(name, shared=True, durable=True))
    assert taken.stages_ms.keys() >= {"ready", "stop", "state", "copy", "resume", "done"}
    assert _running(host, request)
    directory = host.instance.snapshots / name
    assert {path.name for path in directory.iterdir()} == {layout.MEMORY, layout.STATE, layout.DISK, layout.MANIFEST}
    for path in (host.instance.snapshots, directory, *directory.iterdir()):
        found = path.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode) & 0o077) == (0, 0), path
    manifest = layout.parse(json.loads((directory / layout.MANIFEST).read_text()), name)
    assert (manifest.sandbox, manifest.parent, manifest.machine.memory_mib) == (request.sandbox, "", 64)
    assert (directory / layout.MEMORY).stat().st_size == 64 << 20
    assert (directory / layout.MEMORY).stat().st_blocks * 512 < 16 << 20  # what the guest never wrote stays a hole
    assert (directory / layout.DISK).read_bytes() == (host.instance.sandboxes / request.sandbox / "disk.img").read_bytes()
    for part, digest in manifest.digests.items():
        descriptor = os.open(directory / part, os.O_RDONLY)
        assert layout.digest(descriptor) == digest
        os.close(descriptor)
    assert set(manifest.digests) == {layout.MEMORY, layout.STATE, layout.DISK}


def test_shared_memory_is_sealed_charged_to_its_own_cgroup_and_outlives_rootd(host: RootHost) -> None:
    request, name = _booted(host), new_snapshot_id()
    _snapshot(host, request, SnapshotPlan(name, shared=True))
    host.ask(lambda client: client.hold_memory(name))
    holder = _memory_holder(host, name)
    status = dict(line.split(":", 1) for line in Path(f"/proc/{holder}/status").read_text().splitlines())
    assert status["Uid"].split() == [str(host.instance.memory_uid)] * 4
    assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert status["NoNewPrivs"].strip() == "1"
    host.stop_rootd(signal.SIGKILL)
    host.start_rootd()
    host.ask(lambda client: client.hold_memory(name))
    assert _memory_holder(host, name) == holder, "the next rootd did not find it"
    assert sorted(entry.name for entry in Path(f"/proc/{holder}/fd").iterdir()) == ["0", "1", "2", "3"]
    (told,) = host.ask(lambda client: client.list_snapshots())
    assert told.held
    clones = [_restored(host, name, slot) for slot in (1, 2)]

    # no VM's uid writes what others map
    pid, uid = host.record(clones[0])["pid"], host.instance.vm_uid(1)
    number = next(entry.name for entry in Path(f"/proc/{pid}/fd").iterdir() if str(entry.readlink()).startswith("/memfd:memory"))

    def as_the_vmm() -> bytes:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
        said = b""
        for attempt in (
            lambda: os.pwrite(descriptor, b"x", 0),
            lambda: os.ftruncate(descriptor, 0),
            lambda: mmap.mmap(descriptor, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
            lambda: fcntl.fcntl(descriptor, 1033, 0),  # more seals, or others
        ):
            try:
                attempt()
                said += b"done "
            except OSError as error:
                said += errno.errorcode[error.errno or 0].encode() + b" "
        return said

    assert process.forked(as_the_vmm) == b"EPERM EPERM EPERM EPERM "

    # its end takes it from no machine that runs, and from those to come
    host.ask(lambda client: client.release_memory(name))
    assert not host.tree().child(f"memory-{name}").exists()
    assert _resume(host, clones[1])
    assert host.talk(clones[1]) == WORD
    with pytest.raises(Conflict, match="is not held"):
        _restored(host, name, 3)


def _resume(host: RootHost, request: CreateSandbox) -> bool:
    async def work(_: RootdClient, vmm: QemuVmm) -> None:
        found = await vmm.adopt(request.sandbox, request.generation)
        assert found is not None
        await found.resume()
        await found.aclose()

    _with(host, work)
    return _running(host, request)


def test_a_restored_vmm_is_jailed_as_one_that_booted(host: RootHost) -> None:
    request, name = _booted(host), new_snapshot_id()
    _snapshot(host, request, SnapshotPlan(name))
    clone = _restored(host, name, 1)
    pid = host.record(clone)["pid"]
    mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    assert sorted(fields[4] for fields in mounts) == ["/", "/tmp", machine.DESCRIPTORS]
    for fields in mounts:
        assert {"ro", "nosuid", "nodev"} <= set(fields[5].split(",")), fields
    held = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    own = host.instance.sandboxes / clone.sandbox
    state = host.instance.snapshots / name / layout.STATE
    paths = {each for each in held if each.startswith("/") and not each.startswith("/memfd")}
    assert paths <= {"/dev/null", "/dev/net/tun", str(own / "disk.img"), str(own / "memory"), str(state)}
    assert {entry.name for entry in Path(f"/proc/{pid}/root/tmp/fd").iterdir()} == {e.name for e in Path(f"/proc/{pid}/fd").iterdir()}
    found = (own / "memory").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (host.instance.vm_uid(1), 0o600)
    with pytest.raises(InvalidArgument, match="is not shared"):
        host.ask(lambda client: client.hold_memory(name))


@pytest.mark.parametrize("step", ["snapshot ready", "snapshot copied", "snapshot synced", "snapshot described", "snapshot committed"])
def test_a_death_at_any_step_of_a_snapshot_leaves_all_of_it_or_nothing(unserved: RootHost, step: str) -> None:
    unserved.start_rootd(program=("-c", PROGRAM.format(step=step)))
    request, name = _booted(unserved), new_snapshot_id()
    with pytest.raises(SpaceError):
        _snapshot(unserved, request, SnapshotPlan(name, durable=True))
    with suppress(AssertionError):
        unserved.stop_rootd(signal.SIGKILL)
    unserved.start_rootd()
    assert _running(unserved, request), "the machine that was to be copied stands still"
    assert _names(unserved) == ([name] if step == "snapshot committed" else [])
    again = new_snapshot_id()
    _snapshot(unserved, request, SnapshotPlan(again, durable=True))
    _restored(unserved, again, 1)


def test_a_death_while_memory_is_filled_is_followed_by_another_attempt(unserved: RootHost) -> None:
    unserved.start_rootd(program=("-c", PROGRAM.format(step="memory filled")))
    request, name = _booted(unserved), new_snapshot_id()
    _snapshot(unserved, request, SnapshotPlan(name, shared=True))
    with pytest.raises(SpaceError, match="could not be held"):
        unserved.ask(lambda client: client.hold_memory(name))
    unserved.stop_rootd(signal.SIGKILL)
    unserved.start_rootd()
    unserved.ask(lambda client: client.hold_memory(name))
    _restored(unserved, name, 1)


def test_a_death_of_rootd_while_a_sandbox_is_made_of_a_snapshot_leaves_none_or_all_of_it(unserved: RootHost) -> None:
    unserved.start_rootd()
    request, name = _booted(unserved), new_snapshot_id()
    _snapshot(unserved, request, SnapshotPlan(name))
    unserved.stop_rootd()
    unserved.start_rootd(program=("-c", PROGRAM.format(step="memory linked")))
    made = CreateSandbox(new_sandbox_id(), 1, 1, STAYS, 16, 64, 1, name)

    async def work(client: RootdClient) -> None:
        await client.create_slot(1)
        asked = asyncio.create_task(client.create_sandbox(made))
        await asyncio.to_thread(_wait_for_death, unserved)
        await asyncio.to_thread(unserved.start_rootd)
        await asyncio.wait_for(asked, 20)

    unserved.ask(work)
    assert sorted(path.name for path in (unserved.instance.sandboxes / made.sandbox).iterdir()) == ["disk.img", "memory", "sandbox.json"]
    assert not [path for path in unserved.instance.sandboxes.iterdir() if path.name.startswith(".")]


def test_a_death_of_rootd_before_a_snapshot_has_begun_is_followed_by_one_that_takes_it(unserved: RootHost) -> None:
    unserved.start_rootd(program=("-c", PROGRAM.format(step="snapshot staged")))
    request, name = _booted(unserved), new_snapshot_id()

    async def work(_: RootdClient, vmm: QemuVmm) -> None:
        found = await vmm.adopt(request.sandbox, 1)
        assert found is not None
        taking = asyncio.create_task(found.snapshot(SnapshotPlan(name), NO_CHANNEL))
        await asyncio.to_thread(_wait_for_death, unserved)
        await asyncio.to_thread(unserved.start_rootd)
        await asyncio.wait_for(taking, 20)
        await found.aclose()

    _with(unserved, work)
    assert _names(unserved) == [name]


def _wait_for_death(host: RootHost) -> None:
    assert host.rootd is not None
    assert host.rootd.wait(10) == -9
    host.rootd = None


def test_a_node_that_hangs_up_gives_its_snapshot_up(host: RootHost) -> None:
    request, name = _booted(host), new_snapshot_id()

    async def work(client: RootdClient, vmm: QemuVmm) -> None:
        found = await vmm.adopt(request.sandbox, 1)
        assert found is not None
        taking = asyncio.create_task(found.snapshot(SnapshotPlan(name, durable=True), NO_CHANNEL))
        for _ in range(200):
            await asyncio.sleep(0.001)
            if _names(host):
                break
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await found.aclose()
        for _ in range(500):
            if not _names(host):
                break
            await asyncio.sleep(0.01)

    _with(host, work)
    assert _names(host) == []
    assert _running(host, request)
    host.ask(lambda client: client.kill_vmm(request.sandbox, 1))

    async def dead(client: RootdClient, vmm: QemuVmm) -> None:
        while (found := await vmm.adopt(request.sandbox, 1)) is not None:
            await found.wait()
            await found.aclose()
        with pytest.raises(Gone):
            await client.begin_snapshot(_begin(request, name))

    _with(host, dead)


def _begin(request: CreateSandbox, name: str) -> BeginSnapshot:

    return BeginSnapshot(request.sandbox, request.generation, name, shared=False, durable=False)


def test_what_was_taken_of_another_machine_is_refused_with_what_differs(host: RootHost) -> None:
    request, name = _booted(host), new_snapshot_id()
    _snapshot(host, request, SnapshotPlan(name))
    path = host.instance.snapshots / name / layout.MANIFEST
    good = json.loads(path.read_text())
    rate = good["machine"]["counter_khz"]
    assert rate == clockrate.sure_khz()
    for change, words in (
        ({"machine": good["machine"] | {"devices": "0" * 32}}, "devices is"),
        ({"machine": good["machine"] | {"vmm": "0" * 16}}, "vmm is"),
        *(
            [({"machine": good["machine"] | {"counter_khz": rate + rate // 1000}}, f"kHz there and at {rate} kHz here")]
            if rate  # known for sure on this host
            else []
        ),
        ({"version": 0}, "has version 0"),
        ({"complete": False}, "never completed"),
        ({"snapshot": new_snapshot_id()}, "is that of"),
        ({"more": 1}, "more"),
        ({"shared": 1}, "where bool is wanted"),
    ):
        path.write_text(json.dumps(good | change))
        with pytest.raises(Conflict, match=words) as caught:
            _restored(host, name, 1)
        assert "rebake" in (caught.value.hint or "")
        left = host.ask(lambda client: client.describe())
        for one in left.sandboxes:
            if one.slot == 1:
                host.ask(lambda client, one=one: client.destroy_sandbox(one.sandbox, 1))  # type: ignore[misc]
    path.write_text(json.dumps(good))
    _restored(host, name, 1)


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("part", "harm", "words"),
    [
        (layout.MEMORY, lambda path: os.truncate(path, 32 << 20), "its memory has 33554432 bytes, not 67108864"),
        (layout.STATE, lambda path: os.truncate(path, path.stat().st_size - 1), "its state has"),
        (layout.STATE, _flipped, "its state is not what was stored"),
        (layout.DISK, lambda path: os.truncate(path, 8 << 20), "its disk.img has 8388608 bytes, not 16777216"),
        (layout.MANIFEST, lambda path: path.write_text("{"), "its manifest cannot be read"),
        (layout.MANIFEST, lambda path: path.write_text('{"version": 1}'), "has version 1"),
        (layout.MANIFEST, lambda path: path.unlink(), "there is no snapshot"),
    ],
)
def test_files_that_are_not_those_of_the_manifest_are_not_gone_on_from_and_their_disk_can_be_had(
    host: RootHost, part: str, harm: Callable[[Path], object], words: str
) -> None:
    request, name = _booted(host), new_snapshot_id()
    _snapshot(host, request, SnapshotPlan(name, durable=True))
    harm(host.instance.snapshots / name / part)
    with pytest.raises((Conflict, NotFound), match=words):
        _restored(host, name, 1)
    (told,) = host.ask(lambda client: client.list_snapshots())
    assert told.snapshot == name, "it is somebody's, whatever can be read of it"
    (left,) = [one for one in host.ask(lambda client: client.describe()).sandboxes if one.slot == 1]
    disk = (host.instance.snapshots / name / layout.DISK).read_bytes()
    assert (host.instance.sandboxes / left.sandbox / "disk.img").read_bytes().rstrip(b"\0") == disk.rstrip(b"\0")
    host.ask(lambda client: client.destroy_sandbox(left.sandbox, 1))


def _kill(host: RootHost, request: CreateSandbox) -> None:
    async def dead(client: RootdClient, vmm: QemuVmm) -> None:
        await client.kill_vmm(request.sandbox, request.generation)
        while (found := await vmm.adopt(request.sandbox, request.generation)) is not None:
            await found.wait()
            await found.aclose()

    _with(host, dead)


def test_a_disk_is_renewed_for_the_next_generation_and_its_memory_is_dropped(host: RootHost) -> None:
    request, name = _booted(host), new_snapshot_id()
    _snapshot(host, request, SnapshotPlan(name, durable=True))
    other = _restored(host, name, 1)
    with pytest.raises(Conflict, match="lives"):
        host.ask(lambda client: client.renew_sandbox(other.sandbox, 1, 2))
    host.ask(lambda client: client.discard_snapshot(name))  # memory and disk of whoever has begun are its own
    _kill(host, other)
    directory = host.instance.sandboxes / other.sandbox
    disk = (directory / "disk.img").stat()
    for _ in range(2):
        host.ask(lambda client: client.renew_sandbox(other.sandbox, 1, 2))
    assert sorted(path.name for path in directory.iterdir()) == ["disk.img", "sandbox.json"]
    assert ((directory / "disk.img").stat().st_ino, (directory / "disk.img").stat().st_uid) == (disk.st_ino, disk.st_uid)
    again = CreateSandbox(other.sandbox, 2, 1, STAYS, 16, 64, 1)
    os.close(host.start(again))
    with pytest.raises(NotFound, match="cannot be followed by 1"):
        host.ask(lambda client: client.renew_sandbox(other.sandbox, 3, 1))


def test_a_snapshot_that_a_sandbox_has_still_to_begin_from_is_kept(host: RootHost) -> None:
    request, name = _booted(host), new_snapshot_id()
    _snapshot(host, request, SnapshotPlan(name, durable=True))
    waiting = CreateSandbox(new_sandbox_id(), 1, 1, STAYS, 16, 64, 1, name)

    async def make(client: RootdClient) -> None:
        await client.create_slot(1)
        await client.create_sandbox(waiting)

    host.ask(make)
    with pytest.raises(Conflict, match="is made of snapshot"):
        host.ask(lambda client: client.discard_snapshot(name))
