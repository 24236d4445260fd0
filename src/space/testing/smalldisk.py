"""A small btrfs in a loop file that is allocated whole, as set-up makes one, for the data of one instance; the disk below that; and how
either is filled.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from space.host import files, syscalls
from space.setup import loopdevice, mounts

MIB = 1 << 20
_FILLER = ".filler"
_WRITTEN = 128 * MIB


class SmallDisk:
    """Made by `small_disk`."""

    def __init__(self, mounted: Path) -> None:
        self.mounted = mounted

    def fill(self, leave_mib: int = 0) -> None:
        """Until there is no room for anybody, then give so much back."""
        filler = self.mounted / _FILLER
        filler.mkdir(exist_ok=True)
        number = len(list(filler.iterdir()))
        with suppress(OSError):  # the most of it is only taken, the rest is written
            while files.free_bytes(self.mounted) > _WRITTEN:
                with (filler / f"{number}").open("wb") as file:
                    syscalls.fallocate(file.fileno(), 0, 32 * MIB)
                number += 1
        for size in (MIB, 4096):
            while _written(filler / str(number), size):
                number += 1
        for path in [each for each in filler.iterdir() if each.stat().st_size == MIB][:leave_mib]:
            path.unlink()
        if leave_mib:
            self.sync()

    def free(self) -> None:
        """There is room again."""
        filler = self.mounted / _FILLER
        for path in filler.iterdir() if filler.exists() else ():
            path.unlink()
        self.sync()

    def sync(self) -> None:
        """What was deleted is free."""
        subprocess.run(["btrfs", "filesystem", "sync", self.mounted], check=True, capture_output=True)

    def is_writable(self) -> bool:
        """Whether it takes and gives back data, and has not gone read-only."""
        path = self.mounted / ".proof"
        data = os.urandom(MIB)
        path.write_bytes(data)
        self.sync()
        same = path.read_bytes() == data
        path.unlink()
        return same


def _written(path: Path, size: int) -> bool:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, os.urandom(size))
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        path.unlink()
        return False
    finally:
        os.close(descriptor)
    return True


@contextmanager
def small_disk(over: Path, image: Path, mib: int) -> Iterator[SmallDisk]:
    """Mounted over that directory, with what is in it now. image: where the file is to be."""
    kept = {path.name: path.read_bytes() for path in over.iterdir()}
    with image.open("wb") as file:
        syscalls.fallocate(file.fileno(), 0, mib * MIB)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    with ExitStack() as undo:
        undo.callback(image.unlink)
        device = loopdevice.attach(image)
        loopdevice.mount(str(Path(f"/proc/self/fd/{device}").readlink()), over, "btrfs", "nodiscard")
        os.close(device)
        undo.callback(lambda: mounts.unmount(over) if over.is_mount() else None)  # a sweep has done it
        for name, data in kept.items():
            (over / name).write_bytes(data)
        yield SmallDisk(over)


class HostDisk:
    """The disk below a loop file: an ext4 of its own. inner: what lies in the loop file."""

    def __init__(self, mounted: Path) -> None:
        self.mounted = mounted
        self.inner: SmallDisk

    def fill(self, leave_mib: int = 0) -> None:
        """Until it takes not a block more, also from root."""
        del leave_mib  # as `SmallDisk.fill`
        number = len(list(self.mounted.glob("filler*")))
        for size in (32 * MIB, MIB, 4096):
            while _written(self.mounted / f"filler{number}", size):
                number += 1

    def free(self) -> None:
        """There is room again."""
        for path in self.mounted.glob("filler*"):
            path.unlink()

    def is_writable(self) -> bool:
        """Whether the file system in the loop file is."""
        return self.inner.is_writable()


@contextmanager
def host_disk(place: Path, mib: int) -> Iterator[HostDisk]:
    """Mounted at that directory, which is made; so large beside what a file system takes."""
    image = place.with_name(f"{place.name}.image")
    place.mkdir()
    with image.open("wb") as file:
        file.truncate((mib + 256) * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
    with ExitStack() as undo:
        undo.callback(image.unlink)
        device = loopdevice.attach(image)
        loopdevice.mount(str(Path(f"/proc/self/fd/{device}").readlink()), place, "ext4", "")
        os.close(device)
        undo.callback(lambda: mounts.unmount(place))
        yield HostDisk(place)
