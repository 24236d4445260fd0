"""The broker's store comes back with the records that it vouched for, and only where its key is; the key travels when asked to."""

from __future__ import annotations

import os
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from space.broker import keyring as rings
from space.broker.keyring import Keyring
from space.broker.store import Entry, Store
from space.config.instance import Instance, claim, load
from space.config.settings import Settings
from space.control.store.store import Store as ControlStore
from space.host import syscalls
from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.secret import Secret
from space.serve import exchange, keyring, layout
from space.serve.backup import DATABASE, RING, backup, rights_of
from space.serve.restore import Wanted, restore

ALL = Wanted()
FILE = f"gateway.{1:020d}.jsonl"


@pytest.fixture
def root() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="space-backup-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def instance(root: Path) -> Instance:
    return served(root, "here")


def served(root: Path, where: str) -> Instance:
    """As a first serve leaves it. where: a machine."""
    made = claim("unit", data_root=root / where / "data", run_root=root / where / "run")
    layout.make_directories(made)
    keyring.ensure(made, Settings())
    with rights_of(made.control_uid):
        ControlStore(made.control_data / DATABASE).close()
    keep(made, "first", 1)
    with rights_of(made.audit_uid):
        (made.audit_data / FILE).write_bytes(b"one\n")
        (made.audit_data / "gateway.head").write_bytes(b"1 head\n")
    return made


def ring(instance: Instance) -> Keyring:
    return rings.parse(instance.broker_keyring.read_text())


def keep(instance: Instance, secret: str, version: int) -> None:
    with rights_of(instance.broker_uid), closing(Store(instance.broker_data / keyring.STORE, ring(instance))) as store:
        store.put("root", "a", version, Entry(b"public", Secret(secret.encode())))


def kept(instance: Instance) -> dict[int, str]:
    with rights_of(instance.broker_uid), closing(Store(instance.broker_data / keyring.STORE, ring(instance))) as store:
        found = {version: store.get("root", "a", version) for _, version in store.names("root")}
        return {version: entry.secret.reveal().decode() for version, entry in found.items() if entry is not None}


def put_back(instance: Instance, file: Path, wanted: Wanted = ALL) -> None:
    restore(instance.name, file, wanted, data_root=instance.data_root, run_root=instance.run_root)


def elsewhere(root: Path, file: Path, wanted: Wanted = ALL) -> Instance:
    """Restored on a machine that has no instance."""
    where = {"data_root": root / "there" / "data", "run_root": root / "there" / "run"}
    restore("unit", file, wanted, **where)
    found = load("unit", **where)
    assert found is not None
    return found


def test_store_and_records_come_back_and_what_is_newer_of_the_records_is_put_aside(instance: Instance, root: Path) -> None:
    backup(instance, root / "b")
    keep(instance, "second", 2)
    with rights_of(instance.audit_uid), (instance.audit_data / FILE).open("ab") as file:
        file.write(b"two\n")
    put_back(instance, root / "b")
    assert kept(instance) == {1: "first"}
    assert (instance.audit_data / FILE).read_bytes() == b"one\n"
    assert (instance.audit_data / "gateway.head").read_bytes() == b"1 head\n"
    (aside,) = instance.data.glob("audit-before-*")
    assert (aside / FILE).read_bytes() == b"one\ntwo\n"
    owners = {path: path.stat() for path in (instance.broker_data, instance.audit_data, instance.audit_data / FILE)}
    assert [facts.st_uid for facts in owners.values()] == [instance.broker_uid, instance.audit_uid, instance.audit_uid]
    assert {facts.st_mode & 0o077 for facts in owners.values()} == {0}


def test_the_key_is_in_the_file_only_when_it_is_asked_for(instance: Instance, root: Path) -> None:
    backup(instance, root / "without")
    backup(instance, root / "with", with_keyring=True)
    key = instance.broker_keyring.read_bytes().strip()
    assert key not in (root / "without").read_bytes()
    with tarfile.open(root / "with") as tar:
        assert tar.getnames()[-1] == RING
    assert key in (root / "with").read_bytes()
    instance.broker_keyring.unlink()
    with pytest.raises(NotFound, match="there is no keyring"):
        backup(instance, root / "again", with_keyring=True)


def test_a_store_without_its_key_is_refused_with_the_remedy_and_nothing_is_made(instance: Instance, root: Path) -> None:
    backup(instance, root / "b")
    with pytest.raises(Conflict, match="there is no key that opens it") as caught:
        elsewhere(root, root / "b")
    assert "--keyring FILE" in str(caught.value.hint)
    assert load("unit", data_root=root / "there" / "data", run_root=root / "there" / "run") is None

    other = served(root, "there")
    before = kept(other)
    with pytest.raises(Conflict, match="which is not in the ring"):
        put_back(other, root / "b")
    assert kept(other) == before


def test_the_key_comes_by_itself_or_with_the_backup_and_no_key_that_was_there_is_lost(instance: Instance, root: Path) -> None:
    backup(instance, root / "b")
    shutil.copy(instance.broker_keyring, root / "key")
    other = elsewhere(root, root / "b", Wanted(keyring=root / "key"))
    assert kept(other) == {1: "first"}
    facts = other.broker_keyring.stat()
    assert (facts.st_uid, facts.st_mode & 0o777) == (other.broker_uid, 0o600)
    shutil.rmtree(root / "there")

    other = served(root, "there")
    own = other.broker_keyring.read_text().split()
    backup(instance, root / "whole", with_keyring=True)
    put_back(other, root / "whole")
    assert kept(other) == {1: "first"}
    assert other.broker_keyring.read_text().split() == [*(root / "key").read_text().split(), *own]
    put_back(other, root / "whole")
    assert len(other.broker_keyring.read_text().split()) == 2
    with pytest.raises(InvalidArgument, match="there is no keyring"):
        put_back(other, root / "whole", Wanted(keyring=root / "none"))


def test_the_rest_is_restored_without_the_broker(instance: Instance, root: Path) -> None:
    backup(instance, root / "b")
    other = served(root, "there")
    keep(other, "theirs", 7)
    put_back(other, root / "b", Wanted(broker=False))
    assert kept(other) == {1: "first", 7: "theirs"}
    assert not list(other.data.glob("audit-before-*"))


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_killed_between_two_directories_the_next_start_ends_it(instance: Instance, root: Path, after: int) -> None:
    backup(instance, root / "b")
    keep(instance, "second", 2)
    child = os.fork()
    if child == 0:
        real, done = syscalls.exchange, [0]

        def cut(one: str, other: str) -> None:
            if done[0] == after:
                os.kill(os.getpid(), signal.SIGKILL)
            done[0] += 1
            real(one, other)

        def removed(_: Path) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        syscalls.exchange = cut
        exchange.shelf.remove = removed  # type: ignore[attr-defined]
        try:
            put_back(instance, root / "b")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    layout.make_directories(instance)
    assert exchange.finish(instance) == (after < 3)
    assert not exchange.finish(instance)
    assert kept(instance) == {1: "first"}
    assert len(list(instance.data.glob("audit-before-*"))) == 1


def test_names_that_no_backup_has_are_refused(instance: Instance, root: Path) -> None:
    from space.serve.restore import _are_known

    assert _are_known([DATABASE])
    assert _are_known([DATABASE, "broker/store.db", f"audit/{FILE}", RING])
    for names in (
        [],
        ["admin-key"],
        [DATABASE, DATABASE],
        [DATABASE, "audit/../x"],
        [DATABASE, "audit/a/b.head"],
        [DATABASE, RING, "broker/store.db"],
        [DATABASE, "broker/other.db"],
        [DATABASE, "/etc/passwd"],
    ):
        assert not _are_known(names), names
