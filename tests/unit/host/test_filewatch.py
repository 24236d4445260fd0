"""A file is watched through rewriting, replacing, links that are turned, and its absence; nothing else wakes the watcher."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from space.host.filewatch import FileWatch


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "real").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "real" / "one").write_text("1")
    (tmp_path / "etc" / "conf").symlink_to("../real/one")
    return tmp_path


@pytest.fixture
def watch(place: Path) -> Iterator[FileWatch]:
    made = FileWatch(place / "etc" / "conf")
    assert not made.changed()
    yield made
    made.close()


def _woken(watch: FileWatch) -> bool:
    ready, _, _ = select.select([watch], [], [], 0.2)
    return bool(ready) and watch.changed() and not watch.changed()


def test_a_write_in_place_is_noticed_each_time(place: Path, watch: FileWatch) -> None:
    for text in ("2", "3"):
        (place / "real" / "one").write_text(text)
        assert _woken(watch)


def test_a_file_that_takes_the_name_is_noticed_and_watched(place: Path, watch: FileWatch) -> None:
    (place / "real" / "new").write_text("2")
    (place / "real" / "new").rename(place / "real" / "one")
    assert _woken(watch)
    (place / "real" / "one").write_text("3")
    assert _woken(watch)


def test_a_link_that_is_turned_is_noticed_and_what_it_leads_to_is_watched(place: Path, watch: FileWatch) -> None:
    (place / "other").mkdir()
    (place / "other" / "two").write_text("2")
    (place / "etc" / "turned").symlink_to(place / "other" / "two")
    (place / "etc" / "turned").rename(place / "etc" / "conf")
    assert _woken(watch)
    (place / "other" / "two").write_text("3")
    assert _woken(watch)


def test_a_file_that_goes_and_comes_back_is_noticed(place: Path, watch: FileWatch) -> None:
    (place / "real" / "one").unlink()
    assert _woken(watch)
    (place / "real" / "one").write_text("2")
    assert _woken(watch)


def test_reading_wakes_nobody(place: Path, watch: FileWatch) -> None:
    assert (place / "etc" / "conf").read_text() == "1"
    assert not _woken(watch)
