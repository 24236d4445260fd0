"""The loop file, its device and its mount, for real, beside those of the machine; and what set-up has built on this host."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from space.config.artefacts import CERTIFICATE, Store
from space.config.instance import DATA_ROOT
from space.core.plan.machine import GATEWAY
from space.host import syscalls
from space.setup import mounts, storage
from space.setup.faults import SetupFailed
from space.setup.root import OURS

SIZE = 256 << 20


def loops() -> dict[str, str]:
    """Loop device to the file behind it."""
    return {entry.parents[1].name: entry.read_text().strip() for entry in Path("/sys/block").glob("loop*/loop/backing_file")}


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Makes places that stand for /var/lib of a machine (or of a chroot on it); the last one made is the current one."""
    made: list[Path] = []

    def make() -> Path:
        place = tmp_path_factory.mktemp("lib")
        made.append(place)
        enter(place)
        return place

    def enter(place: Path) -> None:
        monkeypatch.setattr(storage, "DATA_ROOT", place / "space")
        monkeypatch.setattr(storage, "IMAGE", place / "space.img")
        monkeypatch.setattr(storage, "LOCK", place / "space.lock")

    yield make
    for place in made:
        enter(place)
        storage.undo()
        assert [entry.name for entry in place.iterdir() if entry.name != "space"] == []
        assert mounts.below(place) == []
        assert str(place / "space.img") not in loops().values()


def test_a_directory_without_reflinks_gets_them_once(machine: Callable[[], Path]) -> None:
    place = machine()
    assert not storage.has_reflinks(place)
    first = storage.ensure(SIZE)
    assert (first.image, first.changed) == (place / "space.img", True)
    assert storage.has_reflinks(place / "space")
    again = storage.ensure(SIZE)
    assert (again.image, again.changed) == (place / "space.img", False)


def test_after_a_reboot_the_same_data_is_mounted_again(machine: Callable[[], Path]) -> None:
    place = machine()
    storage.ensure(SIZE)
    (place / "space/kept").write_text("data")
    syscalls.umount2(str(place / "space"))
    assert str(place / "space.img") not in loops().values()
    assert storage.ensure(SIZE).changed
    assert (place / "space/kept").read_text() == "data"


def test_the_loop_file_stays_allocated_whole_after_files_are_deleted(machine: Callable[[], Path]) -> None:
    place = machine()
    storage.ensure(SIZE)
    big = place / "space/big"
    with big.open("wb") as file:
        file.write(os.urandom(64 << 20))
        os.fsync(file.fileno())
    big.unlink()
    subprocess.run(["btrfs", "filesystem", "sync", place / "space"], check=True, capture_output=True)
    facts = (place / "space.img").stat()
    assert facts.st_blocks * 512 >= facts.st_size == SIZE


def test_two_machines_on_one_kernel_get_devices_of_their_own(machine: Callable[[], Path]) -> None:
    images = set()
    for _ in range(2):
        images.add(str(machine() / "space.img"))
        storage.ensure(SIZE)
    behind = loops()
    assert images <= set(behind.values())
    assert len([file for file in behind.values() if file in images]) == 2


def test_files_that_a_mount_would_hide_are_refused(machine: Callable[[], Path]) -> None:
    place = machine()
    (place / "space").mkdir()
    (place / "space/instances").mkdir()
    with pytest.raises(SetupFailed, match="holds files on a file system without reflinks"):
        storage.ensure(SIZE)
    assert not (place / "space.img").exists()


def test_a_mount_in_use_is_named_and_stays(machine: Callable[[], Path]) -> None:
    place = machine()
    storage.ensure(SIZE)
    with (place / "space/held").open("w"), pytest.raises(SetupFailed, match=f"cannot unmount {place}/space: {os.strerror(errno.EBUSY)}"):
        storage.undo()
    assert storage.has_reflinks(place / "space")


def test_a_file_system_with_reflinks_is_taken_as_it_is(machine: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    place = machine()
    storage.ensure(SIZE)
    monkeypatch.setattr(storage, "DATA_ROOT", place / "space/data")
    monkeypatch.setattr(storage, "IMAGE", place / "space/data.img")
    monkeypatch.setattr(storage, "LOCK", place / "space/data.lock")
    (place / "space/data").mkdir()
    found = storage.ensure()
    assert (found.image, found.changed) == (None, False)
    assert not storage.IMAGE.exists()


# -- what set-up has built here -------------------------------------------------------------------------------------------
def in_disk(command: str) -> str:
    """What debugfs says about the base template's disk: it reads the file, and nothing is mounted."""
    store = Store(DATA_ROOT / "artefacts")
    disk = store.path("template", store.template("base").digest) / "disk.img"
    done = subprocess.run(["debugfs", "-R", command, disk], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def test_the_base_template_has_nothing_of_this_machine() -> None:
    certificates = in_disk("cat /etc/ssl/certs/ca-certificates.crt").count("BEGIN CERTIFICATE")
    of_debian = in_disk("cat /etc/ca-certificates.conf").count("mozilla/")
    assert certificates > 100
    assert abs(certificates - of_debian) <= 10, "certificates that Debian's package does not bring"
    store = Store(DATA_ROOT / "artefacts")
    authority = store.authority(store.template("base").root) / CERTIFICATE
    assert in_disk(f"cat {OURS}") == authority.read_text(), "the certificate that stands there is not the one of the template"
    for directory in ("/etc/apt/sources.list.d", "/var/lib/apt/lists/partial", "/var/cache/apt/archives/partial", str(Path(OURS).parent)):
        names = [line.split("/")[5] for line in in_disk(f"ls -p {directory}").splitlines() if line.startswith("/")]
        assert set(names) - {".", ".."} == ({Path(OURS).name} if directory == str(Path(OURS).parent) else set()), directory
    for settings in ("/etc/apt/apt.conf.d/99mmdebstrap", "/etc/dpkg/dpkg.cfg.d/99mmdebstrap"):
        assert "Inode" not in in_disk(f"stat {settings}"), settings
    assert in_disk("cat /etc/machine-id") == ""
    assert in_disk("cat /etc/resolv.conf") == f"nameserver {GATEWAY}\n", "a resolver that is not the guest's own gateway"


def test_the_base_template_s_user_is_uid_1000_and_may_become_root() -> None:
    assert "user:x:1000:1000::/home/user:/bin/bash" in in_disk("cat /etc/passwd")
    assert "NOPASSWD" in in_disk("cat /etc/sudoers.d/user")
    assert "Mode:  0440" in in_disk("stat /etc/sudoers.d/user")
    assert f"{in_disk('cat /etc/hostname').strip()}" in in_disk("cat /etc/hosts")


def test_artefacts_belong_to_root_and_nobody_can_write_them() -> None:
    for path in (DATA_ROOT / "artefacts").glob("*/*/**/*"):
        facts = path.lstat()
        assert facts.st_uid == 0, path
        assert path.is_symlink() or not facts.st_mode & 0o222, path
