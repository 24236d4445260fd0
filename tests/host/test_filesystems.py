"""What space needs of a file system, over btrfs and XFS alike: reflinks, growth, and a full one that stays writable afterwards."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from space.config.instance import DATA_ROOT
from space.host import files, syscalls
from space.setup import growth, loopdevice, mounts
from space.setup.faults import SetupFailed

MIB = 1 << 20
SIZE = 320 * MIB  # XFS takes no less than 300 MiB


@dataclass(frozen=True)
class Disk:
    kind: str
    image: Path
    mounted: Path

    def total(self) -> int:
        facts = os.statvfs(self.mounted)
        return facts.f_blocks * facts.f_frsize


@pytest.fixture(params=["btrfs", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A file system of that kind in a loop file that is allocated whole."""
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        syscalls.fallocate(file.fileno(), 0, SIZE)
    subprocess.run([f"mkfs.{request.param}", "-q", image], check=True, capture_output=True)
    with ExitStack() as undo:
        device = loopdevice.attach(image)
        loopdevice.mount(str(Path(f"/proc/self/fd/{device}").readlink()), mounted, request.param, "nodiscard")
        os.close(device)
        undo.callback(mounts.unmount, mounted)
        yield Disk(request.param, image, mounted)
    assert mounts.below(tmp_path) == []


def written(path: Path, count: int) -> bytes:
    data = secrets.token_bytes(count)
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    return data


def filled(directory: Path) -> None:
    """Until there is no room left for anybody."""
    descriptor = os.open(directory / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        for size in (MIB, 4096):
            with pytest.raises(OSError, match="No space left"):
                endlessly(descriptor, os.urandom(size))
    finally:
        os.close(descriptor)


def endlessly(descriptor: int, data: bytes) -> None:
    while True:
        os.write(descriptor, data)
        os.fsync(descriptor)


def test_clone_shares_blocks_and_keeps_apart(disk: Disk) -> None:
    source, target = disk.mounted / "source", disk.mounted / "target"
    data = written(source, 16 * MIB)
    before = files.free_bytes(disk.mounted)
    with source.open("rb") as reader, target.open("wb") as writer:
        assert files.clone(reader.fileno(), writer.fileno())
        os.fsync(writer.fileno())
    assert before - files.free_bytes(disk.mounted) < 4 * MIB
    with target.open("r+b") as writer:
        writer.write(b"changed")
    assert source.read_bytes() == data
    assert target.read_bytes() == b"changed" + data[7:]


def test_full_file_system_refuses_and_stays_writable(disk: Disk) -> None:
    kept = disk.mounted / "kept"
    data = written(kept, MIB)
    filled(disk.mounted)
    assert files.free_bytes(disk.mounted) < 8 * MIB
    with pytest.raises(OSError, match="No space left"):
        written(disk.mounted / "more", 32 * MIB)
    (disk.mounted / "filler").unlink()
    (disk.mounted / "more").unlink(missing_ok=True)
    if disk.kind == "btrfs":
        subprocess.run(["btrfs", "filesystem", "sync", disk.mounted], check=True, capture_output=True)
    again = written(disk.mounted / "again", 8 * MIB)
    assert kept.read_bytes() == data
    assert (disk.mounted / "again").read_bytes() == again


def test_growth_allocates_first_and_is_seen_by_the_file_system(disk: Disk) -> None:
    data = written(disk.mounted / "kept", MIB)
    before = disk.total()
    assert growth.grow(disk.image, disk.mounted, SIZE + 64 * MIB)
    assert growth.is_whole(disk.image)
    assert disk.image.stat().st_size == SIZE + 64 * MIB
    assert disk.total() - before > 48 * MIB
    assert not growth.grow(disk.image, disk.mounted, SIZE + 64 * MIB)
    assert (disk.mounted / "kept").read_bytes() == data


def test_growth_that_was_cut_off_is_finished(disk: Disk) -> None:
    with disk.image.open("r+b") as file:
        syscalls.fallocate(file.fileno(), 0, SIZE + 64 * MIB)
    before = disk.total()
    assert growth.grow(disk.image, disk.mounted, SIZE + 64 * MIB)
    assert disk.total() - before > 48 * MIB


def test_what_cannot_be_is_refused_and_changes_nothing(disk: Disk) -> None:
    before = disk.image.stat().st_size
    with pytest.raises(SetupFailed, match="does not shrink"):
        growth.grow(disk.image, disk.mounted, SIZE - MIB)
    with pytest.raises(SetupFailed, match="more were asked for"):
        growth.grow(disk.image, disk.mounted, 1 << 50)
    assert disk.image.stat().st_size == before


def test_sparse_file_in_use_is_allocated_in_place(tmp_path: Path) -> None:
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    device = loopdevice.attach(image)
    loopdevice.mount(str(Path(f"/proc/self/fd/{device}").readlink()), mounted, "btrfs", "nodiscard")
    os.close(device)
    try:
        data = written(mounted / "kept", 8 * MIB)
        assert not growth.is_whole(image)
        assert growth.allocate(image)
        assert growth.is_whole(image)
        assert not growth.allocate(image)
        assert (mounted / "kept").read_bytes() == data
    finally:
        mounts.unmount(mounted)
    device = loopdevice.attach(image)
    loopdevice.mount(str(Path(f"/proc/self/fd/{device}").readlink()), mounted, "btrfs", "nodiscard")
    os.close(device)
    try:
        assert (mounted / "kept").read_bytes() == data
    finally:
        mounts.unmount(mounted)


def test_allocation_without_room_is_refused_with_the_reason(disk: Disk) -> None:
    sparse = disk.mounted / "sparse"
    with sparse.open("wb") as file:
        file.truncate(4 * SIZE)
    with pytest.raises(SetupFailed, match="has no room for it"):
        growth.allocate(sparse)


def test_this_machines_loop_file_is_whole() -> None:
    image = DATA_ROOT.with_name("space.img")
    if image.exists():
        assert growth.is_whole(image)
