"""What goes along with a recipe: as a tar stream that is read back whole, and as digests that tell every difference."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from space.model.errors import InvalidArgument
from space.sdk.buildfiles import digest, packed


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    app = tmp_path / "recipe/app"
    (app / "deep").mkdir(parents=True)
    (app / "deep/file").write_bytes(os.urandom(600_000))
    (app / "deep/run").write_text("#!/bin/sh\n")
    (app / "deep/run").chmod(0o755)
    (app / "link").symlink_to("deep/file")
    (app / ("x" * 120)).write_text("a long name")
    (tmp_path / "recipe/one file").write_text("one")
    (tmp_path / "got/wheel").mkdir(parents=True)
    (tmp_path / "got/wheel/a.whl").write_text("wheel")
    return tmp_path


def test_stream_holds_what_the_recipe_needs(tree: Path) -> None:
    data = b"".join(packed(tree / "recipe", ["app", "one file"], tree / "got"))
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        content = archive.extractfile("files/app/deep/file")
        assert content is not None
        assert content.read() == (tree / "recipe/app/deep/file").read_bytes()
        assert archive.getmember("files/app/deep/run").mode == 0o755
        assert archive.getmember("files/app/link").linkname == "deep/file"
    assert names == [
        "files/app", "files/app/deep", "files/app/deep/file", "files/app/deep/run", "files/app/link", f"files/app/{'x' * 120}",
        "files/one file", "downloads", "downloads/wheel", "downloads/wheel/a.whl",
    ]  # fmt: skip


def test_digest_tells_every_difference_that_counts(tree: Path) -> None:
    app = tree / "recipe/app"
    seen = [digest(app)]
    os.utime(app / "deep/file", (1, 1))
    assert digest(app) == seen[0]
    for change in (
        lambda: (app / "deep/run").chmod(0o644),
        lambda: (app / "deep/run").write_text("#!/bin/bash\n"),
        lambda: (app / "deep/run").rename(app / "deep/walk"),
        lambda: (app / "empty").mkdir(),
        lambda: (app / "link").rename(app / "other"),
    ):
        change()
        seen.append(digest(app))
    assert len(set(seen)) == len(seen)


def test_what_cannot_come_along_is_refused(tree: Path) -> None:
    os.mkfifo(tree / "recipe/app/fifo")
    with pytest.raises(InvalidArgument, match="fifo is no file"):
        digest(tree / "recipe/app")
    with pytest.raises(InvalidArgument, match="cannot read"):
        b"".join(packed(tree / "recipe", ["missing"], None))
