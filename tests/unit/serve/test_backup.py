"""A backup is one instant of the database, and a restore is all of it or nothing."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import stat
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from space.config.hold import hold
from space.config.instance import Instance, claim, load
from space.control.keys import KeyRing
from space.control.store import migrations
from space.control.store.store import Store
from space.host import syscalls
from space.model.errors import Conflict, InvalidArgument, NoCapacity, NotFound, Unauthenticated, Unavailable
from space.serve import layout, restore
from space.serve.backup import DATABASE, KEY, MANIFEST, backup, rights_of

NAME = "unit"


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that control's uid can reach, as /var/lib is."""
    made = Path(tempfile.mkdtemp(prefix="space-backup-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def instance(root: Path) -> Instance:
    made = claim(NAME, data_root=root / "data", run_root=root / "run")
    layout.make_directories(made)
    with rights_of(made.control_uid):
        asyncio.run(_first_start(made))
    return made


async def _first_start(instance: Instance) -> None:
    store = Store(instance.control_data / DATABASE)
    keys = KeyRing(store)
    await keys.ensure_admin(instance.admin_key)
    store.close()


def mint(instance: Instance, name: str) -> str:
    """Another key, as control mints one."""

    async def run() -> str:
        store = Store(instance.control_data / DATABASE)
        made = await KeyRing(store).mint("default", "tenant", name)
        store.close()
        return made.text

    with rights_of(instance.control_uid):
        return asyncio.run(run())


def works(instance: Instance, key: str) -> bool:
    """Whether control would take the key at its next start."""

    async def run() -> bool:
        store = Store(instance.control_data / DATABASE)
        try:
            keys = KeyRing(store)
            await keys.load()
            keys.authenticate(key, "127.0.0.1")
        except Unauthenticated:
            return False
        finally:
            store.close()
        return True

    with rights_of(instance.control_uid):
        return asyncio.run(run())


def put_back(instance: Instance, file: Path) -> None:
    restore.restore(instance.name, file, data_root=instance.data_root, run_root=instance.run_root)


def state(instance: Instance) -> dict[str, object]:
    """Everything below the data directory but locks: names, owners, modes, contents."""
    found: dict[str, object] = {}
    for path in sorted(instance.data.rglob("*")):
        facts = path.stat()
        if path.name not in ("lock", f"{DATABASE}-shm"):
            content = path.read_bytes() if path.is_file() else None
            found[str(path.relative_to(instance.data))] = (facts.st_uid, facts.st_mode, content)
    return found


def rewritten(file: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The backup with other members."""
    with tarfile.open(file) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    change(members)
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file


def manifest_with(**fields: object) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members[MANIFEST] = json.dumps(json.loads(members[MANIFEST]) | fields).encode()

    return change


def test_keys_work_again_and_those_minted_since_do_not(instance: Instance, root: Path) -> None:
    admin, before = instance.admin_key.read_text().strip(), mint(instance, "before")
    made = backup(instance, root / "b")
    assert ((root / "b").stat().st_mode & 0o7777, made.schema, made.instance) == (0o600, len(migrations.STEPS), NAME)
    since = mint(instance, "since")
    assert works(instance, since)
    instance.admin_key.unlink()
    put_back(instance, root / "b")
    assert works(instance, admin)
    assert works(instance, before)
    assert not works(instance, since)
    assert instance.admin_key.read_text().strip() == admin
    for path in (instance.control_data, instance.admin_key, instance.control_data / DATABASE):
        assert path.stat().st_uid == path.stat().st_gid == instance.control_uid
        assert path.stat().st_mode & 0o077 == 0
    assert not list(instance.data.glob(".restore-*"))


def test_a_backup_under_writes_is_one_instant(instance: Instance, root: Path) -> None:
    path, stop, written = instance.control_data / DATABASE, threading.Event(), 0
    setup = sqlite3.connect(path)
    setup.execute("CREATE TABLE pairs (a INTEGER, b INTEGER)")
    setup.execute("CREATE TABLE mirror (a INTEGER, b INTEGER)")
    setup.commit()
    setup.close()
    begun = threading.Event()

    def write() -> None:
        nonlocal written
        connection = sqlite3.connect(path, timeout=30)
        connection.execute("PRAGMA wal_autocheckpoint=0")
        while not stop.is_set():
            with connection:
                connection.execute("INSERT INTO pairs VALUES (?, ?)", (written, written))
                connection.execute("INSERT INTO mirror VALUES (?, randomblob(200))", (written,))
            written += 1
            if written > 50:
                begun.set()
        connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert begun.wait(30)
        counts = []
        for number in range(5):
            backup(instance, root / f"b{number}")
    finally:
        stop.set()
        thread.join()
    for number in range(5):
        with tarfile.open(root / f"b{number}") as tar:
            database = sqlite3.connect(":memory:")
            database.deserialize(tar.extractfile(DATABASE).read().replace(b"\x02\x02", b"\x01\x01", 1))  # type: ignore[union-attr]
        pairs, mirror, last = (
            database.execute(query).fetchone()[0]
            for query in ("SELECT count(*) FROM pairs", "SELECT count(*) FROM mirror", "SELECT max(a) FROM pairs")
        )
        assert pairs == mirror == last + 1
        counts.append(pairs)
    assert counts == sorted(counts)
    assert counts[0] > 50
    assert not list(instance.control_data.glob(".backup-*"))


def test_an_instance_is_restored_on_a_machine_that_has_none(instance: Instance, root: Path) -> None:
    admin = instance.admin_key.read_text().strip()
    backup(instance, root / "b")
    restore.restore("other", root / "b", data_root=root / "elsewhere", run_root=root / "run2")
    other = load("other", data_root=root / "elsewhere", run_root=root / "run2")
    assert other is not None
    assert works(other, admin)


def test_a_served_instance_is_not_restored(instance: Instance, root: Path) -> None:
    backup(instance, root / "b")
    before, held = state(instance), layout.lock(instance)
    with pytest.raises(Conflict, match="is served already, by pid"):
        put_back(instance, root / "b")
    os.close(held)
    with rights_of(instance.control_uid):
        held = hold(instance.control_data, "control")  # serve is dead and its control is not
    with pytest.raises(Conflict, match="another control works in"):
        put_back(instance, root / "b")
    os.close(held)
    assert state(instance) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda members: members.update({DATABASE: members[DATABASE][:-1] + b"!"}), "has not the digest"),
        (lambda members: members.update({DATABASE: members[DATABASE][:-512]}), "its manifest says"),
        (lambda members: members.update({KEY: b"space_x_y\n"}), "its manifest says"),
        (lambda members: members.pop(KEY), "is not where it belongs"),
        (lambda members: members.update({"more": b""}), "more than its manifest names"),
        (lambda members: members.update({MANIFEST: b"{}"}), "is no backup"),
        (lambda members: members.update({MANIFEST: b"[" * 5000}), "is no backup"),
        (lambda members: members.update({MANIFEST: bytes(70000)}), "70000 bytes"),
        (manifest_with(format=4), "has format 4, and this version of space reads 3"),
        (manifest_with(schema=999, space="9.9"), "schema 999 by space 9.9"),
        (manifest_with(schema=0), "schema .* where 0 is announced"),
        (manifest_with(files=[{"name": "../../etc/passwd", "bytes": 0, "sha256": ""}]), "names other files"),
    ],
)
def test_a_wrong_file_is_refused_and_nothing_changes(
    instance: Instance, root: Path, change: Callable[[dict[str, bytes]], None], words: str
) -> None:
    backup(instance, root / "b")
    before = state(instance)
    with pytest.raises(InvalidArgument, match=words):
        put_back(instance, rewritten(root / "b", change))
    assert state(instance) == before
    with pytest.raises(InvalidArgument, match=words):
        restore.restore("other", root / "b", data_root=instance.data_root, run_root=instance.run_root)
    assert load("other", data_root=instance.data_root, run_root=instance.run_root) is None


def test_a_file_that_is_cut_off_or_changed_anywhere_is_refused(instance: Instance, root: Path) -> None:
    backup(instance, root / "b")
    whole, before, chance = (root / "b").read_bytes(), state(instance), random.Random(7)
    with tarfile.open(root / "b") as tar:
        *_, last = tar
        end = last.offset_data + last.size
    for length in {0, 1, 511, 512, 513, end - 1, *(chance.randrange(end) for _ in range(40))}:
        (root / "b").write_bytes(whole[:length])
        with pytest.raises(InvalidArgument):
            put_back(instance, root / "b")
    with_meaning = 0
    for _ in range(150):
        place = chance.randrange(end)
        (root / "b").write_bytes(whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :])
        try:
            with (root / "b").open("rb") as file:
                restore.read(file, root / "b")
        except InvalidArgument:
            with_meaning += 1
    assert with_meaning > 100  # the rest hit padding, times or names of the manifest's words
    assert state(instance) == before


def test_links_and_odd_members_are_no_backup(root: Path, instance: Instance) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE):
        with tarfile.open(root / "b", "w") as tar:
            info = tarfile.TarInfo(MANIFEST)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        with pytest.raises(InvalidArgument):
            put_back(instance, root / "b")
    for path, words in ((root / "none", "No such file"), (root, "is no regular file")):
        with pytest.raises(InvalidArgument, match=words):
            put_back(instance, path)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_in_the_middle_it_is_the_old_state_or_the_new_one(instance: Instance, root: Path, moment: str) -> None:
    old_key = mint(instance, "old")
    backup(instance, root / "b")
    new_key = mint(instance, "new")
    child = os.fork()
    if child == 0:
        exchange = syscalls.exchange

        def cut(one: str, other: str) -> None:
            if moment == "after":
                exchange(one, other)
            os.kill(os.getpid(), signal.SIGKILL)

        syscalls.exchange = cut
        try:
            put_back(instance, root / "b")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert works(instance, old_key)
    assert works(instance, new_key) == (moment == "before")
    assert len(list(instance.data.glob(".restore-*"))) == 1  # the other state
    put_back(instance, root / "b")
    assert not works(instance, new_key)
    assert not list(instance.data.glob(".restore-*"))


def test_a_backup_that_fails_leaves_the_earlier_file(instance: Instance, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backup(instance, root / "b")
    before = (root / "b").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidArgument, match="No space left"):
        backup(instance, root / "b")
    with pytest.raises(NoCapacity, match="No space left"):
        put_back(instance, root / "b")
    assert (root / "b").read_bytes() == before
    assert sorted(path.name for path in root.iterdir()) == ["b", "data", "run"]


def test_what_a_killed_backup_left_goes_with_the_next(instance: Instance, root: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    left = [instance.control_data / f".backup-{child}-{DATABASE}{end}" for end in ("", "-journal")]
    others = instance.control_data / f".backup-{os.getppid()}-{DATABASE}"  # another backup is at it
    for path in (*left, others):
        path.write_bytes(b"x")
        os.chown(path, instance.control_uid, instance.control_uid)
    backup(instance, root / "b")
    assert not any(path.exists() for path in left)
    assert others.exists()


def test_links_in_controls_directory_lead_nowhere_that_control_cannot_go(instance: Instance, root: Path) -> None:
    secret = root / "secret"
    secret.write_text("root's own")
    secret.chmod(0o600)
    instance.admin_key.unlink()
    instance.admin_key.symlink_to(secret)
    with pytest.raises(Unavailable, match="symbolic links"):
        backup(instance, root / "b")
    instance.admin_key.unlink()
    (instance.control_data / DATABASE).unlink()
    (instance.control_data / DATABASE).symlink_to(secret)
    with pytest.raises(Unavailable, match="unable to open"):
        backup(instance, root / "b")
    assert not (root / "b").exists()
    assert os.geteuid() == 0


def test_an_instance_without_a_database_has_nothing_to_save(root: Path) -> None:
    made = claim("fresh", data_root=root / "data", run_root=root / "run")
    layout.make_directories(made)
    with pytest.raises(NotFound, match="has never been served"):
        backup(made, root / "b")


def test_an_older_schema_is_restored_and_taken_forward(instance: Instance, root: Path) -> None:
    backup(instance, root / "b")
    old = Path(__file__).parents[1] / "control/databases/0001.sql"
    database = sqlite3.connect(root / "old.db")
    database.executescript(old.read_text())
    database.close()
    data = (root / "old.db").read_bytes()

    def change(members: dict[str, bytes]) -> None:

        members[DATABASE] = data
        said = json.loads(members[MANIFEST])
        said["schema"] = 1
        said["files"][0] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        members[MANIFEST] = json.dumps(said).encode()

    put_back(instance, rewritten(root / "b", change))
    with rights_of(instance.control_uid):
        Store(instance.control_data / DATABASE).close()
    now = sqlite3.connect(instance.control_data / DATABASE)
    assert now.execute("SELECT max(version) FROM schema_version").fetchone() == (len(migrations.STEPS),)
    now.close()


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "link", "directory"])
def test_a_backup_takes_the_place_of_a_regular_file_only(instance: Instance, root: Path, kind: str) -> None:
    target = root / "there"
    before = _odd(target, kind).st_ino
    with pytest.raises(InvalidArgument, match="is no regular file"):
        backup(instance, target)
    assert target.lstat().st_ino == before
    assert sorted(path.name for path in root.iterdir()) == ["data", "run", "there"]


def test_what_came_there_while_the_backup_was_written_stays(instance: Instance, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = root / "there"
    monkeypatch.setattr(os, "fsync", lambda _: target.exists() or _odd(target, "fifo"))
    with pytest.raises(InvalidArgument, match="is no regular file"):
        backup(instance, target)
    assert target.is_fifo()
    assert sorted(path.name for path in root.iterdir()) == ["data", "run", "there"]


@pytest.mark.parametrize("name", ["", ".", "/", ".."])
def test_a_backup_wants_a_file_name(instance: Instance, name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot write"):
        backup(instance, Path(name))


@pytest.mark.parametrize("kind", ["fifo", "device", "directory"])
def test_what_is_no_regular_file_is_not_restored_nor_waited_for(root: Path, kind: str) -> None:
    _odd(root / "there", kind)
    with pytest.raises(InvalidArgument, match="is no regular file"):
        restore.restore(NAME, root / "there", data_root=root / "data", run_root=root / "run")


def _odd(path: Path, kind: str) -> os.stat_result:
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("this container may not make devices")
    elif kind == "link":
        path.symlink_to("/nowhere")
    else:
        os.mkfifo(path) if kind == "fifo" else path.mkdir()
    return path.lstat()
