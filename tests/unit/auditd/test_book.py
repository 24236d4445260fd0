"""One chain and what waits for its disk."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from space.audit.files import Wanted, export
from space.auditd.book import Book, Entry
from space.auditd.chainfile import ChainFile, Keeping

ONE = "sb-" + "a" * 20


def test_what_waits_for_a_disk_has_a_bound_and_beyond_it_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ChainFile(tmp_path, "gateway", Keeping(), lambda: 0.0)
    book = Book(file, lambda: "2026-01-01T00:00:00.000Z", most=100)
    entries = [Entry(ONE, b'{"type":"name","number":%d}' % number) for number in range(9)]

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(file, "append", full)
        book.note(entries[:3])
        book.flush()
    assert book.stuck
    book.note(entries[3:])
    assert book.lost == 6
    book.flush()
    file.close()
    assert (book.stuck, book.lost) == (False, 0)
    kept = [json.loads(line) for line in export(tmp_path, "gateway", Wanted())]
    assert [record["type"] for record in kept] == ["name", "name", "name", "lost"]
    assert kept[-1]["count"] == 6
