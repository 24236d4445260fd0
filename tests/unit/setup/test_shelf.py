"""Staging and committing; everything below a temporary directory (as root, as set-up is)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from space.setup import inputs, shelf


def test_what_is_committed_is_whole_owned_by_root_and_read_only(tmp_path: Path) -> None:
    final = tmp_path / "kernel" / "0123456789abcdef"
    with shelf.staged(final) as stage:
        (stage / "sub").mkdir(mode=0o700)
        (stage / "sub" / "tool").write_text("#!/bin/sh\n")
        (stage / "sub" / "tool").chmod(0o700)
        (stage / "plain").write_text("x")
        (stage / "link").symlink_to("nowhere")
        os.chown(stage / "plain", 1234, 1234)
    modes = {path.name: (path.lstat().st_mode & 0o777, path.lstat().st_uid) for path in final.rglob("*") if not path.is_symlink()}
    assert modes == {"sub": (0o555, 0), "tool": (0o555, 0), "plain": (0o444, 0)}
    assert [entry.name for entry in final.parent.iterdir()] == [final.name]


def test_a_failed_stage_leaves_nothing(tmp_path: Path) -> None:
    final = tmp_path / "kernel" / "0123456789abcdef"

    def fill_the_disk() -> None:
        with shelf.staged(final) as stage:
            (stage / "half").write_text("x")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fill_the_disk()
    assert not any(final.parent.iterdir())


def test_of_two_who_commit_the_same_the_first_stays(tmp_path: Path) -> None:
    final = tmp_path / "0123456789abcdef"
    with shelf.staged(final) as slow:
        (slow / "who").write_text("slow")
        with shelf.staged(final) as quick:
            (quick / "who").write_text("quick")
    assert (final / "who").read_text() == "quick"
    assert [entry.name for entry in tmp_path.iterdir()] == [final.name]


def test_a_sweep_takes_stages_alone(tmp_path: Path) -> None:
    with shelf.staged(tmp_path / "0123456789abcdef"):
        pass
    (tmp_path / f"{shelf.STAGE}dead").mkdir()
    (tmp_path / f"{shelf.STAGE}dead" / "frozen").mkdir(mode=0o555)
    shelf.sweep_stages(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["0123456789abcdef"]


def test_the_newest_of_a_recipe_is_found(tmp_path: Path) -> None:
    for number, (name, recipe) in enumerate([("a" * 16, "one"), ("b" * 16, "one"), ("c" * 16, "two")]):
        with shelf.staged(tmp_path / name) as stage:
            shelf.describe(stage, recipe=recipe)
        os.utime(tmp_path / name, (1000 + number, 1000 + number))
    assert shelf.newest(tmp_path, "one") == tmp_path / ("b" * 16)
    assert shelf.newest(tmp_path, "three") is None
    assert shelf.newest(tmp_path / "nothing", "one") is None


def test_a_link_is_turned_over_in_one_step_and_only_when_it_changes(tmp_path: Path) -> None:
    link = tmp_path / "names" / "base"
    assert shelf.point(link, "../template/one")
    assert not shelf.point(link, "../template/one")
    assert shelf.point(link, "../template/two")
    assert str(link.readlink()) == "../template/two"
    assert [entry.name for entry in link.parent.iterdir()] == ["base"]


def test_a_tree_s_digest_follows_content_place_and_execute_bit_alone(tmp_path: Path) -> None:
    def digest() -> str:
        return inputs.of_tree(tmp_path, inputs.sources(tmp_path, without=frozenset({"target"})))

    (tmp_path / "a.py").write_text("1")
    first = digest()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.cpython-311.pyc").write_text("junk")
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "big").write_text("junk")
    os.utime(tmp_path / "a.py", (1, 1))
    assert digest() == first
    (tmp_path / "a.py").chmod(0o755)
    executable = digest()
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    renamed = digest()
    (tmp_path / "b.py").write_text("2")
    assert len({first, executable, renamed, digest()}) == 4
