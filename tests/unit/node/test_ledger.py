"""The ledger outlives its process, and a torn one is set aside."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import msgspec
import pytest

from space.model.errors import Internal, NoCapacity
from space.model.sandbox import Phase
from space.node.ledger import Holding, Kind, Ledger, Record

RECORD = Record("sb-a", "acme", 1, "base", "ab" * 8, 1, 512, 2048, {"A": "b"}, Phase.RUNNING, "tcg", None, {"boot": 1.5})


def test_rows_are_there_for_the_next_process_without_a_close(tmp_path: Path) -> None:
    if (pid := os.fork()) == 0:
        first = Ledger(tmp_path / "ledger.db")
        first.put(RECORD)
        first.hold(Holding(Kind.SLOT, "3", "sb-a", 1, "acme"))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    second = Ledger(tmp_path / "ledger.db")
    assert second.records() == [RECORD]
    assert second.slot_of("sb-a") == 3
    second.put(msgspec.structs.replace(RECORD, phase=Phase.FAILED, reason="why"))
    assert second.records()[0].reason == "why"
    second.release(Kind.SLOT, "3")
    second.release(Kind.SLOT, "3")
    second.forget("sb-a")
    second.forget("sb-a")
    assert (second.records(), second.holdings(), second.slot_of("sb-a")) == ([], [], None)
    assert (tmp_path / "ledger.db").stat().st_mode & 0o777 == 0o600


def test_a_torn_ledger_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"no database " * 1000)
    assert Ledger(path).records() == []
    assert (tmp_path / "ledger.torn").exists()


def test_a_ledger_that_another_process_has_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "ledger.db")
    first.put(RECORD)
    with pytest.raises(Internal, match="locked"):
        Ledger(tmp_path / "ledger.db")
    assert [path.name for path in tmp_path.iterdir() if "torn" in path.name or "shm" in path.name] == []
    assert first.records() == [RECORD]


def test_a_ledger_that_cannot_be_opened_on_a_full_disk_is_not_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(tmp_path / "ledger.db").close()

    class Full(sqlite3.Connection):
        def execute(self, *_: object) -> sqlite3.Cursor:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    open_it = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **more: open_it(path, factory=Full, **more))
    with pytest.raises(NoCapacity, match="the host's disk is full"):
        Ledger(tmp_path / "ledger.db")
    assert not (tmp_path / "ledger.torn").exists()


def test_a_ledger_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(RuntimeError, match="schema 7, this version knows 1"):
        Ledger(path)
