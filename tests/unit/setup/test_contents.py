"""An artefact's contents are recorded once and verified for ever, and a sparse file is what it reads as."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from space.setup import contents, shelf

MIB = 1 << 20


def test_what_was_changed_added_or_taken_is_told(tmp_path: Path) -> None:
    final = tmp_path / "0123456789abcdef"
    with shelf.staged(final, recorded=True) as stage:
        (stage / "sub").mkdir()
        (stage / "sub/a").write_text("a")
        (stage / "b").write_text("b")
        (stage / "link").symlink_to("b")
    assert contents.differences(final) == []
    (final / "b").write_text("B")
    (final / "sub/a").unlink()
    (final / "new").write_text("")
    (final / "link").unlink()
    (final / "link").symlink_to("sub")
    assert contents.differences(final) == ["sub/a is gone", "new was added", "b was changed", "link was changed"]
    assert contents.differences(tmp_path) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5 * MIB), st.binary(min_size=1, max_size=9)), max_size=4), st.integers(0, 5 * MIB))
def test_a_hole_is_the_zeros_that_it_reads_as(tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bytes]], size: int) -> None:
    place = tmp_path_factory.mktemp("sparse")
    sparse, dense = place / "sparse", place / "dense"
    with sparse.open("wb") as file:
        for at, data in writes:
            os.pwrite(file.fileno(), data, at)
        file.truncate(size)
    dense.write_bytes(sparse.read_bytes())
    assert contents.digest(sparse) == contents.digest(dense)
    if size:
        changed = bytearray(dense.read_bytes())
        changed[size // 2] ^= 1
        dense.write_bytes(changed)
        assert contents.digest(sparse) != contents.digest(dense)
