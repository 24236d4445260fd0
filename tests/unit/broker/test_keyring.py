"""What lies on the disk opens with the right key for the right purpose and is nothing without it; a ring turns and loses nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.broker import keyring
from space.broker.keyring import Keyring, Sealed
from space.broker.store import Entry, Store
from space.config import keyfile
from space.model.errors import Conflict, Internal, InvalidArgument
from space.model.secret import Secret

OLD, NEW = Secret(b"o" * 32), Secret(b"n" * 32)
CANARY = b"canary-key-material-0123456789"


def test_an_envelope_opens_with_its_key_for_its_purpose_only() -> None:
    envelope = Keyring([OLD]).seal("root a", Secret(CANARY))
    assert CANARY not in envelope
    assert Keyring([NEW, OLD]).open("root a", envelope).reveal() == CANARY
    with pytest.raises(Sealed, match="not what was written"):
        Keyring([OLD]).open("root b", envelope)
    with pytest.raises(Sealed, match="not in the ring"):
        Keyring([NEW]).open("root a", envelope)


@given(st.data())
def test_no_other_bytes_open(data: st.DataObject) -> None:
    ring = Keyring([OLD])
    envelope = bytearray(ring.seal("p", Secret(CANARY)))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(envelope) - 1))
        envelope[at] ^= data.draw(st.integers(1, 255))
    else:
        envelope = bytearray(data.draw(st.binary(max_size=80)))
    with pytest.raises(Sealed):
        ring.open("p", bytes(envelope))


def test_a_ring_is_read_from_a_file_of_this_uid_alone(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    keyfile.make(path)
    assert path.stat().st_mode & 0o777 == 0o600
    sealed = keyring.read(path).seal("p", Secret(CANARY))
    assert keyring.read(path).open("p", sealed).reveal() == CANARY
    with pytest.raises(FileExistsError):
        keyfile.make(path)
    path.chmod(0o640)
    with pytest.raises(InvalidArgument, match="mode 0640"):
        keyring.read(path)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        keyring.read(tmp_path / "link")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        keyring.read(tmp_path / "none")


def test_a_ring_that_was_cut_off_while_it_was_made_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        keyfile.make(tmp_path / "ring")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_a_ring_of_somebody_else_is_refused(tmp_path: Path) -> None:
    keyfile.make(tmp_path / "ring")
    os.chown(tmp_path / "ring", 12345, 12345)
    with pytest.raises(InvalidArgument, match="uid 12345"):
        keyring.read(tmp_path / "ring")


@pytest.mark.parametrize("text", ["", "zz" * 32, "ab" * 31, "ab" * 33, "ab" * 32 + "\n" + "cafebabe"])
def test_a_ring_that_is_none_is_refused_without_its_content(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        keyring.parse(text)
    for line in text.split():
        assert line not in str(refused.value)


def test_the_variable_is_taken_out_of_the_environment() -> None:
    environment = {keyring.VARIABLE: "ab" * 32, "LANG": "C"}
    ring = keyring.from_environment(environment)
    assert ring is not None
    assert environment == {"LANG": "C"}
    assert "ab" * 8 not in repr(ring)
    assert keyring.from_environment(environment) is None


def test_a_ring_turns_and_the_old_key_opens_nothing_any_more(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db", Keyring([OLD]))
    for version in range(5):
        store.put("root", "base", version, Entry(b"certificate", Secret(CANARY + bytes([version]))))
    with pytest.raises(Sealed):
        store.turn(Keyring([NEW]))
    assert store.get("root", "base", 3) is not None, "a refused ring changed nothing"
    assert store.turn(Keyring([NEW, OLD])) == 5
    assert store.turn(Keyring([NEW, OLD])) == 0
    store.close()
    again = Store(tmp_path / "store.db", Keyring([NEW]))
    entry = again.get("root", "base", 4)
    assert entry is not None
    assert entry.secret.reveal() == CANARY + b"\4"
    again.close()
    with pytest.raises(Sealed):
        Store(tmp_path / "store.db", Keyring([OLD])).get("root", "base", 4)
    for file in tmp_path.iterdir():
        data = file.read_bytes()
        assert CANARY not in data
        assert Keyring([OLD]).current not in data, "an envelope of the old key is still there"


def test_a_version_is_kept_once_and_can_be_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db", Keyring([OLD]))
    store.put("root", "base", 1, Entry(b"c", Secret(CANARY)))
    with pytest.raises(Conflict):
        store.put("root", "base", 1, Entry(b"d", Secret(b"other")))
    assert store.names("root") == [("base", 1)]
    assert store.remove("root", "base", 1)
    assert not store.remove("root", "base", 1)
    assert store.get("root", "base", 1) is None
    assert (tmp_path / "store.db").stat().st_mode & 0o777 == 0o600


def test_a_torn_store_and_one_of_another_version_are_refused_and_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "torn.db").write_bytes(b"not a database at all" * 400)
    with pytest.raises(Internal, match="cannot be read"):
        Store(tmp_path / "torn.db", Keyring([OLD]))
    assert (tmp_path / "torn.db").read_bytes().startswith(b"not a database")
    Store(tmp_path / "new.db", Keyring([OLD])).close()
    with sqlite3.connect(tmp_path / "new.db") as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(Conflict, match="schema 9"):
        Store(tmp_path / "new.db", Keyring([OLD]))


_WRITER = """
import sys
from pathlib import Path
from space.broker.keyring import Keyring
from space.broker.store import Entry, Store
from space.config import keyfile
from space.model.secret import Secret
store = Store(Path(sys.argv[1]), Keyring([Secret(b"o" * 32)]))
for version in range(int(sys.argv[2]), 100000):
    store.put("root", "base", version, Entry(b"c", Secret(b"%d" % version)))
    print(version, flush=True)
    if version % 3 == 0:
        ring = Keyring([Secret(bytes([version % 256]) * 32), Secret(b"o" * 32)])
        store.turn(ring)
        store.turn(Keyring([Secret(b"o" * 32), Secret(bytes([version % 256]) * 32)]))
"""


def test_no_secret_that_was_promised_is_lost_by_a_kill_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    promised = 0
    for attempt in range(6):
        arguments = [sys.executable, "-c", _WRITER, str(path), str(promised + 1000 * attempt)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            first = int(process.stdout.readline())
            time.sleep(0.003 + 0.011 * attempt)
            process.send_signal(signal.SIGKILL)
            told = [first, *(int(line) for line in process.stdout.read().splitlines())]
        promised = max(told)
        ring = Keyring([Secret(b"o" * 32), *(Secret(bytes([key]) * 32) for key in {version % 256 for version in range(promised + 2)})])
        store = Store(path, ring)
        for version in told:
            entry = store.get("root", "base", version)
            assert entry is not None
            assert entry.secret.reveal() == b"%d" % version
        store.turn(Keyring([Secret(b"o" * 32), *(Secret(bytes([key]) * 32) for key in range(256))]))
        store.close()
