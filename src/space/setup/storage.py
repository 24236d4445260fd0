"""The data directory on a file system with reflinks, because a sandbox's disk is a reflink of its template's.

Where `/var/lib/space` already has them (btrfs, XFS: tried with a real FICLONE, not guessed by name), nothing is done. Elsewhere
a btrfs in a loop file is mounted over it. The file is allocated whole: btrfs on a sparse file aborts and goes read-only for
good when the host's disk fills. For the same reason nothing may discard: a TRIM would punch the allocation out again.
A mount does not survive a reboot; `ensure` is called by every set-up and by every serve.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from space.config.instance import DATA_ROOT
from space.host import syscalls
from space.setup import command, growth, loopdevice, mounts
from space.setup.faults import SetupFailed

GIB = 1 << 30
IMAGE = DATA_ROOT.with_name("space.img")
LOCK = DATA_ROOT.with_name("space.lock")
_DEFAULT = 8 * GIB
_LEAST_FREE = 4 * GIB
_OPTIONS = "nodiscard"


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the data lies. `image` is None when the host's own file system has reflinks; `changed` says that this call did something."""

    root: Path
    image: Path | None
    changed: bool


def image_bytes(free: int, wanted: int | None = None) -> int:
    """How large a loop file to make with `free` bytes left: `wanted` or 8 GiB, and never more than three quarters of what is free."""
    if free < _LEAST_FREE:
        raise SetupFailed(
            f"{DATA_ROOT.parent} has {free / GIB:.1f} GiB free, and sandboxes' disks need at least {_LEAST_FREE // GIB} GiB",
            hint=f"free some space, or mount a btrfs or XFS file system at {DATA_ROOT}",
        )
    if wanted is not None and wanted > free * 3 // 4:
        raise SetupFailed(
            f"a storage of {wanted / GIB:.1f} GiB was asked for, and {DATA_ROOT.parent} has {free / GIB:.1f} GiB free",
            hint="ask for three quarters of it at most (SPACE_STORAGE_GIB)",
        )
    return min(wanted or _DEFAULT, free * 3 // 4) // (1 << 20) * (1 << 20)


def has_reflinks(directory: Path) -> bool:
    """Whether a file in `directory` can share another's extents, by doing it."""
    names = [directory / f".reflink-{secrets.token_hex(4)}" for _ in range(2)]
    try:
        with names[0].open("w+b") as source, names[1].open("wb") as target:
            source.write(bytes(4096))
            source.flush()
            syscalls.reflink(source.fileno(), target.fileno())
    except OSError:
        return False
    finally:
        for name in names:
            name.unlink(missing_ok=True)
    return True


@contextmanager
def locked() -> Iterator[None]:
    """The machine's set-up lock: one process at a time changes storage, artefacts or runtimes."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked() -> bool:
    """Whether a set-up is at work now."""
    try:
        descriptor = os.open(LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def ensure(wanted: int | None = None) -> Storage:
    """Make `/var/lib/space` a directory with reflinks, mounting or making the loop file if need be (root only; takes the lock).

    `wanted` is the size of a new loop file in bytes; SPACE_STORAGE_GIB sets it too. SetupFailed says what is in the way.
    """
    if _ready() and _is_whole():
        return Storage(DATA_ROOT, backing(), changed=False)
    with locked():
        return ensure_locked(wanted)


def ensure_locked(wanted: int | None = None) -> Storage:
    """`ensure` for a caller that holds the lock."""
    if _ready():
        # An older set-up, or whoever copied the file, may have left it sparse.
        return Storage(DATA_ROOT, backing(), changed=not _is_whole() and growth.allocate(IMAGE))
    DATA_ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
    if has_reflinks(DATA_ROOT):
        return Storage(DATA_ROOT, None, changed=False)
    if backing() is None and any(DATA_ROOT.iterdir()):
        raise SetupFailed(
            f"{DATA_ROOT} holds files on a file system without reflinks", hint=f"move them away, or mount btrfs or XFS at {DATA_ROOT}"
        )
    if not IMAGE.exists():
        _make_image(image_bytes(_free(IMAGE.parent), wanted or setting()))
    growth.allocate(IMAGE)
    if backing() is None:
        _mount_image()
    if not _ready():
        raise SetupFailed(
            f"{IMAGE} is mounted at {DATA_ROOT} and cannot be written", hint="`dmesg | grep -i btrfs` says why; `make clean` starts over"
        )
    return Storage(DATA_ROOT, IMAGE, changed=True)


def grow(wanted: int) -> bool:
    """Make the loop file and what is on it `wanted` bytes large; whether it was smaller. The caller holds the lock."""
    if backing() is None:
        raise SetupFailed(f"{DATA_ROOT} is no loop file of space's", hint="grow the file system that it lies on")
    return growth.grow(IMAGE, DATA_ROOT, wanted)


def undo() -> list[str]:
    """Take the mount and the loop file away; what was done, in words. The data in it is lost."""
    done = []
    with locked():
        while backing() is not None:
            mounts.unmount(DATA_ROOT)
            done.append(f"unmounted {DATA_ROOT}")
        for stale in [IMAGE, *IMAGE.parent.glob(f".{IMAGE.name}-*")]:
            if stale.exists():
                stale.unlink()
                done.append(f"removed {stale}")
    LOCK.unlink(missing_ok=True)
    return done


def backing() -> Path | None:
    """The loop file when the mount on top of the data directory is our loop device."""
    found = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == str(DATA_ROOT):
            found = IMAGE if fields[fields.index("-") + 2].startswith("/dev/loop") else None
    return found


def _is_whole() -> bool:
    return backing() is None or not IMAGE.exists() or growth.is_whole(IMAGE)


def _ready() -> bool:
    return DATA_ROOT.is_dir() and os.access(DATA_ROOT, os.W_OK) and has_reflinks(DATA_ROOT)


def setting() -> int | None:
    """The size of a new loop file that SPACE_STORAGE_GIB asks for, in bytes; None when it is not set."""
    text = os.environ.get("SPACE_STORAGE_GIB", "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not int(text):
        raise SetupFailed(f"SPACE_STORAGE_GIB is a whole number of GiB, not {text!r}")
    return int(text) * GIB


def _free(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    facts = os.statvfs(directory)
    return facts.f_bavail * facts.f_frsize


def _make_image(size: int) -> None:
    fresh = IMAGE.with_name(f".{IMAGE.name}-{secrets.token_hex(4)}")
    try:
        with fresh.open("xb") as file:
            fresh.chmod(0o600)
            os.posix_fallocate(file.fileno(), 0, size)
        command.run(["mkfs.btrfs", "-q", "--nodiscard", "-L", "space", fresh], what="make a btrfs for the sandboxes' disks")
        fresh.rename(IMAGE)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _mount_image() -> None:
    try:
        device = loopdevice.attach(IMAGE)
    except OSError as error:
        raise SetupFailed(
            f"cannot bind {IMAGE} to a loop device: {error.strerror}",
            hint="the kernel needs loop devices (modprobe loop), a container the right to use them",
        ) from error
    try:
        loopdevice.mount(str(Path(f"/proc/self/fd/{device}").readlink()), DATA_ROOT, "btrfs", _OPTIONS)
    except OSError as error:
        loopdevice.release(device)
        raise SetupFailed(
            f"cannot mount {IMAGE} at {DATA_ROOT}: {error.strerror}", hint="the kernel needs btrfs (modprobe btrfs); or mount XFS there"
        ) from error
    with suppress(OSError):
        os.close(device)
    DATA_ROOT.chmod(0o755)
