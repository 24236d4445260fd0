"""What is mounted where, and taking it away."""

from __future__ import annotations

from pathlib import Path

from space.host import syscalls
from space.setup.faults import SetupFailed


def below(directory: Path) -> list[Path]:
    """Mount points at or below `directory`, in the order in which they were made; a point with two mounts is there twice."""
    points = [Path(line.split()[4].encode().decode("unicode_escape")) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.is_relative_to(directory)]


def source(point: Path) -> str | None:
    """What the topmost mount at `point` is of, such as a device; None when nothing is mounted there."""
    return _last(point, 2)


def kind(point: Path) -> str | None:
    """The file system of the topmost mount at `point`."""
    return _last(point, 1)


def _last(point: Path, after_dash: int) -> str | None:
    found = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if Path(fields[4].encode().decode("unicode_escape")) == point:
            found = fields[fields.index("-") + after_dash]
    return found


def unmount(point: Path) -> None:
    """Take a mount away; SetupFailed when it is in use."""
    try:
        syscalls.umount2(str(point))
    except OSError as error:
        raise SetupFailed(
            f"cannot unmount {point}: {error.strerror}", hint=f"end what still uses it (fuser -vm {point} shows it)"
        ) from error
