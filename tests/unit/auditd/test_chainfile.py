"""The writing end of a chain: whole records or none, the next file in time, and a chain that holds through every reopening."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.audit.chain import Mac, Writer, base_statement, statement
from space.audit.files import last_record, segments, verify_files
from space.auditd.chainfile import ChainFile, Keeping
from space.auditd.server import keeping_of
from space.config.settings import Settings
from space.model.errors import Conflict

KEY = Mac(b"k" * 32)
RECORD = {"at": "t", "type": "name", "name": "www.example.com"}
LINE = len(Writer("w").line(RECORD))


class Now:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


def opened(directory: Path, now: Now, **keeping: float) -> ChainFile:
    return ChainFile(directory, "gateway", Keeping(**keeping), now)  # type: ignore[arg-type]


def vouch(file: ChainFile) -> None:
    count, last = file.end
    file.keep_head(count, last, KEY(statement("gateway", count, last)))


def counts(directory: Path) -> list[int]:
    return [segment.first for segment in segments(directory, "gateway")]


def test_a_file_is_as_long_as_allowed_and_not_a_byte_longer(tmp_path: Path) -> None:
    file = opened(tmp_path, Now(), size=3 * LINE)
    for _ in range(7):
        file.append([RECORD])
    assert counts(tmp_path) == [1, 4, 7]
    assert [segment.path.stat().st_size for segment in segments(tmp_path, "gateway")] == [3 * LINE, 3 * LINE, LINE]
    vouch(file)
    assert verify_files(tmp_path, "gateway", KEY).records == 7


def test_an_old_file_is_followed_by_a_new_one_and_removed_in_time(tmp_path: Path) -> None:
    now = Now()
    file = opened(tmp_path, now, age=60, seconds=600)
    for _ in range(5):
        file.append([RECORD])
        newest = segments(tmp_path, "gateway")[-1].path
        os.utime(newest, (now.at, now.at))
        now.at += 61
    assert counts(tmp_path) == [1, 2, 3, 4, 5]
    assert file.expired() is None
    now.at += 450
    begin = file.expired()
    assert begin is not None
    assert begin[0] == 3, "the first three were last written more than 600 seconds ago"
    vouch(file)
    file.remove(*begin, KEY(base_statement("gateway", *begin)))
    assert counts(tmp_path) == [4, 5]
    found = verify_files(tmp_path, "gateway", KEY)
    assert (found.records, found.findings) == (5, ())
    assert file.hash_at(3) == begin[1]
    assert file.hash_at(4) == last_record(segments(tmp_path, "gateway")[0].path)[1]
    assert file.hash_at(2) is None
    assert file.hash_at(6) is None


def test_the_base_of_another_is_no_reason_for_a_missing_beginning(tmp_path: Path) -> None:
    now = Now()
    file = opened(tmp_path, now, size=LINE, files=2)
    for _ in range(5):
        file.append([RECORD])
    vouch(file)
    begin = file.expired()
    assert begin is not None
    file.remove(*begin, KEY(statement("gateway", *begin)))  # a head is no base
    assert [finding.problem for finding in verify_files(tmp_path, "gateway", KEY).findings] == ["base_forged"]


def test_files_that_a_crash_left_behind_their_base_are_no_finding_and_go_at_the_next_start(tmp_path: Path) -> None:
    now = Now()
    file = opened(tmp_path, now, size=LINE, files=2)
    for _ in range(4):
        file.append([RECORD])
    vouch(file)
    kept = {segment.path: segment.path.read_bytes() for segment in segments(tmp_path, "gateway")}
    begin = file.expired()
    assert begin is not None
    file.remove(*begin, KEY(base_statement("gateway", *begin)))
    file.close()
    after = counts(tmp_path)
    for path, data in kept.items():
        path.write_bytes(data)
    assert verify_files(tmp_path, "gateway", KEY).findings == ()
    opened(tmp_path, now).close()
    assert counts(tmp_path) == after


def test_what_cannot_be_written_whole_is_not_written_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path, Now())
    file.append([RECORD])
    path = segments(tmp_path, "gateway")[0].path
    before, end, write = path.read_bytes(), file.end, os.write

    def half(descriptor: int, data: memoryview) -> int:
        if len(data) < 2 * LINE:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        file.append([RECORD, RECORD, RECORD])
    monkeypatch.undo()
    assert (path.read_bytes(), file.end) == (before, end)
    file.append([RECORD])
    vouch(file)
    assert verify_files(tmp_path, "gateway", KEY).records == 2


def test_a_gap_between_files_is_not_written_behind(tmp_path: Path) -> None:
    file = opened(tmp_path, Now(), size=LINE)
    for _ in range(3):
        file.append([RECORD])
    file.close()
    segments(tmp_path, "gateway")[1].path.unlink()
    with pytest.raises(Conflict, match="begins at record 3"):
        opened(tmp_path, Now())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["go on", "reopen", "torn", "vouch"])), max_size=25), st.integers(1, 5))
def test_a_chain_holds_through_any_course_of_events(course: list[tuple[int, str]], lines: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory, now, total = Path(name), Now(), 0
        file = opened(directory, now, size=lines * LINE + 3, files=3)
        for count, event in course:
            file.append([RECORD] * count)
            total += count
            if event == "vouch":
                vouch(file)
                begin = file.expired()
                if begin is not None:
                    file.remove(*begin, KEY(base_statement("gateway", *begin)))
            if event in ("reopen", "torn"):
                file.close()
                if event == "torn":
                    with segments(directory, "gateway")[-1].path.open("ab") as tail:
                        tail.write(b'{"n":1' * count)
                file = opened(directory, now, size=lines * LINE + 3, files=3)
            assert file.end[0] == total
        vouch(file)
        file.close()
        found = verify_files(directory, "gateway", KEY)
        assert (found.records, found.unvouched, found.findings) == (total, 0, ())


@pytest.mark.parametrize(("mib", "days"), [(1, 1), (10, 7), (4096, 90), (100_000, 3650)])
def test_records_of_all_chains_take_no_more_than_the_setting_says(mib: int, days: int) -> None:
    keeping = keeping_of(Settings(egress_log_mib=mib, audit_days=days), 2)
    assert 2 * keeping.size * keeping.files <= mib << 20
    assert keeping.files >= 2
    assert keeping.seconds == days * 86_400
